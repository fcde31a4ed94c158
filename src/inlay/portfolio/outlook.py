"""How fast a model can become on each of several targets, one of which is to be chosen: what a first look promises."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inlay.portfolio import policy


@dataclass(frozen=True)
class Reach:
    """What the forms of the model take on one target, in nanoseconds, by few blocks."""

    fastest_ns: float  # of the fastest, at whatever accuracy
    kept_ns: float  # of the fastest that keeps the bound on few samples


@dataclass(frozen=True)
class Look:
    """What a look at the forms of the model showed."""

    form_s: float = 0.0  # seconds that one form took; 0 where there was no look
    reached: Mapping[str, Reach] = field(default_factory=dict)  # by label of the target, where there was time for it


@dataclass(frozen=True)
class Outlook:
    """How fast targets can become, one of which is to be chosen."""

    float_ns: Mapping[str, float]  # of the given model, by label
    look: Look = Look()  # at the forms

    @property
    def known(self) -> bool:
        """Whether there was a look at the forms."""
        return bool(self.look.reached)

    @property
    def least_s(self) -> float:
        """Seconds below which a run finds nothing."""
        return policy.LEAST_TRIALS * self.look.form_s / policy.SEARCHING_SHARE

    def ns(self, label: str) -> float:
        """Nanoseconds that a run may end with: between the fastest form and the fastest that keeps the bound."""
        reach = self.look.reached.get(label)
        return self.float_ns[label] if reach is None else math.sqrt(reach.fastest_ns * reach.kept_ns)

    def beaten(self, label: str, fastest_ns: float) -> str:
        """Why a target cannot become faster than that; empty where it can."""
        reach = self.look.reached.get(label)
        if reach is not None:
            if reach.fastest_ns <= policy.MIXED_GAIN * fastest_ns:
                return ""
            return f"{self.told(label)}, and {fastest_ns / 1e6:.3f} ms is what was found"
        if self.float_ns[label] <= policy.MOST_GAIN * fastest_ns:
            return ""
        return (
            f"{self.float_ns[label] / fastest_ns:.1f} times as slow as the fastest before anything is quantized, "
            f"by which it gains a factor of {policy.MOST_GAIN:g} at most"
        )

    def told(self, label: str) -> str:
        """What is known of a target, for people."""
        reach = self.look.reached.get(label)
        if reach is None:
            return f"the given model takes {self.float_ns[label] / 1e6:.3f} ms there"
        return f"its fastest form there takes {reach.fastest_ns / 1e6:.3f} ms, at whatever accuracy"

    def alike(self, label: str, left: Sequence[str]) -> list[str]:
        """Those of ``left`` that may become as fast as the target; without a look, all of them."""
        reached = self.look.reached
        if label not in reached:
            return list(left)
        most_ns = policy.MIXED_GAIN * reached[label].fastest_ns
        return [each for each in left if each not in reached or reached[each].fastest_ns <= most_ns]
