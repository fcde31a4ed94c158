"""Positions of a chart's points, bars and ticks, in the units of an SVG view box."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """A linear axis from ``low`` to ``high`` in data, from ``begin`` to ``end`` on the page."""

    low: float
    high: float
    begin: float
    end: float

    @classmethod
    def around(cls, values: Iterable[float], begin: float, end: float, margin: float = 0.06) -> Axis:
        """An axis that holds the finite ones of ``values``, with a share of its length as margin at both ends."""
        finite = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
        low, high = min(finite), max(finite)
        spread = high - low or max(abs(high), 1.0) * 0.1
        return cls(low - margin * spread, high + margin * spread, begin, end)

    def at(self, value: float) -> float:
        """Where ``value`` is on the page; the nearest end where it lies outside."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.begin + share * (self.end - self.begin), 2)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """About five round numbers: where they are on the page, and as text."""
        rough = (self.high - self.low) / 5.0
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= rough * 0.999)
        first = math.ceil(self.low / step)
        values = [i * step for i in range(first, first + 12) if i * step <= self.high]
        digits = max(0, -math.floor(math.log10(step)) + (1 if step / power == 2.5 else 0))
        return [(self.at(v), f"{v:.{digits}f}") for v in values]


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of ``values`` lie, by linear interpolation."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])
