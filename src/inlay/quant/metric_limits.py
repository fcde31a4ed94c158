"""What a metric of judged samples says about samples to come: an upper limit of its drop against float.

Where the metric counts hits, the limit is exact, from the binomial counts (Clopper and Pearson 1934). Of any other
metric it is a bootstrap's (BCa, Efron 1987), with float and the other model on the same drawn samples: approximate, and
of few samples, or where none of them changed the metric, nothing at all.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from inlay.deadline import Clock
from inlay.errors import InlayError
from inlay.quant.tolerance import CONFIDENCE
from inlay.trial import counted, floored, plain, shown_seconds

Method = Literal["exact", "bootstrap", "none"]  # where a limit comes from; `none`: there is no limit

LEAST_RESAMPLED = 20
"""Samples of a bootstrap: limits of the mean of skewed values hold in 86 to 97 % of draws of 20 and more, in 76 to 87 %
of draws of 8, by simulation (normal, exponential, lognormal), where 95 % are stated."""
_RESAMPLES = (999, 199)
"""Draws of a bootstrap: with the original, limits of 95 % are order statistics of 1000, or 200 of a slow metric."""
RESAMPLING_S, CHOOSING_S = 60.0, 2.0
"""Seconds for all draws, beside the minutes that a run takes: for what is delivered, and for each that may be."""
_MOST_NEEDED = 100_000  # samples beyond which a number that would be needed helps nobody


@dataclass(frozen=True, eq=False, kw_only=True)
class Pairs:
    """A metric of float and of another model on the same samples."""

    name: str  # of the metric
    value: float  # of the other model
    drop: float  # float's minus it
    samples: int  # how many, at least one
    # where the metric is a share of hits: for each, whether float has it and whether the other model has it, shape
    # (hits,); None for other metrics
    hits: tuple[np.ndarray, np.ndarray] | None
    is_agreement: bool  # float has all hits by definition
    # the drop over the samples with these indices, shape (n,). Raises InlayError where there is none.
    drop_of: Callable[[np.ndarray], float]
    higher_is_better: bool = True  # otherwise the drop is how far it rises above float's


@dataclass(frozen=True, kw_only=True)
class MetricStatement:
    """What can be said of a metric on new samples."""

    name: str  # of the metric
    value: float  # on the judged samples
    drop: float  # float's value minus it
    # what the drop does not exceed on new samples, with `confidence`; None where nothing can be said
    most_drop: float | None
    confidence: float  # that it is so
    samples: int  # how many were judged
    method: Method  # behind `most_drop`
    # of how many counts float and the delivered model have which: both or only the delivered one (`right`), only float
    # (`lost`), only the delivered one (`won`), all (`of`); None where nothing is counted
    hits: dict[str, int] | None = None
    # how many counts (or samples) would be needed to state `max_drop` if they were like these; None where no number
    # would do
    needed: int | None = None
    max_drop: float | None = None  # most drop that was asked for, or None
    why: str = ""  # there is no limit; empty where there is one
    higher_is_better: bool = True  # otherwise drops are how far it rises above float's

    @property
    def breaks_bound(self) -> bool:
        """Whether the judged samples themselves fall too far: no question of how many there are."""
        return self.max_drop is not None and self.drop > self.max_drop + 1e-12

    @property
    def fallen(self) -> str:
        """How far it falls on the judged samples, in what it counts where it counts."""
        if self.hits is not None:
            return f"by {self.hits['lost'] - self.hits.get('won', 0)} of {self.hits['of']} ({plain(self.drop, 4)})"
        return f"by {plain(self.drop, 4)} on {counted(self.samples, 'sample')}"

    @property
    def keeps_bound(self) -> bool | None:
        """Whether the bound on the drop is stated for new samples; None without such a bound."""
        return None if self.max_drop is None else self.most_drop is not None and self.most_drop <= self.max_drop

    def as_json(self) -> dict[str, Any]:
        """As in ``result.json``."""
        return {**asdict(self), "keeps_bound": self.keeps_bound, "sentence": str(self)}

    def __str__(self) -> str:
        said = f"{self._judged}: {self._limit}"
        if self.max_drop is None or self.keeps_bound:
            return said
        goal = f"to state a drop of at most {self.max_drop:g}"
        if self.method == "none" and not self.breaks_bound:
            return said
        if self.needed is None:
            return f"{said}; more samples would hardly help {goal}: it is {plain(self.drop, 4)} on these"
        about = "" if self.method == "exact" else "about "
        return f"{said}; {about}{self.needed} would be needed {goal}"

    @property
    def _judged(self) -> str:
        if self.hits is None:
            worse = f"{plain(self.drop, 4)} {self._side} float"
            return f"{self.name} {self.value:.4f} on {counted(self.samples, 'sample')}, {worse}"
        count = self.hits["right"] if self.higher_is_better else self.hits["of"] - self.hits["right"]
        right = f"{self.name} {count} of {self.hits['of']}"
        return right if "won" not in self.hits else f"{right} ({self.hits['lost']} lost, {self.hits['won']} won)"

    @property
    def _side(self) -> str:
        return "below" if self.higher_is_better else "above"

    @property
    def _limit(self) -> str:
        if self.most_drop is None:
            return self.why
        sure = f"with {self.confidence:.0%} confidence"
        if self.hits is not None and "won" not in self.hits:
            return f"at least {floored(1.0 - self.most_drop)} % of new ones, {sure}"
        by = " by a bootstrap" if self.method == "bootstrap" else ""
        return f"at most {plain(self.most_drop)} {self._side} float on new samples, {sure}{by}"


def state_metric(
    pairs: Pairs,
    max_drop: float | None,
    rng: np.random.Generator,
    clock: Clock,
    limit_s: float = RESAMPLING_S,
) -> MetricStatement:
    """What judged samples say about a metric on new ones.

    Args:
        pairs: of both models, each sample judged with ranges that it had no part in.
        clock: seconds.
        limit_s: for the bootstrap of a metric that does not count hits; one that is too slow for it has no limit.
    """
    statement = partial(
        MetricStatement,
        name=pairs.name,
        value=pairs.value,
        drop=pairs.drop,
        confidence=CONFIDENCE,
        samples=pairs.samples,
        max_drop=max_drop,
        higher_is_better=pairs.higher_is_better,
    )
    if pairs.hits is not None:
        limit, lost, won, of = _of_hits(pairs)
        counts = {"right": int(np.count_nonzero(pairs.hits[1])), "of": of, "lost": lost}
        counts = counts if pairs.is_agreement else {**counts, "won": won}
        needed = None if max_drop is None else hits_needed(lost / of, won / of, max_drop, pairs.is_agreement)
        return statement(most_drop=limit, method="exact", hits=counts, needed=needed)
    found = _resampled(pairs, rng, clock, limit_s)
    if isinstance(found, str):
        is_open = max_drop is None or pairs.drop <= max_drop
        needed = LEAST_RESAMPLED if pairs.samples < LEAST_RESAMPLED and is_open else None
        return statement(most_drop=None, method="none", hits=None, needed=needed, why=found)
    needed = None
    if max_drop is not None and pairs.drop < max_drop:  # the distance to the limit falls with the square root
        times = ((found - pairs.drop) / (max_drop - pairs.drop)) ** 2
        needed = int(np.ceil(pairs.samples * times)) if pairs.samples * times <= _MOST_NEEDED else None
    return statement(most_drop=found, method="bootstrap", hits=None, needed=needed)


def most_lost(lost: int, won: int, of: int, is_agreement: bool = False) -> float:
    """Upper limit of the share that is lost less the share that is won: exact, from the two binomial counts.

    Each count has its exact limit at half the error, so that both hold together; an agreement can win nothing, and
    its limit has all of it.

    Args:
        lost: hits that only float has.
        won: hits that only the other model has.
        of: in all, at least one.
        is_agreement: float has all hits by definition.
    """
    from scipy.special import betaincinv  # takes long to load

    tail = 1.0 - CONFIDENCE if is_agreement else (1.0 - CONFIDENCE) / 2.0
    high = float(betaincinv(lost + 1, of - lost, 1.0 - tail)) if lost < of else 1.0
    return high - least_share(won, of, tail)


def least_share(count: int, of: int, error: float = 1.0 - CONFIDENCE) -> float:
    """Lower limit of a share that ``count`` of ``of`` were counted of, exact but for such an error."""
    from scipy.special import betaincinv  # takes long to load

    return float(betaincinv(count, of - count + 1, error)) if count else 0.0


def hits_needed(lost: float, won: float, max_drop: float, is_agreement: bool) -> int | None:
    """The fewest counts that state ``max_drop`` where such shares of them are lost and won; None where none would."""
    if lost - won >= max_drop:
        return None
    n = 1
    while most_lost(int(np.ceil(lost * n - 1e-9)), int(won * n + 1e-9), n, is_agreement) > max_drop:
        n += 1 if n < 1000 else n // 50
        if n > _MOST_NEEDED:
            return None
    return n


def _of_hits(pairs: Pairs) -> tuple[float, int, int, int]:
    """The limit, and hits that are lost, won, and all."""
    assert pairs.hits is not None
    ours, theirs = pairs.hits
    lost, won, of = int(np.count_nonzero(ours & ~theirs)), int(np.count_nonzero(theirs & ~ours)), ours.size
    return most_lost(lost, won, of, pairs.is_agreement), lost, won, of


def _resampled(pairs: Pairs, rng: np.random.Generator, clock: Clock, limit_s: float) -> float | str:
    """The limit of a bootstrap, or why there is none."""
    from scipy.stats import bootstrap

    if pairs.samples < LEAST_RESAMPLED:
        return f"nothing can be said about new samples: a bootstrap takes {LEAST_RESAMPLED}"
    indices, begun = np.arange(pairs.samples), clock()
    try:
        pairs.drop_of(indices)
        each_s = clock() - begun
        fits = [n for n in _RESAMPLES if (n + pairs.samples) * each_s <= limit_s]
        if not fits:
            took = shown_seconds(each_s)
            return f"nothing is said about new samples: the metric takes {took}, too long for a bootstrap"
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # of draws that are all alike: there is no limit then
            drawn = bootstrap(
                (indices,),
                pairs.drop_of,
                n_resamples=fits[0],
                vectorized=False,
                confidence_level=CONFIDENCE,
                alternative="less",
                method="BCa",
                rng=rng,
            )
    except InlayError as error:
        return f"nothing can be said about new samples: of some that were drawn there is no metric ({error})"
    limit = float(drawn.confidence_interval.high)
    if np.isfinite(limit):
        return limit
    if pairs.drop or np.ptp(drawn.bootstrap_distribution):
        return "nothing can be said about new samples: the bootstrap has no limit"
    most = 100.0 * (1.0 - (1.0 - CONFIDENCE) ** (1.0 / pairs.samples))
    return f"none of them changes it; at most {most:.1f} % of new ones would, with {CONFIDENCE:.0%} confidence"
