"""Models on several targets in turn: what was read before the time ended stands."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from inlay.deadline import NEVER
from inlay.errors import Late, RunFailed, TargetError
from inlay.measure.client import Worker
from inlay.measure.paired import Timing
from inlay.measure.panel import Readings, time_in_turn
from inlay.portfolio.comparing import in_fresh_processes
from inlay.targets.base import Artifact

FILES = {"given": Artifact(Path("a.onnx"), "a"), "other": Artifact(Path("b.onnx"), "b")}


class Reader:
    """Reads two models, until the call that fails."""

    deterministic = False

    def __init__(self, fails_at: int, error: TargetError) -> None:
        self.calls, self.fails_at, self.error = count(1), fails_at, error

    def time(self, models: list[Artifact], feed: Path, blocks: int, slot_ns: int, seed: int) -> Timing:
        if next(self.calls) >= self.fails_at:
            raise self.error
        zeros = np.zeros((blocks, len(models)))
        ns = zeros + [{"a": 2e6, "b": 1e6}[m.digest] for m in models]
        return Timing(ns, np.zeros(blocks), zeros, zeros, exact=np.zeros(len(models), bool))

    def drop(self, model: Artifact) -> None:
        pass


def read(fails_at: int, error: TargetError) -> Readings:
    workers: Any = {"target": Reader(fails_at, error)}
    rng, clock = np.random.default_rng(0), NEVER.clock
    return time_in_turn(
        cast("dict[str, Worker]", workers), {"target": FILES}, Path("f"), 6, 1, rng, lambda: np.inf, clock
    )


def test_blocks_that_were_read_before_the_time_ended_stand() -> None:
    found = read(4, Late("the budget was spent"))
    assert (found.blocks, found.failed) == (3, {})
    assert found.latency_ms(("other", "target")) == pytest.approx(1.0)
    with pytest.raises(Late):
        read(1, Late("the budget was spent"))
    with pytest.raises(Late, match="nothing ran"):
        read(4, RunFailed("negative control: a model that fails has no readings"))


def test_rounds_that_were_read_before_the_time_ended_stand() -> None:
    rounds = iter([read(99, Late("")), read(99, Late(""))])

    def measured() -> Readings:
        found = next(rounds, None)
        if found is None:
            raise Late("nothing ran in fresh processes")
        return found

    assert in_fresh_processes(measured, NEVER).blocks == 12
    with pytest.raises(Late):
        in_fresh_processes(measured, NEVER)
