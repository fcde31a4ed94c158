"""What judged samples show of a model's accuracy on new ones, and which of several models that speaks for.

What is promised is what can be stated: a model is preferred to faster ones where the statement on new samples reaches
the bound for it and not for them, unless it hardly gains and loses much. Where it does for none, the statement nearest
to the bound decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from inlay.prepare.options import DEFAULT_MIN_SQNR_DB
from inlay.quant.accuracy import Bound
from inlay.quant.metric_limits import MetricStatement
from inlay.quant.tolerance import FEW, Statement
from inlay.run.evaluation.judging import Verdict
from inlay.trial import counted, plain

T = TypeVar("T")
Rank = tuple[bool, bool, float, float, float]

STURDY_PRICE = 0.1
"""Share of the speed that a model may be slower than another one which loses too much on varied samples, or is less
sure."""
LEAST_STURDY = 1.05
"""Speed-up that it must promise: smaller gains are hard to prove, so that only the most promising one has a chance."""


@dataclass(frozen=True)
class Evidence:
    """What samples, each judged with ranges that it had no part in, say of one model."""

    bound: Bound  # that was asked for
    statement: Statement  # on the SQNR of new samples
    metric: MetricStatement | None = None  # the same of a metric; None where there is none, or nothing is known of it
    # what the worst variation of the samples lacks, beyond what variations may lose. It counts where fewer than `FEW`
    # samples were judged: variations are further samples then.
    varied_lacks_db: float = 0.0
    searched_db: float = 0.0  # SQNR on the samples that the search looked at, which decides where nothing else is known
    # what the user's own evaluation says of the model; None where there is none, or it was not needed
    evaluated: Verdict | None = None
    unseen_db: float | None = None  # SQNR on samples that neither calibration nor search has seen
    usual_db: float = DEFAULT_MIN_SQNR_DB  # SQNR to go by where an evaluation alone is bounded, and shows nothing

    @property
    def shows(self) -> bool:
        """Whether the bound is stated for new samples; without a bound there is nothing to state."""
        if self._varied_too_far or self._noisier_db or (self.evaluated is not None and not self.evaluated.shows):
            return False
        by_sqnr = self.bound.min_sqnr_db is None or self.statement.keeps_bound is True
        return by_sqnr and (
            self.bound.max_drop is None or (self.metric is not None and self.metric.keeps_bound is True)
        )

    @property
    def breaks(self) -> bool:
        """Whether the judged samples themselves break the bound: then it is not a matter of how many there are."""
        by_metric = self.metric is not None and self.metric.breaks_bound
        by_evaluation = self.evaluated is not None and self.evaluated.breaks
        return self.statement.breaks_bound or by_metric or by_evaluation or self.lost_unseen_db > 0.0

    @property
    def lacks_db(self) -> float:
        """SQNR that a model needs beyond this one's for its bound to be stated, in dB; 0 where that cannot be told."""
        limit, least = self.statement.limit_db, self.bound.min_sqnr_db
        lacking = 0.0 if limit is None or least is None else max(0.0, least - limit)
        by_evaluation = 0.0 if self.evaluated is None else self.evaluated.lacks_db(self.searched_db)
        by_variations = self.varied_lacks_db if self._varied_too_far else 0.0
        return max(lacking, by_evaluation, self._noisier_db, by_variations, self.below_usual_db)

    @property
    def below_usual_db(self) -> float:
        """What the search's SQNR lacks of the usual bound, in dB; 0 where something else says what is enough.

        Where the user's own evaluation alone is bounded, and shows nothing, that is all there is to go by.
        """
        return 0.0 if self.shows else self._lacks_of_usual(self.searched_db)

    @property
    def lost_unseen_db(self) -> float:
        """The same of unseen samples: a search that holds to it on its own must not deliver less on others."""
        shown = self.evaluated is None or self.evaluated.shows
        return 0.0 if shown or self.unseen_db is None else self._lacks_of_usual(self.unseen_db)

    def _lacks_of_usual(self, sqnr_db: float) -> float:
        bounded = self.bound.min_sqnr_db is not None or self.evaluated is None
        return 0.0 if bounded else max(0.0, self.usual_db - sqnr_db)

    @property
    def rank(self) -> Rank:
        """The larger of two is nearer to its bound: by what it breaks, limits of metric and SQNR, and the search.

        What is no noisier than is usual goes before all that is, where nothing is shown of either.
        """
        drop = math.inf if self.metric is None or self.metric.most_drop is None else self.metric.most_drop
        drop = 0.0 if self.bound.max_drop is None else drop
        said = self.statement
        known = said.least_db if said.all_exact else said.limit_db
        limit = -math.inf if known is None else known
        fall = 0.0 if self.evaluated is None else self.evaluated.expected_fall(self.searched_db, self._noisier_db)
        return (not self.breaks, not self.below_usual_db, -drop - fall, limit, self.searched_db)

    def __str__(self) -> str:
        """Why the bound is not shown, and what would show it; empty where it is."""
        if self.shows:
            return ""
        if self.breaks:
            return self.broken
        parts = [self._of_sqnr] if self.bound.min_sqnr_db is not None and not self.statement.keeps_bound else []
        if self.bound.max_drop is not None and not (self.metric is not None and self.metric.keeps_bound):
            parts.append(self._of_metric)
        if self.evaluated is not None and not self.evaluated.shows:
            parts.append(self.evaluated.why)
        if self._noisier_db and self.unseen_db is not None:
            parts.append(
                f"{self.evaluated} keeps its bound, but unseen samples have {self.unseen_db:.1f} dB, and by the models "
                f"that were evaluated {self.unseen_db + self._noisier_db:.1f} dB are needed"
            )
        if not parts:
            lost = f"{self.varied_lacks_db:.1f} dB too much on variations of them"
            judged = f"{counted(self.statement.samples, 'sample')} judged"
            parts.append(f"{judged}, too few to rely on, and the model loses {lost}")
        return "; ".join(parts)

    @property
    def broken(self) -> str:
        """What the judged samples themselves break; empty where they break nothing."""
        parts, said, metric = [], self.statement, self.metric
        if said.breaks_bound:
            of = "SQNR of 1 sample" if said.samples == 1 else f"mean SQNR of {said.samples} samples, judged one by one,"
            parts.append(f"the {of} is {said.mean_db:.1f} dB, below the {said.bound_db:g} dB required")
        if metric is not None and metric.breaks_bound:
            parts.append(f"{metric.name} falls {metric.fallen}, more than the {metric.max_drop:g} allowed")
        if self.evaluated is not None and self.evaluated.breaks:
            parts.append(self.evaluated.why)
        if self.lost_unseen_db and self.evaluated is not None:
            parts.append(
                f"its SQNR is {self.unseen_db:.1f} dB, below the {self.usual_db:g} dB that are asked for where the "
                f"evaluation does not show its bound: {self.evaluated.why}"
            )
        return "; ".join(parts)

    @property
    def _noisier_db(self) -> float:
        """What unseen samples lack of what evaluated models say is needed, where the evaluation told of no samples.

        Such an evaluation may rest on the very data that ranges and placements were chosen by, or on few.
        """
        evaluated = self.evaluated
        if evaluated is None or self.unseen_db is None or evaluated.needs_db is None or not evaluated.shows:
            return 0.0
        by_samples = any(score.statement is not None for score in evaluated.scores)
        return 0.0 if by_samples else max(0.0, evaluated.needs_db - self.unseen_db)

    @property
    def _varied_too_far(self) -> bool:
        return self.varied_lacks_db > 0.0 and self.statement.samples < FEW

    @property
    def _of_sqnr(self) -> str:
        said, least = self.statement, f"{self.bound.min_sqnr_db:g} dB"
        if not said.samples:
            return (
                f"no sample could be judged with ranges chosen without it, but {least} is required; give more samples"
            )
        judged = f"{counted(said.samples, 'sample')} judged"
        if said.all_exact:
            unknown = f"all of them exact, which does not show how far others are from float, but {least} is required"
            return f"{judged}, {unknown}; {said.would_show} samples like these would show {least}"
        if said.limit_db is None:
            return f"{judged}, which says nothing about new ones, but {least} is required; give more samples"
        share = f"at least {said.share:.0%} of new samples keep"
        limit = (
            f"{share} {said.limit_db:.1f} dB each" if said.limit_db > 0.0 else f"{share} no SQNR that could be stated"
        )
        if said.would_show is None:
            more = f"more samples like these would not show {least}"
        else:
            more = f"about {said.would_show} samples like these would show {least}"
        return f"with {judged}, {limit}, but {least} is required; {more}"

    @property
    def _of_metric(self) -> str:
        found, most = self.metric, f"{self.bound.metric} at most {self.bound.max_drop:g} below float"
        if found is None:
            return f"too few samples were judged to say anything about new ones, but {most} is required"
        limit = found.why or f"new samples may lose up to {plain(found.most_drop)}"
        more = (
            "more samples like these would not show it"
            if found.needed is None
            else f"{found.needed} samples would show it"
        )
        return f"with {counted(found.samples, 'sample')} judged, {limit}, but {most} is required; {more}"


