"""Contenders in fresh processes: who fails is given up, and preempted blocks count only where there are no others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from inlay.errors import RunFailed, TargetError
from inlay.measure.client import Timing, Worker
from inlay.prepare.config import TuneConfig
from inlay.run.contenders import Entry
from inlay.run.evaluate import Candidate
from inlay.run.fresh_readings import FreshReadings
from inlay.targets.base import Artifact
from inlay.trial import Failed, Proposal, Trial
from inlay.types import Placement

BLOCKS = TuneConfig().confirm_blocks


class Process:
    """Stands in for a worker: models of 1 ms, but those named ``bad`` fail, and a share of blocks is preempted."""

    deterministic = False

    def __init__(self, preempted: float, rng: np.random.Generator) -> None:
        self._preempted, self._rng = preempted, rng

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def time(
        self, files: Sequence[Artifact], feed: Path, blocks: int, slot_ns: int, seed: int, left_s: object
    ) -> Timing:
        for file in files:
            if file.digest.startswith("bad"):
                error = RunFailed("died")
                error.culprit = file.digest
                raise error
        busy = self._rng.random(blocks) < self._preempted
        ns = np.where(busy, 2e6, 1e6)[:, None] * np.ones(len(files))
        ns[:, 0] *= np.where(busy, 1.5, 1.0)  # the given model takes longer, and so is hit harder
        taken = np.where(busy, 0.5, 0.0)[:, None] * np.ones(len(files))
        return Timing(ns, np.zeros(blocks), taken, taken)


def entries(*names: str) -> list[Entry]:
    trial = Trial(Proposal(Placement(), "test"), Failed("run", ""))
    files = [Artifact(Path(n), n) for n in names]
    return [Entry(Candidate(f.digest, trial, lambda: FILE), f, np.empty(0)) for f in files]


FILE = Artifact(Path("model.onnx"), "digest")


def fresh(preempted: float = 0.0) -> FreshReadings:
    rng = np.random.default_rng(3)

    def start(*_: Any) -> Worker:
        return cast(Worker, Process(preempted, rng))

    return FreshReadings(start, lambda: 1.0, Path("feed"), TuneConfig(), Path(), rng)


def test_who_fails_is_given_up_and_the_others_are_measured() -> None:
    readings = fresh()
    found = readings.of(entries("given", "bad 1", "good", "bad 2"), 3, BLOCKS)
    assert [e.key for e in found] == ["given", "good"]
    assert [len(e.ns) for e in found] == [3 * BLOCKS] * 2
    assert readings.given_up == {"bad 1": "died", "bad 2": "died"}


def test_without_the_given_model_there_is_nothing_to_compare_with() -> None:
    with pytest.raises(TargetError, match="died"):
        fresh().of(entries("bad given", "good"), 3, BLOCKS)


@pytest.mark.parametrize(("preempted", "is_busy"), [(0.0, False), (0.3, False), (0.9, True)])
def test_preempted_blocks_count_only_where_there_are_no_others(preempted: float, is_busy: bool) -> None:
    readings = fresh(preempted)
    given, other = readings.of(entries("given", "good"), 12, BLOCKS)
    assert len(given.ns) == len(other.ns) == 12 * BLOCKS
    assert readings.is_busy == is_busy
    hit = float(np.mean(given.ns > other.ns))
    assert hit == pytest.approx(float(np.mean(readings.preempted)))
    assert hit <= 0.6 * preempted or is_busy
