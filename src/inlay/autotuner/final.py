"""The end of a search: the float model and the incumbent measured again, in turns.

What was accepted was accepted for readings that looked good, and one reading of the float model is one reading: a
speed-up made of them is an estimate, and more often too high than too low. What is reported comes from readings that
decided nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from inlay.autotuner.duel import MOST_FAILED, Duel
from inlay.measure.paired import MIN_PAIRS, Series, hodges_lehmann, speedup
from inlay.trial import Interval

PRECISE = 1.05
"""Upper over lower end of an interval that needs no further pairs."""


@dataclass(frozen=True)
class FinalComparison:
    """Readings of the float model and of the incumbent, in turns."""

    duel: Duel  # the readings; the candidate in it is the incumbent of the search, and the other one the float model
    waiting: bool = False  # whether a reading is awaited
    failures: int = 0  # failed readings in a row

    @property
    def tuned_next(self) -> bool:
        """Whether the next reading is the incumbent's."""
        return self.duel.candidate_next

    def with_reading(self, latency_ms: float | None) -> FinalComparison:
        """The comparison after the reading that was awaited; None for a failed one, which is taken again."""
        if latency_ms is None:
            return replace(self, waiting=False, failures=self.failures + 1)
        return FinalComparison(self.duel.with_reading(latency_ms))

    @property
    def finished(self) -> bool:
        """Whether there are all pairs, or enough for a narrow interval; or too many readings in a row failed."""
        pairs = len(self.duel.ratios)
        if self.failures >= MOST_FAILED or pairs >= self.duel.turns:
            return True
        even = len(self.duel.incumbent_ms) == len(self.duel.candidate_ms)
        found = self.speedup
        return even and found is not None and found.high <= PRECISE * found.low

    @property
    def speedup(self) -> Interval | None:
        """Float model over incumbent; None while there are too few pairs for an interval."""
        pairs = len(self.duel.ratios)
        if pairs < MIN_PAIRS:
            return None
        given, tuned = self.duel.incumbent_ms, self.duel.candidate_ms
        return speedup(Series(np.array(given[:pairs])), Series(np.array(tuned[:pairs])))  # a ratio has no unit

    @property
    def latency_ms(self) -> Interval:
        """Milliseconds of the incumbent."""
        found = hodges_lehmann(np.log(self.duel.candidate_ms[: len(self.duel.ratios)]))
        return Interval(*(math.exp(x) for x in (found.value, found.low, found.high)))