def is_worth(speedup: float, faster: float) -> bool:
    """Whether a model is worth having in place of a ``faster`` one that is less sure.

    Not where it hardly gains and loses much: so does the given model, which is exact.
    """
    return speedup >= min(LEAST_STURDY, (1.0 - STURDY_PRICE) * faster)


def most_credible(offered: Iterable[T], evidence: Callable[[T], Evidence | None], speedup: Callable[[T], float]) -> T:
    """The first whose bound is shown, or of which nothing can be told; where there is none, the one nearest to it.

    Args:
        offered: at least one, the preferred first; no more of them are looked at than are needed.
        evidence: what is known of one; None where there is nothing to show.
        speedup: of one. What is not worth having in place of the preferred one does not count, and none that hardly
            gains is taken for being nearer.
    """
    nearest: tuple[Rank, T] | None = None
    fastest = 0.0
    for each in offered:
        if nearest is not None and not is_worth(speedup(each), fastest):
            continue
        found = evidence(each)
        if found is None or found.shows:
            return each
        if nearest is None:
            nearest, fastest = (found.rank, each), speedup(each)
        elif found.rank > nearest[0] and speedup(each) >= LEAST_STURDY:
            nearest = found.rank, each
    assert nearest is not None, "there is at least one"
    return nearest[1]
