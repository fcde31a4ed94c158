"""Pooling and reductions."""

from __future__ import annotations

import math

import numpy as np

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context, Refused, Rep
from inlay.tosa.ir import Array
from inlay.tosa.rules._common import Window, axes_of, crop, further_outputs, settle, spatial4, window
from inlay.types import QParams

_LARGEST_DENOMINATOR = (1 << 31) // 256
"""A mean of 8-bit numbers times this still fits int32."""

_KERNEL_LIMIT = 64
"""Largest window side that is summed by a convolution with ones (Ethos-U: kernel height ≤ 64, area ≤ 4096)."""


def max_pool(context: Context, node: Node) -> None:
    """MaxPool: exact in the input's own numbers."""
    if further_outputs(context, node):
        raise Refused("its indices are used")
    if max(node.attributes.get("dilations", (1,))) > 1:
        raise Refused("it is dilated")
    rep = context.quantized(node.inputs[0])
    win = window(node, context.shape(node.inputs[0])[2:], node.attributes["kernel_shape"])
    _inside(win)
    tensor = crop(context, node, spatial4(context, node, rep.tensor), win.size)
    shape = context.builder.shape(tensor)
    pooled = context.builder.add(
        ir.MaxPool, node.name, [tensor], f"{node.name}/pooled", "int8", (*shape[:2], *win.out), rep.qparams,
        kernel=win.kernel, strides=win.strides, pads=win.pads,
    )  # fmt: skip
    settle(context, node, pooled, rep.numbers)


def average_pool(context: Context, node: Node) -> None:
    """AveragePool.

    Where every window counts the same number of elements, a sum (depthwise convolution with ones) and one RESCALE.
    Windows that leave out padding divide by different counts: AVG_POOL2D where the scale stays the same, else the sums
    are brought to a common denominator first. Rounds once in every case.
    """
    if max(node.attributes.get("dilations", (1,))) > 1:
        raise Refused("it is dilated")
    want = context.wanted(node.outputs[0])
    rep = context.quantized(node.inputs[0])
    win = window(node, context.shape(node.inputs[0])[2:], node.attributes["kernel_shape"])
    _inside(win)
    tensor = crop(context, node, spatial4(context, node, rep.tensor), win.size)
    counts_all = bool(node.attributes.get("count_include_pad", 0))
    if node.attributes.get("ceil_mode", 0) and max(win.pads) and counts_all:
        raise Refused("it counts padding and rounds its size up")
    shape = context.builder.shape(tensor)
    if max(win.pads) == 0 or counts_all:
        pooled = _mean_of_windows(context, node, tensor, win, rep.zp, rep.scale / want.scale[0])
    elif rep.scale == want.scale[0]:
        pooled = context.builder.add(
            ir.AvgPool, node.name, [tensor], f"{node.name}/pooled", "int8", (*shape[:2], *win.out), want,
            kernel=win.kernel, strides=win.strides, pads=win.pads, in_zp=rep.zp, out_zp=want.zero_point[0],
        )  # fmt: skip
    else:
        pooled = _mean_of_partial_windows(context, node, tensor, win, rep, want)
    settle(context, node, pooled, want)


def _inside(win: Window) -> None:
    if any(p >= k for p, k in zip(win.pads, (win.kernel[0], win.kernel[0], win.kernel[1], win.kernel[1]), strict=True)):
        raise Refused("its padding is as large as its window")


def _mean_of_windows(context: Context, node: Node, tensor: str, win: Window, zp: int, factor: float) -> str:
    acc = _sum_of_windows(context, node, tensor, win, zp)
    want = context.wanted(node.outputs[0])
    return context.rescale(node.name, acc, [factor / math.prod(win.kernel)], f"{node.name}/out", want)


