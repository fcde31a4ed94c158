"""How much a score falls with noise: a relation fitted to the models that were evaluated, with its uncertainty.

The fall is taken for a multiple of the noise's power, or, where more models than two say so, of its amplitude: small
errors cost a squared loss in proportion to their power, and flip decisions in proportion to their size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inlay.quant.tolerance import CONFIDENCE
from inlay.trial import decibels, noise_of, plain

_EXPONENTS = (1.0, 0.5)  # of the noise's power: proportional to it, or to its amplitude
_ENOUGH = 3  # models that can tell these apart


@dataclass(frozen=True)
class Point:
    """A model that was evaluated: its SQNR in dB, how much worse than float's its score is, and that one's own error.

    ``error`` is the standard error of the fall over its samples; 0 where only a value was told.
    """

    sqnr_db: float
    fall: float
    error: float = 0.0


@dataclass(frozen=True)
class Relation:
    """The fall of one score as a function of noise: ``slope * noise ** exponent``."""

    name: str  # of the score
    slope: float  # not negative
    exponent: float  # of the noise's power
    error: float  # standard error of the slope; infinite where one model alone says nothing of it
    points: tuple[Point, ...]  # models behind it

    def fall(self, sqnr_db: float) -> tuple[float, float]:
        """The expected fall at an SQNR, and the half width of its interval; infinite where that is not known."""
        noise = noise_of(sqnr_db) ** self.exponent
        return self.slope * noise, self._factor * self.error * noise

    def least_db(self, drop: float) -> float:
        """The SQNR at which the expected fall is ``drop``, in dB."""
        if self.slope <= 0.0 or drop <= 0.0:
            return -math.inf if drop > 0.0 else math.inf
        return decibels((drop / self.slope) ** (1.0 / self.exponent))

    @property
    def _factor(self) -> float:
        from scipy.special import ndtri, stdtrit  # takes long to load

        tail = (1.0 + CONFIDENCE) / 2.0
        known = len(self.points) - 1
        return float(stdtrit(known, tail) if known else ndtri(tail))

    def told(self, drop: float | None) -> str:
        """The relation for people: what falls at the SQNR of the models behind it, and what the bound asks for."""
        at_db = round(float(np.median([p.sqnr_db for p in self.points])))
        fall, half = self.fall(at_db)
        sure = "" if math.isinf(half) else f" ± {plain(half, 2)}"
        count = len(self.points)
        said = f"{self.name} gets worse by {plain(fall, 2)}{sure} at {at_db} dB"
        said += f", by {count} evaluated models" if count > 1 else ", by one evaluated model"
        if drop is None or self.slope <= 0.0:
            return said
        return f"{said}; the {plain(drop)} that is allowed asks for about {self.least_db(drop):.0f} dB"


def fitted(name: str, points: Sequence[Point]) -> Relation | None:
    """The relation of a score by the models that were evaluated; None where these say nothing: none has noise."""
    known = tuple(p for p in points if noise_of(p.sqnr_db) > 0.0 and math.isfinite(p.sqnr_db))
    if not known:
        return None
    exponents = _EXPONENTS if len(known) >= _ENOUGH else _EXPONENTS[:1]
    return min([_fit(name, known, exponent) for exponent in exponents], key=lambda each: each[0])[1]


def _fit(name: str, points: tuple[Point, ...], exponent: float) -> tuple[float, Relation]:
    """Least squares through the origin, as a model without noise is the float model; and the mean squared residual."""
    x = np.array([noise_of(p.sqnr_db) ** exponent for p in points])
    y, error = np.array([p.fall for p in points]), np.array([p.error for p in points])
    weight = float((x * x).sum())
    slope = max(0.0, float((x * y).sum()) / weight)
    residual = float(((y - slope * x) ** 2).sum())
    by_samples = math.sqrt(float((x * x * error * error).sum())) / weight
    if len(points) > 1:
        spread = math.sqrt(residual / (len(points) - 1) / weight)
        uncertain = max(spread, by_samples)
    else:
        uncertain = by_samples or math.inf
    return residual, Relation(name, slope, exponent, uncertain, points)
