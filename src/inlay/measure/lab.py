"""Where a run measures: on this machine, on devices elsewhere, or in a simulation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from inlay.measure.ahead import Builders
from inlay.measure.client import Limit, Worker
from inlay.model.hands import Recruit
from inlay.targets.base import TargetSpec

StartWorker = Callable[[TargetSpec, Path, Limit], Worker]
"""Starts a worker for a target, with a folder for scratch files and a time limit."""
EqualDevices = Callable[[TargetSpec, int], AbstractContextManager[Sequence[StartWorker]]]
"""Holds at most so many devices equal to that of a target which are free now; a way to start workers on each."""
HoldBuilders = Callable[[TargetSpec, Path, Limit], AbstractContextManager[Builders | None]]
"""Holds builders for a target, with a folder for scratch files and a time limit; None where there are none."""


def no_others(spec: TargetSpec, most: int) -> AbstractContextManager[Sequence[StartWorker]]:
    """No device but the one."""
    return nullcontext(())


def no_builders(spec: TargetSpec, folder: Path, limit: Limit) -> AbstractContextManager[Builders | None]:
    """None: what this machine builds, it builds where it measures."""
    return nullcontext(None)


@dataclass(frozen=True)
class Lab:
    """Where a run measures, and by which clock: processes on this machine, or a simulation.

    Attributes:
        start: starts a worker.
        clock: returns seconds.
        sleep: waits for a number of seconds of that clock.
        equal: holds further devices that measure as ``start``'s does.
        builders: holds processes elsewhere that build models as ``start``'s does.
        recruit: finds helpers for what is not measured, where there may be any.
    """

    start: StartWorker = Worker
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    equal: EqualDevices = no_others
    builders: HoldBuilders = no_builders
    recruit: Recruit | None = None


HERE = Lab()
"""This machine."""
