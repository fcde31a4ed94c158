"""Where a run measures: on this machine, on devices elsewhere, or in a simulation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from inlay.errors import UsageError
from inlay.installed import EXECUTORS, joined
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


class Executor(Protocol):
    """A lab elsewhere. The entry point is such a function; its name is that of the option which asks for it."""

    def __call__(
        self, address: str, specs: Iterable[TargetSpec], tell: Callable[[str], None]
    ) -> AbstractContextManager[Lab]:
        """The lab of a run; its devices are let go at the end.

        Args:
            address: what the option says.
            specs: the targets that will be asked for.
            tell: hears, in one line, what the run waits for.

        Raises:
            UsageError: the address cannot be understood, or what the executor needs is not installed.
            TargetError: nobody answers, or a target cannot be created.
        """
        ...


def measuring(ray: str | None, specs: Iterable[TargetSpec], tell: Callable[[str], None]) -> AbstractContextManager[Lab]:
    """The lab of a run: this machine, or what the executor ``ray`` makes of an address. Raises as an Executor does."""
    if ray is None:
        return nullcontext(HERE)
    found = joined(EXECUTORS).get("ray")
    if found is None:
        raise UsageError(f"--ray {ray}: the part of Inlay that measures with Ray is not installed")
    executor: Executor = found.load()
    return executor(ray, specs, tell)
