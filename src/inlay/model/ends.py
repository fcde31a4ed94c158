"""Which operators compute the elements of each output: those behind what only moves, joins or rescales elements."""

from __future__ import annotations

import onnx_ir as ir

from inlay.data import Ends

_MOVING = frozenset(
    {"Cast", "Concat", "Dropout", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Pad"}
    | {"Reshape", "Resize", "ScatterND", "Slice", "Split", "Squeeze", "TopK", "Transpose", "Unsqueeze", "Upsample"}
)
_AFFINE = frozenset({"Add", "Div", "Mul", "Sub"})  # A bias, or the scale of what is decoded, where one side is constant
_MOST_NODES = 4096  # behind one output: heads are far smaller


def ends_of(model: ir.Model) -> Ends:
    """What computes the outputs of ``model``, in linear time."""
    computed = {str(output.name): _last(output) for output in model.graph.outputs}
    return Ends(computed, frozenset(node.op_type for node in model.graph.all_nodes()))


def _last(output: ir.Value) -> frozenset[str]:
    """Types of the operators that compute an output."""
    last, seen, waiting = set[str](), set[ir.Value](), [output]
    while waiting and len(seen) < _MOST_NODES:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        node = value.producer()
        if node is None:
            continue
        data = _data(node) or _in_branches(node, value)
        waiting += data
        if not data:
            last.add(node.op_type)
    return frozenset(last)


def _data(node: ir.Node) -> list[ir.Value]:
    """The values whose elements an operator hands on; none where it computes its own."""
    if node.domain not in ("", "ai.onnx"):
        return []
    if node.op_type in _AFFINE:
        varying = [v for v in node.inputs if v is not None and not _is_constant(v)]
        return varying if len(varying) == 1 else []
    if node.op_type not in _MOVING:
        return []
    given = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return [v for v in given if v is not None]


def _in_branches(node: ir.Node, value: ir.Value) -> list[ir.Value]:
    """What stands for an output of an If in each of its branches."""
    if node.op_type != "If" or node.domain not in ("", "ai.onnx"):
        return []
    at = list(node.outputs).index(value)
    return [attr.as_graph().outputs[at] for attr in node.attributes.values() if attr.type == ir.AttributeType.GRAPH]


def _is_constant(value: ir.Value) -> bool:
    node = value.producer()
    return value.const_value is not None or (node is not None and node.op_type == "Constant")
