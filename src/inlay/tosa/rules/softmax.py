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
from inlay.tosa.ir import Array
from inlay.tosa.quantized import Unsupported
from inlay.tosa.rules._node import NodeContext

_PRODUCT_BITS = 15
"""Bits of an exponential in the last product, with 15 of the reciprocal: 30."""

_LONGEST_ROW = 1 << _PRODUCT_BITS
"""Elements per row: with 15 bits each their sum stays within 2^30."""

_MOST_BITS = 23
"""Most bits of an exponential: three tables of one byte each hold 2^23."""


def softmax(here: NodeContext) -> None:
    """Softmax over one axis (before opset 13: over all axes from ``axis`` on)."""
    to = here.output_qparams
    x = here.quantized_input()
    tensor, shape = x.tensor, here.shape(x.tensor)
    axis, single = softmax_axis(here, shape)
    if not single:
        tensor, axis = here.reshape(tensor, (math.prod(shape[:axis]), math.prod(shape[axis:])), "flat"), 1
    length = here.shape(tensor)[axis]
    if length > _LONGEST_ROW:
        raise Unsupported(f"its rows are longer than {_LONGEST_ROW}")
    bits = min(_MOST_BITS, 30 - (length - 1).bit_length())
    exponentials = _exponentials(here, tensor, axis, x.scale, bits)
    reciprocal, up = _reciprocal(here, here.reduce("sum", exponentials, axis))
    short = _shifted_right(here, exponentials, bits - _PRODUCT_BITS)
    shift = here.binary("sub", _scalar(here, 30 - bits, up), up)
    quotient = here.binary("shr", here.binary("mul", short, reciprocal), shift)
    here.set_rescaled(quotient, 2.0**-30, to)


def softmax_axis(here: NodeContext, shape: tuple[int, ...]) -> tuple[int, bool]:
    """The (first) axis of a Softmax over a tensor of this shape, and whether it is the only one."""
    old = here.context.graph.opset < 13
    axis = int(here.attribute("axis", 1 if old else -1)) % len(shape)
    return axis, not old or math.prod(shape[axis:]) == shape[axis]


def _scalar(here: NodeContext, value: int, like: str) -> str:
    """An int32 constant with one element, of the rank of the tensor ``like``."""
    return here.constant(f"{value}", np.full((1,) * len(here.shape(like)), value, np.int32))


def _shifted_right(here: NodeContext, tensor: str, by: int) -> str:
    """Rounding shift; not a RESCALE, whose int32 → int32 form not every compiler supports."""
    return here.binary("shr", tensor, _scalar(here, by, tensor)) if by else tensor


def _looked_up(here: NodeContext, tensor: str, factor: float, out_zp: int, values: Array) -> str:
    """``values[index + 128]`` as int32, non-negative; ``index`` is ``tensor·factor + out_zp`` as int8.

    Every byte of the values has a table of its own.
    """
    multiplier, shift = multipliers_and_shifts([factor])
    index = here.add(ir.Rescale, tensor, "index", "int8", multiplier=multiplier, shift=shift, out_zp=out_zp)
    total = ""
    for byte in range((int(values.max()).bit_length() + 7) // 8):
        entries = tuple(int(v) - 128 for v in (values >> (8 * byte)) & 255)
        part = here.add(ir.Table, index, f"byte{byte}", values=entries)
        wide = here.to_int32(part, in_zp=-128, factor=float(1 << (8 * byte)))
        total = here.binary("add", total, wide) if total else wide
    return total


def _exponentials(here: NodeContext, tensor: str, axis: int, scale: float, bits: int) -> str:
    """``round(2^bits·exp(scale·(x − max)))``."""
    largest = here.reduce("max", tensor, axis)
    below = here.binary("sub", here.to_int32(tensor), here.to_int32(largest))
    d = np.arange(-128, 128) - 127
    values = np.rint(2.0**bits * np.exp(scale * d.astype(np.float64))).astype(np.int64)
    return _looked_up(here, below, 1.0, 127, values)


def _reciprocal(here: NodeContext, total: str) -> tuple[str, str]:
    """``r ≈ 2^45 / M`` in (2^14, 2^15], and the left shift ``up`` that makes M of the sum."""
    zeros = here.add(ir.Unary, total, "clz", fn="clz")
    up = here.binary("sub", zeros, _scalar(here, 1, zeros))
    normal = here.binary("shl", total, up)
    # The 8 bits behind the leading one, as an int8 index: floor(M / 2^22) − 384, where 2^21 undoes the rounding.
    centred = here.binary("sub", normal, _scalar(here, (384 << 22) + (1 << 21), normal))
    middles = (np.arange(256) + 256.5) * 2.0**22
    guess = _looked_up(here, centred, 2.0**-22, 0, np.rint(2.0**45 / middles).astype(np.int64))
    # r·(2 − M·r/2^45) with M in 16 bits: r + r·(2^30 − M16·r)/2^30, kept inside int32 by shifting in two parts.
    product = here.binary("mul", _shifted_right(here, normal, 15), guess)
    error = here.binary("sub", _scalar(here, 1 << 30, product), product)
    step = _shifted_right(here, here.binary("mul", guess, _shifted_right(here, error, 6)), 24)
    return here.binary("add", guess, step), up
