"""A moment by which work must be done, on a clock that is passed in."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

Clock = Callable[[], float]  # returns seconds; only differences count


@dataclass(frozen=True)
class Deadline:
    """A moment on a clock."""

    at: float = math.inf  # seconds of the clock; infinite where there is no limit
    clock: Clock = time.monotonic  # returns seconds

    @property
    def left(self) -> float:
        """Seconds until then; 0 once it has passed."""
        return max(0.0, self.at - self.clock())

    def fits(self, seconds: float) -> bool:
        """Whether work of so many seconds can be done until then."""
        return seconds <= self.at - self.clock()

    def earlier(self, seconds: float) -> Deadline:
        """The moment so many seconds before."""
        return replace(self, at=self.at - seconds)

    def within(self, seconds: float) -> Deadline:
        """So many seconds from now, but no later than this one."""
        return replace(self, at=min(self.at, self.clock() + seconds))

    def __reduce__(self) -> tuple[Callable[[float], Deadline], tuple[float]]:
        """Another process has another clock: what travels is the time that is left."""
        return _arrived, (self.left,)


def _arrived(left: float) -> Deadline:
    return NEVER.within(left)


NEVER = Deadline()  # no limit
