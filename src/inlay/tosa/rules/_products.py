"""What Conv, ConvTranspose, Gemm and MatMul share: int8 weights, int32 bias and sums, and the RESCALE behind them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context
from inlay.tosa.ir import Array
from inlay.tosa.quantized import QuantizedConstant, Unsupported
from inlay.tosa.rules._common import Window
from inlay.types import QParams

_INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True, eq=False)
class Kernel:
    """int8 weights [O,I,kh,kw] with their zero point, and one int32 bias for each output channel."""

    weights: Array
    zero_point: int
    bias: Array

    def group(self, index: int, outputs: int) -> Kernel:
        """The part of a grouped convolution's kernel that makes ``outputs`` channels of one group."""
        rows = slice(index * outputs, (index + 1) * outputs)
        return Kernel(self.weights[rows], self.zero_point, self.bias[rows])


def constant_weight(context: Context, node: Node, index: int) -> QuantizedConstant:
    """The quantized constant at an input slot."""
    weight = context.constants.get(node.inputs[index])
    if weight is None:
        raise Unsupported(f"its weight {node.inputs[index]!r} is not a quantized constant")
    return weight


def channel_scales(weight: QuantizedConstant, axis: int, channels: int) -> Array:
    """One real scale, or one for each output channel (which lie along ``axis`` of the weight)."""
    scale = weight.scale.astype(np.float64).reshape(-1)
    if scale.size == 1:
        return scale
    if weight.axis != axis or scale.size != channels:
        raise Unsupported("its weight is quantized along another axis than the output channels")
    return scale


def int32_bias(context: Context, node: Node, index: int, scales: Array, factor: float = 1.0) -> Array:
    """int32 bias in units of ``scales``: the model's own integers where it has the same scale, else rounded to it."""
    channels = int(context.shape(node.outputs[0])[1 if node.op_type.startswith("Conv") else -1])
    if index >= len(node.inputs) or not node.inputs[index]:
        return np.zeros(channels, np.int32)
    value = node.inputs[index]
    quantized = context.constants.get(value)
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
        constant = context.model.constants.get(value)
        if constant is None:
            raise Unsupported(f"its bias {value!r} is not constant")
        real = constant.astype(np.float64)
    if real.size not in (1, channels) or (real.ndim > 1 and real.shape[-1] != real.size):
        raise Unsupported(f"its bias has the shape {list(real.shape)}")
    ints = np.rint(np.broadcast_to(real.reshape(-1), (channels,)) * factor / scales)
    if np.abs(ints).max(initial=0) > _INT32_MAX:
        raise Unsupported("its bias does not fit int32 at the scale of its products")
    return np.asarray(ints.astype(np.int32))


def conv2d(
    context: Context, node: Node, tensor: str, kernel: Kernel, win: Window, in_zp: int, depthwise: bool = False
) -> str:
    """int32 sums [N,O,H,W] of a convolution."""
    builder = context.builder
    return builder.add(
        ir.Conv2d, node.name,
        [
            tensor,
            builder.constant(f"{node.name}/weight", kernel.weights),
            builder.constant(f"{node.name}/bias", kernel.bias),
        ],
        f"{node.name}/acc", "int32", (builder.shape(tensor)[0], kernel.weights.shape[0], *win.out),
        pads=win.pads, strides=win.strides, dilations=win.dilations, depthwise=depthwise,
        in_zp=in_zp, w_zp=kernel.zero_point,
    )  # fmt: skip


def requantize_sums(context: Context, node: Node, acc: str, scales: Array, to: QParams) -> str:
    """int32 sums in units of ``scales`` (one, or one per channel of axis 1) as int8."""
    factors = np.unique(scales) if np.all(scales == scales.flat[0]) else scales
    return context.rescale(node.name, acc, (factors / to.scale[0]).tolist(), f"{node.name}/out", to, axis=1)
