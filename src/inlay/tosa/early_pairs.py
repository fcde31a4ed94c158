"""Q/DQ pairs before operators that only move elements, where the model has a QuantizeLinear behind them alone.

Where Q/DQ nodes stand at the inputs of weighted operators only, an image that is transposed or padded before the first
convolution is moved as float, on the host. Quantizing commutes with moving, and what was quantized once stays as it is
when it is quantized again in the same way: so a pair before the move changes no result, and the move becomes integer.
A Concat moves all that it joins.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import constant_of, is_standard


def add_pair(
    graph: ir.Graph,
    value: ir.Value,
    numbers: Sequence[ir.Value | None],
    kind: ir.TypeProtocol | None,
    prefix: str,
    attributes: Mapping[str, ir.Attr] | None = None,
) -> tuple[ir.Node, ir.Value]:
    """Put a pair right behind what writes ``value``, or first in ``graph``; nothing reads it yet.

    Args:
        numbers: scale and zero point.
        prefix: of all names; no other pair has it.

    Returns:
        The QuantizeLinear, and what the pair makes of ``value``.
    """
    low = ir.Value(name=f"{prefix}_quantized", type=kind, shape=value.shape)
    high = ir.Value(name=f"{prefix}_dequantized", type=value.type, shape=value.shape)
    quantize = ir.node("QuantizeLinear", [value, *numbers], attributes, outputs=[low], name=f"{prefix}_q")
    back = ir.node("DequantizeLinear", [low, *numbers], outputs=[high], name=f"{prefix}_dq")
    writer = value.producer()  # right behind it: whatever reads the value may then read the pair, too
    if writer is None:
        graph.insert_before(graph[0], [quantize, back])
    else:
        graph.insert_after(writer, [quantize, back])
    return quantize, high


_MOVES = frozenset(
    {
        "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Identity", "DepthToSpace",
        "SpaceToDepth", "Gather", "Expand", "Tile",
    }
)  # fmt: skip
"""Operators whose result holds elements of their first input, and nothing else."""

_JOIN = "Concat"


def add_early_pairs(model: ir.Model) -> tuple[ir.Model, int]:
    """Put a pair before each move whose result is quantized alone; returns ``model``, and how many there are now."""
    pending = [n for n in model.graph if is_standard(n, "QuantizeLinear")]
    made: set[ir.Node] = set()
    while pending:
        behind = pending.pop()
        moved = behind.inputs[0]
        move = None if moved is None else moved.producer()
        if move is None or not _only_moves(move) or not _quantized_alone(moved, behind):
            continue
        slots = range(len(move.inputs)) if is_standard(move, _JOIN) else (0,)
        if any(v is None or v.const_value is not None for v in (move.inputs[i] for i in slots)):
            continue
        for slot in slots:
            before = move.inputs[slot]
            writer = None if before is None else before.producer()
            if before is None or (writer is not None and is_standard(writer, "DequantizeLinear")):
                continue
            quantized = _quantized_like(before, behind, made)
            if quantized is None:
                quantize, quantized = _pair(move, before, behind, len(made))
                pending.append(quantize)
                made.add(quantize)
            move.replace_input_with(slot, quantized)
    return model, len(made)


def _only_moves(node: ir.Node) -> bool:
    """Whether zeros are all that ``node`` may add to what it moves."""
    if is_standard(node, "Pad"):
        fill = node.inputs[2] if len(node.inputs) > 2 else None
        value = constant_of(fill)
        return fill is None or (value is not None and not value.any())
    return is_standard(node, *_MOVES, _JOIN)


def _quantized_alone(value: ir.Value | None, quantizer: ir.Node) -> bool:
    """Whether all that reads ``value`` quantizes it as ``quantizer`` does, with one scale."""
    if value is None or value.is_graph_output():
        return False
    return all(
        use.idx == 0 and is_standard(use.node, "QuantizeLinear") and _same_scale(use.node, quantizer)
        for use in value.uses()
    )


def _same_scale(first: ir.Node, second: ir.Node) -> bool:
    if len(first.inputs) != len(second.inputs):
        return False
    pairs = zip(first.inputs[1:], second.inputs[1:], strict=True)
    return all(_same_number(constant_of(a), constant_of(b)) for a, b in pairs)


def _same_number(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    """Whether both are one number of one type: a zero point also says what it quantizes to."""
    if first is None or second is None:
        return False
    return first.size == 1 and first.dtype == second.dtype and np.array_equal(first, second)


def _quantized_like(value: ir.Value, quantizer: ir.Node, made: Collection[ir.Node]) -> ir.Value | None:
    """What one of the pairs that were ``made`` makes of ``value``, in the way of ``quantizer``.

    The model's own pairs may stand behind the move, which they then cannot serve.
    """
    for use in value.uses():
        if use.node in made and _same_scale(use.node, quantizer):
            (reader,) = use.node.outputs[0].uses()
            return reader.node.outputs[0]
    return None


def _pair(move: ir.Node, value: ir.Value, like: ir.Node, number: int) -> tuple[ir.Node, ir.Value]:
    """A new pair on ``value`` before ``move``: its QuantizeLinear, and what the pair makes of the value."""
    graph = move.graph
    assert isinstance(graph, ir.Graph)
    attributes = {k: v for k, v in like.attributes.items() if k != "axis"}
    return add_pair(graph, value, like.inputs[1:], like.outputs[0].type, f"{move.name}_early_{number}", attributes)
