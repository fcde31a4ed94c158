"""What SmoothQuant divides and by what: activations that products read, and a factor for each channel of one.

``x W = (x / s) (s W)`` with ``s_j = max|x_j|^a / max|W_j|^(1 - a)`` (Xiao et al., *SmoothQuant*, 2023); the exponent is
chosen by the error that rounding leaves in the products, on samples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inlay.model.graph import Graph, Node
from inlay.model.products import multiply_accumulates
from inlay.quant.qparams import dequantize, quantize
from inlay.quant.weight_scales import weight_params
from inlay.types import Port, QType

_LEAST_SHARE = 0.05  # of a model's multiplications, that products have where scales are looked for
_EXPONENTS = (0.3, 0.5, 0.7, 0.85)  # the published choice is 0.5; the best one differs from model to model
_ROWS = 48  # of each sample that products are formed of: some hundred rows rank the exponents as all do
_COLUMNS = 256  # of each weight, which have scales of their own: errors of some rank the exponents as those of all do
_LEAST = 1e-6  # of the largest channel: what a channel counts as that is nearly always zero


@dataclass(frozen=True)
class ProductInput:
    """An activation that products read, perhaps through Reshape nodes that keep its last axis."""

    value: str
    readers: tuple[Port, ...]  # ports through which the products get it
    products: tuple[str, ...]  # the products, with constant weights that nothing else reads
    normalization: str = ""  # the LayerNormalization that can take the scales in, or an empty name

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
            producer = graph.producer(value)
            here = not node.branch and not graph.is_read_below(value) and not (producer and producer.branch)
            if graph.is_float(value) and not graph.is_constant(value) and here:
                readers[value].append(port)
                products[value].append(node.name)
    return [ProductInput(v, tuple(p), tuple(products[v]), _normalization(graph, v, p)) for v, p in readers.items()]


def matter(graph: Graph, inputs: Sequence[ProductInput]) -> bool:
    """Whether the products that read ``inputs`` are no small part of what the model computes.

    The head of a network of convolutions gains no time by low precision; judging its scales takes twenty inferences.
    """
    read = {name for one in inputs for name in one.products}
    counts = [(n, multiply_accumulates(graph, n)) for n in graph.nodes]
    products = sum(count for node, count in counts if node.name in read)
    convolutions = sum(count for node, count in counts if node.op_type in ("Conv", "ConvTranspose"))
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


@dataclass(frozen=True, eq=False)
class _Sample:
    """One sample of an activation: some of its rows, what the products make of them, and each channel's range."""

    rows: np.ndarray
    products: tuple[np.ndarray, ...]
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, array: np.ndarray, weights: Sequence[np.ndarray]) -> _Sample:
        """From an activation of shape (rows, channels)."""
        rows = array[np.linspace(0, len(array) - 1, min(len(array), _ROWS)).astype(int)]
        low, high = np.minimum(array.min(axis=0), 0.0), np.maximum(array.max(axis=0), 0.0)
        return cls(rows, tuple(rows @ w for w in weights), low, high)


@dataclass(frozen=True, eq=False)
class Channels:
    """What the choice of an activation's scales goes by: little of the weights and samples, so that it can travel."""

    weights: tuple[np.ndarray, ...]  # some columns of the products' weights, shape (channels, some outputs)
    samples: tuple[_Sample, ...]  # some rows of the activation
    largest: np.ndarray  # of each channel of the activation
    rows: np.ndarray  # largest weight of each channel

    @classmethod
    def of(cls, weights: Sequence[np.ndarray], arrays: Sequence[np.ndarray]) -> Channels | None:
        """Of an activation; None where it is not finite, or nothing but 0.

        Args:
            weights: of the products, shape (channels, outputs).
            arrays: samples of the activation, channels last.
        """
        flat = [a.reshape(-1, a.shape[-1]).astype(np.float32) for a in arrays if a.size]
        if not flat or not all(np.isfinite(a).all() for a in flat):
            return None
        some = tuple(w[:, np.linspace(0, w.shape[1] - 1, min(w.shape[1], _COLUMNS)).astype(int)] for w in weights)
        samples = tuple(_Sample.of(a, some) for a in flat)
        largest = np.max([np.maximum(-s.low, s.high) for s in samples], axis=0)
        rows = np.max([np.abs(w).max(axis=1) for w in weights], axis=0)
        if not largest.max() > 0.0 or not rows.max() > 0.0:
            return None
        return cls(some, samples, *(np.maximum(x, _LEAST * x.max()) for x in (largest, rows)))


def best_scales(channels: Channels | None, allowed: float) -> tuple[float, ...] | None:
    """The scales of an activation's channels that leave the least error in its products with 8 bits.

    Args:
        allowed: error with them, over that without.

    Returns:
        What each channel is divided by; None where nothing leaves as little.
    """
    if channels is None:
        return None
    largest, rows = channels.largest, channels.rows
    tried = [np.ones_like(largest), *(_normalized(largest**a / rows ** (1.0 - a)) for a in _EXPONENTS)]
    errors = [_error(channels.samples, channels.weights, scales) for scales in tried]
    best = int(np.argmin(errors))
    return tuple(tried[best].tolist()) if errors[best] <= allowed * errors[0] else None


def _normalized(scales: np.ndarray) -> np.ndarray:
    """With a geometric mean of 1, so that sizes stay what they were."""
    return np.asarray(scales / np.exp(np.log(scales).mean()), np.float32)


def _error(samples: Sequence[_Sample], weights: Sequence[np.ndarray], scales: np.ndarray) -> float:
    """Energy of what 8 bits change in the products: a scale for each sample's ``x / s``, one per output for ``s W``."""
    total, rounded = 0.0, []
    for weight in weights:
        scaled = weight * scales[:, None]
        params = weight_params(scaled, 1, QType.INT8.qmax)
        rounded.append(dequantize(quantize(scaled, params), params))
    for sample in samples:
        low, high = float((sample.low / scales).min()), float((sample.high / scales).max())
        step = max((high - low) / QType.UINT8.qmax, float(np.finfo(np.float32).tiny))
        grid = (np.rint((sample.rows / scales - low) / step) * step + low).astype(np.float32)
        for weight, exact in zip(rounded, sample.products, strict=True):
            total += float(np.square(grid @ weight - exact, dtype=np.float64).sum())
    return total
