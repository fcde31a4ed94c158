"""Is a scheme that seems faster really faster? Decided by measuring it and the incumbent in turns.

A single good reading among thirty is mostly luck. So a promising scheme and the incumbent are measured again, in
turns, and the scheme is accepted when the pairs show a gain by the variance of all duels of a run. Once that is known
well, a clear gain needs two turns only. At the end of a search the float model and the incumbent are measured in turns
once more: what was accepted was accepted for readings that looked good, so a speed-up made of them is more often too
high than too low. What is reported comes from readings that decided nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from inlay.measure.paired import MIN_PAIRS, PooledVariance, Series, hodges_lehmann, speedup
from inlay.trial import Interval

MOST_FAILED = 8  # failed readings in a row after which no more are asked for, of a model that had been measured before


@dataclass(frozen=True)
class Duel:
    """Readings of the incumbent and a candidate, in turns."""

    turns: int  # how often each is to be measured
    # the candidate's promising reading that led to the duel; chosen for being small, it decides nothing
    first_ms: float = math.nan
    # incumbent_ms, candidate_ms: readings so far
    incumbent_ms: tuple[float, ...] = ()
    candidate_ms: tuple[float, ...] = ()

    @property
    def candidate_next(self) -> bool:
        """Whose turn it is; the order alternates from turn to turn, so that drift does not favour one side."""
        done = min(len(self.incumbent_ms), len(self.candidate_ms))
        candidate_first = done % 2 == 1
        started = len(self.incumbent_ms) != len(self.candidate_ms)
        return candidate_first != started

    def with_reading(self, latency_ms: float) -> Duel:
        """The duel after a reading of the one whose turn it is."""
        if self.candidate_next:
            return replace(self, candidate_ms=(*self.candidate_ms, latency_ms))
        return replace(self, incumbent_ms=(*self.incumbent_ms, latency_ms))

    def finished(self, threshold: float, variance: PooledVariance) -> bool:
        """Whether both had all their turns, or two turns or more already decide.

        They do where they average below ``threshold``, or above it as clearly as is needed in the end. Before the
        ``variance`` of earlier duels is known, no gain is clear before the end.
        """
        complete = min(len(self.incumbent_ms), len(self.candidate_ms)) >= self.turns
        even = len(self.incumbent_ms) == len(self.candidate_ms)
        if complete or not even or len(self.ratios) < 2:
            return complete
        below = self._mean <= math.log(threshold)
        return below or (variance.is_known and self.accepts(threshold, variance.including(self.ratios)))

    @property
    def ratios(self) -> tuple[float, ...]:
        """Log of incumbent over candidate, turn by turn; positive means that the candidate is faster."""
        pairs = zip(self.incumbent_ms, self.candidate_ms, strict=False)
        return tuple(math.log(i / c) for i, c in pairs)

    @property
    def speedup(self) -> float:
        """Incumbent over candidate, the geometric mean of all turns."""
        return math.exp(self._mean)

    def accepts(self, threshold: float, variance: PooledVariance) -> bool:
        """Whether the candidate is faster by ``threshold``; ``variance`` includes this duel."""
        return variance.shows_gain(self.ratios, threshold)

    @property
    def latencies_ms(self) -> tuple[float, float]:
        """Incumbent's and candidate's, the geometric means of all turns."""
        turns = len(self.ratios)
        each = (self.incumbent_ms[:turns], self.candidate_ms[:turns])
        incumbent, candidate = (math.exp(sum(map(math.log, readings)) / turns) for readings in each)
        return incumbent, candidate

    @property
    def _mean(self) -> float:
        return sum(self.ratios) / len(self.ratios)


PRECISE = 1.05  # upper over lower end of an interval that needs no further pairs


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
