"""Quick labelings against brute force, and local search against the problem's own sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.search.edges import FIRST_FORM
from inlay.search.labeling import BoundaryCost, LabelingProblem, Limit
from inlay.search.lagrangian import LagrangianSolver
from inlay.search.local_search import LocalSearch
from tests.search.test_mincut import brute_force, every_labeling, problems
from tests.support.examples import examples


@st.composite
def limited(draw: st.DrawFn) -> tuple[LabelingProblem, list[Limit]]:
    problem = draw(problems(least=-3.0, penalized=True))
    weight = st.floats(0.0, 3.0)

    def weights(count: int) -> np.ndarray:
        return np.array(draw(st.lists(weight, min_size=count, max_size=count)), np.float64)

    n, forms = len(problem.float_cost), problem.unit_costs.shape[1] - FIRST_FORM
    limits = [
        Limit(
            weights(len(problem.boundaries)),
            weights(n),
            draw(st.floats(0.1, 6.0)),
            weights(n * forms).reshape(n, forms) if forms else None,
        )
        for _ in range(draw(st.integers(0, 2)))
    ]
    return problem, limits


def fits(problem: LabelingProblem, limits: list[Limit], labels: np.ndarray) -> bool:
    return all(limit.usage(problem, labels) <= 1.0 + 1e-6 for limit in limits)


def best_within(problem: LabelingProblem, limits: list[Limit]) -> float:
    return min((problem.cost(y) for y in every_labeling(problem) if fits(problem, limits, y)), default=float("inf"))


@settings(max_examples=examples(60), deadline=None)
@given(limited())
def test_what_is_known_is_not_lost(case: tuple[LabelingProblem, list[Limit]]) -> None:
    problem, limits = case
    known = min((y for y in every_labeling(problem) if fits(problem, limits, y)), key=problem.cost)
    found = LagrangianSolver(problem, [known]).within(limits)
    assert fits(problem, limits, found)
    assert problem.cost(found) <= problem.cost(known) + 1e-6


def start(problem: LabelingProblem, draw: st.DataObject) -> np.ndarray:
    """Labels that units have."""
    offered = [np.flatnonzero(np.isfinite(row)).tolist() for row in problem.unit_costs]
    return np.array([draw.draw(st.sampled_from(labels)) for labels in offered], np.int8)


@settings(max_examples=examples(150), deadline=None)
@given(limited(), st.data())
def test_improving_keeps_costs_and_usage_in_step_and_ends_where_no_single_change_pays(
    case: tuple[LabelingProblem, list[Limit]], data: st.DataObject
) -> None:
    problem, limits = case
    labels = start(problem, data)
    search = LocalSearch(problem, limits, labels)
    within = search.fits()
    assert within == fits(problem, limits, labels)
    search.improve()
    after = search.labels
    assert search.cost == pytest.approx(problem.cost(after), abs=1e-6)
    assert search.usage == pytest.approx([limit.usage(problem, after) for limit in limits], abs=1e-6)
    if not within:
        return
    assert fits(problem, limits, after)
    assert problem.cost(after) <= problem.cost(labels) + 1e-9
    for i, label in np.ndindex(problem.unit_costs.shape):
        changed = after.copy()
        changed[i] = label
        assert problem.cost(changed) >= problem.cost(after) - 1e-6 or not fits(problem, limits, changed)


@settings(max_examples=examples(150), deadline=None)
@given(limited())
def test_limits_are_kept_whatever_they_are(case: tuple[LabelingProblem, list[Limit]]) -> None:
    problem, limits = case
    labels = LagrangianSolver(problem).within(limits)
    assert fits(problem, limits, labels)
    assert problem.cost(labels) < np.inf
    assert problem.cost(labels) >= best_within(problem, limits) - 1e-6


def test_a_usage_too_small_to_divide_by_repairs_nothing() -> None:
    problem = LabelingProblem(np.array([1.0, 1.0]), np.array([0.0, 0.0]), [], np.array([True, True]))
    limits = [Limit(np.array([]), np.array([1.0, 5e-324]), 0.5)]
    search = LocalSearch(problem, limits, np.array([1, 1]))
    search.improve()
    assert search.fits()
    assert search.labels.tolist() == [0, 1]


def chain(rng: np.random.Generator, n: int, negative: float) -> LabelingProblem:
    """Units in a row with a few joins: costs like those of real models, boundaries dear, some cheaper than nothing."""
    boundaries = [
        BoundaryCost(
            i,
            tuple({i + 1, int(rng.integers(i + 1, n))}),
            quantize=rng.uniform(negative, 4),
            dequantize=rng.uniform(0, 4),
        )
        for i in range(n - 1)
    ]
    return LabelingProblem(rng.uniform(2, 10, n), rng.uniform(0, 10, n), boundaries, rng.random(n) < 0.9)


def gaps(limited: bool, negative: float) -> np.ndarray:
    found = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        problem = chain(rng, 10, negative)
        limits = []
        if limited:
            limits = [Limit(rng.exponential(1, len(problem.boundaries)), rng.exponential(1, 10), 3.0) for _ in range(2)]
        labels = LagrangianSolver(problem).within(limits)
        best = best_within(problem, limits) if limits else brute_force(problem)
        found.append(problem.cost(labels) / best - 1.0)
    return np.array(found)


@pytest.mark.parametrize(("limited", "negative"), [(False, -4.0), (True, 0.0), (True, -4.0)])
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_it_is_close_to_the_best(limited: bool, negative: float) -> None:
    found = gaps(limited, negative)
    assert found.min() >= -1e-6
    assert np.median(found) < 0.002
    assert found.mean() < 0.02


@pytest.mark.exhaustive
def test_closeness_is_owed_to_single_changes_and_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: prices without single changes miss more."""
    whole = gaps(True, -4.0).mean()
    monkeypatch.setattr(LocalSearch, "improve", lambda _: None)
    assert gaps(True, -4.0).mean() > 2.0 * whole
