"""Contenders in fresh processes: who fails is given up, and preempted blocks count only where there are no others."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest

from inlay.deadline import Deadline
from inlay.errors import NoDevice, RunFailed, TargetError
from inlay.measure.client import Worker
from inlay.measure.lab import StartWorker
from inlay.measure.paired import Timing
from inlay.prepare.config import TuneConfig
from inlay.run.confirm.contenders import Entry
from inlay.run.confirm.fresh_readings import FreshReadings
from inlay.run.evaluate import Candidate
from inlay.run.schedule import Effort
from inlay.targets.base import Artifact, TargetSpec
from inlay.trial import Failed, Proposal, Trial
from inlay.types import Placement

BLOCKS = TuneConfig().confirm_blocks


class Double:
    """Stands in for a worker. Models named ``bad`` fail."""

    deterministic = False
    took: ClassVar[dict[str, tuple[float, ...]]] = {"load": ()}

    def __enter__(self) -> Double:
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
        return self.read(len(files), blocks, seed)

    def read(self, models: int, blocks: int, seed: int) -> Timing:
        """What :meth:`time` finds."""
        raise NotImplementedError


class Process(Double):
    """Models take 1 ms, and a share of blocks is preempted."""

    def __init__(self, preempted: float, rng: np.random.Generator) -> None:
        self._preempted, self._rng = preempted, rng

    def read(self, models: int, blocks: int, seed: int) -> Timing:
        busy = self._rng.random(blocks) < self._preempted
        ns = np.where(busy, 2e6, 1e6)[:, None] * np.ones(models)
        ns[:, 0] *= np.where(busy, 1.5, 1.0)  # the given model takes longer, and so is hit harder
        taken = np.where(busy, 0.5, 0.0)[:, None] * np.ones(models)
        return Timing(ns, np.zeros(blocks), taken, taken)


def entries(*names: str) -> list[Entry]:
    trial = Trial(Proposal(Placement(), "test"), Failed("run", ""))
    files = [Artifact(Path(n), n) for n in names]
    return [Entry(Candidate(f.digest, trial, lambda: FILE), f) for f in files]


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
    assert [len(e.readings) for e in found] == [3 * BLOCKS] * 2
    assert readings.given_up == {"bad 1": "died", "bad 2": "died"}


def test_without_the_given_model_there_is_nothing_to_compare_with() -> None:
    with pytest.raises(TargetError, match="died"):
        fresh().of(entries("bad given", "good"), 3, BLOCKS)


@pytest.mark.parametrize(("preempted", "is_busy"), [(0.0, False), (0.3, False), (0.9, True)])
def test_preempted_blocks_count_only_where_there_are_no_others(preempted: float, is_busy: bool) -> None:
    readings = fresh(preempted)
    given, other = readings.of(entries("given", "good"), 12, BLOCKS)
    assert len(given.readings) == len(other.readings) == 12 * BLOCKS
    assert readings.is_busy == is_busy
    hit = float(np.mean(given.readings.ns > other.readings.ns))
    assert hit == pytest.approx(float(np.mean(readings.preempted)))
    assert hit <= 0.6 * preempted or is_busy


class Ticking(Process):
    """Each model takes a second of a simulated clock."""

    def __init__(self, preempted: float = 0.0) -> None:
        super().__init__(preempted, np.random.default_rng(5))
        self.now = 0.0

    def read(self, models: int, blocks: int, seed: int) -> Timing:
        self.now += models
        return super().read(models, blocks, seed)


@pytest.mark.parametrize("preempted", [0.0, 0.5])
@pytest.mark.parametrize(
    ("seconds", "later", "counts"), [(25, 12, [1, 3]), (32, 12, [2, 3]), (60, 12, [3, 3]), (32, 0, [3, 1])]
)
def test_processes_that_choose_leave_time_for_those_that_decide(
    seconds: int, later: int, counts: list[int], preempted: float
) -> None:
    """Three processes of nine models, then three of four; nothing that was preempted is measured again instead."""
    worker = Ticking(preempted)
    deadline = Deadline(seconds, lambda: worker.now)
    config, rng = TuneConfig(), np.random.default_rng(3)
    readings = FreshReadings(
        lambda *_: cast(Worker, worker), lambda: 1.0, Path("feed"), config, Path(), rng, deadline=deadline
    )
    names = ("given", *map(str, range(8)))
    readings.of(entries(*names), 3, BLOCKS, later)
    given, *_ = readings.of(entries(*names[:4]), 3, BLOCKS)
    if preempted:  # what is left goes to repeating blocks
        assert len(given.readings) >= min(counts[1], 2) * BLOCKS
    else:
        assert readings.counts == counts
        assert len(given.readings) == counts[1] * BLOCKS


def test_what_was_done_of_a_confirmation_is_what_is_told() -> None:
    full = Effort(8, 3, 3, 8)
    assert full.done(3, 24) == full
    assert full.done(1, 24).cut_from(full) == "8 contenders chosen in 1 fresh process, 24 of 24 deciding blocks"
    assert full.done(3, 5).cut_from(full) == "8 contenders chosen in 3 fresh processes, 5 of 24 deciding blocks"


class Device(Double):
    """Starts processes whose readings follow from their seeds alone, with 3 % of noise.

    Args:
        fails_after: processes after which no more can be started here.
        slow: factor on the models behind the first.
        meeting: where processes of several devices wait for one another, to show that they run at the same time.
    """

    def __init__(self, fails_after: int = 1000, slow: float = 1.0, meeting: threading.Barrier | None = None) -> None:
        self.left, self.slow, self.meeting = fails_after, slow, meeting
        self.seeds = list[int]()

    def __call__(self, *_: Any) -> Worker:
        self.left -= 1
        if self.left < 0:
            raise NoDevice("it is away")
        return cast(Worker, self)

    def read(self, models: int, blocks: int, seed: int) -> Timing:
        self.seeds.append(seed)
        if self.meeting is not None:
            self.meeting.wait(timeout=60.0)
        ns = 1e6 * np.exp(np.random.default_rng(seed).normal(0.0, 0.03, (blocks, models)))
        ns[:, 1:] *= self.slow
        return Timing(ns, np.zeros(blocks), np.zeros_like(ns), np.zeros_like(ns))


def on(*devices: Device) -> FreshReadings:
    """Measures on the first device, and on the others beside it."""

    def equal(spec: TargetSpec, most: int) -> AbstractContextManager[Sequence[StartWorker]]:
        return nullcontext(devices[1:][:most])

    first, config = devices[0], TuneConfig()
    return FreshReadings(first, lambda: 1.0, Path("feed"), config, Path(), np.random.default_rng(3), equal=equal)


NAMES = "given", "bad 1", "good", "bad 2", "other"


def read(readings: FreshReadings, processes: int) -> list[tuple[str, bytes]]:
    """Two rounds, as a confirmation makes them."""
    first = readings.of(entries(*NAMES), processes, BLOCKS)
    second = readings.of(first, processes + 1, BLOCKS)
    return [(e.key, e.readings.ns.tobytes()) for e in (*first, *second)]


@pytest.mark.parametrize("processes", [1, 4, 5])
@pytest.mark.parametrize("others", [[Device()], [Device(), Device()], [Device(0)], [Device(3), Device(1)]])
def test_equal_devices_change_no_reading(others: list[Device], processes: int) -> None:
    """Nor does one that goes away: what it should have measured is measured on the first, with the same seed."""
    alone, together = on(Device()), on(Device(), *(Device(o.left) for o in others))
    assert read(together, processes) == read(alone, processes)
    assert together.given_up == alone.given_up == {"bad 1": "died", "bad 2": "died"}
    assert together.preempted == alone.preempted
    assert together.rng.random() == alone.rng.random()


def test_equal_devices_measure_at_the_same_time() -> None:
    meeting = threading.Barrier(3)
    devices = [Device(meeting=meeting) for _ in range(3)]
    given, _ = on(*devices).of(entries("given", "good"), 6, BLOCKS)
    assert [len(d.seeds) for d in devices] == [2, 2, 2]
    assert len(given.readings) == 6 * BLOCKS


def test_no_device_is_held_for_a_single_process() -> None:
    devices = [Device(), Device()]
    on(*devices).of(entries("given", "good"), 1, BLOCKS)
    assert [len(d.seeds) for d in devices] == [1, 0]


@pytest.mark.parametrize("slow", [1.0, 1.3])
def test_equal_devices_that_disagree_are_told(slow: float) -> None:
    readings = on(Device(), Device(slow=slow))
    readings.of(entries("given", "good"), 4, BLOCKS)
    assert set(readings.disagreed) == ({"good"} if slow > 1.0 else set())
    for how in readings.disagreed.values():
        assert re.fullmatch(r"(0\.9\d|1\.0\d)x \[.*\], 0\.7\dx \[.*\]", how)
