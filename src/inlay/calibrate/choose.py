"""Choose the qparams of a run: a range for every value and corrected biases, by what they do to the outputs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from inlay.calibrate import policy
from inlay.calibrate.clock import FeedsUntil, StepClock
from inlay.calibrate.observe import Observed, halves
from inlay.calibrate.scorer import ExactOutputs, Score
from inlay.calibrate.share import flip_sharing
from inlay.calibrate.table_search import TableSearch
from inlay.calibrate.tables import UNPROBED, CalibrationChoice, FixedQParams, sharing_of
from inlay.data import Feed, evenly_spaced
from inlay.deadline import NEVER, Deadline
from inlay.errors import ModelError, TargetError, TimedOut
from inlay.model.heard import counting, doing
from inlay.prepare.model import PreparedModel
from inlay.quant.observers import METHODS, STRESS, Method
from inlay.quant.qparams import QParamsTable
from inlay.trial import Failed
from inlay.types import Placement

_NONE = Placement()
_ONE_FOR_ALL = "one range method for all values"
_NEAREST = "some weights rounded to the nearest integers"
_FEWER_TRIED = "ranges of single values chosen in fewer trials"


def choose_calibration(
    prepared: PreparedModel,
    observed: Observed,
    placement: Placement,
    feeds: Sequence[Feed],
    score: Score,
    seconds: float,
    *,
    min_sqnr_db: float | None = None,
    methods: Sequence[Method] = METHODS,
    fixed: FixedQParams | None = None,
    clock: Callable[[], float] | None = None,
    deadline: Deadline = NEVER,
    stress_score: Score | None = None,
    products: Placement = _NONE,
    inference_s: float = 0.0,
) -> CalibrationChoice:
    """Choose a method of calibration for every domain of values, how weights are rounded, and corrected biases.

    First one method for all values is chosen and the weights are rounded; then methods for single domains and the
    correction, on ``feeds`` with simulated rounding. Between the contenders ``score`` decides, which uses other samples
    and the real kernels.

    Where ``placement`` is far below the accuracy constraint, a few noisy values drown all others. Then the choice is
    made for ``products``, and where these are below it as well, single domains are chosen for the part that is expected
    to keep it. The products of ``g2p_bert`` had 26 to 28 dB with ranges for all, and 31 dB with their own.

    Args:
        prepared: the model.
        observed: histograms.
        placement: all that may be quantized.
        feeds: calibration samples; without any (or with random ones, which say nothing about ranges) one method serves
            for all.
        score: of a table and a placement, on samples of no scene that the second half of ``feeds`` shows.
        seconds: rough limit of the choice for single domains.
        min_sqnr_db: the accuracy constraint in dB, or None.
        methods: to choose from; earlier ones win ties.
        fixed: qparams that replace the computed ones.
        clock: returns seconds, of which ``seconds`` are; by default one that counts questions, so that a busy machine
            makes the same choice.
        deadline: when all of it must be over. What does not fit is left out, and said so: first the single domains,
            then the rounding, then methods.
        stress_score: as ``score``, on variations of its samples, where ``observed`` knows how far variations reach:
            then ranges that these overrun are widened where that pays, see :func:`_widened`.
        products: the part of ``placement`` in which operators with weights read low precision, and nothing else does.
        inference_s: seconds that the numeric reference takes for a sample.
    """
    clock = clock or StepClock.for_model(prepared)
    started, whole = deadline.clock(), placement
    partial_ranges, least_db = observed.half(1), -math.inf
    if min_sqnr_db is not None and len(products) and len(methods) > 1:
        least_db = min_sqnr_db - policy.RESTRICTION_TOLERANCE_DB
    method, scores = choose_method(prepared, partial_ranges, whole, score, methods, deadline, least_db)
    if scores.get(methods[0], math.inf) < least_db:  # so far that ranges are chosen for products alone
        placement = products
        method, scores = choose_method(prepared, partial_ranges, products, score, methods, deadline)
    single = CalibrationChoice(method, scores=scores)
    if not scores or not feeds:
        return single
    time = _Time(deadline, (deadline.clock() - started) / (len(scores) + (placement != whole)), inference_s)
    if not time.rounds:
        return replace(single, cut=_ONE_FOR_ALL)
    thorough, scoring, selecting = time.is_thorough, time.scoring, time.selecting
    begun = clock()
    some = FeedsUntil(_alternating(feeds), scoring)
    exact = ExactOutputs(prepared)
    search = TableSearch(
        prepared, observed, placement, method, methods, fixed, feeds=some, clock=clock, exact=exact, until=selecting
    )
    doing("round weights")
    try:
        of_weights = search.rounded(policy.ROUNDING_SHARE * seconds, policy.ROUNDING_TIME if thorough else 1.0)
    except TimedOut:
        return replace(single, cut=_ONE_FOR_ALL)
    except (TargetError, ModelError):
        return replace(single, report={UNPROBED: True})
    rounded = replace(single, weight_error_means=of_weights.means).rounding_by(of_weights.search.rounding)
    search, rounded_db = of_weights.search, scores[method]
    if thorough and search.rounding.steps:
        rounded, rounded_db = _with_another_method(search, rounded, score, selecting)
        search = replace(search, method=rounded.method)
    of_domains = _OfDomains(search, cuts=(_ONE_FOR_ALL,))
    if thorough:
        missed_db = None if min_sqnr_db is None or rounded_db >= min_sqnr_db else min_sqnr_db
        doing("choose ranges of single values")
        of_domains = _chosen_domains(search, rounded, score, seconds, begun, missed_db)
    search = of_domains.search
    best = _best(search, score, single, [(rounded, 0.0), (of_domains.choice, policy.SELECTION_CREDIT_DB)])
    if best is None:
        return single
    widened = _Widened(best.choice, best.db)
    if thorough and stress_score is not None and observed.stressed:
        doing("judge wider ranges on varied samples")
        widened = _widened(search, best, score, stress_score)
    report = {
        **_counts(search, widened.choice),
        "whole": search.placement == whole,
        "before_db": best.before_db,
        "after_db": widened.db,
        "runs": 0,
        "seconds": round(clock() - begun, 3),
        **of_domains.report,
        **widened.report,
    }
    cuts = (*(() if of_weights.in_time else (_NEAREST,)), *of_domains.cuts)
    return replace(widened.choice, report=report, cut=", ".join(cuts))


class _Time:
    """What there is time for once one method was chosen for all values.

    Args:
        deadline: when all of it must be over.
        scoring_s: seconds that scoring a table took so far.
        inference_s: seconds that the numeric reference takes for a sample.

    Attributes:
        rounds: weights can be rounded.
        is_thorough: ranges of single domains can be chosen, too.
        scoring: when the final scorings must begin.
        selecting: when choosing must end, so that its outcome is still made.
    """

    def __init__(self, deadline: Deadline, scoring_s: float, inference_s: float) -> None:
        self.rounds = deadline.fits(policy.ROUNDING_IN_TIME * scoring_s + policy.ROUNDING_INFERENCES * inference_s)
        self.is_thorough = deadline.fits(policy.SCORINGS_IN_TIME * scoring_s)
        final = policy.FINAL_SCORINGS if self.is_thorough else policy.FINAL_SCORINGS_OF_ROUNDING
        self.scoring = self.selecting = deadline.earlier(final * scoring_s)
        if not math.isinf(deadline.at):
            self.selecting = deadline.within(policy.SELECTION_SHARE * self.scoring.left)


@dataclass(frozen=True, eq=False)
class _Best:
    """The contender that scored best.

    Attributes:
        choice: that one.
        db: its SQNR.
        before_db: that of one method for all values, with weights rounded to the nearest integers.
    """

    choice: CalibrationChoice
    db: float
    before_db: float


def _best(
    search: TableSearch,
    score: Score,
    single: CalibrationChoice,
    others: Sequence[tuple[CalibrationChoice | None, float]],
) -> _Best | None:
    """The best of ``single`` and ``others`` with their credits in dB; None where ``single`` fails."""
    known = [(choice, credit) for choice, credit in others if choice is not None]
    before_db, *after_db = search.scores([single, *(choice for choice, _ in known)], score)
    if isinstance(before_db, Failed):
        return None
    ranked = [(before_db, _Best(single, before_db, before_db))]
    for (choice, credit), db in zip(known, after_db, strict=True):
        if not isinstance(db, Failed):
            ranked.append((db + credit, _Best(choice, db, before_db)))
    return max(ranked, key=lambda each: each[0])[1]


def _with_another_method(
    search: TableSearch, rounded: CalibrationChoice, score: Score, until: Deadline
) -> tuple[CalibrationChoice, float]:
    """``rounded``, or the same with another method that was good before, and its SQNR in dB.

    With weights rounded to the nearest integers, clipping and rounding may make up for each other by chance: a
    MobileNet had 20.6 dB with the best method and 19.4 with the next one, and with rounded weights 18.8 and 25.3.
    """
    scored = [method for method in search.methods if method in rounded.scores]
    best = sorted(scored, key=lambda method: -rounded.scores[method])[: policy.METHODS_AGAIN]
    choices = [replace(rounded, method=method) for method in best]
    found = [(rounded, -math.inf)]
    for choice, db in zip(choices, search.scores(choices, score), strict=False):
        if not isinstance(db, Failed):
            found.append((choice, db))
        if not until.left:
            break
    return max(found, key=lambda each: each[1])


@dataclass(frozen=True, eq=False)
class _OfDomains:
    """What choosing ranges for single domains came to.

    Attributes:
        search: for the part of the model that they were chosen for.
        choice: with what was chosen; None without an outcome.
        report: of how it went.
        cuts: what was left out, and why.
    """

    search: TableSearch
    choice: CalibrationChoice | None = None
    report: Mapping[str, Any] = field(default_factory=dict)
    cuts: tuple[str, ...] = ()


def _chosen_domains(
    search: TableSearch,
    rounded: CalibrationChoice,
    score: Score,
    seconds: float,
    begun: float,
    missed_db: float | None,
) -> _OfDomains:
    """Methods for single domains and the correction of biases: for all, or for the part that may keep the constraint.

    Domains outside that part take the method that is most common in it. ``missed_db`` is the constraint where all
    misses it.
    """
    method, means = rounded.method, rounded.weight_error_means
    try:
        if missed_db is not None:
            of_part = partial(search.score, rounded, score)
            search = search.restricted(missed_db, means, policy.SENSITIVITY_SHARE * seconds, of_part)
        left = max(policy.MIN_SELECTION_SHARE * seconds, seconds - (search.clock() - begun))
        ranges, corrected = search.select_ranges(means, left)
    except TimedOut:
        return _OfDomains(search, cuts=(_ONE_FOR_ALL,))
    except (TargetError, ModelError):  # what is rounded stands
        return _OfDomains(search, report={UNPROBED: True})
    most_common = Counter(ranges.methods.values()).most_common(1)
    others = dict.fromkeys(search.members, most_common[0][0] if most_common else method)
    chosen = {d: m for d, m in {**others, **ranges.methods}.items() if m != method}
    report = {
        "simulated_before_db": ranges.before_db,
        "simulated_after_db": ranges.after_db,
        "runs": ranges.runs,
        "complete": ranges.complete,
    }
    choice = replace(rounded, chosen=chosen, weight_error_means=corrected)
    return _OfDomains(search, choice, report, (_FEWER_TRIED,) * ranges.cut)


def _counts(search: TableSearch, choice: CalibrationChoice) -> dict[str, Any]:
    """How often each method was chosen, and what else the choice holds, for the report."""
    counts = Counter(dict.fromkeys((*search.methods, STRESS), 0))
    counts.update(choice.chosen.get(d, choice.method) for d in search.members)
    return {
        "methods": {m: n for m, n in counts.items() if n},
        "bias_correction": bool(choice.weight_error_means),
        "corrected_units": len(choice.weight_error_means),
        "rounded_weights": len(choice.rounding.steps),
        "ports": len(search.placement),
    }


def choose_method(
    prepared: PreparedModel,
    observed: Observed,
    placement: Placement,
    score: Score,
    methods: Sequence[Method] = METHODS,
    deadline: Deadline = NEVER,
    least_db: float = -math.inf,
) -> tuple[Method, dict[str, float]]:
    """The method that leaves the least error when ``placement`` is quantized, and the SQNR in dB of all that ran.

    Methods for which there is no time are left out, and all but the first one where that leaves less than ``least_db``.
    """
    if not len(placement):
        return methods[0], {}
    scores: dict[str, float] = {}
    tables = ((CalibrationChoice(method).table(prepared, observed), placement) for method in methods)
    begun = deadline.clock()
    for method, db in zip(counting(methods, "judge ranges by method"), score.each(tables), strict=False):
        if not isinstance(db, Failed):
            scores[method] = db
            if method == methods[0] and db < least_db:
                break
        ended, begun = begun, deadline.clock()
        if not deadline.fits((policy.METHODS_IN_TIME - 1) * (begun - ended)):
            break
    return max((m for m in methods if m in scores), key=lambda m: scores[m], default=methods[0]), scores


@dataclass(frozen=True, eq=False)
class _Widened:
    """A choice with headroom for variations, or as it was.

    Attributes:
        choice: that one.
        db: SQNR on the samples.
        report: of what was found.
    """

    choice: CalibrationChoice
    db: float
    report: Mapping[str, Any] = field(default_factory=dict)


def _widened(search: TableSearch, best: _Best, score: Score, stress_score: Score) -> _Widened:
    """The best choice with headroom for what variations of the samples overrun, where samples lose little by it.

    Tried are the ranges that are overrun by several shares. Variations must gain; of those tables the worse of both
    SQNRs decides, after an allowance of ``STRESS_ALLOWANCE_DB`` for variations, and samples may lose
    ``STRESS_PRICE_DB`` at most (:mod:`inlay.calibrate.policy`).
    """
    choice, db = best.choice, best.db
    overs = dict.fromkeys(frozenset(search.overrun(choice, share)) for share in policy.OVERRUNS)
    others = [
        (len(over), replace(choice, chosen={**choice.chosen, **dict.fromkeys(sorted(over), STRESS)}))
        for over in overs
        if over
    ]
    wider = [other for _, other in others]
    of_samples, of_varied = search.scores(wider, score), search.scores([choice, *wider], stress_score)
    varied = next(of_varied)
    if isinstance(varied, Failed):  # which says nothing about ranges
        return _Widened(choice, db)
    found, before = (db, varied, choice, 0), varied
    for (count, other), wide, wide_varied in zip(others, of_samples, of_varied, strict=True):
        if isinstance(wide, Failed) or isinstance(wide_varied, Failed) or wide < db - policy.STRESS_PRICE_DB:
            continue
        if wide_varied > found[1] and _counted(wide, wide_varied) > _counted(*found[:2]) + policy.MIN_GAIN_DB:
            found = wide, wide_varied, other, count
    after, varied, chosen, count = found
    report = {"widened": count, "varied_before_db": before, "varied_after_db": varied, "price_db": db - after}
    return _Widened(chosen, after, report)


def _counted(db: float, varied_db: float) -> float:
    """The worse SQNR of samples and of their variations."""
    return min(db, varied_db + policy.STRESS_ALLOWANCE_DB)


def choose_flips(
    choice: CalibrationChoice,
    prepared: PreparedModel,
    observed: Observed,
    measure: Callable[[QParamsTable], tuple[float, float]],
) -> CalibrationChoice:
    """Try each decision to share one scale or to requantize the other way, on a target without noise in its readings.

    Args:
        choice: how qparams are made so far.
        prepared: the model.
        observed: histograms.
        measure: latency (any unit) and SQNR in dB of what may be quantized, with a table; raises TargetError.
    """
    decisions = sharing_of(prepared, observed, choice.method)

    def measure_flipped(names: frozenset[str]) -> tuple[float, float]:
        return measure(replace(choice, flipped=tuple(sorted(names))).table(prepared, observed))

    try:
        flipped = flip_sharing(decisions, measure_flipped)
    except TargetError:
        return choice
    return replace(choice, flipped=tuple(sorted(flipped)))


def _alternating(feeds: Sequence[Feed]) -> list[Feed]:
    """Some of ``feeds``, alternating between their first and their second half."""
    if len(feeds) < 2:
        return list(feeds)
    parts = (evenly_spaced([*half], policy.MAX_FEEDS // 2) for half in halves(len(feeds)))
    return [feeds[i] for pair in zip(*parts, strict=False) for i in pair]
