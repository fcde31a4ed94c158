"""What going on with a search may bring: by what the surrogate hopes for, and by what its earlier hopes came to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inlay.search import policy


@dataclass(frozen=True)
class Prospect:
    """What is left to find."""

    probability: float  # that a model that is faster by more than `CLEAR_GAIN` is left
    trials: int  # that it takes to look for it, about

    @property
    def is_unlikely(self) -> bool:
        """Whether a search may as well end."""
        return self.probability < policy.UNLIKELY

    def as_json(self, trial_s: float | None) -> dict[str, float]:
        """As in ``result.json``, where a trial takes so many seconds, if it is known."""
        seconds = {} if trial_s is None else {"seconds": round(self.trials * trial_s, 1)}
        return {"gain": policy.CLEAR_GAIN, "probability": round(self.probability, 4), **seconds}


class Hopes:
    """The clear gains that a surrogate hoped for, and those that came.

    Gains come as a Poisson process does, at so many times the rate that was hoped for. That factor is known by a gamma
    distribution with a mean of 1 before there is any history, which weighs as much as one hope.
    """

    def __init__(self) -> None:
        self._hoped = self._gained = 1.0

    def learn(self, chance: float, gained: bool) -> None:
        """A trial that was to gain with this ``chance`` did, or did not."""
        self._hoped += chance
        self._gained += gained

    def prospect(self, chances: Sequence[float]) -> Prospect:
        """What is left where these chances are, of trials that have nothing in common."""
        hope = sum(chances) * self._gained / self._hoped
        return Prospect(1.0 - math.exp(-hope), len(chances))


def said_left(left: Mapping[str, float]) -> str:
    """What is left, as :meth:`Prospect.as_json` has it, for people; with advice where that is worth a search."""
    chance, seconds = left["probability"], left.get("seconds")
    likely = f"{chance:.0%} likely" if chance >= 0.005 else "less than 1 % likely"
    advice = "" if chance < policy.UNLIKELY else ": give a larger --budget"
    takes = f"; to look takes about {max(seconds, 1.0):.0f} s{advice}" if seconds else ""
    return f"A model that is more than {left['gain']:.0%} faster is {likely} to be left{takes}"
