"""Operators that only move elements: exact in the input's own numbers.

The same rules serve values without numbers: integers between Q and DQ, and float values in profile ``INT+FP``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context, Refused, Rep
from inlay.tosa.oracle import quantize
from inlay.tosa.rules._common import align, axes_of, further_outputs

_MAX_STRIDE = 8
"""A strided slice of rows and columns is a 1 by 1 MAX_POOL2D up to this stride."""


def _move(context: Context, node: Node, rep: Rep, tensor: str, index: int = 0) -> None:
    context.note(node.outputs[index], replace(rep, tensor=tensor))


def _dtype(context: Context, tensor: str) -> str:
    return context.builder.tensors[tensor].dtype


def identity(context: Context, node: Node) -> None:
    """Identity, and Dropout in inference."""
    if further_outputs(context, node):
        raise Refused("its mask is used")
    rep = context.quantized(node.inputs[0])
    _move(context, node, rep, rep.tensor)


def reshape(context: Context, node: Node) -> None:
    """Reshape, Flatten, Squeeze, Unsqueeze: the new shape is static, whatever computes it."""
    rep = context.quantized(node.inputs[0])
    shape = context.shape(node.outputs[0])
    if math.prod(shape) != math.prod(context.builder.shape(rep.tensor)):
        raise Refused("its shape is not known")
    _move(context, node, rep, context.reshape(node.name, rep.tensor, shape, node.outputs[0]))


def transpose(context: Context, node: Node) -> None:
    """Transpose."""
    rep = context.quantized(node.inputs[0])
    rank = len(context.builder.shape(rep.tensor))
    perm = tuple(int(p) for p in node.attributes.get("perm", ())) or tuple(reversed(range(rank)))
    _move(context, node, rep, _turned(context, node, rep.tensor, perm))


def _turned(context: Context, node: Node, tensor: str, perm: tuple[int, ...]) -> str:
    declared = context.builder.tensors[tensor]
    if perm == tuple(range(len(perm))):
        return tensor
    shape = tuple(declared.dims[p] for p in perm)
    return context.builder.add(
        ir.Transpose, node.name, [tensor], node.outputs[0], declared.dtype, shape, declared.qparams, perm=perm
    )


def space_to_depth(context: Context, node: Node) -> None:
    """SpaceToDepth: rows and columns are split in two, and the inner ones put before the channels."""
    n, c, h, w = context.builder.shape(context.quantized(node.inputs[0]).tensor)
    b = int(node.attributes["blocksize"])
    if h % b or w % b:
        raise Refused(f"its {h} rows and {w} columns are no multiples of {b}")
    _through(context, node, (n, c, h // b, b, w // b, b), (0, 3, 5, 1, 2, 4))


def depth_to_space(context: Context, node: Node) -> None:
    """DepthToSpace: the channels' outer part (mode DCR) or inner part (CRD) goes behind rows and columns."""
    n, c, h, w = context.builder.shape(context.quantized(node.inputs[0]).tensor)
    b = int(node.attributes["blocksize"])
    if c % (b * b):
        raise Refused(f"its {c} channels are no multiple of {b * b}")
    if node.attributes.get("mode", "DCR") == "CRD":
        _through(context, node, (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3))
    else:
        _through(context, node, (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2))


def _through(context: Context, node: Node, split: tuple[int, ...], perm: tuple[int, ...]) -> None:
    """Reshape to ``split``, transpose by ``perm``, reshape to the node's own shape."""
    rep, out = context.quantized(node.inputs[0]), node.outputs[0]
    tensor = _turned(context, node, context.reshape(node.name, rep.tensor, split, f"{out}/split"), perm)
    _move(context, node, rep, context.reshape(node.name, tensor, context.shape(out), out))


def concat(context: Context, node: Node) -> None:
    """Concat: inputs whose numbers differ from the output's are requantized one by one."""
    reps = [context.quantized(v) for v in node.inputs]
    shape = context.shape(node.outputs[0])
    axis = int(node.attributes["axis"]) % len(shape)
    if any(r.qparams is None for r in reps):
        if len({r.unsigned for r in reps}) > 1 or any(r.qparams is not None for r in reps):
            raise Refused("it joins integer tensors of different types")
        names, first = [r.tensor for r in reps], reps[0]
    else:
        try:
            want = context.wanted(node.outputs[0])
        except Refused:
            if len({r.numbers for r in reps}) > 1:
                raise
            want = reps[0].numbers
        names = [context.requantize(node.name, r, want, f"{r.tensor}/same") for r in reps]
        first = Rep(names[0], want)
    tensor = names[0]
    if len(names) > 1:
        tensor = context.builder.add(
            ir.Concat, node.name, names, node.outputs[0], _dtype(context, tensor), shape, first.qparams, axis=axis
        )
    _move(context, node, first, tensor)


def split(context: Context, node: Node) -> None:
    """Split into equal parts, or into the given sizes."""
    rep = context.quantized(node.inputs[0])
    shape = context.builder.shape(rep.tensor)
    axis = int(node.attributes.get("axis", 0)) % len(shape)
    start = 0
    for index, value in enumerate(node.outputs):
        if not value:
            raise Refused("one of its outputs is left out")
        size = context.shape(value)[axis]
        _move(context, node, rep, _slice(context, node, rep.tensor, value, {axis: (start, size)}), index)
        start += size


