"""Which run gets time next, and how much: a pure function of the runs so far.

At first every run gets a short slice, in order. Then the next one goes to the run with the highest expected gain per
second. A slice multiplies the time of its run by a constant factor. What it brings is estimated by what earlier ones
brought and an optimistic prior, and never below what the latest one did; so a run that stopped to gain falls back, the
more so the more time it has had, but none starves. Gains are logarithms of speed-ups: a fleet is served by the product
of its runs' speed-ups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from inlay.portfolio import policy


@dataclass(frozen=True)
class Progressed:
    """A run so far."""

    # after each slice, the seconds that the run has had in all, and the logarithm of its speed-up
    slices: tuple[tuple[float, float], ...] = ()
    least_s: float = 0.0  # total seconds below which the run is known to be able to do nothing
    most_s: float = math.inf  # total seconds that it may have
    done: bool = False  # it needs no more time: nothing promising is left, or it failed
    busy: bool = False  # a slice of it is under way elsewhere
    # what its gain counts for, relative to others: where runs are parts of one job, their shares of its time
    weight: float = 1.0

    @property
    def spent_s(self) -> float:
        """Seconds that it has had."""
        return self.slices[-1][0] if self.slices else 0.0

    @property
    def waiting(self) -> bool:
        """Whether it is to get its first slice."""
        return not (self.slices or self.done or self.busy)

    @cached_property
    def wanted_s(self) -> float:
        """Total seconds that it should have after its next slice, where it has had one."""
        return min(self.most_s, max(policy.GROWTH * self.spent_s, self.least_s, self.spent_s + policy.LEAST_SLICE_S))

    @cached_property
    def rate(self) -> float:
        """Gain per second of its next slice, expected optimistically; 0 where it gets none."""
        if self.done or self.busy or not self.slices or self.wanted_s - self.spent_s < policy.LEAST_SLICE_S:
            return 0.0
        steps = [
            max(0.0, after - before) / math.log(late / early, policy.GROWTH)
            for (early, before), (late, after) in zip(self.slices, self.slices[1:], strict=False)
            if late > early > 0.0
        ]
        mean = (policy.PRIOR_GAIN + sum(steps)) / (1 + len(steps))
        gain = max(mean, steps[-1] if steps else 0.0)
        step = math.log(self.wanted_s / max(self.spent_s, 1e-9), policy.GROWTH)
        return self.weight * gain * step / (self.wanted_s - self.spent_s)


@dataclass(frozen=True)
class Slice:
    """The run that gets time next, by its number, and the total seconds that it may then have had."""

    number: int
    total_s: float


def next_slice(runs: Sequence[Progressed], left_s: float) -> Slice | None:
    """Which of ``runs`` gets time next; None where there is no more time, or nobody who needs it.

    Args:
        left_s: seconds of the fleet's budget that are neither spent nor promised to slices under way; infinite without
            a limit.
    """
    waiting = [number for number, run in enumerate(runs) if run.waiting]
    if waiting:
        each_s = policy.FIRST_SHARE * left_s / sum(runs[number].weight for number in waiting)
        alone = len(runs) == 1 and not math.isinf(left_s)  # there is nobody to share with
        for number in waiting:  # where one needs more than there is, those behind it may not
            run = runs[number]
            share_s = left_s if alone else min(policy.FIRST_SLICE_S, each_s * run.weight)
            total_s = min(run.most_s, max(policy.LEAST_FIRST_S, run.least_s, share_s))
            if total_s <= left_s:
                return Slice(number, total_s)
    best = max(range(len(runs)), key=lambda number: runs[number].rate, default=0)
    if not runs or not runs[best].rate or left_s < policy.LEAST_SLICE_S:
        return None
    run = runs[best]
    return Slice(best, min(run.wanted_s, run.spent_s + left_s))
