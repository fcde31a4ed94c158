"""Conv, ConvTranspose, Gemm and MatMul: int8 products summed in int32, then one RESCALE with the output's numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context, Refused, Rep, Weight
from inlay.tosa.ir import Array, Shape
from inlay.tosa.rules._common import Window, crop, settle, spatial4, window
from inlay.types import QParams

_INT32 = (1 << 31) - 1

_WINDOW_SIDE, _WINDOW_AREA = 64, 4096
"""Largest kernel that every Ethos-U convolves with."""


def conv(context: Context, node: Node) -> None:
    """Conv in one or two dimensions, dense, grouped or depthwise."""
    want = context.wanted(node.outputs[0])
    x = context.quantized(node.inputs[0])
    weight = _weight(context, node, 1)
    w, w_zp = weight_integers(weight)
    scales = _channel_scales(weight, 0, w.shape[0])
    if w.ndim == 3:
        w = w[:, :, None, :]
    group = int(node.attributes.get("group", 1))
    bias = _bias(context, node, 2, x.scale * scales)
    win = window(node, context.shape(node.inputs[0])[2:], weight.values.shape[2:])
    tensor = crop(context, node, spatial4(context, node, x.tensor), win.size)
    channels = context.builder.shape(tensor)[1]
    if group == 1:
        acc = _conv2d(context, node, tensor, w, bias, win, x.zp, w_zp, depthwise=False)
    elif group == channels:
        acc = _conv2d(context, node, tensor, w, bias, win, x.zp, w_zp, depthwise=True)
    else:
        acc = _grouped(context, node, tensor, w, bias, win, x.zp, w_zp, group)
    settle(context, node, _output(context, node, acc, x.scale * scales, want), want)


def _conv2d(
    context: Context, node: Node, tensor: str, w: Array, bias: Array, win: Window, zp: int, w_zp: int, depthwise: bool
) -> str:
    builder = context.builder
    return builder.add(
        ir.Conv2d, node.name,
        [tensor, builder.constant(f"{node.name}/weight", w), builder.constant(f"{node.name}/bias", bias)],
        f"{node.name}/acc", "int32", (builder.shape(tensor)[0], w.shape[0], *win.out),
        pads=win.pads, strides=win.strides, dilations=win.dilations, depthwise=depthwise, in_zp=zp, w_zp=w_zp,
    )  # fmt: skip


def _grouped(
    context: Context, node: Node, tensor: str, w: Array, bias: Array, win: Window, zp: int, w_zp: int, group: int
) -> str:
    """TOSA has no groups: one convolution per group over its slice of the channels, joined again."""
    builder = context.builder
    n, channels, h, width = builder.shape(tensor)
    per_in, per_out = channels // group, w.shape[0] // group
    parts = []
    for g in range(group):
        part = builder.add(
            ir.Slice, node.name, [tensor], f"{node.name}/group{g}", "int8", (n, per_in, h, width),
            start=(0, g * per_in, 0, 0), size=(n, per_in, h, width),
        )  # fmt: skip
        rows = slice(g * per_out, (g + 1) * per_out)
        parts.append(_conv2d(context, node, part, w[rows], bias[rows], win, zp, w_zp, depthwise=False))
    return builder.add(ir.Concat, node.name, parts, f"{node.name}/acc", "int32", (n, w.shape[0], *win.out), axis=1)


def conv_transpose(context: Context, node: Node) -> None:
    """ConvTranspose in one or two dimensions; a dilated kernel is written out with zeros between its taps."""
    want = context.wanted(node.outputs[0])
    x = context.quantized(node.inputs[0])
    weight = _weight(context, node, 1)
    group = int(node.attributes.get("group", 1))
    w, w_zp = weight_integers(weight)
    per_out = w.shape[1]
    scales = _channel_scales(weight, 1, per_out)
    if group > 1 and scales.size > 1:
        # ONNX numbers the axis within a group: every group shares the scales.
        scales = np.tile(scales, group)
    rank = w.ndim - 2
    kernel, strides, pads, extra = _transpose_geometry(context, node, weight.values.shape[2:], rank)
    w = _spread(w, list(node.attributes.get("dilations", ())) or [1] * rank, w_zp)
    if rank == 1:
        w = w[:, :, None, :]
    total = per_out * group
    bias = _bias(context, node, 2, x.scale * np.broadcast_to(scales, (total,)))
    tensor = spatial4(context, node, x.tensor)
    builder = context.builder
    n, channels, h, width = builder.shape(tensor)
    out_h = (h - 1) * strides[0] + kernel[0] + pads[0] + extra[0]
    out_w = (width - 1) * strides[1] + kernel[1] + pads[2] + extra[1]
    parts = []
    for g in range(group):
        part, per_in = tensor, channels // group
        if group > 1:
            part = builder.add(
                ir.Slice, node.name, [tensor], f"{node.name}/group{g}", "int8", (n, per_in, h, width),
                start=(0, g * per_in, 0, 0), size=(n, per_in, h, width),
            )  # fmt: skip
        kernel_g = np.ascontiguousarray(w[g * per_in : (g + 1) * per_in].transpose(1, 0, 2, 3))
        parts.append(
            builder.add(
                ir.TransposeConv2d,
                node.name,
                [
                    part,
                    builder.constant(f"{node.name}/weight", kernel_g),
                    builder.constant(f"{node.name}/bias", bias[g * per_out : (g + 1) * per_out]),
                ],
                f"{node.name}/acc",
                "int32",
                (n, per_out, out_h, out_w),
                out_pads=(pads[0], extra[0], pads[2], extra[1]),
                strides=strides,
                in_zp=x.zp,
                w_zp=w_zp,
            )
        )
    acc = parts[0]
    if group > 1:
        acc = builder.add(ir.Concat, node.name, parts, f"{node.name}/acc", "int32", (n, total, out_h, out_w), axis=1)
    settle(context, node, _output(context, node, acc, x.scale * scales, want), want)


def _transpose_geometry(
    context: Context, node: Node, kernel: Sequence[int], rank: int
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int, int, int], tuple[int, int]]:
    """Reach of the kernel, strides, leading pads (negative: crop) and trailing pads, in two dimensions."""
    if rank not in (1, 2):
        raise Refused(f"it has {rank} spatial dimensions")
    strides = list(node.attributes.get("strides", ())) or [1] * rank
    dilations = list(node.attributes.get("dilations", ())) or [1] * rank
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    sizes, outs = context.shape(node.inputs[0])[2:], context.shape(node.outputs[0])[2:]
    given = list(node.attributes.get("pads", ())) or [0] * (2 * rank)
    auto = node.attributes.get("auto_pad", "NOTSET")
    begin, end = [], []
    for i in range(rank):
        full = (sizes[i] - 1) * strides[i] + reach[i]
        first = given[i]
        if auto in ("SAME_UPPER", "SAME_LOWER") or "output_shape" in node.attributes:
            total = full + int((list(node.attributes.get("output_padding", ())) or [0] * rank)[i]) - outs[i]
            first = total // 2 if auto != "SAME_LOWER" else total - total // 2
        begin.append(-first)
        end.append(outs[i] - full + first)
    if rank == 1:
        reach, strides, begin, end = [1, *reach], [1, *strides], [0, *begin], [0, *end]
    for k, low in zip((reach[0], reach[1], reach[0], reach[1]), (*begin, *end), strict=True):
        if low <= -k:
            raise Refused("it crops a whole kernel")
    return (reach[0], reach[1]), (strides[0], strides[1]), (begin[0], end[0], begin[1], end[1]), (end[0], end[1])


def _spread(w: Array, dilations: Sequence[int], fill: int) -> Array:
    if max(dilations) == 1:
        return w
    shape = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    out = np.full((*w.shape[:2], *shape), fill, w.dtype)
    out[(slice(None), slice(None), *(slice(None, None, d) for d in dilations))] = w
    return out


def gemm(context: Context, node: Node) -> None:
    """Gemm; ``alpha`` goes into the scale and ``beta`` into the bias."""
    a, b = node.inputs[:2]
    alpha, beta = float(node.attributes.get("alpha", 1.0)), float(node.attributes.get("beta", 1.0))
    if node.attributes.get("transA", 0):
        raise Refused("transA is set")
    if alpha <= 0:
        raise Refused(f"alpha is {alpha}")
    weight = context.weight(b)
    if weight is None:
        raise Refused("its second input is not a quantized constant")
    if node.attributes.get("transB", 0):
        axis = None if weight.axis is None else 1 - weight.axis
        weight = Weight(weight.values.T, weight.scale, weight.zero_point, axis)
    _dense(context, node, context.quantized(a), weight, alpha, beta)


def matmul(context: Context, node: Node) -> None:
    """MatMul by a constant (as a 1×1 convolution, with per-channel scales) or of two activations."""
    weight = context.weight(node.inputs[1])
    if weight is not None and weight.values.ndim == 2 and node.inputs[0] not in context.weights:
        _dense(context, node, context.quantized(node.inputs[0]), weight, 1.0, 0.0)
        return
    want = context.wanted(node.outputs[0])
    a, b = context.quantized(node.inputs[0]), context.quantized(node.inputs[1])
    shape_a, shape_b = context.builder.shape(a.tensor), context.builder.shape(b.tensor)
    out = context.shape(node.outputs[0])
    if len(shape_a) < 2 or len(shape_b) < 2:
        raise Refused("one of its inputs is a vector")
    batch = math.prod(out[:-2])
    three = [_batched(context, node, rep.tensor, out[:-2]) for rep in (a, b)]
    acc = context.builder.add(
        ir.MatMul, node.name, three, f"{node.name}/acc", "int32", (batch, out[-2], out[-1]), a_zp=a.zp, b_zp=b.zp
    )
    settle(
        context,
        node,
        context.rescale(node.name, acc, [a.scale * b.scale / want.scale[0]], f"{node.name}/out", want),
        want,
    )


def _batched(context: Context, node: Node, tensor: str, lead: Shape) -> str:
    """``tensor`` as [batch, rows, columns], its leading dimensions repeated up to ``lead``."""
    shape = context.builder.shape(tensor)
    own = (1,) * (len(lead) + 2 - len(shape)) + shape[:-2]
    aligned = context.reshape(node.name, tensor, (*own, *shape[-2:]), f"{tensor}/aligned")
    if own != lead:
        multiples = (*(o // i for o, i in zip(lead, own, strict=True)), 1, 1)
        aligned = context.builder.add(
            ir.Tile, node.name, [aligned], f"{tensor}/tiled", "int8", (*lead, *shape[-2:]), multiples=multiples
        )
    return context.reshape(node.name, aligned, (math.prod(lead), *shape[-2:]), f"{tensor}/batched")


def _dense(context: Context, node: Node, x: Rep, weight: Weight, alpha: float, beta: float) -> None:
    """[…, K] times [K, N] as a 1×1 convolution over the rows: the form that carries per-channel scales."""
    want = context.wanted(node.outputs[0])
    w, w_zp = weight_integers(weight)
    k, columns = w.shape
    scales = alpha * _channel_scales(weight, 1, columns)
    shape = context.builder.shape(x.tensor)
    if len(shape) < 2:
        raise Refused("its input is a vector")
    rows = math.prod(shape[:-1])
    bias = np.zeros(columns, np.int32)
    if beta and len(node.inputs) > 2 and node.inputs[2]:
        bias = _bias(context, node, 2, x.scale * scales, beta)
    image = _before_flattening(context, x.tensor) if rows == 1 else None
    if image is not None:
        _, channels, height, width = context.builder.shape(image)
        size = (height, width)
        tensor, kernel = image, np.ascontiguousarray(w.T).reshape(columns, channels, height, width)
        win = Window(size, (1, 1), (1, 1), (0, 0, 0, 0), size, (1, 1))
    else:
        tensor = _to_columns(context, node, x.tensor, rows, k)
        kernel = np.ascontiguousarray(w.T)[:, :, None, None]
        win = Window((1, 1), (1, 1), (1, 1), (0, 0, 0, 0), (1, rows), (1, rows))
    acc = _conv2d(context, node, tensor, kernel, bias, win, x.zp, w_zp, depthwise=False)
    tensor = _output(context, node, acc, x.scale * scales, want)
    if rows > 1:
        tensor = context.reshape(node.name, tensor, (1, columns, rows), f"{node.name}/columns")
        tensor = context.builder.add(
            ir.Transpose, node.name, [tensor], f"{node.name}/rows", "int8", (1, rows, columns), want, perm=(0, 2, 1)
        )
    settle(context, node, tensor, want)


def _before_flattening(context: Context, tensor: str) -> str | None:
    """The [1,C,H,W] tensor that ``tensor`` is the flat form of, where it is small enough to be one window.

    A product with all of an image is a convolution whose kernel is the image's size: its weights can be stored
    channels-last like the image, so that flattening moves nothing.
    """
    op = context.builder.maker(tensor)
    if not isinstance(op, ir.Reshape):
        return None
    shape = context.builder.shape(op.inputs[0])
    if len(shape) != 4 or shape[0] != 1 or max(shape[2:]) > _WINDOW_SIDE or shape[2] * shape[3] > _WINDOW_AREA:
        return None
    return op.inputs[0]


def _to_columns(context: Context, node: Node, tensor: str, rows: int, k: int) -> str:
    """[…, K] as [1, K, 1, rows]; channels-last in memory, that is the very same bytes."""
    if rows > 1:
        tensor = context.reshape(node.name, tensor, (1, rows, k), f"{node.name}/in")
        tensor = context.builder.add(
            ir.Transpose, node.name, [tensor], f"{node.name}/turned", "int8", (1, k, rows), perm=(0, 2, 1)
        )
    return context.reshape(node.name, tensor, (1, k, 1, rows), f"{node.name}/in2d")


def _output(context: Context, node: Node, acc: str, scales: Array, want: QParams) -> str:
    factors = np.unique(scales) if np.all(scales == scales.flat[0]) else scales
    return context.rescale(node.name, acc, (factors / want.scale[0]).tolist(), f"{node.name}/out", want, axis=1)


def _weight(context: Context, node: Node, index: int) -> Weight:
    weight = context.weight(node.inputs[index])
    if weight is None:
        raise Refused(f"its weight {node.inputs[index]!r} is not a quantized constant")
    return weight


def weight_integers(weight: Weight) -> tuple[Array, int]:
    """int8 numbers and the zero point that is left after as much of it as fits was subtracted."""
    along = [1] * weight.values.ndim
    if weight.axis is not None and weight.zero_point.size > 1:
        along[weight.axis] = -1
    zero = weight.zero_point.astype(np.int64).reshape(along if weight.zero_point.size > 1 else ())
    centred = weight.values.astype(np.int64) - zero
    if centred.min(initial=0) >= -128 and centred.max(initial=0) <= 127:
        return centred.astype(np.int8), 0
    if weight.zero_point.size > 1 or weight.values.dtype.name not in ("int8", "uint8"):
        raise Refused("its weight less the zero points does not fit 8 bit")
    shift = 128 if weight.values.dtype.name == "uint8" else 0
    return (weight.values.astype(np.int64) - shift).astype(np.int8), int(zero) - shift


def _channel_scales(weight: Weight, axis: int, channels: int) -> Array:
    """One real scale, or one for each output channel (which lie along ``axis`` of the weight)."""
    scale = weight.scale.astype(np.float64).reshape(-1)
    if scale.size == 1:
        return scale
    if weight.axis != axis or scale.size != channels:
        raise Refused("its weight is quantized along another axis than the output channels")
    return scale


def _bias(context: Context, node: Node, index: int, scales: Array, factor: float = 1.0) -> Array:
    """int32 bias in units of ``scales``: the model's own integers where it has the same scale, else rounded to it."""
    channels = int(context.shape(node.outputs[0])[1 if node.op_type.startswith("Conv") else -1])
    if index >= len(node.inputs) or not node.inputs[index]:
        return np.zeros(channels, np.int32)
    value = node.inputs[index]
    weight = context.weight(value)
    scales = np.broadcast_to(scales, (channels,))
    if weight is not None:
        own = np.broadcast_to(weight.scale.astype(np.float64).reshape(-1), (channels,))
        if (
            factor == 1.0
            and weight.values.size == channels
            and not weight.zero_point.any()
            and np.allclose(own, scales, rtol=1e-6, atol=0)
        ):
            return weight.values.reshape(-1).astype(np.int32)
        real = weight.real
    else:
        constant = context.source.constants.get(value)
        if constant is None:
            raise Refused(f"its bias {value!r} is not constant")
        real = constant.astype(np.float64)
    if real.size not in (1, channels) or (real.ndim > 1 and real.shape[-1] != real.size):
        raise Refused(f"its bias has the shape {list(real.shape)}")
    ints = np.rint(np.broadcast_to(real.reshape(-1), (channels,)) * factor / scales)
    if np.abs(ints).max(initial=0) > _INT32:
        raise Refused("its bias does not fit int32 at the scale of its products")
    return np.asarray(ints.astype(np.int32))
