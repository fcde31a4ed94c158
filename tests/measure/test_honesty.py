"""Whole runs tell the truth: no effect, no winner; an effect is found, and its interval covers it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks import honesty
from benchmarks.simulated import Clock, simulated

from inlay.measure.paired import joined, speedup
from inlay.run.confirm.contenders import LOOK_LEVEL, is_open
from inlay.run.schedule import LATER_LOOK
from inlay.targets.base import Artifact, TargetSpec
from inlay.targets.null import NullTarget
from tests.support.branches import branches
from tests.support.noisy_machine import NoisyWorker

RUNS = 300


@pytest.mark.exhaustive
def test_no_effect_is_not_delivered_and_two_percent_is() -> None:
    """The rule of the confirmation: fresh blocks of the chosen one of many, at its level."""

    def delivered(gain: float, seed: int) -> bool:
        rng = np.random.default_rng([seed, 7])
        worker = NoisyWorker({"float": 1e6, **{f"c{i}": 1e6 / gain for i in range(5)}}, rng)
        names = [Artifact(Path(n), n) for n in ("float", *(f"c{i}" for i in range(5)))]
        first = worker.time(names, Path(), 8, 0, 0).models
        gains = [speedup(first[0], model).value for model in first[1:]]
        chosen = names[1 + int(np.argmax(gains))]
        second = worker.time([names[0], chosen], Path(), 24, 0, 0)
        if is_open(*second.models):
            second = joined([second, worker.time([names[0], chosen], Path(), 24 * LATER_LOOK, 0, 0)])
        given, other = second.models
        return speedup(given, other, LOOK_LEVEL).shows_gain()

    false_accepts = sum(delivered(1.0, seed) for seed in range(RUNS))
    found = sum(delivered(1.02, seed) for seed in range(RUNS))
    assert false_accepts <= 0.01 * RUNS
    assert found >= 0.9 * RUNS, found


def of(name: str, budget_s: float) -> honesty.Scenario:
    return replace(next(s for s in honesty.SCENARIOS if s.name == name), budget_s=budget_s)


@pytest.mark.exhaustive
def test_whole_runs_without_an_effect_deliver_float() -> None:
    found = [honesty.simulate(of("no effect, bursts", 40.0), seed) for seed in range(8)]
    assert all(o.is_float for o in found), [o for o in found if not o.is_float]
    assert all(o.truth == 1.0 and o.covered for o in found)
    assert sum(o.largest > 1.0 for o in found) >= 4, (
        "the search saw gains that were none, and could have fallen for them"
    )
    assert all(20.0 < o.simulated_s <= 44.0 for o in found), "the budget is one of the simulated clock"
    assert len({o.anchors for o in found}) == len(found), "every run has noise of its own"


@pytest.mark.exhaustive
def test_whole_runs_find_two_percent_and_say_how_much() -> None:
    found = [honesty.simulate(of("2 % effect, bursts", 120.0), seed) for seed in range(24)]
    told = [o for o in found if not o.is_float]
    assert len(told) >= 12, "in 60 s, fewer do: the search then leaves no time for a second look"
    assert all(o.low > 1.0 for o in told)
    assert all(1.0 < o.truth <= 1.0200001 for o in told), "the best of all placements is known"
    assert sum(o.covered for o in told) >= len(told) - 1
    again = honesty.simulate(of("2 % effect, bursts", 120.0), 0)
    assert (again.value, again.low, again.truth) == (found[0].value, found[0].low, found[0].truth), (
        "same seed, same run"
    )


def test_fresh_workers_draw_fresh_noise(tmp_path: Path) -> None:
    """Three processes that replay the same noise would be one, and intervals over them far too narrow."""
    path = tmp_path / "model.onnx"
    path.write_bytes(branches().SerializeToString())
    np.savez(tmp_path / "feed.npz", x=np.zeros((1, 3, 8, 8), np.float32))
    lab = simulated(NullTarget(noise=0.03), Clock())
    readings = []
    for seed in (1, 2, 1):
        with lab.start(TargetSpec("null"), tmp_path, lambda: 10.0) as worker:
            readings.append(worker.time([Artifact(path, "a")], tmp_path / "feed.npz", 4, 1_000_000, seed).ns)
    assert not np.isin(readings[0], readings[1]).any()
    assert (readings[0] == readings[2]).all(), "the same job gives the same readings"
