"""What judged samples say about samples to come: lower tolerance limits of their accuracy.

A tolerance limit is kept by at least a ``share`` of all samples of this kind, with a ``confidence`` in the drawing of
those that were judged. From enough samples it is one of their order statistics, whatever their distribution (Wilks
1941), and from 40 on one that a user who counts finds true, too: of as many new samples as were judged, the ``share``
keeps it with that confidence. Without that, limits of 64 samples are broken by as many others in 8 % of all draws,
though in 5 % at most by the kind itself: few new ones scatter as much as those that were judged. From fewer samples it
is ``mean - k s``, which takes the SQNR in dB to be normally distributed, but no more than the worst of them, which is
the limit of enough. A few samples tell neither how much samples differ nor what another source is like, so that both
come in part from other models:

- ``s`` is the observed spread blended with that of trained models (:data:`USUAL_SPREAD_DB`), a scaled inverse
  chi-squared prior of :data:`USUAL_WEIGHT` degrees of freedom, conjugate to the variance (Gelman et al., Bayesian Data
  Analysis, 3.3): ``s^2 = (w u^2 + (n - 1) s_n^2 / (1 - h)) / (w + n - 1)``, where ``h`` is hidden, as below.
- Samples of one source share what is particular to it, a part ``r``, :data:`BETWEEN_SOURCES`, of the variance. One
  source tells nothing of others, however many of its samples are judged, so that this part is assumed, and so is how
  many samples are of one: all, up to :data:`FEW`, and each beyond these is of its own. A limit of few samples is
  then for other sources as well, and one of many for samples drawn as those given, whatever these were drawn from, as
  is the order statistic that follows it. With ``q`` samples in a sample's own source in the mean, ``n`` tell as much
  of the mean as ``n / (1 + (q - 1) r)`` independent ones (Kish's design effect, 1965), and their spread hides
  ``h = r (q - 1) / (n - 1)`` of the variance.
- ``k`` is then the factor of the noncentral t distribution (Owen 1963) for that many samples and ``w + n - 1`` degrees
  of freedom: with ``mean - mu = -s_true z / sqrt(m)`` the quantile ``mu - z_share s_true`` is above ``mean - k s`` with
  the confidence asked for.

Samples that are all as close to float as its own rounding have no distribution of dB to go by: their outputs are
saturated or decisions, and a sample that is not like them is of another kind. Only the counting of enough helps there.

Where a few samples are far worse than the others, or the dB are skewed to the bad side, such limits of 2 to 16 samples
are broken more often than stated, in up to 60 % of draws without the prior, by simulation: so what holds without any
assumption is told beside it, the share of new samples that keeps the worst of those judged, if they were drawn
independently: many views of one scene count as one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from inlay.trial import counted

Assumption = Literal["distribution-free", "normal", "none"]
"""What a limit takes for granted beside independent samples; ``none``: there is no limit."""

SHARE = 0.9  # of new samples that keep a limit: the rarest tenth asks for more samples than most users have
CONFIDENCE = 0.95  # as for every interval that is reported
MAX_DB = 120.0  # SQNR above which differences are those of float rounding, and no spread
USUAL_SPREAD_DB, USUAL_WEIGHT = 2.0, 1.0
"""Standard deviation between samples that a model has before any is judged, and degrees of freedom that this is worth.
Both are such that the logarithms of the spreads of 13 trained models have the prior's mean and variance (Smyth 2004):
with 0.3, 1.3, 1.5, 1.6, 2.0, 2.7, 4.3, 4.6, 5.5, 8.0, 10, 10 and 14 dB within a source (means over the placements of
``benchmarks/results/few_samples.json``) and what lies between sources, these come to 2.0 dB and 1.1; without any one
of the models to 1.8 to 2.9 dB and 1.0 to 1.4. As models differ more than tenfold, two or three samples that agree by
chance are little proof."""
BETWEEN_SOURCES = 0.4
"""Share of the variance between samples that is between sources, such as photographs of which several views are given:
that of those of the same models whose two sources differ most (0.43, 0.39, 0.34; 0.2 in three, hardly any in seven)."""
FEW = 8
"""Judged samples below which how much they differ cannot be estimated from themselves, and of which all may be of one
source: who gives more is taken to give others."""
_MOST_NEEDED = 100_000  # samples beyond which a number that would be needed helps nobody


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What can be said of the accuracy of new samples."""

    # SQNR of the worst output that at least `share` of new samples keep; None where that cannot be said, as of one
    # sample, or of fewer than enough that are all exact
    limit_db: float | None
    share: float  # of new samples
    confidence: float  # that it is so
    samples: int  # how many were judged
    assumption: Assumption  # behind `limit_db`
    least_db: float | None  # the worst of those judged; None without any
    # how many would have to be judged for a limit at the bound without an assumption; None where too many of those
    # judged are below the bound for any number to help
    needed: int | None
    bound_db: float | None = None  # least SQNR that was asked for, or None
    share_of_least: float = 0.0  # of new samples that keep `least_db`, with the same confidence and no assumption
    # how many samples like these would state the bound, with or without the assumption; None where that is not known,
    # or no number would
    would_show: int | None = None
    mean_db: float | None = None  # of those judged; None without any

    @property
    def breaks_bound(self) -> bool:
        """Whether the judged samples themselves are below the bound in the mean: no question of how many there are."""
        return self.bound_db is not None and self.mean_db is not None and self.mean_db < self.bound_db

    @property
    def keeps_bound(self) -> bool | None:
        """Whether the bound on the SQNR is stated for new samples; None without such a bound."""
        return None if self.bound_db is None else self.limit_db is not None and self.limit_db >= self.bound_db

    @property
    def all_exact(self) -> bool:
        """Whether there is no limit because all of several samples are as close to float as its own rounding."""
        return self.limit_db is None and self.samples > 1

    def as_json(self) -> dict[str, Any]:
        """As in ``result.json``."""
        return {**asdict(self), "keeps_bound": self.keeps_bound, "sentence": str(self)}

    def __str__(self) -> str:
        judged = f"{counted(self.samples, 'sample')} judged"
        if self.all_exact:
            said = f"{judged}, all of them exact, which does not show how far others are from float; "
            said += f"whatever their distribution, {self._share_of_least} of new samples keep {self.least_db:.1f} dB"
        elif self.limit_db is None:
            said = f"nothing can be said about new samples: {judged}"
        elif self.limit_db < 0.0 <= (self.least_db or 0.0):  # more noise than signal would be no promise
            said = f"nothing can be said about new samples: {judged}, too few given how much they differ"
        else:
            said = (
                f"at least {self.share:.0%} of new samples of this kind keep {self.limit_db:.1f} dB each, with "
                f"{self.confidence:.0%} confidence, "
            )
            if self.assumption == "distribution-free":
                said += f"whatever their distribution ({judged} one by one, the worst at {self.least_db:.1f} dB)"
            else:
                alone = f"as the worst of {self.samples} judged one by one does"
                free = f"{self._share_of_least} keep {self.least_db:.1f} dB, {alone}"
                alike = " and differ as those of other models do" if self.samples < FEW else ""
                said += f"if their dB are normally distributed{alike}; whatever their distribution, {free}"
        if self.limit_db is not None and self.keeps_bound is not False and self.assumption == "distribution-free":
            return said
        goal = "a limit" if self.bound_db is None else f"{self.bound_db:g} dB"
        if self.needed is None:
            return f"{said}; more samples would not show {goal}: too many of these are below it"
        if self.needed <= self.samples:
            return said
        return f"{said}; {self.needed} samples would be needed to state {goal} without an assumption"

    @property
    def _share_of_least(self) -> str:
        return f"{int(100.0 * self.share_of_least)}%"


