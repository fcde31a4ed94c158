"""Weights with nonzero zero points, which ONNX Runtime multiplies in another integer kernel.

ONNX Runtime 1.31 (x86-64) runs a Conv whose weight's zero points are all 0 in a convolution kernel, and any other by
gathering windows for its matrix product. With AMX the latter takes 0.55 to 0.7 of the time where windows hold hundreds
of elements, and up to 5 times as long where they hold few. Shifting every integer and the zero point by one gives the
same products in the other kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from inlay.model.graph import Graph, Node
from inlay.quant.qdq_graph import DEQUANTIZE, QDQGraph
from inlay.quant.rewrite import Rewrite
from inlay.targets.rewrites.undo import own_constants, set_constant
from inlay.types import Port

_WEIGHT = 1  # input slot


@dataclass(frozen=True)
class NonzeroZeroPoint(Rewrite[bool]):
    """Store a Conv's int8 weight one step lower (or higher), with zero points of -1 (or 1).

    One zero point serves all channels: ONNX Runtime 1.20 refuses zero points that differ between channels.
    """

    name = "off zero"  # as it stands in journals and recipes
    selectable = True
    reason = "weights with zero points of -1: the same values, in a kernel of the runtime that is faster there"
    source = "the search profiles full INT8 with and without it; whether it pays depends on the processor and the shape"

    def applies(self, graph: Graph, node: Node) -> bool | None:
        """Whether ``node`` is a Conv of one group with a constant weight."""
        dense = node.op_type == "Conv" and int(node.attributes.get("group", 1)) == 1
        return True if dense and len(node.inputs) > _WEIGHT and graph.is_constant(node.inputs[_WEIGHT]) else None

    def apply(self, qdq: QDQGraph, forms: Mapping[str, bool]) -> None:
        """Shift the weights; one whose integers use both ends of the type is left as it is."""
        for node in qdq.graph.node:
            dq = qdq.dequantizer(node.input[_WEIGHT]) if node.name in forms else None
            if dq is None or len(dq.input) < 3:
                continue
            weight, zero_point = qdq.constant(dq.input[0]), qdq.constant(dq.input[2])
            step = _step(weight)
            if np.any(zero_point) or not step:
                continue
            qdq.set_constant(dq.input[0], partial(np.add, weight, np.asarray(step, weight.dtype)), self.name)
            qdq.set_constant(dq.input[2], partial(np.full_like, zero_point, step), self.name)

    def undo(self, graph: ir.Graph) -> Iterable[Port]:
        """Shift int8 weights whose zero points are all -1 or all 1 back to zero points of 0."""
        ports: list[Port] = []
        for dq in [n for n in graph if n.op_type == DEQUANTIZE]:
            found = own_constants(dq)
            if found is None or found[0].dtype != np.int8 or not found[2].size:
                continue
            weight, _, zero_point = found
            step = int(zero_point.flat[0])
            shifted = weight.astype(np.int16) - step
            limits = np.iinfo(np.int8)
            fits = shifted.min(initial=0) >= limits.min and shifted.max(initial=0) <= limits.max
            if step in (-1, 1) and np.all(zero_point == step) and fits:
                set_constant(dq.inputs[0], shifted.astype(np.int8))
                set_constant(dq.inputs[2], np.zeros_like(zero_point))
                ports.extend(Port(str(use.node.name), use.idx) for use in dq.outputs[0].uses())
        return ports


def _step(weight: np.ndarray) -> int:
    """-1 where every integer can be one lower, else 1 where every one can be one higher, else 0 (as of floats)."""
    if weight.dtype.kind not in "iu":
        return 0
    limits = np.iinfo(weight.dtype)
    if weight.min(initial=0) > limits.min:
        return -1
    return 1 if weight.max(initial=0) < limits.max else 0
