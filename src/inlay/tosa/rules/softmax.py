"""Softmax in integers, with int8 TABLEs only (Ethos-U55 has no 16-bit ones).

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
from inlay.tosa.context import multipliers_and_shifts
from inlay.tosa.quantized import QuantizedTensor, Unsupported
from inlay.tosa.rules._lookup import interpolated, looked_up, scalar
from inlay.tosa.rules._node import NodeContext
from inlay.types import QType

_PRODUCT_BITS = 15  # bits of an exponential in the last product, with 15 of the reciprocal: 30
_LONGEST_ROW = 1 << _PRODUCT_BITS  # elements per row: with 15 bits each their sum stays within 2^30
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
    if length > _LONGEST_ROW:
        raise Unsupported(f"its rows are longer than {_LONGEST_ROW}")
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
