"""What values cannot exceed, whatever the inputs of the model: known from the operators that compute them.

A range that reaches beyond wastes steps on what never comes, and worse: a runtime drops a Clip between an operator and
its QuantizeLinear only where no integer exceeds the Clip's bounds; otherwise it computes both in float.
"""

from __future__ import annotations

from collections.abc import Mapping

from inlay.model.graph import Graph, Node
from inlay.quant.observers import UNLIMITED, Range

_BOUNDED = {
    **dict.fromkeys(("Sigmoid", "HardSigmoid", "Softmax", "Hardmax"), Range(0.0, 1.0)),
    **dict.fromkeys(("Tanh", "Sin", "Cos", "Softsign", "Erf", "Sign"), Range(-1.0, 1.0)),
}
"""Results of these operators, by their definition in the ONNX specification."""
_WITHIN = frozenset(
    {"AveragePool", "DepthToSpace", "Expand", "Flatten", "Gather", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"}
    | {"ReduceMax", "ReduceMean", "ReduceMin", "Relu", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile"}
    | {"Transpose", "Unsqueeze"}
)
"""Results are elements of the first input, means of them, or zero."""
_AMONG = frozenset({"Concat", "Max", "Mean", "Min"})  # the same of all inputs


def limits_of(graph: Graph) -> Mapping[str, Range]:
    """The limits of each value that has some; one side may be infinite. Linear time."""
    found: dict[str, Range] = {}
    for node in graph.nodes:
        limits = _of_result(graph, node, found)
        if limits != UNLIMITED:
            found.update((v, limits) for v in node.outputs if v)
    return found


def _of_result(graph: Graph, node: Node, known: Mapping[str, Range]) -> Range:
    if node.domain not in ("", "ai.onnx"):
        return UNLIMITED
    if node.op_type in _BOUNDED:
        return _BOUNDED[node.op_type]
    given = [known.get(v, UNLIMITED) for v in node.inputs if v]
    if node.op_type == "Clip":
        bounds = [_scalar(graph, node, 1, UNLIMITED.low), _scalar(graph, node, 2, UNLIMITED.high)]
        return Range(max(given[0].low, min(0.0, bounds[0])), min(given[0].high, max(0.0, bounds[1])))
    if node.op_type in _WITHIN:
        return given[0]
    if node.op_type in _AMONG:
        return Range(min(g.low for g in given), max(g.high for g in given))
    return UNLIMITED


def _scalar(graph: Graph, node: Node, slot: int, default: float) -> float:
    """A bound of a Clip: ``default`` where it is not given or not constant."""
    name = node.inputs[slot] if len(node.inputs) > slot else ""
    array = graph.constant(name) if name else None
    return default if array is None or array.size != 1 else float(array.reshape(-1)[0])
