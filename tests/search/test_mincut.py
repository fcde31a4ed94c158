"""The cut and the integer program against brute force, and the size they must cope with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.search.edges import FIRST_FORM
from inlay.search.labeling import BoundaryCost, FusionPenalty, LabelingProblem, Limit
from inlay.search.lagrangian import LagrangianSolver
from inlay.search.milp import solve
from inlay.search.mincut import Network
from tests.support.examples import examples


def minimum_cut(problem: LabelingProblem) -> np.ndarray:
    return Network(problem).cut(problem.low_cost - problem.float_cost, problem.boundary_costs)


@st.composite
def problems(draw: st.DrawFn, least: float = 0.0, penalized: bool = False) -> LabelingProblem:
    forms = draw(st.integers(0, 2))
    n = draw(st.integers(1, 7 - 2 * forms))
    cost = st.floats(0.0, 10.0)
    boundary = st.floats(least, 5.0)
    boundaries = []
    for _ in range(draw(st.integers(0, 2 * n))):
        producer = draw(st.integers(-1, n - 1))
        consumers = sorted(draw(st.sets(st.integers(0, n - 1), max_size=3)) - {producer})
        boundaries.append(BoundaryCost(producer, tuple(consumers), draw(st.booleans()), draw(boundary), draw(boundary)))
    costs = [np.array(draw(st.lists(cost, min_size=n, max_size=n))) for _ in range(2)]
    free = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    penalties = []
    for _ in range(draw(st.integers(0, 3)) if penalized and n > 1 else 0):
        unit, *causes = draw(st.lists(st.integers(0, n - 1), min_size=2, max_size=4, unique=True))
        penalties.append(FusionPenalty(unit, tuple(causes), draw(st.floats(0.0, 20.0))))
    form_cost = [[draw(cost | st.just(np.inf)) for _ in range(forms)] for _ in range(n)]
    of_forms = np.array(form_cost, np.float64).reshape(n, forms) if forms else None
    return LabelingProblem(costs[0], costs[1], boundaries, free, penalties, of_forms)


def every_labeling(problem: LabelingProblem) -> Iterator[np.ndarray]:
    """All in which each unit has its label."""
    offered = [np.flatnonzero(np.isfinite(row)).tolist() for row in problem.unit_costs]
    return (np.array(labels, np.int8) for labels in itertools.product(*offered))


def brute_force(problem: LabelingProblem) -> float:
    return min(map(problem.cost, every_labeling(problem)))


@settings(max_examples=examples(150), deadline=None)
@given(problems())
def test_the_cut_is_optimal(problem: LabelingProblem) -> None:
    assert problem.cost(LagrangianSolver(problem).unconstrained) == pytest.approx(brute_force(problem), abs=1e-5)
    plain = replace(problem, form_cost=None)
    assert problem.cost(minimum_cut(plain)) == pytest.approx(brute_force(plain), abs=1e-5)


@settings(max_examples=examples(40), deadline=None)
@given(problems(least=-3.0, penalized=True))
def test_the_integer_program_is_optimal_with_negative_boundaries_and_penalties(problem: LabelingProblem) -> None:
    found = solve(problem)
    assert found is not None
    assert problem.cost(found) == pytest.approx(brute_force(problem), abs=2e-2)


@settings(max_examples=examples(60), deadline=None)
@given(problems(least=-3.0, penalized=True), st.data())
def test_the_integer_program_keeps_limits_at_least_cost(problem: LabelingProblem, data: st.DataObject) -> None:
    n, m = len(problem.float_cost), len(problem.boundaries)
    weights = st.integers(0, 3)
    low, quantize = (np.array(data.draw(st.lists(weights, min_size=k, max_size=k)), float) for k in (n, m))
    forms = problem.unit_costs.shape[1] - FIRST_FORM
    of_forms = np.array([[data.draw(weights) for _ in range(forms)] for _ in range(n)], float).reshape(n, forms)
    limit = Limit(quantize, low, float(data.draw(st.integers(1, 6))), of_forms if forms else None)
    every = list(every_labeling(problem))
    found = solve(problem, [limit])
    assert found is not None, "all float keeps every limit"
    assert limit.usage(problem, found) <= 1.0 + 1e-6
    best = min(problem.cost(y) for y in every if limit.usage(problem, y) <= 1.0)
    assert problem.cost(found) == pytest.approx(best, abs=2e-2)


@pytest.mark.parametrize("which", ["negative", "penalty"])
def test_a_problem_says_that_a_cut_cannot_express_it(which: str) -> None:
    boundaries = [BoundaryCost(0, (1,), quantize=-1.0 if which == "negative" else 1.0)]
    penalties = [FusionPenalty(0, (1,), 1.0)] if which == "penalty" else []
    problem = LabelingProblem(np.ones(2), np.zeros(2), boundaries, np.ones(2, bool), penalties)
    assert not problem.is_cut
    assert LabelingProblem(np.ones(2), np.zeros(2), [BoundaryCost(0, (1,), quantize=1.0)], np.ones(2, bool)).is_cut


def test_a_unit_between_low_ones_is_priced_as_low_or_one_of_them_is_given_up() -> None:
    # the middle is dear in low precision; left in float between two low ones it would be, all the same
    costs = np.array([5.0, 1.0, 3.0]), np.array([1.0, 50.0, 1.0])
    caught = LabelingProblem(*costs, [], np.ones(3, bool), penalties=[FusionPenalty(1, (0, 2), 100.0)])
    free = LabelingProblem(*costs, [], np.ones(3, bool))
    for problem, wanted in ((caught, [True, False, False]), (free, [True, False, True])):
        found = solve(problem)
        assert found is not None
        assert found.tolist() == wanted


def test_one_q_serves_every_consumer() -> None:
    # each consumer alone saves 2 and would not pay a Q of 5; the three together do, as the Q is paid once
    problem = LabelingProblem(
        np.array([0.0, 2.0, 2.0, 2.0]),
        np.zeros(4),
        [BoundaryCost(0, (1, 2, 3), quantize=5.0)],
        np.array([0, 1, 1, 1]) > 0,
    )
    assert minimum_cut(problem).tolist() == [False, True, True, True]
    costlier = LabelingProblem(
        problem.float_cost, problem.low_cost, [BoundaryCost(0, (1, 2, 3), quantize=6.5)], problem.selectable
    )
    assert not minimum_cut(costlier).any()


def test_a_limit_is_kept_at_least_cost() -> None:
    problem = LabelingProblem(np.array([5.0, 4.0, 3.0]), np.zeros(3), [], np.ones(3, bool))
    limit = Limit(np.zeros(0), np.array([4.0, 2.0, 2.0]), 4.0)
    found = solve(problem, [limit])
    assert found is not None
    assert found.tolist() == [False, True, True]  # 7 saved within the limit, against 5 by the first alone


def test_a_limit_counts_values_quantized_behind_float_producers() -> None:
    # quantizing the value loads the limit, unless its producer is low, which costs more
    problem = LabelingProblem(np.array([0.0, 5.0]), np.array([3.0, 0.0]), [BoundaryCost(0, (1,))], np.ones(2, bool))
    free, bound = solve(problem), solve(problem, [Limit(np.array([2.0]), np.zeros(2), 1.0)])
    assert free is not None
    assert bound is not None
    assert free.tolist() == [False, True]
    assert bound.tolist() == [True, True]


@pytest.mark.exhaustive
def test_a_hundred_thousand_units() -> None:
    rng = np.random.default_rng(0)
    n = 100_000
    up, down = rng.uniform(0, 3, (2, n))
    boundaries = [
        BoundaryCost(i, (i + 1, i + 7) if i % 3 else (i + 1,), quantize=up[i], dequantize=down[i]) for i in range(n - 8)
    ]
    problem = LabelingProblem(rng.uniform(0, 10, n), rng.uniform(0, 10, n), boundaries, rng.random(n) < 0.9)
    labels = minimum_cut(problem)
    every_unit_alone = (problem.low_cost < problem.float_cost) & problem.selectable
    assert problem.cost(labels) < min(problem.cost(np.zeros(n, bool)), problem.cost(every_unit_alone))
