"""Gemm and MatMul: int8 products summed in int32, then one RESCALE to the output's qparams."""

from __future__ import annotations

import math

import numpy as np

from inlay.tosa import ir
from inlay.tosa.ir import Shape
from inlay.tosa.quantized import QuantizedConstant, Unsupported
from inlay.tosa.rules._node import NodeContext
from inlay.tosa.rules._products import channel_scales, int32_bias, largest_sums, requantize_sums
from inlay.tosa.rules._windows import Window

_INT32_MAX = (1 << 31) - 1

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
