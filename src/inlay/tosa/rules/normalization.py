"""BatchNormalization where it stands alone, LayerNormalization and Softmax.

LayerNormalization in integers: distances ``c`` from the mean of a row in units of 2^-7 steps of the input, their
squares summed to ``T``, and ``r = 1/√T`` from a table over the leading 16 bits of ``M = T·4^h`` in [2^29, 2^31). Then
``c·r·2^h`` is the row with variance 1, by a factor that is known. Squares are shifted right by as many bits as the sum
of a row needs, rounded one by one: a row whose values differ by a few steps is still normalized to about a hundredth.

With ``d = x − max(x)`` in −255 … 0 there are only 256 exponentials ``e = round(2^E·exp(scale·d))``, looked up byte by
byte. Their sum ``S`` is normalized to ``M = S·2^up`` in [2^30, 2^31); ``r = 2^45 / M`` comes from a table over the
leading 8 bits behind M's first, improved by one Newton step in 16 bits. Then ``e/S = (e15·r) >> (30 − E − up)`` in
units of 2^-30, where ``e15`` is ``e`` with 15 bits.

Error: about 2^-14 of the result from ``r``, and ``n·2^-(E+1)`` of it from the sum of a row of ``n`` (E is as large as
the sum allows): a tenth of an 8-bit step for rows up to 1000.
"""

from __future__ import annotations

import math

import numpy as np

from inlay.tosa import ir
from inlay.tosa.context import WIDE_LIMIT, multipliers_and_shifts
from inlay.tosa.ir import Array
from inlay.tosa.quantized import QuantizedTensor, Unsupported
from inlay.tosa.rules._lookup import interpolated, looked_up, scalar
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


_PRODUCT_BITS = 15  # bits of an exponential in the last product, with 15 of the reciprocal: 30
_LONGEST_SOFTMAX = 1 << _PRODUCT_BITS  # elements per row: with 15 bits each their sum stays within 2^30
_LOG_BITS = {False: 16, True: 12}  # bits of a logarithm below a step of the input, which has 8 bits or (True) 16
_MOST_BITS = 23  # most bits of an exponential: three tables of one byte each hold 2^23


def softmax(here: NodeContext) -> None:
    """Softmax over one axis (before opset 13: over all axes from ``axis`` on)."""
    to = here.qparams_within(1.0)
    x, axis, bits = _rows(here)
    powers = exponentials(here, x, axis, bits)
    normal, up = _normal(here, here.reduce("sum", powers, axis))
    reciprocal = _reciprocal(here, normal)
    short = _shifted_right(here, powers, bits - _PRODUCT_BITS)
    shift = here.binary("sub", scalar(here, 30 - bits, up), up)
    quotient = here.binary("shr", here.binary("mul", short, reciprocal), shift)
    here.set_rescaled(quotient, 2.0**-30, to)


def log_softmax(here: NodeContext) -> None:
    """LogSoftmax: ``x − max − ln S``, where ``ln S`` is that of the 16 leading bits of ``S·2^up`` less ``up·ln 2``."""
    x, axis, bits = _rows(here)
    length = here.shape(x.tensor)[axis]
    to = here.qparams_within(2 * x.bound + math.log(length))
    unit = max(x.scale * 2.0 ** -_LOG_BITS[x.wide], 2.0**-24)
    total = here.reduce("sum", exponentials(here, x, axis, bits), axis)
    normal, up = _normal(here, total)
    leading = _shifted_right(here, normal, 15)
    low, high = 1 << 15, 1 << 16
    logarithms = (np.log(np.arange(low, high + 1)) + (15 - bits) * math.log(2)) / unit
    rest = interpolated(here, leading, low, logarithms, to.scale[0] / unit * 2.0 ** (to.qtype.bits - 8))
    scaled = here.binary("mul", up, scalar(here, round(math.log(2) / unit), up))
    logarithm = here.binary("sub", rest, scaled)
    value, largest = (here.to_int32(t, factor=x.scale / unit) for t in (x.tensor, here.reduce("max", x.tensor, axis)))
    here.set_rescaled(here.binary("sub", here.binary("sub", value, largest), logarithm), unit, to)


