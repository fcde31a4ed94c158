"""MaxPool and AveragePool, GlobalAveragePool, ReduceMean, ReduceSum, ReduceMax and ReduceMin."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from inlay.tosa import ir
from inlay.tosa.ir import Array
from inlay.tosa.quantized import QuantizedTensor, Unsupported
from inlay.tosa.rules._lookup import linear
from inlay.tosa.rules._node import NodeContext
from inlay.tosa.rules._windows import Window
from inlay.types import QParams

_LARGEST_SUM = (1 << 31) // 256  # elements whose 8-bit values, less a zero point, can be summed in int32

_LARGEST_KERNEL = 64
"""Largest window side that is summed by a convolution with ones (Ethos-U: kernel height ≤ 64, area ≤ 4096)."""


def max_pool(here: NodeContext) -> None:
    """MaxPool: exact at the input's own qparams."""
    if here.reads_extra_outputs:
        raise Unsupported("its indices are used")
    if max(here.attribute("dilations", (1,))) > 1:
        raise Unsupported("it is dilated")
    x = here.quantized_input(wide=True)
    win = pooling_window(here)
    here.set_output(pooled(here, ir.MaxPool, here.image(x.tensor, win.size), win), x.known_qparams)


def average_pool(here: NodeContext) -> None:
    """AveragePool.

    Where every window counts the same number of elements, a sum (depthwise convolution with ones) and one RESCALE.
    Windows that leave out padding divide by different counts: AVG_POOL2D where the scale stays the same, else the sums
    are brought to a common denominator first. Rounds once in every case.
    """
    if max(here.attribute("dilations", (1,))) > 1:
        raise Unsupported("it is dilated")
    x = here.quantized_input(wide=True)
    to = here.qparams_within(x.bound)
    win = pooling_window(here)
    tensor = here.image(x.tensor, win.size)
    counts_padding = bool(here.attribute("count_include_pad", 0))
    if here.attribute("ceil_mode", 0) and max(win.pads) and counts_padding:
        raise Unsupported("it counts padding and rounds its size up")
    if max(win.pads) == 0 or counts_padding:
        mean = _mean_of_windows(here, tensor, win, x, x.scale / to.scale[0], to)
    elif x.scale == to.scale[0] and not x.wide:
        mean = pooled(here, ir.AvgPool, tensor, win, to, in_zp=x.zp, out_zp=to.zero_point[0])
    else:
        mean = _mean_of_partial_windows(here, tensor, win, x, to)
    here.set_output(mean, to)


def pooling_window(here: NodeContext) -> Window:
    """The window of a pooling node."""
    win = here.window(here.node.attributes["kernel_shape"])
    if any(p >= k for p, k in zip(win.pads, np.repeat(win.kernel, 2), strict=True)):
        raise Unsupported("its padding is as large as its window")
    return win


def pooled(
    here: NodeContext, kind: type[ir.Op], tensor: str, win: Window, to: QParams | None = None, **zero_points: Any
) -> str:
    """MAX_POOL2D or AVG_POOL2D, with the qparams ``to`` or those of its input."""
    shape = (*here.shape(tensor)[:2], *win.out)
    dtype = None if to is None else "int8"
    return here.add(
        kind, tensor, "pooled", dtype, shape, to, kernel=win.kernel, strides=win.strides, pads=win.pads, **zero_points
    )


def _mean_of_windows(
    here: NodeContext, tensor: str, win: Window, x: QuantizedTensor, factor: float, to: QParams
) -> str:
    """``factor`` times the mean of every window, padding included, with the qparams ``to``."""
    return here.rescale(_sum_of_windows(here, tensor, win, x), [factor / math.prod(win.kernel)], to)


def _mean_of_partial_windows(here: NodeContext, tensor: str, win: Window, x: QuantizedTensor, to: QParams) -> str:
    """Sums over the elements inside the input, each times (common denominator / its count), and one RESCALE."""
    counts = np.outer(*(_counts_inside(here.shape(tensor)[2 + i], win, i) for i in range(2)))
    different = np.unique(counts)
    common = math.lcm(*(int(c) for c in different))
    if common > (_LARGEST_SUM >> 8 if x.wide else _LARGEST_SUM):
        raise Unsupported(f"its windows hold {len(different)} different numbers of elements, and its scale changes")
    weights = here.constant("weights", (common // counts).astype(np.int32)[None, None])
    weighted = here.binary("mul", _sum_of_windows(here, tensor, win, x), weights, "weighted")
    return here.rescale(weighted, [x.scale / (common * to.scale[0])], to)


def _counts_inside(size: int, win: Window, axis: int) -> Array:
    """How many rows (or columns) of each window lie inside the input."""
    starts = np.arange(win.out[axis]) * win.strides[axis] - win.pads[2 * axis]
    return np.asarray(np.minimum(starts + win.kernel[axis], size) - np.maximum(starts, 0))


def _sum_of_windows(here: NodeContext, tensor: str, win: Window, x: QuantizedTensor) -> str:
    channels = here.shape(tensor)[1]
    ones, zeros = np.ones((channels, 1, *win.kernel), np.int8), np.zeros(channels, np.int32)

    def sums(part: str, zero_point: int) -> str:
        return here.conv2d(part, ones, zeros, win, zero_point, depthwise=True)

    return linear(here, x, tensor, sums)


def reduced_axes(here: NodeContext, rank: int) -> tuple[int, ...]:
    """The axes that a reduction of a tensor of this rank runs over."""
    if here.node.op_type in ("GlobalAveragePool", "GlobalMaxPool"):
        return tuple(range(2, rank))
    axes = here.axes(1, rank)
    if axes is None:
        return () if here.attribute("noop_with_empty_axes", 0) else tuple(range(rank))
    return axes


def reduce_mean(here: NodeContext) -> None:
    """ReduceMean and ReduceSum over constant axes, and GlobalAveragePool."""
    axes = reduced_axes(here, len(here.input_shape()))
    x = here.quantized_input(wide=True)
    shape = here.shape(x.tensor)
    total = math.prod(shape[a] for a in axes)
    count = 1 if here.node.op_type == "ReduceSum" else total
    if total > (_LARGEST_SUM >> 8 if x.wide else _LARGEST_SUM):
        raise Unsupported(f"a sum of {total} elements does not fit int32")
    to = here.qparams_within(x.bound * total / count)
    factor = x.scale / to.scale[0]
    if len(shape) == 4 and set(axes) == {2, 3} and max(shape[2:]) <= _LARGEST_KERNEL:
        size = (shape[2], shape[3])
        mean = _mean_of_windows(here, x.tensor, Window(size, size), x, factor * total / count, to)
    else:
        tensor = here.to_int32(x.tensor, x.zp)
        for axis in axes:
            tensor = here.reduce("sum", tensor, axis)
        mean = here.rescale(tensor, [factor / count], to)
    here.set_output(mean, to)


def reduce_extreme(here: NodeContext) -> None:
    """ReduceMax, ReduceMin and GlobalMaxPool: exact at the input's own qparams."""
    x = here.quantized_input(wide=True)
    tensor = x.tensor
    for axis in reduced_axes(here, len(here.shape(tensor))):
        tensor = here.reduce("min" if here.node.op_type == "ReduceMin" else "max", tensor, axis)
    here.set_output(tensor, x.known_qparams)
