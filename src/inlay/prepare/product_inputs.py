"""Activations that products with constant weights read: what the outliers of a model are looked for in."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inlay.model.graph import Graph, Node
from inlay.types import Port

_LEAST_SHARE = 0.05  # of a model's multiplications, that products have where scales are looked for


@dataclass(frozen=True)
class ProductInput:
    """An activation that products read, perhaps through Reshape nodes that keep its last axis.

    Attributes:
        readers: ports through which the products get it.
        products: the products, with constant weights that nothing else reads.
        normalization: the LayerNormalization that can take the scales in, or an empty name.
    """

    value: str
    readers: tuple[Port, ...]
    products: tuple[str, ...]
    normalization: str = ""

    @property
    def multiplier(self) -> str:
        """The name of the Mul that divides it by scales, where one is written."""
        return f"{self.value}_equalize"

    @property
    def multiplied(self) -> tuple[Port, Port]:
        """What that reads: the activation, and the factors."""
        return Port(self.multiplier, 0), Port(self.multiplier, 1)

    def read_by(self, graph: Graph) -> list[str]:
        """The values that the products read."""
        return [graph.value_of(Port(name, 0)) for name in self.products]


def product_inputs(graph: Graph) -> list[ProductInput]:
    """Activations that products with constant weights read, in topological order of the products."""
    readers: defaultdict[str, list[Port]] = defaultdict(list)
    products: defaultdict[str, list[str]] = defaultdict(list)
    for node in graph.nodes:
        if _is_product(graph, node):
            port, channels = Port(node.name, 0), weight_of(graph, node).shape[0]
            while (before := _reshape(graph, port, channels)) is not None:
                port = before
            value = graph.value_of(port)
            if graph.is_float(value) and not graph.is_constant(value) and value not in graph.captured:
                readers[value].append(port)
                products[value].append(node.name)
    return [ProductInput(v, tuple(p), tuple(products[v]), _normalization(graph, v, p)) for v, p in readers.items()]


def matter(graph: Graph, inputs: Sequence[ProductInput]) -> bool:
    """Whether the products that read ``inputs`` are no small part of what the model computes.

    The head of a network of convolutions gains no time by low precision; judging its scales takes twenty inferences.
    """
    read = {name for one in inputs for name in one.products}
    products, convolutions = 0, 0
    for node in graph.nodes:
        if node.name in read:
            products += (graph.size(node.outputs[0]) or 0) * weight_of(graph, node).shape[0]
        elif node.op_type in ("Conv", "ConvTranspose"):
            each = math.prod(n or 0 for n in (graph.shape(node.inputs[1]) or ())[1:])  # of an output, or of an input
            convolutions += each * (graph.size(node.outputs[0] if node.op_type == "Conv" else node.inputs[0]) or 0)
    return bool(inputs) and products >= _LEAST_SHARE * (products + convolutions)


def _is_product(graph: Graph, node: Node) -> bool:
    if node.op_type not in ("MatMul", "Gemm") or node.domain not in ("", "ai.onnx") or node.attributes.get("transA", 0):
        return False
    weight = node.inputs[1]
    return graph.is_constant(weight) and len(graph.shape(weight) or ()) == 2 and len(graph.consumers(weight)) == 1


def weight_of(graph: Graph, node: Node) -> np.ndarray:
    """The weight of a product, shape (channels, outputs)."""
    array = graph.constant(node.inputs[1])
    assert array is not None
    return array.T if node.attributes.get("transB", 0) else array


def _reshape(graph: Graph, port: Port, channels: int) -> Port | None:
    """The port of the Reshape before ``port`` that keeps the last axis, where ``port`` alone reads it."""
    value = graph.value_of(port)
    node = graph.producer(value)
    if node is None or node.op_type != "Reshape" or len(graph.consumers(value)) > 1:
        return None
    ends = {(graph.shape(v) or (None,))[-1] for v in (node.inputs[0], value)}
    return Port(node.name, 0) if ends == {channels} else None


def _normalization(graph: Graph, value: str, readers: Sequence[Port]) -> str:
    node = graph.producer(value)
    if node is None or node.op_type != "LayerNormalization" or set(graph.consumers(value)) != set(readers):
        return ""
    own = all(graph.is_constant(v) and len(graph.consumers(v)) == 1 for v in node.inputs[1:] if v)
    last = node.attributes.get("axis", -1) in (-1, len(graph.shape(value) or ()) - 1)
    return node.name if own and last else ""
