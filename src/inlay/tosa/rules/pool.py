"""MaxPool and AveragePool."""

from __future__ import annotations

import math

import numpy as np

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context
from inlay.tosa.ir import Array
from inlay.tosa.quantized import QuantizedTensor, Unsupported
from inlay.tosa.rules._common import Window, as_nchw, reads_extra_outputs, set_output, slice_spatial, window
from inlay.types import QParams

LARGEST_SUM = (1 << 31) // 256
"""Elements whose 8-bit values, less a zero point, can be summed in int32."""


def max_pool(context: Context, node: Node) -> None:
    """MaxPool: exact at the input's own qparams."""
    if reads_extra_outputs(context, node):
        raise Unsupported("its indices are used")
    _not_dilated(node)
    x = context.quantized_input(node.inputs[0])
    tensor, win = _windowed(context, node, x)
    shape = context.builder.shape(tensor)
    pooled = context.builder.add(
        ir.MaxPool, node.name, [tensor], f"{node.name}/pooled", "int8", (*shape[:2], *win.out), x.qparams,
        kernel=win.kernel, strides=win.strides, pads=win.pads,
    )  # fmt: skip
    set_output(context, node, pooled, x.known_qparams)


def average_pool(context: Context, node: Node) -> None:
    """AveragePool.

    Where every window counts the same number of elements, a sum (depthwise convolution with ones) and one RESCALE.
    Windows that leave out padding divide by different counts: AVG_POOL2D where the scale stays the same, else the sums
    are brought to a common denominator first. Rounds once in every case.
    """
    _not_dilated(node)
    to = context.output_qparams(node.outputs[0])
    x = context.quantized_input(node.inputs[0])
    tensor, win = _windowed(context, node, x)
    counts_padding = bool(node.attributes.get("count_include_pad", 0))
    if node.attributes.get("ceil_mode", 0) and max(win.pads) and counts_padding:
        raise Unsupported("it counts padding and rounds its size up")
    shape = context.builder.shape(tensor)
    if max(win.pads) == 0 or counts_padding:
        pooled = mean_of_windows(context, node, tensor, win, x.zp, x.scale / to.scale[0], to)
    elif x.scale == to.scale[0]:
        pooled = context.builder.add(
            ir.AvgPool, node.name, [tensor], f"{node.name}/pooled", "int8", (*shape[:2], *win.out), to,
            kernel=win.kernel, strides=win.strides, pads=win.pads, in_zp=x.zp, out_zp=to.zero_point[0],
        )  # fmt: skip
    else:
        pooled = _mean_of_partial_windows(context, node, tensor, win, x, to)
    set_output(context, node, pooled, to)


def _not_dilated(node: Node) -> None:
    if max(node.attributes.get("dilations", (1,))) > 1:
        raise Unsupported("it is dilated")


def _windowed(context: Context, node: Node, x: QuantizedTensor) -> tuple[str, Window]:
    """The input as [N,C,H,W], and the pooling window over it."""
    win = window(node, context.shape(node.inputs[0])[2:], node.attributes["kernel_shape"])
    if any(p >= k for p, k in zip(win.pads, np.repeat(win.kernel, 2), strict=True)):
        raise Unsupported("its padding is as large as its window")
    return slice_spatial(context, node, as_nchw(context, node, x.tensor), win.size), win


def mean_of_windows(
    context: Context, node: Node, tensor: str, win: Window, in_zp: int, factor: float, to: QParams
) -> str:
    """``factor`` times the mean of every window, padding included, as int8."""
    acc = _sum_of_windows(context, node, tensor, win, in_zp)
    return context.rescale(node.name, acc, [factor / math.prod(win.kernel)], f"{node.name}/out", to)


def _mean_of_partial_windows(
    context: Context, node: Node, tensor: str, win: Window, x: QuantizedTensor, to: QParams
) -> str:
    """Sums over the elements inside the input, each times (common denominator / its count), and one RESCALE."""
    counts = np.outer(*(_counts_inside(context.builder.shape(tensor)[2 + i], win, i) for i in range(2)))
    different = np.unique(counts)
    common = math.lcm(*(int(c) for c in different))
    if common > LARGEST_SUM:
        raise Unsupported(f"its windows hold {len(different)} different numbers of elements, and its scale changes")
    acc = _sum_of_windows(context, node, tensor, win, x.zp)
    weights = context.builder.constant(f"{node.name}/weights", (common // counts).astype(np.int32)[None, None])
    shape = context.builder.shape(acc)
    acc = context.builder.add(ir.Binary, node.name, [acc, weights], f"{node.name}/weighted", "int32", shape, fn="mul")
    return context.rescale(node.name, acc, [x.scale / (common * to.scale[0])], f"{node.name}/out", to)


def _counts_inside(size: int, win: Window, axis: int) -> Array:
    """How many rows (or columns) of each window lie inside the input."""
    starts = np.arange(win.out[axis]) * win.strides[axis] - win.pads[2 * axis]
    return np.asarray(np.minimum(starts + win.kernel[axis], size) - np.maximum(starts, 0))


def _sum_of_windows(context: Context, node: Node, tensor: str, win: Window, in_zp: int) -> str:
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
        pads=win.pads, strides=win.strides, dilations=(1, 1), depthwise=True, in_zp=in_zp,
    )  # fmt: skip
