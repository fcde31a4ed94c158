"""How latency is to be measured: blocks, slots and when a race between two models ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

from inlay.trial import LEVEL


@dataclass(frozen=True)
class Protocol:
    """How to measure. Its text is part of a run's identity in the journal."""

    first_blocks: int = 7  # blocks of a race before the first decision
    most_blocks: int = 28  # blocks after which a race ends in any case
    slot_ns: int = 4_000_000  # nanoseconds that one reading should take at least
    # ratio by which a candidate must be faster than the incumbent (its lower bound) to replace it
    least_gain: float = 1.0
    worth: float = 1.005  # ratio; the race is lost once the upper bound is below it
    # share of blocks that may be discarded for drift; beyond, the machine is never quiet, and all are kept
    discards: float = 0.5
    race_s: float = math.inf  # seconds beyond which a race begins no further look

    @property
    def level(self) -> float:
        """Confidence level of each look at candidate against incumbent, so that all looks together keep 95 %."""
        looks = 1 + max(0, math.ceil(math.log2(self.most_blocks / self.first_blocks)))
        return 1.0 - (1.0 - LEVEL) / looks
