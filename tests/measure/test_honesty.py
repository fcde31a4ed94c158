"""Intervals cover the truth as often as they say, although races decide when to stop; no effect, no winner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from benchmarks import honesty

from inlay.measure.blocks import reading, run_block
from inlay.measure.client import Timing
from inlay.measure.journal import Journal
from inlay.measure.race import Meter, Protocol, hope
from inlay.measure.stats import hodges_lehmann, speedup
from inlay.run.confirm import LATER_LOOK
from inlay.run.contenders import LOOK_LEVEL, is_open
from inlay.targets.base import Artifact, Feed
from inlay.trial import Interval

RUNS = 300


class Noisy:
    """A model of known speed on a busy machine: 3 % noise, and one reading in ten half as slow again."""

    def __init__(self, ns: float, rng: np.random.Generator) -> None:
        self._ns, self._rng = ns, rng

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        factor = np.exp(self._rng.normal(0.0, 0.03, repeats))
        return np.asarray(self._ns * np.where(self._rng.random(repeats) < 0.1, 1.5 * factor, factor), np.int64)

    def profile(self, feed: Feed, repeats: int) -> list[object]:
        raise NotImplementedError

    def close(self) -> None:
        pass


class InProcess:
    """Stands in for a worker: the same blocks, without a process."""

    deterministic = False

    def __init__(self, speeds: dict[str, float], rng: np.random.Generator) -> None:
        self._models = {name: Noisy(ns, rng) for name, ns in speeds.items()}
        self._rng = rng

    def time(self, artifacts: Sequence[Artifact], feed: Path, blocks: int, slot_ns: int, seed: int) -> Timing:
        models = [self._models[a.digest] for a in artifacts]
        rows = [run_block(models, [3] * len(models), {}, self._rng) for _ in range(blocks)]  # type: ignore[arg-type]
        return Timing(np.array([r.ns for r in rows]), np.array([r.drift for r in rows]))


def meter(speeds: dict[str, float], seed: int, folder: Path) -> tuple[Meter, dict[str, Artifact]]:
    rng = np.random.default_rng(seed)
    worker = InProcess(speeds, rng)
    journal = Journal(folder / f"{seed}.sqlite", {})
    made = Meter(worker, journal, Path("feed"), Protocol(), rng, sleep=lambda s: None)  # type: ignore[arg-type]
    return made, {name: Artifact(Path(name), name) for name in speeds}


def test_intervals_of_a_fixed_number_of_pairs_cover_the_truth() -> None:
    rng = np.random.default_rng(1)
    for n in (7, 8, 24):
        covered = 0
        for _ in range(2000):
            differences = rng.normal(0.1, 0.03, n)
            found = hodges_lehmann(differences)
            covered += found.low <= 0.1 <= found.high
        assert 0.93 <= covered / 2000 <= 0.97, n


def test_intervals_of_races_that_stop_early_cover_the_truth_as_often_as_they_say(tmp_path: Path) -> None:
    """Races of 7 blocks (a clear gain), of all 28 (none), and in between."""
    hits: dict[float, list[bool]] = {}
    for truth in (1.0, 1.03, 1.1):
        (tmp_path / str(truth)).mkdir()
        for seed in range(RUNS):
            speeds = {"base": 1e6, "new": 1e6 / truth}
            made, files = meter(speeds, seed, tmp_path / str(truth))
            found = made.race("race", files["base"], files["base"], files["new"])
            hits.setdefault(truth, []).append(found.speedup.low <= truth <= found.speedup.high)
            assert found.versus.low <= found.speedup.low, "the interval that decides is the stricter one"
    assert all(np.mean(h) >= 0.91 for h in hits.values()), {t: np.mean(h) for t, h in hits.items()}
    assert 0.93 <= np.mean([h for each in hits.values() for h in each]) <= 0.97


def test_no_effect_is_not_delivered_and_two_percent_is() -> None:
    """The rule of the confirmation: fresh blocks of the chosen one of many, at its level."""

    def delivered(gain: float, seed: int) -> bool:
        rng = np.random.default_rng([seed, 7])
        worker = InProcess({"float": 1e6, **{f"c{i}": 1e6 / gain for i in range(5)}}, rng)
        names = [Artifact(Path(n), n) for n in ("float", *(f"c{i}" for i in range(5)))]
        first = worker.time(names, Path(), 8, 0, 0).ns
        gains = [speedup(first[:, 0], first[:, i]).value for i in range(1, 6)]
        chosen = names[1 + int(np.argmax(gains))]
        second = worker.time([names[0], chosen], Path(), 24, 0, 0).ns
        if is_open(second[:, 0], second[:, 1]):
            more = worker.time([names[0], chosen], Path(), 24 * LATER_LOOK, 0, 0).ns
            second = np.concatenate([second, more])
        return speedup(second[:, 0], second[:, 1], LOOK_LEVEL).shows_gain()

    false_accepts = sum(delivered(1.0, seed) for seed in range(RUNS))
    found = sum(delivered(1.02, seed) for seed in range(RUNS))
    assert false_accepts <= 0.01 * RUNS
    assert found >= 0.9 * RUNS, found


@pytest.mark.parametrize("repeats", [2, 3, 4, 8])
def test_a_slots_reading_does_not_hear_interruptions(repeats: int) -> None:
    rng = np.random.default_rng(repeats)
    quiet = rng.normal(1000.0, 30.0, (4000, repeats))
    busy = np.where(rng.random(quiet.shape) < 0.1, 1.5, 1.0) * quiet

    def scatter(ns: np.ndarray, how: object) -> float:
        return float(np.std([how(row) for row in ns]))  # type: ignore[operator]

    assert scatter(quiet, reading) < 1.25 * scatter(quiet, np.median), "little is lost on a quiet machine"
    assert scatter(busy, reading) < 0.75 * scatter(busy, np.median), "the median lets them through"


def of(name: str) -> honesty.Scenario:
    return next(s for s in honesty.SCENARIOS if s.name == name)


def test_whole_runs_without_an_effect_deliver_float() -> None:
    found = [honesty.simulate(of("no effect, bursts"), seed, budget_s=40.0) for seed in range(8)]
    assert all(o.is_float for o in found), [o for o in found if not o.is_float]
    assert all(o.truth == 1.0 and o.covered for o in found)
    assert sum(o.largest > 1.0 for o in found) >= 4, (
        "the search saw gains that were none, and could have fallen for them"
    )
    assert all(40.0 < o.simulated_s < 120.0 for o in found), "the budget is one of the simulated clock"
    assert len({o.anchors for o in found}) == len(found), "every run has noise of its own"


def test_whole_runs_find_two_percent_and_say_how_much() -> None:
    found = [honesty.simulate(of("2 % effect, bursts"), seed, budget_s=60.0) for seed in range(8)]
    told = [o for o in found if not o.is_float]
    assert len(told) >= 7
    assert all(o.low > 1.0 for o in told)
    assert all(1.0 < o.truth <= 1.0200001 for o in told), "the best of all placements is known"
    assert sum(o.covered for o in told) >= len(told) - 1
    again = honesty.simulate(of("2 % effect, bursts"), 0, budget_s=60.0)
    assert (again.value, again.low, again.truth) == (found[0].value, found[0].low, found[0].truth), (
        "same seed, same run"
    )


def test_fresh_workers_draw_fresh_noise(tmp_path: Path) -> None:
    """Three processes that replay the same noise would be one, and intervals over them far too narrow."""
    from inlay.measure.in_process import Clock, simulated
    from inlay.targets.base import TargetSpec
    from inlay.targets.null import NullTarget
    from tests.support.branches import branches

    path = tmp_path / "model.onnx"
    path.write_bytes(branches().SerializeToString())
    np.savez(tmp_path / "feed.npz", x=np.zeros((1, 3, 8, 8), np.float32))
    lab = simulated(NullTarget(noise=0.03), Clock())
    readings = []
    for seed in (1, 2, 1):
        with lab.start(TargetSpec("null"), tmp_path, 10.0) as worker:
            readings.append(worker.time([Artifact(path, "a")], tmp_path / "feed.npz", 4, 1_000_000, seed).ns)
    assert not np.isin(readings[0], readings[1]).any()
    assert (readings[0] == readings[2]).all(), "the same job gives the same readings"


def test_hope_is_the_share_of_races_that_would_still_show_a_gain() -> None:
    """Against simulation: the truth drawn from what the first blocks say, the remaining blocks from the truth."""
    rng = np.random.default_rng(5)
    level, blocks, most, noise = 0.95, 7, 28, 0.02
    z = 1.959964
    for estimate in (-0.01, 0.0, 0.01, 0.02):
        now = noise / np.sqrt(blocks)
        found = Interval(*(float(np.exp(estimate + d * z * now)) for d in (0, -1, 1)))
        truth = rng.normal(estimate, now, 200_000)
        rest = rng.normal(truth, noise / np.sqrt(most - blocks))
        final = (blocks * estimate + (most - blocks) * rest) / most
        share = float((final > z * noise / np.sqrt(most)).mean())
        assert abs(hope(found, level, blocks, most) - share) < 0.01
    assert hope(Interval(1.0, 0.0, float("inf")), level, blocks, most) == 1.0


def test_a_race_without_hope_is_short_and_one_with_hope_goes_on(tmp_path: Path) -> None:
    counts: dict[float, list[int]] = {}
    for truth in (1.0, 1.02):
        for seed in range(30):
            folder = tmp_path / str(truth)
            folder.mkdir(exist_ok=True)
            made, files = meter({"base": 1e6, "best": 1e6, "new": 1e6 / truth}, seed, folder)
            found = made.race("race", files["base"], files["best"], files["new"])
            counts.setdefault(truth, []).append(found.blocks)
    assert np.median(counts[1.0]) < np.median(counts[1.02])


def test_a_race_ends_when_its_time_is_spent(tmp_path: Path) -> None:
    for race_s, blocks in ((float("inf"), 28), (1.0, 7)):
        folder = tmp_path / str(race_s)
        folder.mkdir()
        made, files = meter({"base": 1e6, "best": 1e6, "new": 1e6 / 1.01}, 3, folder)
        ticks = iter(range(1000))
        made._clock = lambda ticks=ticks: float(next(ticks))  # type: ignore[misc]  # every look takes a second
        made._protocol = Protocol(race_s=race_s, worth=0.0, discards=0.0, least_gain=10.0)
        made._interval = lambda base, new, level: Interval(1.01, 1.005, 1.03)  # type: ignore[method-assign]
        assert made.race("race", files["base"], files["best"], files["new"]).blocks == blocks
