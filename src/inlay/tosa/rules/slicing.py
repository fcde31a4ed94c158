"""Split, Slice and Gather."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context
from inlay.tosa.quantized import Unsupported
from inlay.tosa.rules._movement import integer_list, move, reversed_axis, set_moved, sliced, with_size

_LARGEST_STRIDE = 8
"""A strided slice of rows and columns is a 1 by 1 MAX_POOL2D up to this stride, above it a Reshape and a Slice."""


def split(context: Context, node: Node) -> None:
    """Split into equal parts, or into the given sizes."""
    x = context.quantized_input(node.inputs[0])
    shape = context.builder.shape(x.tensor)
    axis = int(node.attributes.get("axis", 0)) % len(shape)
    start = 0
    for index, value in enumerate(node.outputs):
        if not value:
            raise Unsupported("one of its outputs is left out")
        size = context.shape(value)[axis]
        set_moved(context, node, x, sliced(context, node, x.tensor, value, {axis: (start, size)}), index)
        start += size


def slice_(context: Context, node: Node) -> None:
    """Slice with constant bounds; steps above 1 as :func:`_strided`, negative ones reversed at the end."""
    x = context.quantized_input(node.inputs[0])
    shape = context.builder.shape(x.tensor)
    ranges, strides, backward = {}, [1] * len(shape), []
    for start, end, axis, step in _bounds(context, node):
        selected = range(*slice(start, end, step).indices(shape[axis]))
        if not len(selected):
            raise Unsupported("it selects nothing")
        if step < 0:
            backward.append(axis)
            selected = selected[::-1]
        strides[axis] = abs(step)
        ranges[axis % len(shape)] = (selected[0], selected[-1] - selected[0] + 1)
    tensor = sliced(context, node, x.tensor, node.outputs[0], ranges)
    tensor = _strided(context, node, tensor, strides)
    for axis in backward:
        tensor = reversed_axis(context, node, tensor, axis % len(shape))
    set_moved(context, node, x, tensor)


def _bounds(context: Context, node: Node) -> list[tuple[int, int, int, int]]:
    """Start, end, axis and step of each sliced axis: attributes up to opset 9, inputs since."""
    if "starts" in node.attributes:
        starts, ends = list(node.attributes["starts"]), list(node.attributes["ends"])
        axes, steps = list(node.attributes.get("axes", range(len(starts)))), [1] * len(starts)
    else:
        given = [integer_list(context, node, slot) for slot in (1, 2, 3, 4)]
        for slot in (1, 2):
            if given[slot - 1] is None:
                raise Unsupported(f"input {slot} is missing")
        starts, ends = given[0] or [], given[1] or []
        axes = list(range(len(starts))) if given[2] is None else given[2]
        steps = [1] * len(starts) if given[3] is None else given[3]
    return list(zip(starts, ends, axes, steps, strict=True))


def _strided(context: Context, node: Node, tensor: str, strides: Sequence[int]) -> str:
    """Every ``strides[axis]``-th element: of rows and columns by a strided 1 by 1 maximum, else :func:`_every`."""
    if len(strides) == 4 and max(strides[:2]) == 1 < max(strides) <= _LARGEST_STRIDE:
        n, c, h, w = context.builder.shape(tensor)
        return move(
            context, node, ir.MaxPool, tensor, node.outputs[0],
            (n, c, (h - 1) // strides[2] + 1, (w - 1) // strides[3] + 1),
            kernel=(1, 1), strides=(strides[2], strides[3]), pads=(0, 0, 0, 0),
        )  # fmt: skip
    for axis, stride in enumerate(strides):
        if stride > 1:
            tensor = _every(context, node, tensor, axis, stride)
    return tensor


def _every(context: Context, node: Node, tensor: str, axis: int, stride: int) -> str:
    """The first of every ``stride`` elements along ``axis``: padded to a multiple, split into rows of that, sliced."""
    out, dims = node.outputs[0], context.builder.shape(tensor)
    count = -(-dims[axis] // stride)
    before, after = dims[:axis], dims[axis + 1 :]
    missing = count * stride - dims[axis]
    if missing:
        full = (*before, count * stride, *after)
        pads = tuple((0, missing if i == axis else 0) for i in range(len(dims)))
        tensor = move(context, node, ir.Pad, tensor, out, full, pads=pads, value=0)
    rows = context.reshape(node.name, tensor, (*before, count, stride, *after), out)
    first = sliced(context, node, rows, out, {axis + 1: (0, 1)})
    return context.reshape(node.name, first, with_size(dims, axis, count), out)


def gather(context: Context, node: Node) -> None:
    """Gather of one index, or of indices with one common step."""
    x = context.quantized_input(node.inputs[0])
    shape = context.builder.shape(x.tensor)
    axis = int(node.attributes.get("axis", 0)) % len(shape)
    given = context.constant_input(node, 1)
    if given is None or not given.size or given.ndim > 1:
        raise Unsupported("its indices are not a list")
    indices = given.reshape(-1) % shape[axis]
    step = int(indices[1] - indices[0]) if len(indices) > 1 else 1
    if step < 1 or not np.array_equal(indices, indices[0] + step * np.arange(len(indices))):
        raise Unsupported("its indices have no common forward step")
    span = int(indices[-1] - indices[0]) + 1
    tensor = sliced(context, node, x.tensor, node.outputs[0], {axis: (int(indices[0]), span)})
    tensor = _strided(context, node, tensor, [step if i == axis else 1 for i in range(len(shape))])
    set_moved(context, node, x, context.reshape(node.name, tensor, context.shape(node.outputs[0]), node.outputs[0]))
