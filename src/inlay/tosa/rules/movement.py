"""Operators that only reorder, repeat, drop or join elements: exact at the input's own qparams.

The same rules serve values without qparams: integers between Q and DQ, and float values in profile ``INT+FP``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from inlay.quant.qparams import quantize
from inlay.tosa import ir
from inlay.tosa.quantized import QuantizedTensor, Unsupported
from inlay.tosa.rules._node import NodeContext, representable, with_size

_LARGEST_STRIDE = 8
"""A strided slice of rows and columns is a 1 by 1 MAX_POOL2D up to this stride, above it a Reshape and a Slice."""

# Reshape and its kin, Transpose, Identity


def identity(here: NodeContext) -> None:
    """Identity, and Dropout in inference."""
    if here.reads_extra_outputs:
        raise Unsupported("its mask is used")
    x = here.quantized_input(wide=True)
    here.set_moved(x, x.tensor)


def reshape(here: NodeContext) -> None:
    """Reshape, Flatten, Squeeze, Unsqueeze: the new shape is static, whatever computes it."""
    x = here.quantized_input(wide=True)
    if math.prod(here.out_shape) != math.prod(here.shape(x.tensor)):
        raise Unsupported("its shape is not known")
    here.set_moved(x, here.reshape(x.tensor, here.out_shape))


def transpose(here: NodeContext) -> None:
    """Transpose."""
    x = here.quantized_input(wide=True)
    rank = len(here.shape(x.tensor))
    perm = tuple(int(p) for p in here.attribute("perm", ())) or tuple(reversed(range(rank)))
    here.set_moved(x, here.transposed(x.tensor, perm))


def space_to_depth(here: NodeContext) -> None:
    """SpaceToDepth: rows and columns are split in two, and the inner parts moved before the channels."""
    n, c, h, w = here.shape(here.quantized_input(wide=True).tensor)
    b = int(here.node.attributes["blocksize"])
    if h % b or w % b:
        raise Unsupported(f"its {h} rows and {w} columns are no multiples of {b}")
    _reordered(here, (n, c, h // b, b, w // b, b), (0, 3, 5, 1, 2, 4))


def depth_to_space(here: NodeContext) -> None:
    """DepthToSpace: the channels' outer part (mode DCR) or inner part (CRD) moves behind rows and columns."""
    n, c, h, w = here.shape(here.quantized_input(wide=True).tensor)
    b = int(here.node.attributes["blocksize"])
    if c % (b * b):
        raise Unsupported(f"its {c} channels are no multiple of {b * b}")
    if here.attribute("mode", "DCR") == "CRD":
        _reordered(here, (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3))
    else:
        _reordered(here, (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2))


def _reordered(here: NodeContext, split: tuple[int, ...], perm: tuple[int, ...]) -> None:
    """Reshape to ``split``, transpose by ``perm``, reshape to the node's own shape."""
    x = here.quantized_input(wide=True)
    tensor = here.transposed(here.reshape(x.tensor, split, base=f"{here.out}/split"), perm)
    here.set_moved(x, here.reshape(tensor, here.out_shape))


