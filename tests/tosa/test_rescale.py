"""Multiplier and shift arithmetic against exact rational numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.tosa import rescale


@given(st.floats(2.0**-31, 2.0**28))
def test_nearest_quotient(scale: float) -> None:
    multiplier, shift = rescale.multiplier_and_shift(scale)
    assert 0 <= multiplier < 1 << 31
    assert rescale.SHIFT_MIN <= shift <= rescale.SHIFT_MAX
    assert abs(Fraction(multiplier, 1 << shift) - Fraction(scale)) <= Fraction(scale) / (1 << 31)


@given(st.floats(1e-300, 2.0**-31))
def test_tiny_scales_lose_bits_not_magnitude(scale: float) -> None:
    multiplier, shift = rescale.multiplier_and_shift(scale)
    assert shift == rescale.SHIFT_MAX or multiplier >= 1 << 30
    assert abs(Fraction(multiplier, 1 << shift) - Fraction(scale)) <= Fraction(1, 1 << 62)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan"), 2.0**29, 1e30])
def test_what_no_rescale_can_do(scale: float) -> None:
    with pytest.raises(ValueError, match="scale"):
        rescale.multiplier_and_shift(scale)


@given(st.integers(-(2**31), 2**31 - 1), st.floats(2.0**-31, 1.0))
def test_rounds_half_up(value: int, scale: float) -> None:
    multiplier, shift = rescale.multiplier_and_shift(scale)
    exact = Fraction(value * multiplier, 1 << shift)
    result = int(rescale.apply(np.array([value]), np.array([multiplier]), np.array([shift]))[0])
    assert Fraction(-1, 2) < result - exact <= Fraction(1, 2)


@given(st.integers(1, 1 << 16), st.integers(-(1 << 22), 1 << 22))
def test_reciprocal_divides(count: int, value: int) -> None:
    multiplier, shift = rescale.reciprocal(count)
    result = int(rescale.apply(np.array([value]), np.array([multiplier]), np.array([shift]))[0])
    assert abs(result - Fraction(value, count)) <= Fraction(1, 2) + Fraction(abs(value), 1 << 29)
