"""Conv and ConvTranspose: int8 products summed in int32, then one RESCALE to the output's qparams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context
from inlay.tosa.ir import Array
from inlay.tosa.quantized import Unsupported
from inlay.tosa.rules._common import Window, as_nchw, set_output, slice_spatial, window
from inlay.tosa.rules._products import Kernel, channel_scales, constant_weight, conv2d, int32_bias, requantize_sums


def conv(context: Context, node: Node) -> None:
    """Conv in one or two dimensions, dense, grouped or depthwise."""
    out_qparams = context.output_qparams(node.outputs[0])
    x = context.quantized_input(node.inputs[0])
    weight = constant_weight(context, node, 1)
    w, w_zp = weight.int8()
    scales = channel_scales(weight, 0, w.shape[0])
    if w.ndim == 3:
        w = w[:, :, None, :]
    group = int(node.attributes.get("group", 1))
    kernel = Kernel(w, w_zp, int32_bias(context, node, 2, x.scale * scales))
    win = window(node, context.shape(node.inputs[0])[2:], weight.values.shape[2:])
    tensor = slice_spatial(context, node, as_nchw(context, node, x.tensor), win.size)
    if group in (1, context.builder.shape(tensor)[1]):
        acc = conv2d(context, node, tensor, kernel, win, x.zp, depthwise=group > 1)
    else:
        acc = _grouped(context, node, tensor, kernel, win, x.zp, group)
    set_output(context, node, requantize_sums(context, node, acc, x.scale * scales, out_qparams), out_qparams)


def _grouped(context: Context, node: Node, tensor: str, kernel: Kernel, win: Window, in_zp: int, group: int) -> str:
    """TOSA has no groups: one convolution per group over its slice of the channels, concatenated."""
    outputs = kernel.weights.shape[0]
    parts = [
        conv2d(context, node, _channels(context, node, tensor, g, group), kernel.group(g, outputs // group), win, in_zp)
        for g in range(group)
    ]
    shape = (context.builder.shape(tensor)[0], outputs, *win.out)
    return context.builder.add(ir.Concat, node.name, parts, f"{node.name}/acc", "int32", shape, axis=1)


def _channels(context: Context, node: Node, tensor: str, index: int, group: int) -> str:
    """The input channels of one group."""
    n, channels, h, w = context.builder.shape(tensor)
    size = channels // group
    return context.builder.add(
        ir.Slice, node.name, [tensor], f"{node.name}/group{index}", "int8", (n, size, h, w),
        start=(0, index * size, 0, 0), size=(n, size, h, w),
    )  # fmt: skip


def conv_transpose(context: Context, node: Node) -> None:
    """ConvTranspose in one or two dimensions; a dilated kernel is written out with zeros between its taps."""
    out_qparams = context.output_qparams(node.outputs[0])
    x = context.quantized_input(node.inputs[0])
    weight = constant_weight(context, node, 1)
    group = int(node.attributes.get("group", 1))
    w, w_zp = weight.int8()
    per_group = w.shape[1]
    scales = channel_scales(weight, 1, per_group)
    if group > 1 and scales.size > 1:
        scales = np.tile(scales, group)  # ONNX counts the axis within a group: all groups share the scales
    rank = w.ndim - 2
    geometry = _geometry(context, node, weight.values.shape[2:], rank)
    w = _dilated(w, list(node.attributes.get("dilations", ())) or [1] * rank, w_zp)
    if rank == 1:
        w = w[:, :, None, :]
    total = per_group * group
    bias = int32_bias(context, node, 2, x.scale * np.broadcast_to(scales, (total,)))
    tensor, builder = as_nchw(context, node, x.tensor), context.builder
    n, channels, h, width = builder.shape(tensor)
    size = geometry.out(h, width)
    parts = []
    for g in range(group):
        part = tensor if group == 1 else _channels(context, node, tensor, g, group)
        rows = slice(g * channels // group, (g + 1) * channels // group)
        weights = builder.constant(f"{node.name}/weight", np.ascontiguousarray(w[rows].transpose(1, 0, 2, 3)))
        biases = builder.constant(f"{node.name}/bias", bias[g * per_group : (g + 1) * per_group])
        acc = builder.add(
            ir.TransposeConv2d, node.name, [part, weights, biases], f"{node.name}/acc", "int32", (n, per_group, *size),
            out_pads=geometry.pads, strides=geometry.strides, in_zp=x.zp, w_zp=w_zp,
        )  # fmt: skip
        parts.append(acc)
    if group > 1:
        acc = builder.add(ir.Concat, node.name, parts, f"{node.name}/acc", "int32", (n, total, *size), axis=1)
    set_output(context, node, requantize_sums(context, node, acc, x.scale * scales, out_qparams), out_qparams)


@dataclass(frozen=True)
class _Geometry:
    """A transposed convolution in two dimensions.

    Attributes:
        reach: rows and columns that the dilated kernel covers.
        strides: height and width.
        pads: added to the output at top, bottom, left, right; negative ones crop it.
    """

    reach: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]

    def out(self, height: int, width: int) -> tuple[int, int]:
        """Output size."""
        top, bottom, left, right = self.pads
        return (
            (height - 1) * self.strides[0] + self.reach[0] + top + bottom,
            (width - 1) * self.strides[1] + self.reach[1] + left + right,
        )


def _geometry(context: Context, node: Node, kernel: Sequence[int], rank: int) -> _Geometry:
    """ONNX specification of ConvTranspose: ``pads``, ``auto_pad``, ``output_padding``, ``output_shape``."""
    if rank not in (1, 2):
        raise Unsupported(f"it has {rank} spatial dimensions")
    strides = list(node.attributes.get("strides", ())) or [1] * rank
    dilations = list(node.attributes.get("dilations", ())) or [1] * rank
    extra = list(node.attributes.get("output_padding", ())) or [0] * rank
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    sizes, outs = context.shape(node.inputs[0])[2:], context.shape(node.outputs[0])[2:]
    given = list(node.attributes.get("pads", ())) or [0] * (2 * rank)
    auto = node.attributes.get("auto_pad", "NOTSET")
    begin, end = [], []
    for i in range(rank):
        full = (sizes[i] - 1) * strides[i] + reach[i]
        first = given[i]
        if auto in ("SAME_UPPER", "SAME_LOWER") or "output_shape" in node.attributes:
            total = full + int(extra[i]) - outs[i]
            first = total // 2 if auto != "SAME_LOWER" else total - total // 2
        begin.append(-first)
        end.append(outs[i] - full + first)
    if rank == 1:
        reach, strides, begin, end = [1, *reach], [1, *strides], [0, *begin], [0, *end]
    if any(low <= -k for k, low in zip((*reach, *reach), (*begin, *end), strict=True)):
        raise Unsupported("it crops a whole kernel")
    return _Geometry((reach[0], reach[1]), (strides[0], strides[1]), (begin[0], end[0], begin[1], end[1]))


def _dilated(w: Array, dilations: Sequence[int], fill: int) -> Array:
    """The kernel with ``fill`` between its taps: TOSA's transposed convolution has no dilation."""
    if max(dilations) == 1:
        return w
    shape = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    out = np.full((*w.shape[:2], *shape), fill, w.dtype)
    out[(slice(None), slice(None), *(slice(None, None, d) for d in dilations))] = w
    return out
