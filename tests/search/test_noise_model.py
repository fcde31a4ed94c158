"""Noise as a sum over sources, corrected by probes and trials; and how much of it is allowed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from inlay.quant.sensitivity import Sensitivity
from inlay.search.edges import State
from inlay.search.noise_model import Aim, NoiseAllowance, NoiseModel
from inlay.trial import (
    Accuracy,
    Failed,
    Infeasible,
    Interval,
    Latency,
    Measured,
    OutputError,
    Proposal,
    Trial,
    decibels,
    noise_of,
)
from inlay.types import Placement
from tests.search.unit_graphs import chain

N = 5
GRAPH = chain(N)
ALONE = Sensitivity({f"v{i}": (1e-3 * (i + 1),) for i in range(N)} | {"x": (1e-4,)}, {"u1": (5e-4,)})


def model() -> NoiseModel:
    return NoiseModel(GRAPH, ALONE, ["out"])


def accuracy(sqnr_db: float, feasible: bool = True, margin_db: float = 0.0) -> Accuracy:
    return Accuracy(feasible, sqnr_db, (OutputError("out", sqnr_db, 1.0),), margin_db=margin_db)


def test_the_prior_is_the_sum_of_sources_alone() -> None:
    labels = np.array([False, True, True, False, False])
    # v0 is quantized behind a float producer; units 1 and 2 round their outputs v1 and v2, and unit 1 its constants
    assert model().predict(labels) == pytest.approx([1e-3 + (2e-3 + 5e-4) + 3e-3])
    assert model().predict(np.zeros(N, bool)) == pytest.approx([0.0])


def test_a_probe_is_taken_at_its_word_and_corrects_what_shares_sources() -> None:
    learned, labels, other = model(), np.ones(N, bool), np.array([True, True, True, True, False])
    before = learned.predict(other)[0]
    assert not learned.knows(labels)
    learned.update(labels, (float(model().predict(labels)[0]) / 4.0,))
    assert learned.knows(labels)
    assert learned.predict(labels) == pytest.approx(model().predict(labels) / 4.0)
    assert before / 4.5 < learned.predict(other)[0] < before / 2.0


def test_trials_scale_every_prediction() -> None:
    learned, labels = model(), np.ones(N, bool)
    probed = float(learned.predict(labels)[0])
    learned.compare(labels, accuracy(-10.0 * math.log10(2.0 * probed)))
    assert learned.predict(labels) == pytest.approx([2.0 * probed])
    assert learned.predict(np.arange(N) == 1) == pytest.approx(2.0 * model().predict(np.arange(N) == 1))


def test_what_a_target_loses_in_float_lies_beneath_all() -> None:
    """It is no matter of probes: these are scaled by what is measured above it."""
    floor = 2e-3
    learned, labels = NoiseModel(GRAPH, ALONE, ["out"], [1.0], most=floor), np.ones(N, bool)
    probed = float(model().predict(labels)[0])
    assert learned.predict(np.zeros(N, bool)) == pytest.approx([floor])
    assert learned.predict(labels) == pytest.approx([floor + probed])
    learned.compare(labels, accuracy(decibels(floor + 1.5 * probed)))
    assert learned.predict(labels) == pytest.approx([floor + 1.5 * probed])
    assert learned.predict(np.zeros(N, bool)) == pytest.approx([floor])
    assert [limit.maximum for limit in learned.limits(5e-3, len(GRAPH.edges))] == pytest.approx([3e-3])
    assert [limit.maximum for limit in learned.limits(1e-3, len(GRAPH.edges))] == [0.0]


def test_the_limit_uses_up_what_is_predicted() -> None:
    learned = model()
    (limit,) = learned.limits(0.01, 3 + len(GRAPH.edges))  # the boundaries of the edges are the last ones
    assert limit.quantize[:3].tolist() == [0.0] * 3
    for bits in range(2**N):
        labels = np.array([bits >> i & 1 for i in range(N)], bool)
        quantized = GRAPH.states(labels) == State.QUANTIZE
        used = limit.low[labels].sum() + limit.quantize[3:][quantized].sum()
        assert used == pytest.approx(learned.predict(labels)[0])


def trial(found: Accuracy | None) -> Trial:
    proposed = Proposal(Placement(), "test")
    if found is None:
        return Trial(proposed, Failed("compile", "refused"))
    if not found.feasible:
        return Trial(proposed, Infeasible(found))
    return Trial(proposed, Measured(Latency(1.0, Interval(1.0, 1.0, 1.0), 1), found))


def test_an_sqnr_bound_is_aimed_at_from_inside() -> None:
    allowance = NoiseAllowance(noise_of(20.0))
    assert 0.9 * noise_of(20.0) < allowance.maximum < noise_of(20.0)
    active = []
    for found in (None, accuracy(25.0), accuracy(22.0, feasible=False)):
        allowance.update(trial(found))
        active.append(allowance.active)
    assert active == [False, False, True]
    assert 0.9 * noise_of(22.0) < allowance.maximum < noise_of(22.0), "what was refused once is refused again"


def test_the_margin_between_samples_is_kept_too() -> None:
    allowance = NoiseAllowance(noise_of(20.0))
    without = allowance.maximum
    allowance.update(trial(accuracy(30.0, margin_db=1.0)))
    assert allowance.maximum == pytest.approx(without * noise_of(1.0))


def test_under_a_metric_the_allowance_lies_between_what_was_kept_and_what_was_not() -> None:
    allowance = NoiseAllowance(None)
    assert allowance.maximum == math.inf
    allowance.update(trial(accuracy(20.0, feasible=False)))
    assert allowance.maximum < noise_of(20.0)
    allowance.update(trial(accuracy(24.0)))
    assert noise_of(24.0) < allowance.maximum < noise_of(20.0)
    assert allowance.maximum == pytest.approx(noise_of(22.0))


def test_the_bound_is_approached_from_both_sides() -> None:
    """Whatever probes are off by, solutions come within a decibel of the bound, and none is asked for twice."""

    def found(sqnr_db: float) -> Trial:
        known = accuracy(sqnr_db, feasible=sqnr_db >= 20.0)
        latency = Latency(1e6, Interval(1.0, 1.0, 1.0), 6)
        return Trial(Proposal(Placement(), "cut"), Measured(latency, known) if known.feasible else Infeasible(known))

    for off_db in (1.0, 4.0, 9.0):  # by which solutions are noisier than they seem
        allowance, closest = NoiseAllowance(noise_of(20.0)), math.inf
        aim, tried = Aim(allowance), set[int]()
        for _ in range(20):
            aimed_db = decibels(allowance.maximum if aim.maximum is None else aim.maximum)
            step = math.ceil(aimed_db)  # solutions have whole decibels
            trial = found(step - off_db)
            if step in tried:
                if not aim.goes_on(trial):
                    break
                continue
            tried.add(step)
            allowance.update(trial)
            aim.correct(trial)
            closest = min(closest, step - off_db - 20.0) if trial.feasible else closest
        else:
            pytest.fail("it goes on without end")
        assert 0.0 <= closest <= 2.0
    assert not Aim(NoiseAllowance(noise_of(20.0))).correct(found(25.0)), "nothing is missing"
