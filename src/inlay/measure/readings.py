"""What a reading may be besides the time of one inference after another: processor time, or with caches used by others.

Servers are bought by the processor time that an inference takes, and a model that waits for its turn finds caches that
other work has filled. What several inferences at once take is no matter of the reading but of the target: it runs as
many at once as its option ``streams`` says.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from inlay.errors import TargetError
from inlay.measure.blocks import Clocked
from inlay.measure.checked import Checked, checked_readings
from inlay.measure.preemption import Preempted
from inlay.targets.base import Feed
from inlay.targets.machine import last_level_bytes

Reading = Literal["latency", "cpu-time", "cold"]
"""Nanoseconds on the clock of inferences one after another; of all processors together; or on the clock, each behind
other work that has used the caches."""

READINGS: tuple[Reading, ...] = get_args(Reading)
COLD_RUNS = 3  # inferences of one slot with cold caches: to fill them takes longer than most inferences


class _Read:
    """What wraps an executable for another reading of it."""

    warms_up = one_by_one = False
    preempted = Preempted()  # processor time is one's own; behind other work, nobody tells who held it up

    def __init__(self, model: Checked) -> None:
        self._model = model


class _ProcessorTime(_Read):
    """The processor time of all threads of this process; single inferences are not told apart."""

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        """Nanoseconds of each inference in the mean, shape (repeats,)."""
        begun = time.process_time_ns()
        self._model.plainly(feed, repeats)
        return checked_readings(np.full(repeats, (time.process_time_ns() - begun) / repeats), repeats)


class _Cold(_Read):
    """Each inference behind work that has written to more memory than the caches hold."""

    _others: np.ndarray | None = None  # what that work writes to; one for all models

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        """Nanoseconds of each inference, shape (repeats,)."""
        if _Cold._others is None:
            _Cold._others = np.zeros(2 * last_level_bytes(), np.uint8)
        found = np.empty(repeats, np.float64)
        for i in range(repeats):
            _Cold._others += 1
            found[i] = self._model.plainly(feed, 1)[0]
        return checked_readings(found, repeats)


def read_as(models: Sequence[Checked], reading: Reading) -> list[Clocked]:
    """Models to be read so. Raises TargetError where their inferences do not run in this process."""
    if reading == "latency":
        return [*models]
    if not all(model.is_of_this_process for model in models):
        raise TargetError(f"the target runs no inferences in the process that measures, so that no {reading} is known")
    return [(_Cold if reading == "cold" else _ProcessorTime)(model) for model in models]
