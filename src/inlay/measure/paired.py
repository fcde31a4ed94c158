"""Readings of models in interleaved blocks, and the ratios of their speeds, with intervals.

Models that share a block are compared in it: what slowed the machine down slowed all of them. A ratio is the
Hodges-Lehmann estimate of the log-ratios of all blocks, with the Wilcoxon signed-rank interval, which assumes no
distribution. Blocks of one process share what that process drew once (where its memory lies, for one), so that an
interval reaches farther where processes differ.

:func:`speedup` does that. Of two or three pairs, only the :class:`PooledVariance` of many comparisons tells more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from inlay.measure import policy
from inlay.trial import LEVEL, Interval

MIN_PAIRS = 6  # below six pairs no 95 % signed-rank interval exists: 2 / 2^5 > 0.05
_LEAST_OF_A_PROCESS = 3  # blocks of a process whose center says something
_MAD = 1.4826  # standard deviations in a median absolute deviation, of normal values
_HL_VARIANCE = np.pi / 3.0  # of a Hodges-Lehmann estimate, in that of a mean, for normal values
_STANDARD_ERRORS = 3.0  # by which a gain must be exceeded: one false accept in about 700 (normal distribution)
_MIN_FREEDOM = 4  # degrees of freedom below which an estimated deviation may be small by chance
_MOMENTS = 0.45
"""Standard deviations of a block in one of a moment, where other processes compute: what they do to caches, memory and
clock for tens of seconds is in all blocks of a moment alike. Of 27 whole runs beside load, each with a long measurement
directly behind it (``benchmarks/one_story.py``): deviations of 2.6 % that their blocks, of 5.9 %, do not explain."""
_MIN_EXCESS = 1e-12  # least excess of a log-ratio: rounding errors are no gain
_MAX_EXACT_PAIRS = 50  # up to which the exact null distribution is used; the normal approximation is good beyond


@dataclass(frozen=True, eq=False)
class Series:
    """The readings of one model, in blocks that it shares with others."""

    ns: np.ndarray  # nanoseconds per inference, less what other processes took for certain, shape (blocks,)
    # share of each that other processes may have taken besides, at most; same shape, or one for all
    taken: np.ndarray | float = 0.0
    # the readings on each feed of a workload, shape (blocks, feeds); None where there is one
    by_feed: np.ndarray | None = None
    exact: bool = False  # they have no noise: one tells all
    # numbers of the processes that the blocks were read in, shape (blocks,); None for one
    processes: np.ndarray | None = None
    # readings in earlier processes, in blocks that the models of these ones shared there too. They tell how processes
    # differ, and nothing of the figure: by them a model may have been chosen.
    earlier: Series | None = None
    # other processes computed beside many of the blocks; at another moment they will do something else
    busy: bool = False

    def __len__(self) -> int:
        return len(self.ns)

    @property
    def median_ns(self) -> float:
        """Median of the readings without what other processes took."""
        return float(np.median(self.ns * (1.0 - self.taken)))

    def behind(self, first: Series) -> Series:
        """The same model with the readings of an earlier look before these."""
        taken = np.concatenate([np.broadcast_to(s.taken, s.ns.shape) for s in (first, self)])
        by_feed = None
        if first.by_feed is not None and self.by_feed is not None:
            by_feed = np.concatenate([first.by_feed, self.by_feed])
        processes = _numbered([(s.processes, len(s)) for s in (first, self)])
        ns, busy = np.concatenate([first.ns, self.ns]), first.busy or self.busy
        return Series(ns, taken, by_feed, self.exact, processes, first.earlier, busy)

    def after(self, earlier: Series) -> Series:
        """The same, knowing ``earlier`` readings of the model; an empty one tells nothing."""
        return replace(self, earlier=earlier if len(earlier) else None)

    def on_each_feed(self) -> list[Series]:
        """The readings on each feed of a workload; empty where there is one. What others took of each is not known."""
        each = [] if self.by_feed is None else [*self.by_feed.T]
        return [Series(ns, 0.0, None, self.exact, self.processes, busy=self.busy) for ns in each]


@dataclass(frozen=True, eq=False)
class Timing:
    """Readings of several models in interleaved blocks, and how quiet the machine was in each."""

    ns: np.ndarray  # nanoseconds per inference, less what other processes took for certain, shape (blocks, models)
    drift: np.ndarray  # absolute log-ratio of the two passes through each block, the mean over models, shape (blocks,)
    # share of each reading that other processes may have taken besides, at most, shape (blocks, models)
    taken: np.ndarray
    hit: np.ndarray  # share of each reading on the clock that they took, at most, shape (blocks, models)
    # nanoseconds per inference on each feed of a workload, shape (blocks, models, feeds); none for one
    by_feed: np.ndarray | None = None
    exact: np.ndarray | bool = False  # whether readings have no noise, of all models or each, shape (models,)
    # numbers of the processes that blocks were read in, shape (blocks,); None for one
    processes: np.ndarray | None = None

    @classmethod
    def of(cls, blocks: Sequence[Mapping[str, Any]], exact: bool = False) -> Timing:
        """From the fields of each :class:`~inlay.measure.blocks.Block`."""
        names = ("ns", "drift", "taken", "hit", "by_feed")
        ns, drift, taken, hit, by_feed = (np.array([b[name] for b in blocks], float) for name in names)
        return cls(ns, drift, taken, hit, by_feed if by_feed.size else None, exact)

    @cached_property
    def models(self) -> tuple[Series, ...]:
        """The readings of each model."""
        feeds = [None] * self.ns.shape[1] if self.by_feed is None else [*np.moveaxis(self.by_feed, 1, 0)]
        exact = np.broadcast_to(self.exact, len(feeds)).tolist()
        busy = len(self.ns) > 0 and float(np.mean(self.preempted)) > policy.BUSY
        read = zip(self.ns.T, self.taken.T, feeds, exact, strict=True)
        return tuple(Series(*each, processes=self.processes, busy=busy) for each in read)

    @property
    def is_exact(self) -> bool:
        """Whether one block tells all of all models."""
        return bool(np.all(self.exact))

    @property
    def preempted(self) -> np.ndarray:
        """In which blocks other processes took more of a reading with noise than may be, shape (blocks,)."""
        return np.asarray(np.where(self.exact, 0.0, self.hit).max(axis=1) > policy.MAX_PREEMPTED)

    @property
    def is_quiet(self) -> np.ndarray:
        """Which blocks neither drifted nor were preempted: all models of a block count, or none, shape (blocks,)."""
        return np.asarray((self.drift <= policy.MAX_DRIFT) & ~self.preempted)

    def only(self, models: ArrayLike) -> Timing:
        """These models, in this order."""
        at = np.asarray(models, int)
        ns, taken, hit = (each[:, at] for each in (self.ns, self.taken, self.hit))
        by_feed = None if self.by_feed is None else self.by_feed[:, at]
        exact = np.broadcast_to(self.exact, self.ns.shape[1])[at]
        return replace(self, ns=ns, taken=taken, hit=hit, by_feed=by_feed, exact=exact)

    def without(self, models: Collection[int]) -> Timing:
        """The same without some of the models."""
        return self.only([i for i in range(self.ns.shape[1]) if i not in models])

    def least_preempted(self, blocks: int) -> Timing:
        """So many blocks, of which other processes took the least, whatever the readings say."""
        hit = np.maximum(self.hit.max(axis=1), policy.MAX_PREEMPTED)  # what may be is no reason to choose
        kept = np.sort(np.argsort(hit, kind="stable")[:blocks])
        by_feed, processes = (None if each is None else each[kept] for each in (self.by_feed, self.processes))
        ns, drift, taken, hit = (each[kept] for each in (self.ns, self.drift, self.taken, self.hit))
        return Timing(ns, drift, taken, hit, by_feed, self.exact, processes)


def joined(parts: Sequence[Timing], apart: bool = False) -> Timing:
    """The blocks of all parts, in turn, of the same models.

    Args:
        apart: each was read in processes of its own; else all in the same one.
    """
    ns, drift, taken, hit = (
        np.concatenate([getattr(p, name) for p in parts]) for name in ("ns", "drift", "taken", "hit")
    )
    by_feed = [p.by_feed for p in parts if p.by_feed is not None]
    whole = np.concatenate(by_feed) if len(by_feed) == len(parts) else None
    processes = _numbered([(p.processes, len(p.ns)) for p in parts]) if apart else None
    return Timing(ns, drift, taken, hit, whole, parts[0].exact, processes)


def _numbered(parts: Sequence[tuple[np.ndarray | None, int]]) -> np.ndarray:
    """Numbers of processes, by block, of parts that share none: of each its own numbers, and how many blocks it has."""
    found = np.zeros(0, int)
    for own, blocks in parts:
        numbers = np.zeros(blocks, int) if own is None else own
        found = np.concatenate([found, numbers + found.max(initial=-1) + 1])
    return found


def read_again(found: Timing, blocks: int, again: Callable[[int], Timing]) -> Timing:
    """The blocks ``found``, where preempted ones are read once more: they count only where too few others remain.

    Args:
        again: reads so many more, or fewer where the time ends, and returns all.
    """
    disturbed = int(found.preempted.sum())
    return again(disturbed).least_preempted(blocks) if disturbed else found


def hodges_lehmann(differences: np.ndarray, level: float = LEVEL) -> Interval:
    """Pseudo-median of paired differences, with its signed-rank confidence interval.

    The estimate is the median of all Walsh averages ``(d_i + d_j) / 2``, i <= j; the interval runs between the k-th
    smallest and the k-th largest of them, k from the null distribution of the signed-rank statistic (Hollander, Wolfe
    and Chicken, *Nonparametric Statistical Methods*, 3.3). Fewer than six differences give an unbounded interval. Ranks
    of six to nine cannot say more than 0.97 to 0.996, however clear the case is: beyond, the interval is Student's,
    around the mean, and reaches as far as the smallest and largest Walsh average at least. ``differences`` are finite,
    shape (n,).
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


