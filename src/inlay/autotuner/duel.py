"""Is a scheme that seems faster really faster? Decided by measuring it and the incumbent in turns.

A single good reading among thirty is mostly luck. So a promising scheme and the incumbent are measured again, in
turns, and the scheme is accepted when the mean of the log-ratios exceeds the threshold by three standard errors. The
variance of the ratios is pooled over all duels of a run, so that its estimate improves with time. Once it is known
well, a clear gain needs two turns only. Without noise the variance is 0, and every true gain is accepted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

STANDARD_ERRORS = 3.0
"""Standard errors by which a gain must exceed the threshold: one false accept in about 700 (normal distribution)."""

MIN_FREEDOM = 4
"""Degrees of freedom below which the estimated deviation is doubled, since it may be small by chance."""

MOST_FAILED = 8
"""Failed readings in a row after which no more are asked for, of a model that had been measured before."""

MIN_EXCESS = 1e-12
"""Least excess over the threshold, as a log-ratio: rounding errors are no gain."""


@dataclass(frozen=True)
class PooledVariance:
    """Variance of the log-ratios of all duels of a run.

    Attributes:
        squares: sum of squared deviations from the mean of their duel.
        freedom: degrees of freedom.
    """

    squares: float = 0.0
    freedom: int = 0

    def including(self, ratios: tuple[float, ...]) -> PooledVariance:
        """The variance with the log-ratios of one more duel; a single ratio says nothing about it."""
        if len(ratios) < 2:
            return self
        mean = sum(ratios) / len(ratios)
        return PooledVariance(self.squares + sum((r - mean) ** 2 for r in ratios), self.freedom + len(ratios) - 1)

    @property
    def deviation(self) -> float:
        """Standard deviation of a single log-ratio."""
        if not self.freedom:
            return math.inf
        plain = math.sqrt(self.squares / self.freedom)
        return plain if self.freedom >= MIN_FREEDOM else 2 * plain


@dataclass(frozen=True)
class Duel:
    """Readings of the incumbent and a candidate, in turns.

    Attributes:
        turns: how often each is to be measured.
        first_ms: the candidate's promising reading that led to the duel; chosen for being small, it decides nothing.
        incumbent_ms, candidate_ms: readings so far.
    """

    turns: int
    first_ms: float = math.nan
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

    def finished(self, threshold: float, variance: PooledVariance | None = None) -> bool:
        """Whether both had all their turns, or two turns or more already decide.

        They do where they average below ``threshold``, or above it as clearly as is needed in the end.

        Args:
            threshold: speedup that the candidate needs.
            variance: of earlier duels; with too few degrees of freedom, or none, no gain is clear before the end.
        """
        complete = min(len(self.incumbent_ms), len(self.candidate_ms)) >= self.turns
        even = len(self.incumbent_ms) == len(self.candidate_ms)
        if complete or not even or len(self.ratios) < 2:
            return complete
        known = variance is not None and variance.freedom >= MIN_FREEDOM
        return self._mean <= math.log(threshold) or (
            known and variance is not None and self.accepts(threshold, variance.including(self.ratios))
        )

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
        error = variance.deviation / math.sqrt(len(self.ratios))
        return self._mean - math.log(threshold) > max(STANDARD_ERRORS * error, MIN_EXCESS)

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
