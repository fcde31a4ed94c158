"""Conv, ConvTranspose, Gemm and MatMul: int8 products summed in int32, then one RESCALE to the output's qparams."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inlay.tosa import ir
from inlay.tosa.ir import Array, Shape
from inlay.tosa.quantized import QuantizedConstant, QuantizedTensor, Unsupported
from inlay.tosa.rules._node import NodeContext
from inlay.tosa.rules._windows import Window
from inlay.types import QParams

_INT32_MAX = (1 << 31) - 1


def constant_weight(here: NodeContext, index: int) -> QuantizedConstant:
    """The quantized constant at an input slot."""
    value = here.node.inputs[index]
    weight = here.context.constants.get(value)
    if weight is None:
        raise Unsupported(f"its weight {value!r} is not a quantized constant")
    return weight


def channel_scales(weight: QuantizedConstant, axis: int, channels: int) -> Array:
    """One real scale, or one for each output channel (which lie along ``axis`` of the weight)."""
    scale = weight.scale.astype(np.float64).reshape(-1)
    if scale.size == 1:
        return scale
    if weight.axis != axis or scale.size != channels:
        raise Unsupported("its weight is quantized along another axis than the output channels")
    return scale


def int32_bias(here: NodeContext, index: int, scales: Array, factor: float = 1.0) -> Array:
    """int32 bias in units of ``scales``: the model's own integers where it has the same scale, else rounded to it."""
    channels = here.out_shape[1 if here.node.op_type.startswith("Conv") else -1]
    value = here.node.inputs[index] if index < len(here.node.inputs) else ""
    if not value:
        return np.zeros(channels, np.int32)
    quantized = here.context.constants.get(value)
    scales = np.broadcast_to(scales, (channels,))
    if quantized is not None:
        own = np.broadcast_to(quantized.scale.astype(np.float64).reshape(-1), (channels,))
        if (
            factor == 1.0
            and quantized.values.size == channels
            and not quantized.zero_point.any()
            and np.allclose(own, scales, rtol=1e-6, atol=0)
        ):
            return quantized.values.reshape(-1).astype(np.int32)
        real = quantized.real
    else:
        constant = here.context.model.constants.get(value)
        if constant is None:
            raise Unsupported(f"its bias {value!r} is not constant")
        real = constant.astype(np.float64)
    if real.size not in (1, channels) or (real.ndim > 1 and real.shape[-1] != real.size):
        raise Unsupported(f"its bias has the shape {list(real.shape)}")
    ints = np.rint(np.broadcast_to(real.reshape(-1), (channels,)) * factor / scales)
    if np.abs(ints).max(initial=0) > _INT32_MAX:
        raise Unsupported("its bias does not fit int32 at the scale of its products")
    return np.asarray(ints.astype(np.int32))


def largest_sums(weights: Array, bias: Array, x: QuantizedTensor, w_zp: int = 0) -> Array:
    """Largest magnitude of each output channel's int32 sums; ``weights`` has the output channels first.

    Raises:
        Unsupported: int32 cannot hold them.
    """
    flat = weights.reshape(len(bias), -1).astype(np.int64) - w_zp
    low, high = x.known_qparams.qtype.qmin - x.zp, x.known_qparams.qtype.qmax - x.zp
    up, down = np.maximum(flat, 0).sum(axis=1), np.minimum(flat, 0).sum(axis=1)
    wide = bias.astype(np.int64)
    largest = np.maximum(np.abs(up * high + down * low + wide), np.abs(up * low + down * high + wide))
    if largest.max(initial=0) > _INT32_MAX:
        raise Unsupported(f"sums of its {flat.shape[1]} products do not fit int32")
    return np.asarray(largest)


def requantize_sums(here: NodeContext, acc: str, scales: Array, to: QParams) -> str:
    """int32 sums in units of ``scales`` (one, or one per channel of axis 1) with the qparams ``to``."""
    factors = np.unique(scales) if np.all(scales == scales.flat[0]) else scales
    return here.rescale(acc, (factors / to.scale[0]).tolist(), to, axis=1)


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


_LARGEST_SIDE, _LARGEST_AREA = 64, 4096
"""Largest kernel that every Ethos-U convolves with (Vela's supported operators: height and width, their product)."""


def gemm(here: NodeContext) -> None:
    """Gemm; ``alpha`` goes into the scale and ``beta`` into the bias."""
    alpha, beta = float(here.attribute("alpha", 1.0)), float(here.attribute("beta", 1.0))
    if here.attribute("transA", 0):
        raise Unsupported("transA is set")
    if alpha <= 0:
        raise Unsupported(f"alpha is {alpha}")
    weight = here.context.constants.get(here.node.inputs[1])
    if weight is None:
        raise Unsupported("its second input is not a quantized constant")
    if here.attribute("transB", 0):
        axis = None if weight.axis is None else 1 - weight.axis
        weight = QuantizedConstant(weight.values.T, weight.scale, weight.zero_point, axis)
    _by_constant(here, weight, alpha, beta)