def speedup(base: Series, other: Series, level: float = LEVEL) -> Interval:
    """How many times as fast ``other`` is: the exponential of the Hodges-Lehmann estimate of their log-ratios.

    Where other processes took up to a share ``p`` of a reading, the model itself took between ``(1 - p) ns`` and
    ``ns``, so each undisturbed log-ratio lies between ``log((1 - p_b) ns_b / ns_o)`` and ``log(ns_b / ((1 - p_o)
    ns_o))``. Walsh averages, and with them the ends of the interval, never fall when a log-ratio rises. Hence the
    interval of the undisturbed readings lies within the lower end of that of all smallest ratios and the upper end of
    that of all largest ones, which is what is returned: it covers the truth at least as often, however preemption is
    spread over models and blocks. The estimate is that of the readings without what was taken.

    Where processes differ by more than their blocks explain, the interval reaches as much farther (:func:`_between`),
    and where other processes computed meanwhile, by what moments differ then (:func:`_moment`). It is (0, inf) where
    there are too few readings for the level. Readings without noise have the ratio of one pair, and a model has that of
    1 to itself. Both were read in the same blocks.
    """
    if base is other:
        return Interval.exactly(1.0)
    if base.exact and other.exact:
        return Interval.exactly(float(base.ns[0] / other.ns[0]))
    ratios = np.log(np.asarray(base.ns, float) / np.asarray(other.ns, float))
    less, more = np.log1p(-np.asarray(base.taken)), -np.log1p(-np.asarray(other.taken))
    low, high = (hodges_lehmann(ratios + d, level) for d in (less, more))
    value = hodges_lehmann(ratios + less + more, level).value
    groups = _by_process(base, other)
    moment = _moment(groups, level) if base.busy else 0.0
    apart = float(np.hypot(_between(groups, _before(base, other), level), moment))
    down, up = (float(np.hypot(reach, apart)) for reach in (value - low.low, high.high - value))
    return Interval(*(float(np.exp(x)) for x in (value, value - down, value + up)))