def _rows(here: NodeContext) -> tuple[QuantizedTensor, int, int]:
    """The input with each row along one axis, that axis, and the bits of an exponential."""
    x = here.quantized_input(wide=True)
    tensor, shape = x.tensor, here.shape(x.tensor)
    axis, single = softmax_axis(here, shape)
    if not single:
        tensor, axis = here.reshape(tensor, (math.prod(shape[:axis]), math.prod(shape[axis:])), "flat"), 1
    length = here.shape(tensor)[axis]
    if length > _LONGEST_SOFTMAX:
        raise Unsupported(f"its rows are longer than {_LONGEST_SOFTMAX}")
    return QuantizedTensor(tensor, x.qparams), axis, min(_MOST_BITS, 30 - (length - 1).bit_length())


def softmax_axis(here: NodeContext, shape: tuple[int, ...]) -> tuple[int, bool]:
    """The (first) axis of a Softmax over a tensor of this shape, and whether it is the only one."""
    old = here.context.graph.opset < 13
    axis = int(here.attribute("axis", 1 if old else -1)) % len(shape)
    return axis, not old or math.prod(shape[axis:]) == shape[axis]


def _shifted_right(here: NodeContext, tensor: str, by: int) -> str:
    """Rounding shift; not a RESCALE, whose int32 → int32 form not every compiler supports."""
    return here.binary("shr", tensor, scalar(here, by, tensor)) if by else tensor


def exponentials(here: NodeContext, x: QuantizedTensor, axis: int, bits: int) -> str:
    """``round(2^bits·exp(x − max))``."""
    largest = here.reduce("max", x.tensor, axis)
    below = here.binary("sub", here.to_int32(x.tensor), here.to_int32(largest))
    if not x.wide:
        values = np.rint(2.0**bits * np.exp(x.scale * (np.arange(-128, 128) - 127.0))).astype(np.int64)
        return looked_up(here, _index(here, below, 1.0, 127), values)
    # Exponentials below half a unit are 0.
    low = -min(1 << QType.INT16.bits, math.ceil((bits + 1) * math.log(2) / x.scale))
    near = here.binary("max", below, scalar(here, low, below))
    wanted = 2.0**bits * np.exp(x.scale * np.arange(low, 1))
    return here.binary("max", interpolated(here, near, low, wanted, 2.0 ** (bits - 8)), scalar(here, 0, below))


def _index(here: NodeContext, tensor: str, factor: float, out_zp: int) -> str:
    """``tensor·factor + out_zp`` as int8."""
    multiplier, shift = multipliers_and_shifts([factor])
    return here.add(ir.Rescale, tensor, "index", "int8", multiplier=multiplier, shift=shift, out_zp=out_zp)


def _normal(here: NodeContext, total: str) -> tuple[str, str]:
    """``M = total·2^up`` in [2^30, 2^31), and ``up``."""
    zeros = here.add(ir.Unary, total, "clz", fn="clz")
    up = here.binary("sub", zeros, scalar(here, 1, zeros))
    return here.binary("shl", total, up), up


def _reciprocal(here: NodeContext, normal: str) -> str:
    """``r ≈ 2^45 / M`` in (2^14, 2^15]."""
    # The 8 bits behind the leading one, as an int8 index: floor(M / 2^22) − 384, where 2^21 undoes the rounding.
    centred = here.binary("sub", normal, scalar(here, (384 << 22) + (1 << 21), normal))
    middles = (np.arange(256) + 256.5) * 2.0**22
    guess = looked_up(here, _index(here, centred, 2.0**-22, 0), np.rint(2.0**45 / middles).astype(np.int64))
    # r·(2 − M·r/2^45) with M in 16 bits: r + r·(2^30 − M16·r)/2^30, kept inside int32 by shifting in two parts.
    product = here.binary("mul", _shifted_right(here, normal, 15), guess)
    error = here.binary("sub", scalar(here, 1 << 30, product), product)
    step = _shifted_right(here, here.binary("mul", guess, _shifted_right(here, error, 6)), 24)
    return here.binary("add", guess, step)
