"""Weights with nonzero zero points, which ONNX Runtime multiplies in another integer kernel.

ONNX Runtime 1.31 (x86-64) runs a Conv whose weight's zero points are all 0 in a convolution kernel, and any other by
gathering windows for its matrix product. With AMX the latter takes 0.55 to 0.7 of the time where windows hold hundreds
of elements, and up to 5 times as long where they hold few. Shifting every integer and the zero point by one gives the
same products in the other kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from inlay.model.graph import Graph, Node
from inlay.quant.qdq_graph import QDQGraph
from inlay.quant.rewrite import Rewrite

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
            back = (("less", step),)
            qdq.set_constant(dq.input[0], partial(np.add, weight, np.asarray(step, weight.dtype)), self.name, back)
            qdq.set_constant(dq.input[2], partial(np.full_like, zero_point, step), self.name, back)


def _step(weight: np.ndarray) -> int:
    """-1 where every integer can be one lower, else 1 where every one can be one higher, else 0 (as of floats)."""
    if weight.dtype.kind not in "iu":
        return 0
    limits = np.iinfo(weight.dtype)
    if weight.min(initial=0) > limits.min:
        return -1
    return 1 if weight.max(initial=0) < limits.max else 0
