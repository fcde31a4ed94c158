"""Is a scheme that seems faster really faster? Decided by taking turns with the incumbent.

A single good reading among thirty is mostly luck. So a promising scheme and the incumbent are measured again, in
turns, and the scheme is believed when the mean of the log-ratios exceeds the threshold by three standard errors. The
spread of the ratios is pooled over all decisions of a run, so that it becomes reliable with time. Without noise the
spread is 0, and every true gain is believed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

_ERRORS = 3.0
"""Standard errors that a gain must exceed: one wrong decision in about 700."""

_PRIOR = 4
"""A spread from fewer degrees of freedom than this is doubled, since it may be small by chance."""


@dataclass
class Spread:
    """Pooled variance of the log-ratios of one run."""

    squares: float = 0.0
    freedom: int = 0

    def add(self, ratios: list[float]) -> None:
        """Take in the log-ratios of one decision."""
        mean = sum(ratios) / len(ratios)
        self.squares += sum((r - mean) ** 2 for r in ratios)
        self.freedom += len(ratios) - 1

    @property
    def deviation(self) -> float:
        """Standard deviation of a single log-ratio."""
        if not self.freedom:
            return math.inf
        plain = math.sqrt(self.squares / self.freedom)
        return plain if self.freedom >= _PRIOR else 2 * plain


@dataclass
class Duel:
    """Turns of the incumbent and a candidate.

    Attributes:
        turns: how often each is to be measured.
        incumbent_ms, candidate_ms: readings so far.
    """

    turns: int
    incumbent_ms: list[float] = field(default_factory=list)
    candidate_ms: list[float] = field(default_factory=list)

    @property
    def candidate_next(self) -> bool:
        """Whose turn it is; the order changes from turn to turn, so that a drift does not favour one side."""
        done = min(len(self.incumbent_ms), len(self.candidate_ms))
        first = done % 2 == 1
        started = len(self.incumbent_ms) != len(self.candidate_ms)
        return not first if started else first

    @property
    def finished(self) -> bool:
        """Whether both had all their turns."""
        return len(self.incumbent_ms) >= self.turns and len(self.candidate_ms) >= self.turns

    def hopeless(self, threshold: float) -> bool:
        """Whether two turns or more average below ``threshold``: the rest need not be measured."""
        ratios = self.ratios
        even = len(self.incumbent_ms) == len(self.candidate_ms)
        return even and len(ratios) > 1 and sum(ratios) / len(ratios) <= math.log(threshold)

    @property
    def ratios(self) -> list[float]:
        """Log of incumbent over candidate, turn by turn; positive means that the candidate is faster."""
        return [math.log(i / c) for i, c in zip(self.incumbent_ms, self.candidate_ms, strict=False)]

    def verdict(self, threshold: float, spread: Spread) -> tuple[bool, float]:
        """Whether the candidate is believed to be faster by ``threshold``, and its mean speedup over the incumbent."""
        ratios = self.ratios
        if len(ratios) > 1:
            spread.add(ratios)
        mean = sum(ratios) / len(ratios)
        error = spread.deviation / math.sqrt(len(ratios))
        excess = mean - math.log(threshold)
        return excess > max(_ERRORS * error, 1e-12), math.exp(mean)