def _slice(context: Context, node: Node, tensor: str, base: str, ranges: dict[int, tuple[int, int]]) -> str:
    """Elements from ``start`` on, per axis given; all of the others."""
    declared = context.builder.tensors[tensor]
    start = tuple(ranges.get(i, (0, d))[0] for i, d in enumerate(declared.dims))
    size = tuple(ranges.get(i, (0, d))[1] for i, d in enumerate(declared.dims))
    if size == declared.dims:
        return tensor
    return context.builder.add(
        ir.Slice, node.name, [tensor], base, declared.dtype, size, declared.qparams, start=start, size=size
    )


def slice_(context: Context, node: Node) -> None:
    """Slice with constant bounds; steps above 1 as :func:`_strided`, negative ones turned round at the end."""
    rep = context.quantized(node.inputs[0])
    shape = context.builder.shape(rep.tensor)
    if "starts" in node.attributes:
        starts, ends = list(node.attributes["starts"]), list(node.attributes["ends"])
        axes, steps = list(node.attributes.get("axes", range(len(starts)))), [1] * len(starts)
    else:
        starts, ends = _list(context, node, 1), _list(context, node, 2)
        axes = _list(context, node, 3, list(range(len(starts))))
        steps = _list(context, node, 4, [1] * len(starts))
    ranges, strides, turned = {}, [1] * len(shape), []
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        at = range(*slice(start, end, step).indices(shape[axis]))
        if not len(at):
            raise Refused("it selects nothing")
        if step < 0:
            turned.append(axis)
            at = at[::-1]
        strides[axis] = abs(step)
        ranges[axis % len(shape)] = (at[0], at[-1] - at[0] + 1)
    tensor = _slice(context, node, rep.tensor, node.outputs[0], ranges)
    tensor = _strided(context, node, tensor, strides)
    for axis in turned:
        tensor = _reversed(context, node, tensor, axis % len(shape))
    _move(context, node, rep, tensor)


def _list(context: Context, node: Node, slot: int, default: list[int] | None = None) -> list[int]:
    given = context.constant(node, slot)
    if given is None:
        if default is None:
            raise Refused(f"input {slot} is missing")
        return default
    return [int(v) for v in given.reshape(-1)]


def _reversed(context: Context, node: Node, tensor: str, axis: int) -> str:
    declared = context.builder.tensors[tensor]
    return context.builder.add(
        ir.Reverse, node.name, [tensor], node.outputs[0], declared.dtype, declared.dims, declared.qparams, axis=axis
    )


