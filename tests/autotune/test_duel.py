"""Duels: whose turn it is, when they end, and what they accept."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.autotune.duel import Duel
from inlay.measure.paired import PooledVariance


def fought(turns: int, incumbent_ms: float, candidate_ms: float, threshold: float = 1.0) -> Duel:
    duel = Duel(turns)
    while not duel.finished(threshold, PooledVariance()):
        duel = duel.with_reading(candidate_ms if duel.candidate_next else incumbent_ms)
    return duel


def test_the_order_alternates() -> None:
    duel, order = Duel(4), ""
    while not duel.finished(0.1, PooledVariance()):
        order += "c" if duel.candidate_next else "i"
        duel = duel.with_reading(1.0)
    assert order == "icciicci"


@given(st.integers(1, 8), st.floats(0.1, 10.0), st.floats(0.1, 10.0))
def test_without_noise_every_gain_is_accepted_and_nothing_else(turns: int, incumbent: float, candidate: float) -> None:
    duel = fought(turns, incumbent, candidate)
    assert duel.speedup == pytest.approx(incumbent / candidate)
    no_noise = PooledVariance(0.0, 10)
    assert duel.accepts(1.0, no_noise.including(duel.ratios)) == (math.log(incumbent / candidate) > 1e-12)


def test_a_candidate_below_the_threshold_is_given_up_after_two_turns() -> None:
    assert len(fought(10, 10.0, 10.1).ratios) == 2
    assert len(fought(10, 10.0, 9.9).ratios) == 10
    assert len(fought(10, 10.0, 9.9, threshold=1.5).ratios) == 2


def test_a_single_turn_proves_nothing_before_the_noise_is_known() -> None:
    duel = fought(1, 10.0, 5.0)
    assert not duel.accepts(1.0, PooledVariance().including(duel.ratios))
    assert duel.accepts(1.0, PooledVariance(1e-4, 8))


def test_few_degrees_of_freedom_are_not_trusted() -> None:
    ratios = (0.1, 0.3)
    once = PooledVariance().including(ratios)
    assert once.deviation == pytest.approx(2 * float(np.std(ratios, ddof=1)))
    often = once
    for _ in range(3):
        often = often.including(ratios)
    assert often.deviation == pytest.approx(float(np.std(ratios, ddof=1)))
