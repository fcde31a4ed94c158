"""The allocator on a simulated clock: everyone first, then gain per second; nobody starves; the budget holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.portfolio import policy
from inlay.portfolio.allocate import Progressed, next_slice

Curve = Callable[[float], float]
"""Logarithm of the speed-up after so many seconds."""


@dataclass(frozen=True)
class Spent:
    """A simulated fleet at its end, and the numbers of its slices in order."""

    runs: Sequence[Progressed]
    order: Sequence[int]


def simulate(curves: Sequence[Curve], budget_s: float, done_at: Sequence[float] = ()) -> Spent:
    runs, order, clock_s = [Progressed() for _ in curves], list[int](), 0.0
    while (chosen := next_slice(runs, budget_s - clock_s)) is not None:
        run = runs[chosen.number]
        end_s = done_at[chosen.number] if done_at else math.inf
        assert run.spent_s < chosen.total_s
        total_s = min(chosen.total_s, end_s)
        clock_s += total_s - run.spent_s
        slices = (*run.slices, (total_s, curves[chosen.number](total_s)))
        runs[chosen.number] = replace(run, slices=slices, done=total_s >= end_s)
        order.append(chosen.number)
        assert clock_s <= budget_s + 1e-9
    return Spent(runs, order)


def flat(_: float) -> float:
    return 0.0


def rising(seconds: float) -> float:
    return 0.2 * math.log(seconds)


def test_everyone_first_then_where_it_gains() -> None:
    spent = simulate([flat, rising, flat, flat], 2000.0)
    assert spent.order[:4] == [0, 1, 2, 3]
    assert spent.runs[1].spent_s > 2 * max(run.spent_s for n, run in enumerate(spent.runs) if n != 1)
    assert min(run.spent_s for run in spent.runs) > policy.FIRST_SLICE_S, "nobody is given up after one slice"


def test_a_run_that_gains_late_is_found() -> None:
    late: Curve = lambda seconds: 0.7 if seconds >= 400 else 0.0  # noqa: E731
    spent = simulate([flat, flat, late], 6000.0)
    assert spent.runs[2].slices[-1][1] == 0.7
    assert spent.runs[2].spent_s >= max(run.spent_s for run in spent.runs)


def test_a_finished_run_frees_its_time() -> None:
    alone = simulate([flat, rising], 1000.0)
    freed = simulate([rising, rising], 1000.0, done_at=[30.0, math.inf])
    assert freed.runs[0].spent_s == 30.0
    assert freed.runs[1].spent_s > alone.runs[1].spent_s - 1e-9
    assert sum(run.spent_s for run in freed.runs) > 1000.0 - policy.LEAST_SLICE_S


@given(st.lists(st.floats(0.0, 0.5), min_size=1, max_size=12), st.floats(0.0, 5000.0))
def test_the_budget_is_spent_and_never_exceeded(slopes: list[float], budget_s: float) -> None:
    spent = simulate([lambda s, a=slope: a * math.log(s) for slope in slopes], budget_s)  # type: ignore[misc]
    used_s = sum(run.spent_s for run in spent.runs)
    if budget_s >= policy.LEAST_SLICE_S:
        assert used_s > budget_s - policy.LEAST_SLICE_S
    shorts = [run for run in spent.runs if not run.slices]
    assert not shorts or budget_s < policy.LEAST_FIRST_S * len(slopes) / policy.FIRST_SHARE


def test_limits_of_single_runs() -> None:
    needs = Progressed(least_s=500.0)
    chosen = next_slice([needs, Progressed()], 300.0)
    assert chosen is not None
    assert chosen.number == 1, "one that needs more than there is keeps nobody from the rest"
    chosen = next_slice([needs, Progressed(slices=((60.0, 0.0),))], 600.0)
    assert (chosen and chosen.number, chosen and chosen.total_s) == (0, 500.0)
    capped = Progressed(slices=((60.0, 0.0),), most_s=65.0)
    assert next_slice([capped], 1000.0) is None
    assert next_slice([], 1000.0) is None
    assert next_slice([Progressed(busy=True), Progressed(done=True)], 1000.0) is None
    alone = next_slice([Progressed()], 900.0)
    assert alone is not None
    assert alone.total_s == 900.0, "a run that shares with nobody is not cut into pieces"


@pytest.mark.parametrize("left_s", [math.inf, 1e6])
def test_without_a_limit_slices_grow_by_a_factor(left_s: float) -> None:
    chosen = next_slice([Progressed(slices=((80.0, 0.1),)), Progressed(done=True)], left_s)
    assert chosen is not None
    assert chosen.total_s == 80.0 * policy.GROWTH
