"""Conv and ConvTranspose: int8 products summed in int32, then one RESCALE to the output's qparams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inlay.tosa import ir
from inlay.tosa.ir import Array
from inlay.tosa.quantized import Unsupported
from inlay.tosa.rules._node import NodeContext
from inlay.tosa.rules._products import channel_scales, constant_weight, int32_bias, largest_sums, requantize_sums


def conv(here: NodeContext) -> None:
    """Conv in one or two dimensions, dense, grouped or depthwise."""
    x = here.quantized_input()
    weight = constant_weight(here, 1)
    w, w_zp = weight.int8()
    outputs = w.shape[0]
    scales = x.scale * channel_scales(weight, 0, outputs)
    if w.ndim == 3:
        w = w[:, :, None, :]
    groups = int(here.attribute("group", 1))
    if groups < 1 or outputs % groups:
        raise Unsupported(f"its {outputs} outputs are not divided by {groups} groups")
    bias = int32_bias(here, 2, scales)
    to = here.qparams_within(float((largest_sums(w, bias, x, w_zp) * scales).max()))
    win = here.window(weight.values.shape[2:])
    tensor = here.image(x.tensor, win.size)
    depthwise = groups == here.shape(tensor)[1]
    if groups == 1 or depthwise:
        acc = here.conv2d(tensor, w, bias, win, x.zp, w_zp, depthwise=groups > 1)
    else:
        # TOSA has no groups: one convolution for each, over its slice of the channels.
        own = [slice(g * outputs // groups, (g + 1) * outputs // groups) for g in range(groups)]
        parts = [
            here.conv2d(_channels(here, tensor, g, groups), w[rows], bias[rows], win, x.zp, w_zp)
            for g, rows in enumerate(own)
        ]
        acc = _joined(here, parts)
    here.set_output(requantize_sums(here, acc, scales, to), to)


def _channels(here: NodeContext, tensor: str, index: int, groups: int) -> str:
    """The input channels of one group."""
    size = here.shape(tensor)[1] // groups
    return here.sliced(tensor, {1: (index * size, size)}, f"group{index}")


def _joined(here: NodeContext, parts: Sequence[str]) -> str:
    """The sums of all groups, joined along the channels."""
    n, channels, *size = here.shape(parts[0])
    return here.add(ir.Concat, parts, "acc", shape=(n, channels * len(parts), *size), axis=1)


def conv_transpose(here: NodeContext) -> None:
    """ConvTranspose in one or two dimensions; a dilated kernel is written out with zeros between its taps."""
    x = here.quantized_input()
    weight = constant_weight(here, 1)
    groups = int(here.attribute("group", 1))
    w, w_zp = weight.int8()
    per_group = w.shape[1]
    scales = channel_scales(weight, 1, per_group)
    if groups > 1 and scales.size > 1:
        scales = np.tile(scales, groups)  # ONNX counts the axis within a group: all groups share the scales
    rank = w.ndim - 2
    geometry = _geometry(here, weight.values.shape[2:], rank)
    w = _dilated(w, list(here.attribute("dilations", ())) or [1] * rank, w_zp)
    if rank == 1:
        w = w[:, :, None, :]
    bias = int32_bias(here, 2, x.scale * np.broadcast_to(scales, (per_group * groups,)))
    by_output = w.reshape(groups, -1, *w.shape[1:]).swapaxes(1, 2)  # [groups, outputs of a group, inputs of a group, …]
    largest = largest_sums(by_output, bias, x, w_zp)  # an upper bound: a window may not reach every tap
    to = here.qparams_within(float((largest * x.scale * scales).max()))
    tensor = here.image(x.tensor)
    n, channels, height, width = here.shape(tensor)
    parts = []
    for g in range(groups):
        part = tensor if groups == 1 else _channels(here, tensor, g, groups)
        rows = slice(g * channels // groups, (g + 1) * channels // groups)
        weights = here.constant("weight", np.ascontiguousarray(w[rows].transpose(1, 0, 2, 3)))
        biases = here.constant("bias", bias[g * per_group : (g + 1) * per_group])
        acc = here.add(
            ir.TransposeConv2d, [part, weights, biases], "acc", "int32", (n, per_group, *geometry.out(height, width)),
            out_pads=geometry.pads, strides=geometry.strides, in_zp=x.zp, w_zp=w_zp,
        )  # fmt: skip
        parts.append(acc)
    if groups > 1:
        acc = _joined(here, parts)
    here.set_output(requantize_sums(here, acc, x.scale * scales, to), to)


@dataclass(frozen=True)
class _Geometry:
    """A transposed convolution in two dimensions."""

    reach: tuple[int, int]  # rows and columns that the dilated kernel covers
    strides: tuple[int, int]  # height and width
    pads: tuple[int, int, int, int]  # added to the output at top, bottom, left, right; negative ones crop it

    def out(self, height: int, width: int) -> tuple[int, int]:
        """Output size."""
        top, bottom, left, right = self.pads
        return (
            (height - 1) * self.strides[0] + self.reach[0] + top + bottom,
            (width - 1) * self.strides[1] + self.reach[1] + left + right,
        )


def _geometry(here: NodeContext, kernel: Sequence[int], rank: int) -> _Geometry:
    """ONNX specification of ConvTranspose: ``pads``, ``auto_pad``, ``output_padding``, ``output_shape``."""
    if rank not in (1, 2):
        raise Unsupported(f"it has {rank} spatial dimensions")
    strides = list(here.attribute("strides", ())) or [1] * rank
    dilations = list(here.attribute("dilations", ())) or [1] * rank
    extra = list(here.attribute("output_padding", ())) or [0] * rank
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    sizes, outs = here.input_shape()[2:], here.out_shape[2:]
    given = list(here.attribute("pads", ())) or [0] * (2 * rank)
    auto = here.attribute("auto_pad", "NOTSET")
    begin, end = [], []
    for i in range(rank):
        full = (sizes[i] - 1) * strides[i] + reach[i]
        first = given[i]
        if auto in ("SAME_UPPER", "SAME_LOWER") or "output_shape" in here.node.attributes:
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