def expand(here: NodeContext) -> None:
    """Expand and Tile."""
    x, shape = here.quantized_input(wide=True), here.out_shape
    tensor = here.aligned(x.tensor, len(shape))
    aligned = here.shape(tensor)
    if aligned != shape:
        tensor = _tiled(here, tensor, tuple(o // i for o, i in zip(shape, aligned, strict=True)))
    here.set_moved(x, tensor)


def _tiled(here: NodeContext, tensor: str, multiples: tuple[int, ...]) -> str:
    shape = tuple(m * d for m, d in zip(multiples, here.shape(tensor), strict=True))
    return here.add(ir.Tile, tensor, shape=shape, multiples=multiples)


# Split, Slice, Gather


def split(here: NodeContext) -> None:
    """Split into equal parts, or into the given sizes."""
    x = here.quantized_input(wide=True)
    axis = int(here.attribute("axis", 0)) % len(here.shape(x.tensor))
    start = 0
    for index, value in enumerate(here.node.outputs):
        if not value:
            raise Unsupported("one of its outputs is left out")
        size = here.context.shape(value)[axis]
        here.set_moved(x, here.sliced(x.tensor, {axis: (start, size)}, base=value), index)
        start += size


def slice_(here: NodeContext) -> None:
    """Slice with constant bounds; steps above 1 as :func:`_strided`, negative ones reversed at the end."""
    x = here.quantized_input(wide=True)
    shape = here.shape(x.tensor)
    ranges, strides, backward = {}, [1] * len(shape), []
    for start, end, axis, step in _bounds(here):
        selected = range(*slice(start, end, step).indices(shape[axis]))
        if not len(selected):
            raise Unsupported("it selects nothing")
        if step < 0:
            backward.append(axis)
            selected = selected[::-1]
        strides[axis] = abs(step)
        ranges[axis % len(shape)] = (selected[0], selected[-1] - selected[0] + 1)
    tensor = _strided(here, here.sliced(x.tensor, ranges), strides)
    for axis in backward:
        tensor = here.add(ir.Reverse, tensor, axis=axis % len(shape))
    here.set_moved(x, tensor)


def _bounds(here: NodeContext) -> list[tuple[int, int, int, int]]:
    """Start, end, axis and step of each sliced axis: attributes up to opset 9, inputs since."""
    if "starts" in here.node.attributes:
        given = [here.attribute(name, None) for name in ("starts", "ends", "axes", "steps")]
    else:
        given = [here.integers(slot) for slot in (1, 2, 3, 4)]
    for slot in (1, 2):
        if given[slot - 1] is None:
            raise Unsupported(f"input {slot} is missing")
    starts, ends, axes, steps = given
    axes = range(len(starts)) if axes is None else axes
    return list(zip(starts, ends, axes, [1] * len(starts) if steps is None else steps, strict=True))


def _strided(here: NodeContext, tensor: str, strides: Sequence[int]) -> str:
    """Every ``strides[axis]``-th element: of rows and columns by a strided 1 by 1 maximum, else :func:`_every`."""
    if len(strides) == 4 and max(strides[:2]) == 1 < max(strides) <= _LARGEST_STRIDE:
        n, c, h, w = here.shape(tensor)
        shape = (n, c, (h - 1) // strides[2] + 1, (w - 1) // strides[3] + 1)
        steps = (strides[2], strides[3])
        return here.add(ir.MaxPool, tensor, shape=shape, kernel=(1, 1), strides=steps, pads=(0, 0, 0, 0))
    for axis, stride in enumerate(strides):
        if stride > 1:
            tensor = _every(here, tensor, axis, stride)
    return tensor


def _every(here: NodeContext, tensor: str, axis: int, stride: int) -> str:
    """The first of every ``stride`` elements along ``axis``: padded to a multiple, split into rows of that, sliced."""
    dims = here.shape(tensor)
    count = -(-dims[axis] // stride)
    missing = count * stride - dims[axis]
    tensor = _padded(here, tensor, [(0, missing if i == axis else 0) for i in range(len(dims))], 0)
    rows = here.reshape(tensor, (*dims[:axis], count, stride, *dims[axis + 1 :]))
    return here.reshape(here.sliced(rows, {axis + 1: (0, 1)}), with_size(dims, axis, count))


def gather(here: NodeContext) -> None:
    """Gather: of one index, or of indices with one common step, a slice; of others, also computed ones, a lookup."""
    x = here.quantized_input(wide=True)
    shape = here.shape(x.tensor)
    if not shape:
        raise Unsupported("its input has no axis")
    axis = int(here.attribute("axis", 0)) % len(shape)
    given = here.context.model.constants.get(here.node.inputs[1])
    if given is None:
        here.set_moved(x, _looked_up(here, x.tensor, axis, _run_time_rows(here, shape[axis])))
        return
    if not given.size:
        raise Unsupported("it selects nothing")
    indices = given.reshape(-1) % shape[axis]
    step = int(indices[1] - indices[0]) if len(indices) > 1 else 1
    if not step or not np.array_equal(indices, indices[0] + step * np.arange(len(indices))):
        rows = here.constant("rows", indices.reshape(1, -1).astype(np.int32))
        here.set_moved(x, _looked_up(here, x.tensor, axis, rows))
        return
    first, last = int(indices.min()), int(indices.max())
    tensor = here.sliced(x.tensor, {axis: (first, last - first + 1)})
    tensor = _strided(here, tensor, with_size([1] * len(shape), axis, abs(step)))
    if step < 0:
        tensor = here.add(ir.Reverse, tensor, axis=axis)
    here.set_moved(x, here.reshape(tensor, here.out_shape))


def _run_time_rows(here: NodeContext, size: int) -> str:
    """The node's indices, which only a run tells, as [1, W] row numbers: the host counts those from the end anew."""
    given = here.context.unquantized_tensor(here.node.inputs[1], ir.Executor.HOST)
    shape = here.shape(given)
    if here.tensor(given).dtype not in ("int32", "int64"):
        raise Unsupported("its indices are quantized")
    if not math.prod(shape):
        raise Unsupported("it selects nothing")
    rows = here.add(ir.RowNumbers, given, "numbers", "int32", shape, size=size)
    return here.add(ir.Reshape, rows, "rows", shape=(1, math.prod(shape)))


def _looked_up(here: NodeContext, tensor: str, axis: int, rows: str) -> str:
    """The rows [1, W] of ``tensor`` along ``axis``, in the shape of the node's output."""
    dims = here.shape(tensor)
    outer, count = math.prod(dims[:axis]), here.shape(rows)[1]
    if outer > 1:
        rows = here.add(ir.Tile, rows, "tiled", shape=(outer, count), multiples=(outer, 1))
    # Reshapes also where the shape stays: a lookup has one layout, which those around it need not have.
    table = here.add(ir.Reshape, tensor, "table", shape=(outer, dims[axis], math.prod(dims[axis + 1 :])))
    shape = (outer, count, here.shape(table)[2])
    found = here.add(ir.Gather, [table, rows], "found", shape=shape)
    return here.add(ir.Reshape, found, shape=here.out_shape)


# Concat and Pad


def concat(here: NodeContext) -> None:
    """Concat: inputs whose qparams differ from the output's are requantized one by one."""
    xs = [here.context.quantized_input(v, wide=True) for v in here.node.inputs]
    axis = int(here.node.attributes["axis"]) % len(here.out_shape)
    if any(x.qparams is None for x in xs):
        if len({x.unsigned for x in xs}) > 1 or any(x.qparams is not None for x in xs):
            raise Unsupported("it joins integer tensors of different types")
        names, first = [x.tensor for x in xs], xs[0]
    else:
        same = len({x.known_qparams for x in xs}) == 1
        try:
            to = here.qparams_within(math.inf if same else max(x.bound for x in xs))
        except Unsupported:
            if not same:
                raise
            to = xs[0].known_qparams
        names = [here.requantize(x, to, f"{x.tensor}/same") for x in xs]
        first = QuantizedTensor(names[0], to)
    tensor = names[0]
    if len(names) > 1:
        dtype = here.tensor(tensor).dtype
        tensor = here.add(ir.Concat, names, "", dtype, here.out_shape, first.qparams, axis=axis)
    here.set_moved(first, tensor)


def pad(here: NodeContext) -> None:
    """Pad with a constant, the edge, or the reflection; negative pads crop."""
    mode = str(here.attribute("mode", "constant"))
    if mode not in ("constant", "edge", "reflect"):
        raise Unsupported(f"it pads in mode {mode!r}")
    x = here.quantized_input(wide=True)
    value = 0.0
    if mode == "constant":
        x, value = _with_pad_value(here, x)
    shape = here.shape(x.tensor)
    pads = _pads(here, len(shape))
    cropped = {
        i: (max(-before, 0), size + min(before, 0) + min(after, 0))
        for i, (size, (before, after)) in enumerate(zip(shape, pads, strict=True))
        if before < 0 or after < 0
    }
    tensor = here.sliced(x.tensor, cropped)
    grown = [(max(before, 0), max(after, 0)) for before, after in pads]
    if mode == "constant":
        tensor = _padded(here, tensor, grown, value)
    else:
        for axis, (before, after) in enumerate(grown):
            tensor = _extended(here, tensor, axis, before, after, mode)
    here.set_moved(x, tensor)


def _pads(here: NodeContext, rank: int) -> list[tuple[int, int]]:
    """Elements before and after each axis: an attribute up to opset 10, an input since."""
    attribute = here.attribute("pads", None)
    pads = here.integers(1) if attribute is None else [int(p) for p in attribute]
    if pads is None:
        raise Unsupported("input 1 is missing")
    axes = here.axes(3, rank) or tuple(range(rank))
    both = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        both[axis] = (pads[i], pads[i + len(axes)])
    return both


def _padded(here: NodeContext, tensor: str, pads: Sequence[tuple[int, int]], value: float) -> str:
    """``tensor`` with ``pads[axis] = (before, after)`` elements of ``value``; itself where there are none."""
    dims = here.shape(tensor)
    shape = tuple(before + d + after for d, (before, after) in zip(dims, pads, strict=True))
    return tensor if shape == dims else here.add(ir.Pad, tensor, shape=shape, pads=tuple(pads), value=value)


def _extended(here: NodeContext, tensor: str, axis: int, before: int, after: int, mode: str) -> str:
    """More elements on both sides of ``axis``: its outermost ones repeated, or what a mirror there shows."""
    dims = here.shape(tensor)
    size = dims[axis]
    if mode == "reflect" and max(before, after) >= size:
        raise Unsupported(f"it reflects {max(before, after)} elements of {size}")

    def side(count: int, edge: int, mirrored: int) -> list[str]:
        if not count:
            return []
        if mode == "reflect":
            return [here.add(ir.Reverse, here.sliced(tensor, {axis: (mirrored, count)}), axis=axis)]
        return [_tiled(here, here.sliced(tensor, {axis: (edge, 1)}), with_size([1] * len(dims), axis, count))]

    parts = [*side(before, 0, 1), tensor, *side(after, size - 1, size - 1 - after)]
    if len(parts) == 1:
        return tensor
    return here.add(ir.Concat, parts, shape=with_size(dims, axis, before + size + after), axis=axis)


def _with_pad_value(here: NodeContext, x: QuantizedTensor) -> tuple[QuantizedTensor, float]:
    """The input and the value to pad it with, as integers with the same qparams.

    Where the value is no step of the input's scale (minus infinity before a MaxPool), both are requantized as the
    node's result is: each is rounded, and saturated, once.
    """
    given = here.constant_input(2)
    real = float(here.attribute("value", 0.0)) if given is None or not given.size else float(given.reshape(()))
    if here.tensor(x.tensor).dtype == "float32":
        return x, real
    if x.qparams is None:
        return x, int(real) - (128 if x.unsigned else 0)
    if np.isnan(real):
        raise Unsupported("it pads with what is not a number")
    if not representable(real, x.qparams):
        to = here.qparams_within(max(x.bound, abs(real)))
        x = QuantizedTensor(here.requantize(x, to, f"{here.node.name}/rescaled"), to)
    return x, int(quantize(np.array(real), x.known_qparams))
