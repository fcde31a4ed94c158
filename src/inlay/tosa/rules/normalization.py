"""BatchNormalization where it stands alone, and LayerNormalization.

LayerNormalization in integers: distances ``c`` from the mean of a row in units of 2^-7 steps of the input, their
squares summed to ``T``, and ``r = 1/√T`` from a table over the leading 16 bits of ``M = T·4^h`` in [2^29, 2^31). Then
``c·r·2^h`` is the row with variance 1, by a factor that is known. Squares are shifted right by as many bits as the sum
of a row needs, rounded one by one: a row whose values differ by a few steps is still normalized to about a hundredth.
"""

from __future__ import annotations

import math

import numpy as np

from inlay.tosa import ir
from inlay.tosa.context import WIDE_LIMIT
from inlay.tosa.ir import Array
from inlay.tosa.quantized import QuantizedTensor, Unsupported
from inlay.tosa.rules._lookup import interpolated, scalar
from inlay.tosa.rules._node import NodeContext
from inlay.tosa.rules.arithmetic import affine
from inlay.types import QParams, QType

_FRACTION_BITS = 7  # bits of a distance below a step of the input: with 8 bits and a sign it has 16

_LONGEST_ROW = 1 << 14
"""Elements per row: their distances from the mean, as multiples of 1/n steps, are not needed below that."""

_ROOT_BITS = 15  # bits of the reciprocal root, with 15 of a distance: 30

_SLOPE_BITS = 7
"""Further bits of it while it is interpolated: over 16 bits of the argument its slope is a fraction of one."""


def batch_normalization(here: NodeContext) -> None:
    """BatchNormalization in inference: one factor and one offset per channel."""
    if here.reads_extra_outputs or here.attribute("training_mode", 0):
        raise Unsupported("it is in training mode")
    x = here.quantized_input(wide=True)
    if len(here.shape(x.tensor)) < 2:
        raise Unsupported("its input has no channels")
    scale, offset, mean, variance = (_real_vector(here, i) for i in range(1, 5))
    factor = scale / np.sqrt(variance + float(here.attribute("epsilon", 1e-5)))
    affine(here, x, factor, offset - mean * factor, axis=1)


def layer_normalization(here: NodeContext) -> None:
    """LayerNormalization over the axes from ``axis`` on; see the module's text."""
    if here.reads_extra_outputs:
        raise Unsupported("its mean or deviation is used")
    x = here.quantized_input()
    shape = here.shape(x.tensor)
    axis = int(here.attribute("axis", -1)) % len(shape)
    rows, length = math.prod(shape[:axis]), math.prod(shape[axis:])
    if length > _LONGEST_ROW:
        raise Unsupported(f"its rows are longer than {_LONGEST_ROW}")
    factor = _real_vector(here, 1)
    offset = _real_vector(here, 2) if len(here.node.inputs) > 2 and here.node.inputs[2] else np.zeros(length)
    if {factor.size, offset.size} - {1, length}:
        raise Unsupported("its scale is not one number per element of a row")
    factor, offset = (np.broadcast_to(v, (length,)) for v in (factor, offset))
    tensor = here.reshape(x.tensor, (rows, length), "rows")
    normalized = _normalized(here, QuantizedTensor(tensor, x.qparams), length)
    affine(here, normalized, factor, offset, axis=1)


def _normalized(here: NodeContext, x: QuantizedTensor, length: int) -> QuantizedTensor:
    """Rows with the mean 0 and the variance 1, in 16 bits."""
    one = 1 << _FRACTION_BITS
    total = here.reduce("sum", here.to_int32(x.tensor), 1)
    mean = here.to_int32(here.rescale(total, [one / length], QParams(QType.INT16, (1.0,), (0,)), "mean"))
    away = here.binary("sub", here.to_int32(x.tensor, factor=float(one)), mean)
    bits = max(1, (length - 1).bit_length())
    squares = here.binary("shr", here.binary("mul", away, away), scalar(here, bits, away))
    epsilon = float(here.attribute("epsilon", 1e-5)) / x.scale**2 * one * one * length / 2.0**bits
    if epsilon >= 1 << 30:
        raise Unsupported("its epsilon outweighs the variance of every input")
    power = here.reduce("sum", squares, 1)
    power = here.binary("add", power, scalar(here, max(1, round(epsilon)), power))
    # h = floor((clz − 1) / 2), where "shr" rounds half up.
    zeros = here.add(ir.Unary, power, "clz", fn="clz")
    half = here.binary("shr", here.binary("sub", zeros, scalar(here, 2, zeros)), scalar(here, 1, zeros))
    mantissa = here.binary("shl", power, here.binary("add", half, half))
    leading = here.binary("shr", mantissa, scalar(here, 14, mantissa))
    low, high = 1 << 15, 1 << 17
    roots = (1 << _ROOT_BITS + _SLOPE_BITS) * np.sqrt(low / np.arange(low, high + 1))
    fine = interpolated(here, leading, low, roots, 2.0 ** (_ROOT_BITS + _SLOPE_BITS - 8))
    root = here.binary("shr", fine, scalar(here, _SLOPE_BITS, fine))
    down = here.binary("sub", scalar(here, 15, half), half)
    steps = here.binary("shr", here.binary("mul", away, root), down)
    # c/√T·√(n/2^bits), with √T = √(leading·2^14)/2^h and root = 2^15·√(2^15/leading).
    unit = math.sqrt(length / 2.0**bits) * 2.0**15 / (2.0**_ROOT_BITS * math.sqrt(2.0**29))
    bound = math.sqrt(length)
    to = QParams(QType.INT16, (bound / WIDE_LIMIT,), (0,))
    return QuantizedTensor(here.rescale(steps, [unit / to.scale[0]], to, "normalized"), to)


def _real_vector(here: NodeContext, index: int) -> Array:
    quantized = here.context.constants.get(here.node.inputs[index])
    if quantized is not None:
        return quantized.real.reshape(-1)
    given = here.constant_input(index)
    if given is None:
        raise Unsupported(f"input {index} is missing")
    return given.astype(np.float64).reshape(-1)