def matmul(here: NodeContext) -> None:
    """MatMul by a constant (as a 1×1 convolution, with per-channel scales) or of two activations."""
    first, second = here.node.inputs
    weight = here.context.constants.get(second)
    if weight is not None and weight.values.ndim == 2 and first not in here.context.constants:
        _by_constant(here, weight)
        return
    a, b = here.quantized_input(0), here.quantized_input(1)
    if min(len(here.shape(x.tensor)) for x in (a, b)) < 2:
        raise Unsupported("one of its inputs is a vector")
    depth = here.shape(a.tensor)[-1]
    largest = depth * a.bound / a.scale * b.bound / b.scale
    if largest > _INT32_MAX:
        raise Unsupported(f"sums of its {depth} products do not fit int32")
    to = here.qparams_within(largest * a.scale * b.scale)
    *lead, rows, columns = here.out_shape
    batched = [_batched(here, x.tensor, tuple(lead)) for x in (a, b)]
    shape = (math.prod(lead), rows, columns)
    acc = here.add(ir.MatMul, batched, "acc", "int32", shape, a_zp=a.zp, b_zp=b.zp)
    here.set_rescaled(acc, a.scale * b.scale, to)


def _batched(here: NodeContext, tensor: str, lead: Shape) -> str:
    """``tensor`` as [batch, rows, columns], its leading dimensions repeated up to ``lead``."""
    matrix = here.shape(tensor)[-2:]
    aligned = here.aligned(tensor, len(lead) + 2)
    own = here.shape(aligned)[:-2]
    if own != lead:
        multiples = (*(o // i for o, i in zip(lead, own, strict=True)), 1, 1)
        aligned = here.add(ir.Tile, aligned, shape=(*lead, *matrix), base=f"{tensor}/tiled", multiples=multiples)
    return here.reshape(aligned, (math.prod(lead), *matrix), base=f"{tensor}/batched")


def _by_constant(here: NodeContext, weight: QuantizedConstant, alpha: float = 1.0, beta: float = 0.0) -> None:
    """[…, K] times [K, N] as a 1×1 convolution over the rows: the form that carries per-channel scales."""
    x = here.quantized_input()
    w, w_zp = weight.int8()
    k, columns = w.shape
    scales = x.scale * (alpha * channel_scales(weight, 1, columns))
    shape = here.shape(x.tensor)
    if len(shape) < 2:
        raise Unsupported("its input is a vector")
    rows = math.prod(shape[:-1])
    bias = int32_bias(here, 2, scales, beta) if beta else np.zeros(columns, np.int32)
    w = np.ascontiguousarray(w.T)
    to = here.qparams_within(float((largest_sums(w, bias, x, w_zp) * scales).max()))
    image = _before_flattening(here, x.tensor) if rows == 1 else None
    if image is not None:
        height, width = here.shape(image)[2:]
        tensor, kernel, win = image, w.reshape(columns, -1, height, width), Window((height, width), (height, width))
    else:
        tensor, kernel = _as_columns(here, x.tensor, rows, k), w[:, :, None, None]
        win = Window((1, 1), (1, rows), out=(1, rows))
    acc = here.conv2d(tensor, kernel, bias, win, x.zp, w_zp)
    tensor = requantize_sums(here, acc, scales, to)
    if rows > 1:
        tensor = here.reshape(tensor, (1, columns, rows), "columns")
        tensor = here.transposed(tensor, (0, 2, 1), "rows")
    here.set_output(tensor, to)


def _before_flattening(here: NodeContext, tensor: str) -> str | None:
    """The [1,C,H,W] tensor that ``tensor`` is the flat form of, where one window can cover it.

    A product with a whole image is a convolution whose kernel has the image's size: its weights can be stored
    channels-last like the image, so that flattening moves nothing.
    """
    op = here.context.builder.producer(tensor)
    if not isinstance(op, ir.Reshape):
        return None
    shape = here.shape(op.inputs[0])
    if len(shape) != 4 or shape[0] != 1 or max(shape[2:]) > _LARGEST_SIDE or shape[2] * shape[3] > _LARGEST_AREA:
        return None
    return op.inputs[0]


def _as_columns(here: NodeContext, tensor: str, rows: int, k: int) -> str:
    """[…, K] as [1, K, 1, rows]; channels-last in memory, these are the same bytes."""
    if rows > 1:
        tensor = here.reshape(tensor, (1, rows, k), "in")
        tensor = here.transposed(tensor, (0, 2, 1), "transposed")
    return here.reshape(tensor, (1, k, 1, rows), "in2d")
