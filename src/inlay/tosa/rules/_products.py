"""What Conv, ConvTranspose, Gemm and MatMul share: int8 weights, int32 bias, and the RESCALE behind their sums."""

from __future__ import annotations

import numpy as np

from inlay.tosa.ir import Array
from inlay.tosa.quantized import QuantizedConstant, QuantizedTensor, Unsupported
from inlay.tosa.rules._node import NodeContext
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
