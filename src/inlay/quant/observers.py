"""Streaming histograms of a value, and the methods that choose a range from them.

A histogram takes any number of samples in bounded memory: a fixed count of bins over a symmetric range that doubles
(merging neighbouring bins) whenever a larger element arrives. One pass over the samples serves every method.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import numpy as np

Method = Literal["minmax", "percentile", "mse", "entropy", "percentile-99.9", "headroom", "stress"]
STRESS: Method = "stress"  # the extremes of the samples and of their variations; only where there are some
ALL_METHODS: tuple[Method, ...] = get_args(Method)
METHODS: tuple[Method, ...] = tuple(m for m in ALL_METHODS if m != STRESS)  # those that samples suffice for

BINS = 4096  # over the whole symmetric range; a multiple of four, so that doubling merges bins exactly
PERCENTILE = 99.99  # percent of the elements inside the range, for the method of that name
LOWER_PERCENTILE = 99.9  # the same for "percentile-99.9"
COUNTED = 1 << 16  # elements of one array that are counted at most, see _stride
HEADROOM_DEVIATIONS = 2.0  # standard deviations of the arrays' extremes, added beyond the largest one
MAX_HEADROOM = 0.5  # share of the largest element: a range 1.5 times as wide costs 0.6 bits, and no more is risked


@dataclass(frozen=True)
class Range:
    """The smallest and largest value that quantization represents; always contains 0."""

    low: float
    high: float

    def __or__(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high))


UNLIMITED = Range(-np.inf, np.inf)  # of a value that may have any size


class Histogram:
    """Counts of a stream of elements. Those that are not finite are counted apart, and so are zeros (in addition).

    Zero is always represented exactly. After a Relu half of the elements or more are zero; charging them with rounding
    errors would make every range look too wide. No element exceeds ``limits``, whatever the samples
    (:mod:`inlay.quant.observers`).
    """

    def __init__(self, limits: Range = UNLIMITED) -> None:
        self.limits = limits
        self.low = np.inf
        self.high = -np.inf
        self.not_finite = 0
        self.zeros = 0
        self.limit = 0.0  # bins cover [-limit, limit)
        self.counts = np.zeros(BINS, np.int64)
        self.lows: list[float] = []  # of each array, to see how much they differ
        self.highs: list[float] = []
        self.reach: Range | None = None  # of variations of the samples, which are not counted
        self._found: dict[tuple[Method, int], Range] = {}

    def widen(self, array: np.ndarray) -> None:
        """Add the extremes of a variation's elements to the reach."""
        finite = array[np.isfinite(array)]
        if finite.size:
            found = Range(min(0.0, float(finite.min())), max(0.0, float(finite.max())))
            self.reach = found if self.reach is None else self.reach | found
            self._found.clear()

    def update(self, array: np.ndarray) -> None:
        """Add the elements of a float array of any shape."""
        flat = array.ravel()
        if not flat.size:
            return
        self._found.clear()
        low, high = float(flat.min()), float(flat.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            finite = flat[np.isfinite(flat)]
            self.not_finite += flat.size - finite.size
            self.update(finite)
            return
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.lows.append(low)
        self.highs.append(high)
        self._cover(max(abs(low), abs(high)))
        flat = flat[:: _stride(flat.size)]
        scaled = (flat.astype(np.float64) if self.limit > 1e30 else flat) * (BINS / 2 / self.limit)
        # exact, by a power of two: neighbours that merge later are those that would have been counted as one now
        index = np.floor(scaled).astype(np.int32) + BINS // 2
        np.clip(index, 0, BINS - 1, out=index)
        self.counts += np.bincount(index, minlength=BINS)
        self.zeros += int(flat.size - np.count_nonzero(flat))

    def _cover(self, magnitude: float) -> None:
        if self.limit == 0.0:  # a floor keeps the reciprocal of the bin's width finite
            self.limit = max(2.0**-100, float(2.0 ** np.ceil(np.log2(magnitude) + 1e-9))) if magnitude else 2.0**-100
        while self.limit < magnitude:
            pairs = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.zeros(BINS, np.int64)
            self.counts[BINS // 4 : BINS // 4 + BINS // 2] = pairs
            self.limit *= 2

    def __or__(self, other: Histogram) -> Histogram:
        """The histogram of both streams, the same however elements are divided among streams and these are ordered."""
        both = Histogram(self.limits | other.limits)
        both.limit = max(self.limit, other.limit)
        for part in (copy(self), copy(other)):
            if part.limit:
                part._cover(both.limit)
            both.counts = both.counts + part.counts
        both.low, both.high = min(self.low, other.low), max(self.high, other.high)
        both.lows, both.highs = self.lows + other.lows, self.highs + other.highs
        reaches = [r for r in (self.reach, other.reach) if r is not None]
        both.reach = reaches[0] | reaches[-1] if reaches else None
        both.not_finite, both.zeros = self.not_finite + other.not_finite, self.zeros + other.zeros
        return both

    @property
    def headroom(self) -> float:
        """Share by which other arrays may exceed the largest element: two standard deviations of the extremes.

        No more than the limits leave to the end of the range that is further from its own.
        """
        largest = max(abs(self.low), abs(self.high))
        if not self.lows or largest == 0.0:
            return 0.0
        differ = max(float(np.std(sorted(each))) for each in (self.lows, self.highs))  # whatever came first
        ends = ((self.low, self.limits.low), (self.high, self.limits.high))
        left = max((limit / end - 1.0 for end, limit in ends if end * limit > 0.0), default=0.0)
        return max(0.0, min(HEADROOM_DEVIATIONS * differ / largest, MAX_HEADROOM, left))

    @property
    def edges(self) -> np.ndarray:
        """Bin edges, shape (BINS + 1,)."""
        return np.linspace(-self.limit, self.limit, BINS + 1)

    @property
    def rounded(self) -> np.ndarray:
        """Counts of the elements that rounding changes: all but zeros, shape (BINS,)."""
        counts = self.counts.copy()
        counts[BINS // 2] -= self.zeros
        return counts

    def range(self, method: Method, levels: int = 256) -> Range:
        """The range that ``method`` chooses for ``levels`` quantization levels."""
        if not np.isfinite(self.low):
            return Range(0.0, 0.0)
        whole = Range(min(0.0, self.low), max(0.0, self.high))
        if method == STRESS:
            return whole if self.reach is None else whole | self.reach
        if method == "minmax" or whole.low == whole.high:
            return whole
        if (method, levels) not in self._found:
            self._found[method, levels] = _RANGE_BY[method](self, whole, levels)
        return self._found[method, levels]

    def noise(self, found: Range, levels: int = 256) -> float:
        """Mean squared error of rounding to ``levels`` steps of ``found`` and of clipping, over the mean square."""
        if found.low == found.high or not np.isfinite(self.low):
            return 0.0
        counts = self.rounded
        centres = ((self.edges[:-1] + self.edges[1:]) / 2).clip(self.low, self.high)
        step = (found.high - found.low) / (levels - 1)
        errors = (centres - centres.clip(found.low, found.high)) ** 2 + step * step / 12
        return float(counts @ errors) / max(float(counts @ centres**2), 1e-300)

    @property
    def digest(self) -> str:
        """Identifies the counts."""
        facts = np.array([self.low, self.high, self.limit, self.not_finite, self.zeros])
        reach = b"" if self.reach is None else np.array([self.reach.low, self.reach.high]).tobytes()
        return hashlib.sha256(facts.tobytes() + self.counts.tobytes() + reach).hexdigest()[:16]


def count(histograms: dict[str, Histogram], values: Mapping[str, np.ndarray]) -> None:
    """Add each value's elements to its histogram."""
    for value, array in values.items():
        histograms[value].update(array)


def widen(histograms: dict[str, Histogram], values: Mapping[str, np.ndarray]) -> None:
    """Add each value's extremes to the reach of its histogram."""
    for value, array in values.items():
        histograms[value].widen(array)


def _stride(size: int) -> int:
    """Step with which elements are counted: all up to ``COUNTED``, then a prime, which divides few tensor dimensions.

    Extremes always come from all elements; the shape of a distribution does not need every one of a million.
    """
    return next((p for p in (1, 3, 5, 11, 19, 37, 67, 131, 257, 521) if size // p <= COUNTED), 1031)


def _percentile(histogram: Histogram, whole: Range, levels: int, percent: float = PERCENTILE) -> Range:
    """Cut off the outermost ``100 - percent`` percent of the elements, half on each side that has any."""
    share = np.cumsum(histogram.counts) / histogram.counts.sum()
    tail = (100.0 - percent) / 100.0 / (2 if whole.low < 0 < whole.high else 1)
    edges = histogram.edges
    low = edges[np.searchsorted(share, tail)] if whole.low < 0 else 0.0
    high = edges[np.searchsorted(share, 1.0 - tail) + 1] if whole.high > 0 else 0.0
    return Range(max(whole.low, min(0.0, float(low))), min(whole.high, max(0.0, float(high))))


def _mse(histogram: Histogram, whole: Range, levels: int) -> Range:
    """Least mean squared error of rounding and clipping: a grid over both ends together, then each end alone."""
    counts = histogram.rounded
    filled = np.flatnonzero(counts)
    centres = ((histogram.edges[:-1] + histogram.edges[1:]) / 2)[filled].clip(whole.low, whole.high)
    weights = counts[filled] / max(1, counts.sum())

    # of all bins below each: what lies beyond an end is known without a pass over the bins, for a whole grid at once
    sums = [np.concatenate(([0.0], np.cumsum(weights * centres**power))) for power in range(3)]

    def beyond(ends: np.ndarray, first: np.ndarray | int, last: np.ndarray | int) -> np.ndarray:
        """Mean square by which the bins from ``first`` to ``last`` lie beyond ``ends``."""
        share, mean, square = (total[last] - total[first] for total in sums)
        return np.asarray(np.maximum(0.0, square - 2.0 * ends * mean + ends * ends * share))

    def errors(lows: np.ndarray, highs: np.ndarray) -> np.ndarray:
        steps = (highs - lows) / (levels - 1)
        clipped = beyond(lows, 0, np.searchsorted(centres, lows))
        clipped += beyond(highs, np.searchsorted(centres, highs), len(centres))
        # inside the range rounding leaves step**2 / 12 on average; the bins are too coarse to round them one by one
        return np.asarray(clipped + sums[0][-1] * steps * steps / 12)

    shares = np.linspace(1.0, 0.2, 81)  # of equals the first, which is the widest
    best = shares[np.argmin(errors(whole.low * shares, whole.high * shares))]
    low, high = whole.low * best, whole.high * best
    lows = np.linspace(whole.low, low * 0.5, 41)
    low = lows[np.argmin(errors(lows, np.full(41, high)))]
    highs = np.linspace(whole.high, high * 0.5, 41)
    high = highs[np.argmin(errors(np.full(41, low), highs))]
    return Range(min(0.0, float(low)), max(0.0, float(high)))


def _entropy(histogram: Histogram, whole: Range, levels: int) -> Range:
    """Least Kullback-Leibler divergence between the clipped distribution and its quantized form.

    Zeros, which every range represents exactly, are left out of both: distributed over their level, a peak of zeros
    would decide alone, for the narrowest range. Sums up to each bin give those of every candidate's levels.
    """
    from scipy.special import xlogy  # the guarded process, which only counts, starts without it

    counts = histogram.rounded.astype(np.float64)
    if not counts.any():
        return whole
    filled = counts > 0
    upto, filled_upto, entropy_upto = (np.append(0.0, np.cumsum(c)) for c in (counts, filled, xlogy(counts, counts)))
    shares = np.linspace(0.2, 1.0, 41)
    first = np.maximum(np.searchsorted(histogram.edges, whole.low * shares) - 1, 0)
    last = np.minimum(np.searchsorted(histogram.edges, whole.high * shares), BINS)
    # with fewer bins than levels nothing would be rounded
    usable = (last - first >= levels) & (filled_upto[last] > filled_upto[first])
    if not usable.any():
        return whole
    shares, first, last = shares[usable], first[usable], last[usable]
    ends = first[:, None] + -(np.arange(levels + 1) * (first - last)[:, None] // levels)  # of each level's bins
    totals, known = np.diff(upto[ends]), np.diff(filled_upto[ends])
    heights = totals / np.maximum(known, 1.0)  # of a level's filled bins, once quantized
    least = 1e-9 * heights.max(axis=1)
    heights = np.maximum(heights, least[:, None])
    quantized = (known * heights).sum(axis=1) + (last - first - known.sum(axis=1)) * least
    entropy, crossed = entropy_upto[last] - entropy_upto[first], (totals * np.log(heights)).sum(axis=1)
    for outer, level, clipped in ((first, 0, upto[first]), (last - 1, -1, upto[-1] - upto[last])):
        inside = counts[outer]
        entropy += xlogy(inside + clipped, inside + clipped) - xlogy(inside, inside)
        crossed += clipped * np.log(np.where(filled[outer], heights[:, level], least))
    best = shares[np.argmin((entropy - crossed) / upto[-1] + np.log(quantized / upto[-1]))]
    return Range(float(whole.low * best), float(whole.high * best))


def _headroom(histogram: Histogram, whole: Range, levels: int) -> Range:
    """Beyond the extremes, by as much as those of single arrays differ, within the limits of the value.

    minmax where all arrays have the same extremes, or their limits for extremes.
    """
    low, high = whole.low * (1.0 + histogram.headroom), whole.high * (1.0 + histogram.headroom)
    return Range(min(whole.low, max(low, histogram.limits.low)), max(whole.high, min(high, histogram.limits.high)))


_RANGE_BY: Mapping[Method, Callable[[Histogram, Range, int], Range]] = {
    "percentile": _percentile,
    "percentile-99.9": partial(_percentile, percent=LOWER_PERCENTILE),
    "mse": _mse,
    "entropy": _entropy,
    "headroom": _headroom,
}
