"""Steps of the rules that only move elements: they are exact at the input's own qparams.

The same rules serve values without qparams: integers between Q and DQ, and float values in profile ``INT+FP``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context
from inlay.tosa.ir import Op, Shape
from inlay.tosa.quantized import QuantizedTensor


def set_moved(context: Context, node: Node, x: QuantizedTensor, tensor: str, index: int = 0) -> None:
    """Record ``tensor`` as an output of the node, with the qparams of ``x``."""
    context.set_moved(node.outputs[index], replace(x, tensor=tensor))


def move(context: Context, node: Node, kind: type[Op], tensor: str, base: str, shape: Shape, **attributes: Any) -> str:
    """An operator on one tensor that keeps its type and qparams."""
    declared = context.builder.tensors[tensor]
    return context.builder.add(kind, node.name, [tensor], base, declared.dtype, shape, declared.qparams, **attributes)


def transposed(context: Context, node: Node, tensor: str, perm: tuple[int, ...]) -> str:
    """``tensor`` with its axes permuted."""
    if perm == tuple(range(len(perm))):
        return tensor
    dims = context.builder.shape(tensor)
    return move(context, node, ir.Transpose, tensor, node.outputs[0], tuple(dims[p] for p in perm), perm=perm)


def sliced(context: Context, node: Node, tensor: str, base: str, ranges: dict[int, tuple[int, int]]) -> str:
    """``ranges[axis] = (start, size)`` elements of the axes given, all of the others."""
    dims = context.builder.shape(tensor)
    start = tuple(ranges.get(i, (0, d))[0] for i, d in enumerate(dims))
    size = tuple(ranges.get(i, (0, d))[1] for i, d in enumerate(dims))
    if size == dims:
        return tensor
    return move(context, node, ir.Slice, tensor, base, size, start=start, size=size)


def reversed_axis(context: Context, node: Node, tensor: str, axis: int) -> str:
    """``tensor`` with one axis reversed."""
    return move(context, node, ir.Reverse, tensor, node.outputs[0], context.builder.shape(tensor), axis=axis)


def with_size(dims: Sequence[int], axis: int, size: int) -> Shape:
    """``dims`` with another size along one axis."""
    return tuple(size if i == axis else d for i, d in enumerate(dims))


def integer_list(context: Context, node: Node, slot: int) -> list[int] | None:
    """The integers at an input slot, None where it is empty."""
    given = context.constant_input(node, slot)
    return None if given is None else [int(v) for v in given.reshape(-1)]
