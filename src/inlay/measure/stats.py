"""Paired statistics without a distribution: Hodges-Lehmann estimates with Wilcoxon signed-rank intervals."""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist

import numpy as np

from inlay.trial import LEVEL, Interval

MIN_PAIRS = 6
"""Below six pairs no 95 % signed-rank interval exists: 2 / 2^5 > 0.05."""

_MAX_EXACT_PAIRS = 50  # up to which the exact null distribution is used; the normal approximation is good beyond


def hodges_lehmann(differences: np.ndarray, level: float = LEVEL) -> Interval:
    """Pseudo-median of paired differences, with its signed-rank confidence interval.

    The estimate is the median of all Walsh averages ``(d_i + d_j) / 2``, i <= j; the interval runs between the k-th
    smallest and the k-th largest of them, k from the null distribution of the signed-rank statistic (Hollander, Wolfe
    and Chicken, *Nonparametric Statistical Methods*, 3.3). Fewer than six differences give an unbounded interval. Ranks
    of six to nine cannot say more than 0.97 to 0.996, however clear the case is: beyond, the interval is Student's,
    around the mean, and reaches as far as the smallest and largest Walsh average at least.

    Args:
        differences: shape (n,), finite.
        level: confidence level.
    """
    d = np.asarray(differences, np.float64)
    if d.size == 0:
        return Interval(0.0, -np.inf, np.inf)
    i, j = np.triu_indices(d.size)
    walsh = np.sort((d[i] + d[j]) / 2.0)
    estimate = float(np.median(walsh))
    if d.size < MIN_PAIRS:
        return Interval(estimate, -np.inf, np.inf)
    k = _rank(d.size, level)
    if k == 0:
        reach = _student(d.size, level) * float(d.std(ddof=1)) / np.sqrt(d.size)
        mean = float(d.mean())
        return Interval(estimate, min(mean - reach, float(walsh[0])), max(mean + reach, float(walsh[-1])))
    return Interval(estimate, float(walsh[k - 1]), float(walsh[-k]))


def speedup(
    baseline_ns: np.ndarray,
    candidate_ns: np.ndarray,
    level: float = LEVEL,
    baseline_taken: np.ndarray | float = 0.0,
    candidate_taken: np.ndarray | float = 0.0,
) -> Interval:
    """Baseline over candidate from paired readings: the exponential of the Hodges-Lehmann estimate of log-ratios.

    Where other processes took up to a share ``p`` of a reading, the model itself took between ``(1 - p) ns`` and
    ``ns``, so each undisturbed log-ratio lies between ``log((1 - p_b) ns_b / ns_c)`` and ``log(ns_b / ((1 - p_c)
    ns_c))``. Walsh averages, and with them the ends of the interval, never fall when a log-ratio rises. Hence the
    interval of the undisturbed readings lies within the lower end of that of all smallest ratios and the upper end of
    that of all largest ones, which is what is returned: it covers the truth at least as often, however preemption is
    spread over models and blocks. The estimate is that of the readings without what was taken.

    The interval is (0, inf) where there are too few readings for the level.

    Args:
        baseline_ns: shape (blocks,), positive.
        candidate_ns: same shape, same blocks.
        level: confidence level.
        baseline_taken: share of each reading that other processes took, at most; same shape, in [0, 1).
        candidate_taken: the same of the candidate.
    """
    ratios = np.log(np.asarray(baseline_ns, float) / np.asarray(candidate_ns, float))
    less, more = np.log1p(-np.asarray(baseline_taken)), -np.log1p(-np.asarray(candidate_taken))
    low, high = (hodges_lehmann(ratios + d, level) for d in (less, more))
    value = hodges_lehmann(ratios + less + more, level).value
    return Interval(*(float(np.exp(x)) for x in (value, low.low, high.high)))


@lru_cache(maxsize=64)
def _student(n: int, level: float) -> float:
    """Standard errors of the mean of ``n`` normal values that its interval reaches to each side."""
    from scipy.special import stdtrit  # takes a while to load, and few runs get here

    return float(stdtrit(n - 1, (1.0 + level) / 2.0))


@lru_cache(maxsize=256)
def _rank(n: int, level: float) -> int:
    """Rank of the Walsh average at which the interval begins: the largest k with P(T+ <= k - 1) <= (1 - level) / 2.

    It counts from 1; 0 where ``n`` pairs are too few for an interval of this level.
    """
    tail = (1.0 - level) / 2.0
    if n > _MAX_EXACT_PAIRS:
        mean, sd = n * (n + 1) / 4.0, np.sqrt(n * (n + 1) * (2 * n + 1) / 24.0)
        return max(0, int(np.floor(mean + 0.5 + NormalDist().inv_cdf(tail) * sd)))
    counts = np.zeros(n * (n + 1) // 2 + 1)
    counts[0] = 1.0
    for rank in range(1, n + 1):
        counts[rank:] += counts[:-rank].copy()
    below = np.cumsum(counts) / 2.0**n
    return int(np.searchsorted(below, tail, side="right"))
