"""Intervals cover the truth as often as they say, although races decide when to stop; no effect, no winner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from inlay.confirm import LATER_LOOK, LOOK_LEVEL, is_open
from inlay.journal import Journal
from inlay.measure.blocks import run_block
from inlay.measure.client import Timing
from inlay.measure.race import Meter, Protocol
from inlay.measure.stats import hodges_lehmann, speedup
from inlay.targets.base import Artifact, Feed

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
        assert 0.93 <= covered / 2000 <= 0.99, n


def test_intervals_of_races_that_stop_early_cover_the_truth(tmp_path: Path) -> None:
    truth, covered = 1.03, 0
    for seed in range(RUNS):
        made, files = meter({"base": 1e6, "best": 1e6, "new": 1e6 / truth}, seed, tmp_path)
        versus = made.race("race", files["base"], files["best"], files["new"]).versus
        covered += versus.low <= truth <= versus.high
    assert covered / RUNS >= 0.93


def test_no_effect_is_not_delivered_and_two_percent_is(tmp_path: Path) -> None:
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
