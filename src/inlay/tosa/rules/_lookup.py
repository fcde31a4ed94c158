"""Functions of more than 8 bits by int8 TABLEs only (Ethos-U55 has no 16-bit ones).

Integers of several bytes are looked up byte by byte. A function of a 16-bit value is a chord for each of up to 255
segments: ``base[i] + slope[i]·rest``, where ``i`` numbers the segment and ``rest`` is the distance from its middle. The
result is known for every one of the 2^16 inputs when the tables are made, so the error is computed, not estimated.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from inlay.quant.qparams import quantize
from inlay.tosa import ir
from inlay.tosa.context import WIDE_LIMIT
from inlay.tosa.ir import Array
from inlay.tosa.quantized import QuantizedTensor, Unsupported
from inlay.tosa.rules._node import NodeContext
from inlay.types import QParams, QType

_SEGMENTS = 250  # segments of a function: all values of a byte but a few, which the placing of their edges needs

_RESULT_BITS = 22
"""Bits of an interpolated result: three tables of one byte each, with room for the product of slope and rest."""

_PLACINGS = 16  # placings of the segments that are tried for a function with kinks

_LARGEST_GROWTH = 4.0
"""Largest result of a function, over its largest input (or 1), in 16 bits: the range of an exponential would be one
that no sample comes near, and its step too coarse for those that do."""

_GOOD, _TOLERABLE = 0.1, 0.5  # errors in 8-bit steps: what needs no better placing of the segments, and what is refused


def scalar(here: NodeContext, value: int, like: str) -> str:
    """An int32 constant with one element, of the rank of the tensor ``like``."""
    return here.constant(f"{value}", np.full((1,) * len(here.shape(like)), value, np.int32))


def looked_up(here: NodeContext, index: str, values: Array) -> str:
    """``values[index + 128]`` as int32, for an int8 tensor; every byte of the values has a table of its own."""
    lowest = int(values.min())
    above = values - lowest
    total = ""
    for byte in range(max(1, (int(above.max()).bit_length() + 7) // 8)):
        entries = tuple(int(v) - 128 for v in (above >> (8 * byte)) & 255)
        part = here.add(ir.Table, index, f"byte{byte}", "int8", values=entries)
        wide = here.to_int32(part, in_zp=-128, factor=float(1 << (8 * byte)))
        total = here.binary("add", total, wide) if total else wide
    return here.binary("add", total, scalar(here, lowest, total)) if lowest else total


def linear(here: NodeContext, x: QuantizedTensor, tensor: str, apply: Callable[[str, int], str]) -> str:
    """A linear operator from int8 to int32 applied to ``tensor``, which has the qparams of ``x``, of 8 or 16 bits.

    Of 16 bits, to the upper and to the lower byte. ``apply`` takes an int8 tensor and its zero point.
    """
    if not x.wide:
        return apply(tensor, x.zp)
    tensor = here.add(ir.Clamp, tensor, "limited", low=-WIDE_LIMIT, high=WIDE_LIMIT)
    upper = here.rescale(tensor, [1 / 256], QParams(QType.INT8, (1.0,), (0,)), "upper")
    rest = here.binary("sub", here.to_int32(tensor), here.to_int32(upper, factor=256.0))
    lower = here.rescale(rest, [1.0], QParams(QType.INT8, (1.0,), (0,)), "lower")
    total = apply(upper, 0)
    return here.binary("add", here.binary("mul", total, scalar(here, 256, total)), apply(lower, 0))


def function(here: NodeContext, x: QuantizedTensor, evaluate: Callable[[Array], Array]) -> QuantizedTensor:
    """A function of one value of which the input, the output or both have 16 bits; ``evaluate`` gives it in float.

    Raises:
        Unsupported: it is not a number somewhere, or segments are too coarse for it.
    """
    own = x.known_qparams
    ints = np.arange(own.qtype.qmin, own.qtype.qmax + 1)
    results = evaluate(((ints - x.zp) * x.scale).astype(np.float32)).astype(np.float64)
    if np.isnan(results).any():
        raise Unsupported("it is not a number over a part of its input's range")
    largest = float(np.abs(results).max())
    to = here.qparams_within(largest)
    if to.qtype is not QType.INT8 and largest > _LARGEST_GROWTH * max(x.bound, 1.0):
        raise Unsupported("its result can be so much larger than usual that 16 bits do not hold it well")
    if not x.wide:
        steps = quantize(results.astype(np.float32), to).astype(np.int64)
        return QuantizedTensor(here.rescale(looked_up(here, x.tensor, steps), [1.0], to), to)
    # Beyond both ends of the interesting part, the result stays the same.
    steps = quantize(results.astype(np.float32), to)
    first, last = np.flatnonzero(steps != steps[0]), np.flatnonzero(steps != steps[-1])
    low = int(ints[max(int(first[0]) - 1, 0)]) if first.size else 0
    high = int(ints[min(int(last[-1]) + 1, len(ints) - 1)]) if last.size else 0
    fine = 1 << (_RESULT_BITS - to.qtype.bits)
    least, most = to.qtype.qmin - to.zero_point[0], to.qtype.qmax - to.zero_point[0]
    wanted = np.clip(results / to.scale[0], least, most)[low - ints[0] : high - ints[0] + 1] * fine
    clamped = here.to_int32(here.add(ir.Clamp, x.tensor, "clamped", low=low, high=high))
    total = interpolated(here, clamped, low, wanted, fine << (to.qtype.bits - QType.INT8.bits))
    return QuantizedTensor(here.rescale(total, [1 / fine], to), to)


def interpolated(here: NodeContext, x: str, low: int, wanted: Array, step: float) -> str:
    """``wanted[x − low]`` for an int32 tensor, interpolated; ``step`` is one 8-bit step in the units of ``wanted``."""
    best = None
    for placing in range(_PLACINGS):
        chords = _Chords(low, wanted, placing)
        if best is None or chords.error < best.error:
            best = chords
        if best.error <= _GOOD * step:
            break
    assert best is not None
    if best.error > _TOLERABLE * step:
        raise Unsupported(f"its function over 16 bits is up to {best.error / step:.1f} steps off by interpolation")
    centred = here.binary("sub", x, scalar(here, best.middle, x))
    index = here.rescale(centred, [1 / best.width], QParams(QType.INT8, (1.0,), (0,)), "segment")
    base = looked_up(here, index, best.base)
    if best.width == 1:
        return base
    rest = here.binary("sub", centred, here.to_int32(index, factor=float(best.width)))
    return here.binary("add", base, here.binary("mul", looked_up(here, index, best.slope), rest))


class _Chords:
    """One way to place the segments: tables by ``index + 128``, and the largest error over all inputs."""

    def __init__(self, low: int, wanted: Array, placing: int) -> None:
        # An edge at 0 suits most functions with a kink; other placings shift the edges by parts of a segment.
        self.width = max(1, -(-len(wanted) // _SEGMENTS))
        if self.width > 1:
            self.width += self.width % 2
        edge = self.width // 2 + placing * self.width // _PLACINGS
        self.middle = edge + round((low + len(wanted) / 2 - edge) / self.width) * self.width
        centred = np.arange(low, low + len(wanted)) - self.middle
        index = (2 * centred + self.width) // (2 * self.width)  # rounds half up, as RESCALE does
        rest = centred - index * self.width
        at = index + 128
        count = np.maximum(np.bincount(at, minlength=256), 1)
        mean_x, mean_y = (np.bincount(at, v, 256) / count for v in (rest, wanted))
        spread = np.bincount(at, (rest - mean_x[at]) ** 2, 256)
        shared = np.bincount(at, (rest - mean_x[at]) * (wanted - mean_y[at]), 256)
        slope = np.divide(shared, spread, out=np.zeros(256), where=spread > 0)
        self.slope = np.rint(slope).astype(np.int64)
        self.base = np.rint(mean_y - self.slope * mean_x).astype(np.int64)
        self.error = float(np.abs(self.base[at] + self.slope[at] * rest - wanted).max())
