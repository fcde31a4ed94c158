"""Gemm and MatMul: int8 products summed in int32, then one RESCALE to the output's qparams."""

from __future__ import annotations

import math

import numpy as np

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context
from inlay.tosa.ir import Shape
from inlay.tosa.quantized import QuantizedConstant, QuantizedTensor, Unsupported
from inlay.tosa.rules._common import Window, set_output, set_rescaled
from inlay.tosa.rules._products import Kernel, channel_scales, conv2d, int32_bias, requantize_sums

_LARGEST_SIDE, _LARGEST_AREA = 64, 4096
"""Largest kernel that every Ethos-U convolves with (Vela's supported operators: height and width, their product)."""


def gemm(context: Context, node: Node) -> None:
    """Gemm; ``alpha`` goes into the scale and ``beta`` into the bias."""
    a, b = node.inputs[:2]
    alpha, beta = float(node.attributes.get("alpha", 1.0)), float(node.attributes.get("beta", 1.0))
    if node.attributes.get("transA", 0):
        raise Unsupported("transA is set")
    if alpha <= 0:
        raise Unsupported(f"alpha is {alpha}")
    weight = context.constants.get(b)
    if weight is None:
        raise Unsupported("its second input is not a quantized constant")
    if node.attributes.get("transB", 0):
        axis = None if weight.axis is None else 1 - weight.axis
        weight = QuantizedConstant(weight.values.T, weight.scale, weight.zero_point, axis)
    _by_constant(context, node, context.quantized_input(a), weight, alpha, beta)


def matmul(context: Context, node: Node) -> None:
    """MatMul by a constant (as a 1×1 convolution, with per-channel scales) or of two activations."""
    weight = context.constants.get(node.inputs[1])
    if weight is not None and weight.values.ndim == 2 and node.inputs[0] not in context.constants:
        _by_constant(context, node, context.quantized_input(node.inputs[0]), weight, 1.0, 0.0)
        return
    out_qparams = context.output_qparams(node.outputs[0])
    a, b = context.quantized_input(node.inputs[0]), context.quantized_input(node.inputs[1])
    shape_a, shape_b = context.builder.shape(a.tensor), context.builder.shape(b.tensor)
    out = context.shape(node.outputs[0])
    if len(shape_a) < 2 or len(shape_b) < 2:
        raise Unsupported("one of its inputs is a vector")
    batched = [_batched(context, node, x.tensor, out[:-2]) for x in (a, b)]
    shape = (math.prod(out[:-2]), out[-2], out[-1])
    acc = context.builder.add(ir.MatMul, node.name, batched, f"{node.name}/acc", "int32", shape, a_zp=a.zp, b_zp=b.zp)
    set_rescaled(context, node, acc, a.scale * b.scale, out_qparams)


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


def _by_constant(
    context: Context, node: Node, x: QuantizedTensor, weight: QuantizedConstant, alpha: float, beta: float
) -> None:
    """[…, K] times [K, N] as a 1×1 convolution over the rows: the form that carries per-channel scales."""
    out_qparams = context.output_qparams(node.outputs[0])
    w, w_zp = weight.int8()
    k, columns = w.shape
    scales = alpha * channel_scales(weight, 1, columns)
    shape = context.builder.shape(x.tensor)
    if len(shape) < 2:
        raise Unsupported("its input is a vector")
    rows = math.prod(shape[:-1])
    bias = np.zeros(columns, np.int32)
    if beta and len(node.inputs) > 2 and node.inputs[2]:
        bias = int32_bias(context, node, 2, x.scale * scales, beta)
    w = np.ascontiguousarray(w.T)
    image = _before_flattening(context, x.tensor) if rows == 1 else None
    if image is not None:
        size = context.builder.shape(image)[2:]
        tensor, kernel = image, Kernel(w.reshape(columns, -1, *size), w_zp, bias)
        win = Window((size[0], size[1]), (1, 1), (1, 1), (0, 0, 0, 0), (size[0], size[1]), (1, 1))
    else:
        tensor, kernel = _as_columns(context, node, x.tensor, rows, k), Kernel(w[:, :, None, None], w_zp, bias)
        win = Window((1, 1), (1, 1), (1, 1), (0, 0, 0, 0), (1, rows), (1, rows))
    acc = conv2d(context, node, tensor, kernel, win, x.zp)
    tensor = requantize_sums(context, node, acc, x.scale * scales, out_qparams)
    if rows > 1:
        tensor = context.reshape(node.name, tensor, (1, columns, rows), f"{node.name}/columns")
        tensor = context.builder.add(
            ir.Transpose, node.name, [tensor], f"{node.name}/rows", "int8", (1, rows, columns), out_qparams,
            perm=(0, 2, 1),
        )  # fmt: skip
    set_output(context, node, tensor, out_qparams)


def _before_flattening(context: Context, tensor: str) -> str | None:
    """The [1,C,H,W] tensor that ``tensor`` is the flat form of, where one window can cover it.

    A product with a whole image is a convolution whose kernel has the image's size: its weights can be stored
    channels-last like the image, so that flattening moves nothing.
    """
    op = context.builder.producer(tensor)
    if not isinstance(op, ir.Reshape):
        return None
    shape = context.builder.shape(op.inputs[0])
    if len(shape) != 4 or shape[0] != 1 or max(shape[2:]) > _LARGEST_SIDE or shape[2] * shape[3] > _LARGEST_AREA:
        return None
    return op.inputs[0]


def _as_columns(context: Context, node: Node, tensor: str, rows: int, k: int) -> str:
    """[…, K] as [1, K, 1, rows]; channels-last in memory, these are the same bytes."""
    if rows > 1:
        tensor = context.reshape(node.name, tensor, (1, rows, k), f"{node.name}/in")
        tensor = context.builder.add(
            ir.Transpose, node.name, [tensor], f"{node.name}/transposed", "int8", (1, k, rows), perm=(0, 2, 1)
        )
    return context.reshape(node.name, tensor, (1, k, 1, rows), f"{node.name}/in2d")
