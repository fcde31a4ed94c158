"""What reads each weight, and how: a product its rows, a convolution its windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from inlay.model.graph import Graph, Node
from inlay.quant.moments import Window
from inlay.space.units import Unit
from inlay.types import GRAPH_OUTPUT

WEIGHT_SLOT = 1
Readers = Mapping[str, tuple[Window, ...]]
"""How a weight's readers read what it is multiplied with, by the weight's name."""


def readers_of(graph: Graph, units: Sequence[Unit]) -> Readers:
    """How the weights of products and convolutions are read, where all readers of a weight are of a known kind."""
    found: dict[str, tuple[Window, ...]] = {}
    unknown: set[str] = set()
    for node in {u.name: graph.node(u.name) for u in units if u.quantizable}.values():
        value = node.inputs[WEIGHT_SLOT] if len(node.inputs) > WEIGHT_SLOT else ""
        if node.op_type not in ("MatMul", "Gemm", "Conv") or not graph.is_constant(value):
            continue
        window = _window(graph, node)
        transposed = bool(node.attributes.get("transB", 0))
        if window is None or transposed != is_transposed(graph, value):
            unknown.add(value)
        else:
            found[value] = (*found.get(value, ()), window)
    return {v: windows for v, windows in found.items() if v not in unknown}


def _window(graph: Graph, node: Node) -> Window | None:
    """How a node with its weight in slot 1 reads slot 0; None where that is none of the ways known here."""
    value, given = node.inputs[0], node.attributes
    weight = graph.shape(node.inputs[1]) or ()
    if node.op_type in ("MatMul", "Gemm"):
        known = len(weight) == 2 and not given.get("transA", 0) and len(graph.shape(value) or ()) >= 2
        return Window(value) if known else None
    spatial = len(weight) - 2
    if node.op_type != "Conv" or spatial < 1 or given.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    ones = (1,) * spatial
    return Window(
        value,
        tuple(int(k or 0) for k in weight[2:]),
        tuple(given.get("strides", ones)),
        tuple(given.get("dilations", ones)),
        tuple(given.get("pads", (0,) * 2 * spatial)),
        int(given.get("group", 1)),
    )


def is_transposed(graph: Graph, value: str) -> bool:
    """Whether rows of a product's weight are its output channels: as its first reader says."""
    reader = next((graph.node(p.node) for p in graph.consumers(value) if p.node != GRAPH_OUTPUT), None)
    return reader is not None and bool(reader.attributes.get("transB", 0))


def sizes_of(graph: Graph, value: str, window: Window) -> tuple[int, int, int]:
    """Groups, channels of each, and inputs of each channel."""
    shape = [int(n or 0) for n in graph.shape(value) or ()]
    if not window.kernel:
        inputs, channels = shape[::-1] if is_transposed(graph, value) else shape
        return 1, channels, inputs
    return window.groups, shape[0] // window.groups, int(np.prod(shape[1:]))
