"""The integer program with any number of labels against brute force, and against the cut where that is exact."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.search.milp import MultiLabelLimit, MultiLabelProblem, ValueCosts, as_multi_label, solve_labels
from inlay.search.mincut import minimum_cut
from tests.search.test_mincut import problems


@st.composite
def labelings(draw: st.DrawFn, least: float = -3.0) -> MultiLabelProblem:
    n, labels = draw(st.integers(1, 4)), draw(st.integers(2, 3))

    def numbers(low: float, *shape: int) -> np.ndarray:
        size = int(np.prod(shape))
        return np.array(draw(st.lists(st.floats(low, 6.0), min_size=size, max_size=size))).reshape(shape)

    values = []
    for _ in range(draw(st.integers(0, 4))):
        producer = draw(st.integers(-1, n - 1))
        consumers = tuple(sorted(draw(st.sets(st.integers(0, n - 1), max_size=3)) - {producer}))
        convert, present = numbers(least, labels, labels), numbers(least, labels)
        values.append(ValueCosts(producer, consumers, draw(st.booleans()), convert, present))
    allowed = np.array(draw(st.lists(st.booleans(), min_size=n * labels, max_size=n * labels))).reshape(n, labels)
    allowed[:, 0] |= ~allowed.any(axis=1)
    ties = [(0, n - 1)] if n > 1 and draw(st.booleans()) else []
    return MultiLabelProblem(numbers(0.0, n, labels), values, allowed, ties)


def _paid(value: ValueCosts, labels: tuple[int, ...]) -> tuple[int, set[int]]:
    """The form a value is made in, and the forms its readers want; written anew, not taken from the program."""
    made = labels[value.producer] if value.producer >= 0 else 0
    wanted = {labels[c] for c in value.consumers}
    if value.float_reader:
        wanted.add(0)
    return made, wanted


def _cost(problem: MultiLabelProblem, labels: tuple[int, ...]) -> float:
    if any(not problem.allowed[i, a] for i, a in enumerate(labels)):
        return float("inf")
    if any(labels[a] != labels[b] for a, b in problem.ties):
        return float("inf")
    total = sum(float(problem.costs[i, a]) for i, a in enumerate(labels))
    for value in problem.values:
        made, wanted = _paid(value, labels)
        total += sum(float(value.convert[made][b]) for b in wanted)
        total += sum(float(value.present[b]) for b in wanted.union([made]))
    return total


def _every(problem: MultiLabelProblem) -> itertools.product[tuple[int, ...]]:
    n, labels = problem.costs.shape
    return itertools.product(range(labels), repeat=n)


@settings(max_examples=80, deadline=None)
@given(labelings())
def test_the_program_is_optimal_with_any_number_of_labels(problem: MultiLabelProblem) -> None:
    best = min(_cost(problem, labels) for labels in _every(problem))
    found = solve_labels(problem)
    if not np.isfinite(best):  # the tie leaves no label that both may have
        assert found is None
        return
    assert found is not None
    assert _cost(problem, tuple(found.tolist())) == pytest.approx(best, abs=2e-2)
    assert problem.cost(found) == pytest.approx(_cost(problem, tuple(found.tolist())))


@settings(max_examples=60, deadline=None)
@given(labelings(), st.data())
def test_a_limit_is_kept_at_least_cost(problem: MultiLabelProblem, data: st.DataObject) -> None:
    n, labels = problem.costs.shape
    m = len(problem.values)
    weights = st.integers(-1, 3)
    units = np.array(data.draw(st.lists(weights, min_size=n * labels, max_size=n * labels)), float).reshape(n, labels)
    size = m * labels * labels
    convert = np.array(data.draw(st.lists(weights, min_size=size, max_size=size)), float).reshape(m, labels, labels)
    limit = MultiLabelLimit(units, convert, float(data.draw(st.integers(1, 6))))

    def load(y: tuple[int, ...]) -> float:
        total = sum(units[i, a] for i, a in enumerate(y))
        for k, value in enumerate(problem.values):
            made, wanted = _paid(value, y)
            total += sum(convert[k, made, b] for b in wanted)
        return float(total)

    kept = [y for y in _every(problem) if load(y) <= limit.maximum and np.isfinite(_cost(problem, y))]
    found = solve_labels(problem, [limit])
    if not kept:
        assert found is None
        return
    assert found is not None
    assert load(tuple(found.tolist())) <= limit.maximum + 1e-6
    assert problem.cost(found) == pytest.approx(min(_cost(problem, y) for y in kept), abs=2e-2)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_two_labels_are_the_cut(problem) -> None:  # type: ignore[no-untyped-def]
    general = as_multi_label(problem)
    found = solve_labels(general)
    assert found is not None
    cut = minimum_cut(problem).astype(int)
    assert general.cost(cut) == pytest.approx(problem.cost(cut > 0))
    assert general.cost(found) == pytest.approx(general.cost(cut), abs=2e-2)


def test_one_conversion_serves_every_reader_and_forms_are_paid_separately() -> None:
    convert = np.array([[0.0, 2.0, 3.0], [9.0, 0.0, 9.0], [9.0, 9.0, 0.0]])
    costs = np.array([[0.0, 9.0, 9.0], [5.0, 4.0, 0.0], [5.0, 0.0, 4.0], [5.0, 0.0, 4.0]])
    value = ValueCosts(0, (1, 2, 3), False, convert, np.zeros(3))
    problem = MultiLabelProblem(costs, [value], np.ones((4, 3), bool))
    found = solve_labels(problem)
    assert found is not None
    # readers 2 and 3 share the conversion to 1; reader 1 joins them at 4 rather than pay 3 more for a form of its own
    assert found.tolist() == [0, 2, 1, 1]
    assert problem.cost(found) == pytest.approx(5.0)
    costlier = ValueCosts(0, (1, 2, 3), False, convert + np.array([0.0, 0.0, 1.5]), np.zeros(3))
    again = solve_labels(MultiLabelProblem(costs, [costlier], problem.allowed))
    assert again is not None
    assert again.tolist() == [0, 1, 1, 1]