def state(each_db: Sequence[float], bound_db: float | None = None) -> Statement:
    """What the SQNR of samples, each judged with ranges that it had no part in, says about new samples."""
    db = np.sort(np.minimum(np.asarray(each_db, np.float64), MAX_DB))
    below = 0 if bound_db is None else int(np.count_nonzero(db < bound_db))
    needed = samples_needed(below / max(db.size, 1))
    limit, assumption = _limit(db)
    least = float(db[0]) if db.size else None
    free = (1.0 - CONFIDENCE) ** (1.0 / db.size) if db.size else 0.0  # Wilks: the worst of n, by the n-th power
    enough = _would_show(db, bound_db) or needed
    mean = float(db.mean()) if db.size else None
    return Statement(
        limit_db=limit,
        share=SHARE,
        confidence=CONFIDENCE,
        samples=int(db.size),
        assumption=assumption,
        least_db=least,
        needed=needed,
        bound_db=bound_db,
        share_of_least=free,
        would_show=enough,
        mean_db=mean,
    )


def short_db(each_db: Sequence[float] | np.ndarray, bound_db: float, samples: int) -> float | None:
    """How many dB more a model of these judgements needs, for ``samples`` like them to state the bound.

    Returns:
        0 where they state it as they are; None where that cannot be said, as of one sample, or where all are exact.
    """
    db = np.sort(np.minimum(np.asarray(each_db, np.float64), MAX_DB))
    count = max(samples, db.size)
    if db.size and count >= (samples_needed() or count + 1):
        below = int((_rank(count) - 1) / count * db.size)  # so many of these may be below the bound
        return max(0.0, bound_db - float(db[below]))
    if db.size < 2 or db[0] >= MAX_DB:
        return None
    limit_db = float(db.mean()) - _factor(count) * spread_db(db, _hidden(db.size))
    return max(0.0, bound_db - min(float(db[0]), limit_db))


