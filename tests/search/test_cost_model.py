"""The cost model on a runtime whose costs are known: it learns them, and its problem says what it says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from inlay.search.cost_model import CostModel
from inlay.search.edges import State
from inlay.search.milp import solve
from inlay.search.unit_graph import UnitGraph
from inlay.targets.base import KernelTime
from tests.search.unit_graphs import chain


class Runtime:
    """Known costs: of each unit by label and by the label before it, of each value by state."""

    def __init__(self, graph: UnitGraph, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.graph = graph
        plain = rng.uniform(2e3, 20e3, (len(graph.units), 2, 1))
        self.units = plain * np.exp(rng.normal(0.0, 0.2, (len(graph.units), 2, 2)))
        self.edges = rng.uniform(0.5e3, 4e3, (len(graph.edges), 4))

    def kernels(self, labels: np.ndarray) -> list[KernelTime]:
        s = self.graph
        states, contexts = s.states(labels), s.layout_contexts(labels)
        found = [
            KernelTime(u.name, "Conv", float(self.units[i, int(labels[i]), int(contexts[i])]), nodes=u.nodes)
            for i, u in enumerate(s.units)
        ]
        found += [
            KernelTime(e.value, "Q", float(self.edges[k, states[k]]), values=(e.value,), kind="quantize")
            for k, e in enumerate(s.edges)
        ]
        return found

    def ns(self, labels: np.ndarray) -> float:
        return sum(k.ns for k in self.kernels(labels))


def every(n: int) -> list[np.ndarray]:
    return [np.array(bits, bool) for bits in itertools.product((False, True), repeat=n)]


def test_states_follow_the_labels() -> None:
    graph = chain(3)
    states = graph.states(np.array([True, False, True]))
    assert [State(s) for s in states] == [State.QUANTIZE, State.DEQUANTIZE, State.QUANTIZE, State.DEQUANTIZE]
    assert [State(s) for s in graph.states(np.zeros(3, bool))] == [State.FLOAT] * 4


@pytest.mark.parametrize("seed", range(4))
def test_what_was_profiled_is_predicted_and_its_problem_agrees(seed: int) -> None:
    graph = chain(4)
    runtime, model = Runtime(graph, seed), CostModel(graph)
    for labels in every(4):
        model.update_from_profile(labels, runtime.kernels(labels), runtime.ns(labels))
    for labels in every(4):
        assert model.predict(labels).mean == pytest.approx(runtime.ns(labels), rel=1e-6)
    problem = model.expected_problem()
    costs = [problem.cost(labels) for labels in every(4)]
    truth = [runtime.ns(labels) for labels in every(4)]
    assert np.ptp(np.subtract(costs, truth)) == pytest.approx(0.0, abs=1e-3)  # equal but for a constant
    found = solve(problem)
    assert found is not None
    assert runtime.ns(found) == pytest.approx(min(truth), rel=1e-3)


def test_whole_model_times_correct_what_profiles_miss() -> None:
    graph = chain(4)
    runtime, model = Runtime(graph, 9), CostModel(graph)
    plain = np.zeros(4, bool)
    model.update_from_profile(plain, runtime.kernels(plain), runtime.ns(plain))
    mixed = np.array([True, True, False, False])
    before = model.predict(mixed)
    model.update_from_latency(mixed, runtime.ns(mixed), 0.001)
    after = model.predict(mixed)
    assert abs(after.mean - runtime.ns(mixed)) < 0.2 * abs(before.mean - runtime.ns(mixed))
    assert after.stddev < 0.5 * before.stddev


def test_known_costs_stand_in_for_profiles() -> None:
    graph = chain(3)
    runtime, teacher = Runtime(graph, 2), CostModel(graph)
    low = np.ones(3, bool)
    teacher.update_from_profile(low, runtime.kernels(low), runtime.ns(low))
    pupil = CostModel(graph, teacher.summary())
    assert set(teacher.summary()) <= set(pupil.parameters.signatures)
    assert pupil.predict(low).mean == pytest.approx(runtime.ns(low), rel=1e-6)


def test_costs_known_from_a_slower_hour_are_taken_at_this_hours_pace() -> None:
    graph = chain(3)
    runtime, teacher = Runtime(graph, 2), CostModel(graph)
    low, plain = np.ones(3, bool), np.zeros(3, bool)
    for labels in (low, plain):
        teacher.update_from_profile(labels, runtime.kernels(labels), runtime.ns(labels))
    pupil = CostModel(graph, {key: 2.0 * ns for key, ns in teacher.summary().items()})
    assert pupil.predict(low).mean == pytest.approx(2.0 * runtime.ns(low), rel=1e-6)
    pupil.update_from_profile(plain, runtime.kernels(plain), runtime.ns(plain))
    assert pupil.predict(low).mean == pytest.approx(runtime.ns(low), rel=1e-6)
