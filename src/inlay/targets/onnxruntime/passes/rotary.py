"""Rotary positions (RoPE) as exporters write them out: the halves of each head, as complex numbers, are rotated.

``x * cos + rotated(x) * sin``, where ``rotated`` is the second half, negated, before the first (Su et al., *RoFormer*,
2021, in the order of GPT-NeoX). The operator ``RotaryEmbedding`` (ONNX opset 23) takes the cosines and sines of one
half: those of both are the same, which the graph must show.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from inlay.model.passes.axes import rank_of
from inlay.model.passes.steps import axes_of, constant_of, ints, is_standard

_ELEMENTWISE = ("Cos", "Sin", "Cast", "Identity", "Neg")
_SCALED = ("Mul", "Div", "Add", "Sub")  # by one number


class Rotation(NamedTuple):
    """By which angles heads are rotated: cosines and sines of both halves, the same for all heads of a position.

    Shape (rows, size), (1, rows, size), or with an axis for the batch before one of size 1 for heads.
    """

    cosines: ir.Value
    sines: ir.Value


def rotated(value: ir.Value | None) -> tuple[ir.Value, Rotation] | None:
    """What ``value`` is the rotation of, shape (batch, heads, rows, size), and by which angles."""
    node = None if value is None else value.producer()
    if node is None or not is_standard(node, "Add"):
        return None
    terms = [_factors(v) for v in node.inputs]
    for straight, crossed in (terms, terms[::-1]):
        for x, cosines in straight:
            for other, sines in crossed:
                if _is_quarter_turn(other, x) and all(_is_for_all_heads(v) for v in (cosines, sines)):
                    return x, Rotation(cosines, sines)
    return None


def _is_for_all_heads(value: ir.Value) -> bool:
    """Whether it has one row for each position, whose halves are the same."""
    shape = value.shape
    if shape is None or not 2 <= len(shape) <= 4 or not _shows_halves(value):
        return False
    return len(shape) == 2 or shape[len(shape) - 3] == 1


def _factors(value: ir.Value | None) -> list[tuple[ir.Value, ir.Value]]:
    """Both orders of the factors of a product; nothing where it is none."""
    node = None if value is None else value.producer()
    if node is None or not is_standard(node, "Mul") or None in node.inputs:
        return []
    first, second = (v for v in node.inputs if v is not None)
    return [(first, second), (second, first)]


def _is_quarter_turn(value: ir.Value, of: ir.Value) -> bool:
    """Whether ``value`` is the second half of ``of``, negated, and then the first."""
    node, size = value.producer(), _last_size(of)
    if node is None or not is_standard(node, "Concat") or len(node.inputs) != 2 or size is None or size % 2:
        return False
    negated = None if node.inputs[0] is None else node.inputs[0].producer()
    if node.attributes.get_int("axis", 0) not in (-1, (rank_of(of) or 0) - 1):
        return False
    if negated is None or not is_standard(negated, "Neg"):
        return False
    return _part(negated.inputs[0], of) == (size // 2, size) and _part(node.inputs[1], of) == (0, size // 2)


def _part(value: ir.Value | None, of: ir.Value) -> tuple[int, int] | None:
    """From where to where on the last axis ``value`` is taken from ``of``."""
    node, size = None if value is None else value.producer(), _last_size(of)
    if node is None or value is None or node.inputs[0] is not of or size is None:
        return None
    last = (-1, (rank_of(of) or 0) - 1)
    if is_standard(node, "Split") and node.attributes.get_int("axis", 0) in last:
        sizes = [_last_size(v) for v in node.outputs]
        if None in sizes:
            return None
        begin = sum(s for s in sizes[: value.index()] if s is not None)
        return begin, begin + (_last_size(value) or 0)
    if not is_standard(node, "Slice"):
        return None
    given = [constant_of(v) for v in node.inputs[1:]]
    if len(given) < 3 or any(a is None or a.size != 1 for a in given):
        return None
    begin, end, axis, step = [int(a.reshape(())) for a in given if a is not None] + [1] * (4 - len(given))
    if axis not in last or step != 1:
        return None
    begin, end, _ = slice(begin, end).indices(size)
    return begin, end


def _shows_halves(value: ir.Value | None) -> bool:
    """Whether both halves along the last axis of ``value`` are the same: it is written so, or is made of such."""
    if value is None:
        return False
    numbers, node = constant_of(value), value.producer()
    if numbers is not None:
        size = numbers.shape[-1] if numbers.ndim else 1
        return size % 2 == 0 and np.array_equal(numbers[..., : size // 2], numbers[..., size // 2 :])
    if node is None:
        return False
    rank = rank_of(value)
    if is_standard(node, "Concat"):
        return len(node.inputs) == 2 and node.inputs[0] is node.inputs[1] and _is_last(node, "axis", rank)
    if is_standard(node, *_ELEMENTWISE):
        return _shows_halves(node.inputs[0])
    if is_standard(node, *_SCALED):
        arrays = [constant_of(v) for v in node.inputs]
        return any(
            a is not None and a.size == 1 and _shows_halves(node.inputs[1 - slot]) for slot, a in enumerate(arrays)
        )
    return _moves_other_axes(node) and _shows_halves(node.inputs[0])


def _moves_other_axes(node: ir.Node) -> bool:
    """Whether each row along the last axis stays as it is."""
    before, after = rank_of(node.inputs[0] if node.inputs else None), rank_of(node.outputs[0])
    if before is None or after is None:
        return False
    if is_standard(node, "Unsqueeze", "Squeeze"):
        rank, axes = max(before, after), axes_of(node)
        return bool(axes) and all(axis % rank != rank - 1 for axis in axes)
    if is_standard(node, "Gather"):
        return node.attributes.get_int("axis", 0) % before != before - 1
    if is_standard(node, "Slice"):
        axes_given = constant_of(node.inputs[3]) if len(node.inputs) > 3 else None
        return axes_given is not None and all(int(axis) % before != before - 1 for axis in axes_given.ravel())
    return is_standard(node, "Transpose") and ints(node, "perm", ())[-1:] == [before - 1]


def _is_last(node: ir.Node, name: str, rank: int | None) -> bool:
    axis = node.attributes.get_int(name, 0)
    return axis == -1 or (rank is not None and axis == rank - 1)


def _last_size(value: ir.Value) -> int | None:
    size = value.shape[-1] if value.shape is not None and len(value.shape) else None
    return size if isinstance(size, int) else None