@cache
def samples_needed(failing: float = 0.0) -> int | None:
    """The fewest samples whose order statistic is a limit, when a fraction ``failing`` of them may lie below it.

    None where no number, or too large a one, would do.
    """
    if failing >= 1.0 - SHARE:
        return None
    n = int(np.ceil(np.log(1.0 - CONFIDENCE) / np.log(SHARE) - 1e-9))
    while _rank(n) <= np.ceil(failing * n - 1e-9):
        n += max(1, n // 50)
        if n > _MOST_NEEDED:
            return None
    return n


def _limit(db: np.ndarray) -> tuple[float | None, Assumption]:
    """The limit from sorted values, and its assumption."""
    rank = _rank(db.size)
    if rank:
        return float(db[rank - 1]), "distribution-free"
    if db.size < 2 or db[0] >= MAX_DB:
        return None, "none"
    spread = spread_db(db, _hidden(db.size))
    return min(float(db[0]), float(db.mean()) - _factor(db.size) * spread), "normal"


def spread_db(db: np.ndarray, shared: float = 0.0) -> float:
    """Standard deviation of values of the SQNR in dB, shape (n,): the observed one blended with the usual one.

    Args:
        shared: share of the variance that they do not show, as they are of one source.
    """
    known, squares = db.size - 1, float(np.square(db - db.mean()).sum()) / (1.0 - shared)
    return float(np.sqrt((USUAL_WEIGHT * USUAL_SPREAD_DB**2 + squares) / (USUAL_WEIGHT + known)))


def _would_show(db: np.ndarray, bound_db: float | None) -> int | None:
    """The fewest samples, with mean and spread like these, whose limit is at the bound; None where no few would do.

    With one below the bound among them, none would: the limit by mean and spread is never above the worst.
    """
    if bound_db is None or db.size < 2 or db[0] >= MAX_DB or db[0] < bound_db:
        return None
    spare, spread = float(db.mean()) - bound_db, spread_db(db, _hidden(db.size))
    most = samples_needed() or 0
    return next((n for n in range(db.size, most) if _factor(n) * spread <= spare), None)


def _of_own_source(n: int) -> float:
    """How many of ``n`` samples, itself among them, are of a sample's own source, in the mean over samples."""
    first = min(n, FEW)
    return (first * first + n - first) / n


def _hidden(n: int) -> float:
    """Share of the variance that the spread of ``n`` samples does not show: of pairs of one source, what they share."""
    return BETWEEN_SOURCES * (_of_own_source(n) - 1.0) / (n - 1)


@cache
def _rank(n: int) -> int:
    """The largest k whose k-th smallest of ``n`` values is a limit; 0 where none is.

    The k-th smallest is one if at least k of n values lie below the ``1 - share`` quantile with that confidence, and
    if the ``share`` of ``n`` new values keeps it with that confidence, where the smallest of all does.
    """
    from scipy.special import betainc  # loads in a third of the time that its binomial distribution takes

    ranks = np.arange(1, n + 1)
    at_least = betainc(ranks, n - ranks + 1, 1.0 - SHARE)  # that so many of n values lie below
    of_kind = int(np.count_nonzero(at_least >= CONFIDENCE - 1e-12))
    allowed = 1.0 - CONFIDENCE + 1e-12
    of_new = bisect_right(range(1, of_kind + 1), allowed, key=lambda k: _broken_by_as_many(k, n))
    return max(min(of_kind, 1), of_new)


def _broken_by_as_many(rank: int, n: int) -> float:
    """How likely fewer than the ``share`` of ``n`` new values keep the ``rank``-th smallest of ``n``.

    That is, more than ``f``, all that may lie below it, do: of the first ``rank + f`` of all 2 n values fewer than
    ``rank`` are old. Every choice of n old ones among 2 n is as likely as another, so their number is hypergeometric.
    """
    from scipy.special import gammaln

    first = rank + int((1.0 - SHARE) * n + 1e-9)
    old = np.arange(max(0, first - n), min(rank, first + 1))

    def log_choices(total: Any, chosen: Any) -> Any:
        return gammaln(total + 1.0) - gammaln(chosen + 1.0) - gammaln(total - chosen + 1.0)

    ways = log_choices(n, old) + log_choices(n, first - old) - log_choices(2.0 * n, first)
    return float(np.exp(ways).sum())


@cache
def _factor(n: int) -> float:
    """Standard deviations between mean and limit of ``n`` normal values, of which the first few are of one source."""
    from scipy.special import nctdtrit, ndtri  # as above: their distributions take a second or two

    alike = n / (1.0 + (_of_own_source(n) - 1.0) * BETWEEN_SOURCES)
    return float(nctdtrit(USUAL_WEIGHT + n - 1, ndtri(SHARE) * np.sqrt(alike), CONFIDENCE) / np.sqrt(alike))
