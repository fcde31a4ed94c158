"""A worker without a process, for simulated targets: the same service answers the same messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from inlay.errors import TargetError
from inlay.measure.client import Limit, Worker
from inlay.measure.lab import Lab
from inlay.measure.process import checked
from inlay.measure.worker import Service
from inlay.targets.base import Target, TargetSpec


class InProcessWorker(Worker):
    """A worker without a process.

    Args:
        limit: unused, as nothing here can be killed.
        target: makes all runtime calls.
        clock: returns seconds of the simulation.
    """

    def __init__(
        self, spec: TargetSpec, folder: Path, limit: Limit, *, target: Target, clock: Callable[[], float]
    ) -> None:
        self._given, self._clock = target, clock
        self._service: Service | None = None
        self._announced = ""
        super().__init__(spec, folder, limit)

    @property
    def _alive(self) -> bool:
        return self._service is not None

    def _start(self) -> None:
        self._service = Service(self._given, self._announce)
        self._choose_target()

    def _announce(self, key: str) -> None:
        self._announced = key

    def _kill(self) -> None:
        self._service = None
        self._resident.clear()

    def _ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        if self._service is None:
            self._start()
        assert self._service is not None
        begun = self._clock()
        try:
            return checked(self._service.handle({"do": do, "with": arguments}))
        except TargetError as error:
            error.culprit = self._announced
            raise
        finally:
            self._record(do, arguments, self._clock() - begun)


_ORIGIN_S = 1e6
"""What a simulated clock begins with, as on a machine that has been up for days: 0 would hide who takes it for one."""


class Clock:
    """The clock of a simulation: it advances by :meth:`sleep` only.

    Attributes:
        seconds: since its start. What it reads is not that: as with any monotonic clock, only differences count.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """The moment, in seconds since one that means nothing."""
        return _ORIGIN_S + self.seconds

    def sleep(self, seconds: float) -> None:
        """Advance by ``seconds``."""
        self.seconds += seconds


def simulated(target: Target, clock: Clock) -> Lab:
    """A lab in which every worker is this process with ``target``, and time is that of ``clock``."""

    def start(spec: TargetSpec, folder: Path, limit: Limit) -> Worker:
        return InProcessWorker(spec, folder, limit, target=target, clock=clock)

    return Lab(start, clock, clock.sleep)