def _mean_of_partial_windows(context: Context, node: Node, tensor: str, win: Window, rep: Rep, want: QParams) -> str:
    """Sums over what lies inside, each times (common denominator / its count), and one RESCALE."""
    counts = np.outer(*(_inside_counts(context.builder.shape(tensor)[2 + i], win, i) for i in range(2)))
    common = math.lcm(*(int(c) for c in np.unique(counts)))
    if common > _LARGEST_DENOMINATOR:
        raise Refused(f"its windows hold {len(np.unique(counts))} different numbers of elements, and its scale changes")
    acc = _sum_of_windows(context, node, tensor, win, rep.zp)
    weights = context.builder.constant(f"{node.name}/weights", (common // counts).astype(np.int32)[None, None])
    shape = context.builder.shape(acc)
    acc = context.builder.add(ir.Binary, node.name, [acc, weights], f"{node.name}/weighted", "int32", shape, fn="mul")
    return context.rescale(node.name, acc, [rep.scale / (common * want.scale[0])], f"{node.name}/out", want)


def _inside_counts(size: int, win: Window, axis: int) -> Array:
    """How many rows (or columns) of each window lie inside the input."""
    starts = np.arange(win.out[axis]) * win.strides[axis] - win.pads[2 * axis]
    return np.asarray(np.minimum(starts + win.kernel[axis], size) - np.maximum(starts, 0))


def _sum_of_windows(context: Context, node: Node, tensor: str, win: Window, zp: int) -> str:
    builder = context.builder
    n, channels, _, _ = builder.shape(tensor)
    return builder.add(
        ir.Conv2d, node.name,
        [
            tensor,
            builder.constant(f"{node.name}/ones", np.ones((channels, 1, *win.kernel), np.int8)),
            builder.constant(f"{node.name}/zeros", np.zeros(channels, np.int32)),
        ],
        f"{node.name}/sum", "int32", (n, channels, *win.out),
        pads=win.pads, strides=win.strides, dilations=(1, 1), depthwise=True, in_zp=zp,
    )  # fmt: skip


def global_average_pool(context: Context, node: Node) -> None:
    """GlobalAveragePool: the mean over every axis behind the channels."""
    rank = len(context.shape(node.inputs[0]))
    _mean(context, node, tuple(range(2, rank)))


def reduce_mean(context: Context, node: Node) -> None:
    """ReduceMean and ReduceSum over constant axes."""
    rank = len(context.shape(node.inputs[0]))
    axes = axes_of(context, node, 1, rank)
    if axes is None:
        axes = () if node.attributes.get("noop_with_empty_axes", 0) else tuple(range(rank))
    _mean(context, node, axes)


def _mean(context: Context, node: Node, axes: tuple[int, ...]) -> None:
    want = context.wanted(node.outputs[0])
    rep = context.quantized(node.inputs[0])
    shape = context.builder.shape(rep.tensor)
    count = 1 if node.op_type == "ReduceSum" else math.prod(shape[a] for a in axes)
    total = math.prod(shape[a] for a in axes)
    if total > (1 << 31) // 256:
        raise Refused(f"a sum of {total} elements does not fit int32")
    factor = rep.scale / want.scale[0]
    if len(shape) == 4 and set(axes) == {2, 3} and max(shape[2:]) <= _KERNEL_LIMIT:
        win = Window((shape[2], shape[3]), (1, 1), (1, 1), (0, 0, 0, 0), (shape[2], shape[3]), (1, 1))
        pooled = _mean_of_windows(context, node, rep.tensor, win, rep.zp, factor * total / count)
        settle(context, node, pooled, want)
        return
    tensor = context.widen(node.name, rep.tensor, rep.zp)
    for axis in axes:
        tensor = _reduce(context, node, tensor, "sum", axis)
    settle(context, node, context.rescale(node.name, tensor, [factor / count], f"{node.name}/out", want), want)


def reduce_extreme(context: Context, node: Node) -> None:
    """ReduceMax and ReduceMin: exact in the input's own numbers."""
    rep = context.quantized(node.inputs[0])
    rank = len(context.builder.shape(rep.tensor))
    axes = axes_of(context, node, 1, rank)
    tensor = rep.tensor
    for axis in tuple(range(rank)) if axes is None else axes:
        tensor = _reduce(context, node, tensor, "max" if node.op_type == "ReduceMax" else "min", axis)
    settle(context, node, tensor, rep.numbers)


def _reduce(context: Context, node: Node, tensor: str, fn: str, axis: int) -> str:
    declared = context.builder.tensors[tensor]
    shape = tuple(1 if i == axis else d for i, d in enumerate(declared.dims))
    return context.builder.add(
        ir.Reduce, node.name, [tensor], f"{node.name}/{fn}", declared.dtype, shape, declared.qparams, fn=fn, axis=axis
    )