def _by_process(base: Series, other: Series) -> list[np.ndarray]:
    """Log-ratios without what others took, of each process that has enough blocks to say something."""
    if base.processes is None:
        return []
    own = np.log(base.ns / other.ns) + np.log1p(-np.asarray(base.taken)) - np.log1p(-np.asarray(other.taken))
    found = [own[base.processes == number] for number in np.unique(base.processes)]
    return [ratios for ratios in found if len(ratios) >= _LEAST_OF_A_PROCESS]


def _before(base: Series, other: Series) -> list[np.ndarray]:
    """The same of earlier processes that both were read in."""
    old, new = base.earlier, other.earlier
    return [] if old is None or new is None or len(old) != len(new) else _by_process(old, new)


def _between(groups: Sequence[np.ndarray], before: Sequence[np.ndarray], level: float) -> float:
    """How far the mean of what processes drew once may be from what it is in all processes, to each side.

    A random effect of the process, by moments: the variance of the processes' estimates, less what their blocks
    explain, and Student's interval of as many values as there are processes. Earlier processes count for the variance,
    not for the mean: they ran at another moment, when the machine may have been busy with something else. Two would
    need an interval of 12.7 standard errors, which says nothing: it is taken as of three.

    By simulation with three processes of eight blocks: where processes differ by 1 % and blocks by as much, signed
    ranks alone cover the truth in 65 % of cases, with this in 92 %; the interval is half as wide again where processes
    do not differ, a fifth with six of them. With three earlier ones, it is covered in 97 %, by intervals a third
    narrower; where moments differ by 2 % and nothing else does, in 56 % in place of 22 %.
    """
    known = [*groups, *before]
    if not groups or len(known) < 2:
        return 0.0
    centers, spread = _within(known)
    explained = _HL_VARIANCE * spread * float(np.mean([1.0 / len(own) for own in known]))
    variance = max(0.0, float(centers.var(ddof=1)) - explained)
    return _student(max(len(known), 3), level) * float(np.sqrt(variance / len(groups)))


