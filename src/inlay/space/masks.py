"""Values that hold masks: numbers so far below the others that what reads them makes zeros of them.

Attention keeps positions out by adding, or putting, minus infinity or a number such as the lowest of float32, -1e9 or
-1e4. A range that reached that far would leave no steps for the scores; and one that does not would let the masked
positions through. As where the mask is minus infinity, such a value has no scale.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from inlay.model.graph import Graph, Node
from inlay.types import GRAPH_OUTPUT

MASKING = -80.0  # A constant that masks, added or put in place of scores, is this or less: `exp` of it leaves nothing
MASKED = -1000.0
"""Where a computed value was masked, it holds this or less, and ``_APART`` times as far from zero as the rest."""
_APART = 10.0

_ENDS = {
    **dict.fromkeys(("Exp", "LogSoftmax", "ReduceLogSumExp", "Sigmoid", "Softmax"), frozenset({0})),
    "Attention": frozenset({3}),
}
"""Operators for which a number far below the others of its row, or below zero, is as good as minus infinity: slots."""
_SUMS = frozenset({"Add", "Max", "Min", "ReduceMax", "Sub", "Sum", "Where"})
_MOVES = frozenset(
    {"Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile"}
    | {"Transpose", "Unsqueeze"}
)
_SCALES = frozenset({"Div", "Mul"})


def find_masks(graph: Graph, extremes: Mapping[str, tuple[float, float]]) -> frozenset[str]:
    """The values that hold masks, constants among them. Linear time.

    Args:
        extremes: the least and the greatest element of values on a sample, by name.
    """
    before = _before_ends(graph)
    found = {v for v in before if _is_masked(*extremes.get(v, (0.0, 0.0))) or _is_mask(graph, v)}
    for node in graph.nodes:
        # a mask that is no more than a bound, as of Max, masks nothing
        if any(v in found and not (node.op_type == "Max" and graph.is_constant(v)) for v in node.inputs):
            found.update(before.intersection(node.outputs))
    return frozenset(found)


def _is_masked(low: float, high: float) -> bool:
    return low <= MASKED and low <= -_APART * high


def _is_mask(graph: Graph, value: str) -> bool:
    array = graph.constant(value)
    if array is None or not array.size:
        return False
    scales = any(graph.node(p.node).op_type in _SCALES for p in graph.consumers(value))
    return bool(np.abs(array).max() >= -MASKED if scales else array.min() <= MASKING)


def _before_ends(graph: Graph) -> set[str]:
    """Values that nothing reads but ends, and operators that add, choose or move what leads to them."""
    found: set[str] = set()
    for node in reversed(graph.nodes):
        for value in dict.fromkeys(node.inputs):
            if value and value not in found and graph.is_float(value) and value not in graph.captured:
                readers = graph.consumers(value)
                if all(p.node != GRAPH_OUTPUT and _leads(graph.node(p.node), p.slot, found) for p in readers):
                    found.add(value)
    return found


def _leads(node: Node, slot: int, before: set[str]) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type in _ENDS:
        return slot in _ENDS[node.op_type]
    passes = node.op_type in _SUMS | _SCALES or (node.op_type in _MOVES and (slot == 0 or node.op_type == "Concat"))
    return passes and before.issuperset(v for v in node.outputs if v)
