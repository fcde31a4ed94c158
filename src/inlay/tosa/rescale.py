"""Requantization arithmetic: a real scale as a 31-bit multiplier and a shift, and its exact integer application.

Formula (TOSA 1.0 RESCALE with ``scale32`` and SINGLE_ROUND)::

    m, e = frexp(scale);  multiplier = round(m·2^31);  shift = 31 − e
    y = ((x·multiplier + 2^(shift−1)) >> shift) + out_zp        in 64 bits: rounds half up
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from inlay.tosa.ir import Array

SHIFT_MIN, SHIFT_MAX = 2, 62  # shifts that TOSA's `apply_scale_32` accepts


def multiplier_and_shift(scale: float) -> tuple[int, int]:
    """The multiplier (0 … 2^31 − 1) and right shift (2 … 62) whose quotient is nearest to ``scale``.

    A scale too small for the largest shift loses low bits of its multiplier (down to 0), never its magnitude.

    Raises:
        ValueError: ``scale`` is not positive and finite, or needs a shift below 2 (it is 2^29 or more).
    """
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale {scale} is not a positive number")
    mantissa, exponent = math.frexp(scale)
    multiplier = round(mantissa * (1 << 31))
    if multiplier == 1 << 31:
        multiplier >>= 1
        exponent += 1
    shift = 31 - exponent
    if shift > SHIFT_MAX:
        multiplier >>= min(31, shift - SHIFT_MAX)
        shift = SHIFT_MAX
    if shift < SHIFT_MIN:
        raise ValueError(f"scale {scale} is too large for a rescale")
    return multiplier, shift


def multipliers_and_shifts(scales: Sequence[float]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """:func:`multiplier_and_shift` of each scale, as two tuples."""
    pairs = [multiplier_and_shift(s) for s in scales]
    return tuple(m for m, _ in pairs), tuple(s for _, s in pairs)


def apply(values: Array, multiplier: Array, shift: Array) -> Array:
    """``values·multiplier / 2^shift`` rounded half up, exactly (int64; broadcasting)."""
    half = np.left_shift(np.int64(1), (shift - 1).astype(np.int64))
    result = np.asarray(np.multiply(values, multiplier, dtype=np.int64))
    result += half
    result >>= shift.astype(np.int64)
    return result


def reciprocal(count: int) -> tuple[int, int]:
    """Multiplier and shift that divide by ``count`` (TOSA 1.0 pseudocode ``reciprocal_scale``; AVG_POOL2D)."""
    if count <= 0:
        raise ValueError(f"cannot divide by {count}")
    bits = (count - 1).bit_length()
    return (((1 << 30) + 1) << bits) // count, 30 + bits