def _moment(groups: Sequence[np.ndarray], level: float) -> float:
    """How far the mean of one moment on a busy machine may be from that of all moments, to each side.

    No run is long enough to tell from its own readings, so it is taken in proportion to how its blocks scatter.
    ``groups`` are log-ratios of the blocks of each process, read within seconds.
    """
    if not groups:
        return 0.0
    return NormalDist().inv_cdf((1.0 + level) / 2.0) * _MOMENTS * float(np.sqrt(_within(groups)[1]))


def _within(groups: Sequence[np.ndarray]) -> tuple[np.ndarray, float]:
    """The estimate of each process, shape (processes,), and the variance of a block around it, by the MAD."""
    centers = np.array([hodges_lehmann(own).value for own in groups])
    within = np.concatenate([np.abs(own - center) for own, center in zip(groups, centers, strict=True)])
    return centers, (_MAD * float(np.median(within))) ** 2 * within.size / (within.size - len(groups))


@dataclass(frozen=True)
class PooledVariance:
    """Variance of the log-ratios of many comparisons of a few pairs each.

    Signed ranks need six pairs. Where there is time for two or three pairs of each scheme, though for many schemes, how
    log-ratios scatter is estimated from all of them, better and better. Without noise the variance is 0, and every true
    gain is shown.
    """

    squares: float = 0.0  # sum of squared deviations from the mean of their comparison
    freedom: int = 0  # degrees of freedom

    def including(self, ratios: Sequence[float]) -> PooledVariance:
        """The variance with the log-ratios of one more comparison; a single ratio says nothing about it."""
        if len(ratios) < 2:
            return self
        mean = sum(ratios) / len(ratios)
        return PooledVariance(self.squares + sum((r - mean) ** 2 for r in ratios), self.freedom + len(ratios) - 1)

    @property
    def is_known(self) -> bool:
        """Whether it is not small by mere chance."""
        return self.freedom >= _MIN_FREEDOM

    @property
    def deviation(self) -> float:
        """Standard deviation of a single log-ratio; doubled while the variance may be small by chance."""
        if not self.freedom:
            return math.inf
        plain = math.sqrt(self.squares / self.freedom)
        return plain if self.is_known else 2 * plain

    def shows_gain(self, ratios: Sequence[float], least: float = 1.0) -> bool:
        """Whether the mean of log-ratios exceeds that of ``least`` clearly; the variance includes them."""
        error = self.deviation / math.sqrt(len(ratios))
        return sum(ratios) / len(ratios) - math.log(least) > max(_STANDARD_ERRORS * error, _MIN_EXCESS)


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