def _strided(context: Context, node: Node, tensor: str, strides: Sequence[int]) -> str:
    """Every ``strides[axis]``-th element: of rows and columns by a strided 1 by 1 maximum, else by :func:`_every`."""
    if len(strides) == 4 and max(strides[:2]) == 1 < max(strides) <= _MAX_STRIDE:
        declared = context.builder.tensors[tensor]
        n, c, h, w = declared.dims
        out = (n, c, (h - 1) // strides[2] + 1, (w - 1) // strides[3] + 1)
        return context.builder.add(
            ir.MaxPool, node.name, [tensor], node.outputs[0], declared.dtype, out, declared.qparams,
            kernel=(1, 1), strides=(strides[2], strides[3]), pads=(0, 0, 0, 0),
        )  # fmt: skip
    for axis, stride in enumerate(strides):
        if stride > 1:
            tensor = _every(context, node, tensor, axis, stride)
    return tensor


def _every(context: Context, node: Node, tensor: str, axis: int, stride: int) -> str:
    """The first of every ``stride`` elements along ``axis``: filled up, split into rows of so many, and cut."""
    builder, out = context.builder, node.outputs[0]
    declared = builder.tensors[tensor]
    dims = declared.dims
    count = -(-dims[axis] // stride)
    before, after = dims[:axis], dims[axis + 1 :]
    missing = count * stride - dims[axis]
    if missing:
        full = (*before, count * stride, *after)
        pads = tuple((0, missing if i == axis else 0) for i in range(len(dims)))
        tensor = builder.add(
            ir.Pad, node.name, [tensor], out, declared.dtype, full, declared.qparams, pads=pads, value=0
        )
    rows = context.reshape(node.name, tensor, (*before, count, stride, *after), out)
    first = _slice(context, node, rows, out, {axis + 1: (0, 1)})
    return context.reshape(node.name, first, (*before, count, *after), out)


def gather(context: Context, node: Node) -> None:
    """Gather of one index, or of indices with one common step."""
    rep = context.quantized(node.inputs[0])
    shape = context.builder.shape(rep.tensor)
    axis = int(node.attributes.get("axis", 0)) % len(shape)
    given = context.constant(node, 1)
    if given is None or not given.size or given.ndim > 1:
        raise Refused("its indices are not a list")
    indices = given.reshape(-1) % shape[axis]
    step = int(indices[1] - indices[0]) if len(indices) > 1 else 1
    if step < 1 or not np.array_equal(indices, indices[0] + step * np.arange(len(indices))):
        raise Refused("its indices have no common forward step")
    span = int(indices[-1] - indices[0]) + 1
    tensor = _slice(context, node, rep.tensor, node.outputs[0], {axis: (int(indices[0]), span)})
    tensor = _strided(context, node, tensor, [step if i == axis else 1 for i in range(len(shape))])
    _move(context, node, rep, context.reshape(node.name, tensor, context.shape(node.outputs[0]), node.outputs[0]))


def pad(context: Context, node: Node) -> None:
    """Pad with a constant, the edge, or the reflection; negative pads crop."""
    mode = str(node.attributes.get("mode", "constant"))
    if mode not in ("constant", "edge", "reflect"):
        raise Refused(f"it pads in mode {mode!r}")
    rep = context.quantized(node.inputs[0])
    shape = context.builder.shape(rep.tensor)
    rank = len(shape)
    attribute = node.attributes.get("pads")
    pads = [int(p) for p in attribute] if attribute is not None else _list(context, node, 1)
    axes = axes_of(context, node, 3, rank) or tuple(range(rank))
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        before[axis], after[axis] = pads[i], pads[i + len(axes)]
    ranges = {
        i: (max(-before[i], 0), shape[i] + min(before[i], 0) + min(after[i], 0))
        for i in range(rank)
        if before[i] < 0 or after[i] < 0
    }
    tensor = _slice(context, node, rep.tensor, node.outputs[0], ranges)
    grown = tuple((max(b, 0), max(a, 0)) for b, a in zip(before, after, strict=True))
    if mode != "constant":
        for axis, (low, high) in enumerate(grown):
            tensor = _continued(context, node, tensor, axis, low, high, mode)
        _move(context, node, rep, tensor)
        return
    value = _pad_value(context, node, rep)
    if any(b or a for b, a in grown):
        tensor = context.builder.add(
            ir.Pad,
            node.name,
            [tensor],
            node.outputs[0],
            _dtype(context, tensor),
            context.shape(node.outputs[0]),
            rep.qparams,
            pads=grown,
            value=value,
        )
    _move(context, node, rep, tensor)


def _continued(context: Context, node: Node, tensor: str, axis: int, low: int, high: int, mode: str) -> str:
    """``low`` and ``high`` elements more along ``axis``: its outermost ones again, or what a mirror there shows."""
    builder, out = context.builder, node.outputs[0]
    declared = builder.tensors[tensor]
    dims, size = declared.dims, declared.dims[axis]
    if mode == "reflect" and max(low, high) >= size:
        raise Refused(f"it reflects {max(low, high)} elements of {size}")

    def part(count: int, edge: int, mirrored: int) -> list[str]:
        if not count:
            return []
        if mode == "edge":
            one = _slice(context, node, tensor, out, {axis: (edge, 1)})
            multiples = tuple(count if i == axis else 1 for i in range(len(dims)))
            shape = tuple(count if i == axis else d for i, d in enumerate(dims))
            return [
                builder.add(
                    ir.Tile, node.name, [one], out, declared.dtype, shape, declared.qparams, multiples=multiples
                )
            ]
        return [_reversed(context, node, _slice(context, node, tensor, out, {axis: (mirrored, count)}), axis)]

    parts = [*part(low, 0, 1), tensor, *part(high, size - 1, size - 1 - high)]
    if len(parts) == 1:
        return tensor
    shape = tuple(d + low + high if i == axis else d for i, d in enumerate(dims))
    return builder.add(ir.Concat, node.name, parts, out, declared.dtype, shape, declared.qparams, axis=axis)


def _pad_value(context: Context, node: Node, rep: Rep) -> float:
    given = context.constant(node, 2)
    real = float(node.attributes.get("value", 0.0)) if given is None else float(given.reshape(()))
    if _dtype(context, rep.tensor) == "float32":
        return real
    if rep.qparams is None:
        return int(real) - (128 if rep.unsigned else 0)
    steps = real / rep.scale + rep.zp
    if steps != round(steps) and not (steps < -128 or steps > 127):
        raise Refused(f"its value {real:g} is not a step of its input's numbers")
    if not -128 <= steps <= 127:
        raise Refused(f"its value {real:g} lies outside its input's range")
    return int(quantize(np.array(real), rep.numbers))


def expand(context: Context, node: Node) -> None:
    """Expand and Tile."""
    rep = context.quantized(node.inputs[0])
    shape = context.shape(node.outputs[0])
    tensor = context.reshape(
        node.name, rep.tensor, align(context.builder.shape(rep.tensor), len(shape)), f"{rep.tensor}/aligned"
    )
    own = context.builder.shape(tensor)
    if own != shape:
        multiples = tuple(o // i for o, i in zip(shape, own, strict=True))
        tensor = context.builder.add(
            ir.Tile,
            node.name,
            [tensor],
            node.outputs[0],
            _dtype(context, tensor),
            shape,
            rep.qparams,
            multiples=multiples,
        )
    _move(context, node, rep, tensor)
