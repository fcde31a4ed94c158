"""Choose the qparams of a run: a range for every value and corrected biases, by what they do to the outputs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from inlay.calibrate import policy
from inlay.calibrate.clock import FeedsUntil, StepClock
from inlay.calibrate.observe import Observed, halves
from inlay.calibrate.scorer import ExactOutputs
from inlay.calibrate.share import flip_sharing
from inlay.calibrate.table_search import CalibrationTask, StressTask, TableSearch
from inlay.calibrate.tables import UNPROBED, CalibrationChoice, sharing_of
from inlay.data import Feed, evenly_spaced
from inlay.deadline import NEVER, Deadline
from inlay.errors import ModelError, TargetError, TimedOut
from inlay.model.heard import counting, doing
from inlay.prepare.model import PreparedModel
from inlay.quant.observers import STRESS, Method
from inlay.quant.qparams import QParamsTable
from inlay.trial import Failed
from inlay.types import Placement

_ONE_FOR_ALL = "one range method for all values"
_NEAREST = "some weights rounded to the nearest integers"
_FEWER_TRIED = "ranges of single values chosen in fewer trials"


def choose_calibration(
    task: CalibrationTask,
    seconds: float,
    *,
    clock: Callable[[], float] | None = None,
    deadline: Deadline = NEVER,
    inference_s: float = 0.0,
) -> CalibrationChoice:
    """Choose a method of calibration for every domain of values, how weights are rounded, and corrected biases.

    First one method for all values is chosen and the weights are rounded; then methods for single domains and the
    correction, on the task's samples with simulated rounding. Between the contenders its score decides, which uses
    other samples and the real kernels.

    Where all is far below the accuracy constraint, a few noisy values drown all others. Then the choice is made for the
    products, and where these are below it as well, single domains are chosen for the part that is expected to keep it.

    Args:
        seconds: rough limit of the choice for single domains.
        clock: returns seconds, of which ``seconds`` are; by default one that counts questions, so that a busy machine
            makes the same choice.
        deadline: when all of it must be over. What does not fit is left out, and said so: first the single domains,
            then the rounding, then methods.
        inference_s: seconds that the numeric reference takes for a sample.
    """
    clock = clock or StepClock.for_model(task.prepared)
    started, placement, least_db = deadline.clock(), task.placement, -math.inf
    near_db = -math.inf if task.min_sqnr_db is None else task.min_sqnr_db - policy.RESTRICTION_TOLERANCE_DB
    if len(task.products) and len(task.methods) > 1:
        least_db = near_db
    method, scores = choose_method(task, placement, deadline, least_db)
    if scores.get(task.methods[0], math.inf) < least_db:  # so far that ranges are chosen for products alone
        placement = task.products
        method, scores = choose_method(task, placement, deadline)
    single = CalibrationChoice(method, scores=scores)
    if not scores or not task.feeds:
        return single
    scored = len(scores) + (placement != task.placement)
    stretching_s = 0.0 if task.stress is None else len(task.stress.reach.variations) * inference_s
    time = _Time(deadline, (deadline.clock() - started) / scored, inference_s, stretching_s)
    if not time.rounds:
        return replace(single, cut=_ONE_FOR_ALL)
    begun = clock()
    alone = [] if task.fixed else [(CalibrationChoice(m), scores[m]) for m in task.methods if m in scores]
    search = TableSearch(
        task=task,
        placement=placement,
        choice=single,
        feeds=FeedsUntil(_alternating(task.feeds), time.scoring),
        exact=ExactOutputs(task.prepared),
        clock=clock,
        until=time.selecting,
        scored={(choice.digest(task.observed), placement.digest): db for choice, db in alone},
    )
    doing("round weights")
    try:
        time_share = policy.ROUNDING_TIME if time.is_thorough else 1.0
        search, in_time = search.rounded(policy.ROUNDING_SHARE * seconds, time_share)
    except TimedOut:
        return replace(single, cut=_ONE_FOR_ALL)
    except (TargetError, ModelError):
        return replace(single, report={UNPROBED: True})
    rounded_db, cuts, found = scores[method], [] if in_time else [_NEAREST], dict[str, Any]()
    if time.is_thorough and search.choice.rounding.steps:
        search, rounded_db = _with_another_method(search)
    contenders = [(search.choice, 0.0)]
    if time.is_thorough and not _are_alike(scores, near_db):
        doing("choose ranges of single values")
        search, found, cut = _with_single_ranges(search, rounded_db, seconds, begun)
        cuts += cut
        if search.choice is not contenders[0][0]:
            contenders.append((search.choice, policy.SELECTION_CREDIT_DB))
    elif not time.is_thorough:
        cuts.append(_ONE_FOR_ALL)
    best = _best(search, single, contenders)
    if best is None:
        return single
    choice, db, before_db = best
    widened = dict[str, Any]()
    if time.is_thorough and task.stress is not None:
        doing("judge wider ranges on varied samples")
        search = replace(search, task=replace(search.task, observed=task.stretched))
        choice, db, widened = _widened(search, task.stress, choice, db)
    report = {
        **_counts(search, choice),
        "whole": search.placement == task.placement,
        "before_db": before_db,
        "after_db": db,
        "runs": 0,
        "seconds": round(clock() - begun, 3),
        **found,
        **widened,
    }
    return replace(choice, report=report, cut=", ".join(cuts))


class _Time:
    """What there is time for once one method was chosen for all values.

    Args:
        deadline: when all of it must be over.
        scoring_s: seconds that scoring a table took so far.
        inference_s: seconds that the numeric reference takes for a sample.
        stretching_s: seconds of finding out how far variations reach.
    """

    def __init__(self, deadline: Deadline, scoring_s: float, inference_s: float, stretching_s: float) -> None:
        # whether weights can be rounded, and ranges of single domains chosen, too
        self.rounds = deadline.fits(policy.ROUNDING_IN_TIME * scoring_s + policy.ROUNDING_INFERENCES * inference_s)
        self.is_thorough = deadline.fits(policy.SCORINGS_IN_TIME * scoring_s + stretching_s)
        final_s = policy.FINAL_SCORINGS_OF_ROUNDING * scoring_s
        if self.is_thorough:
            final_s = policy.FINAL_SCORINGS * scoring_s + stretching_s
        # when the final scorings must begin, and when choosing must end, so that its outcome is still made
        self.scoring = self.selecting = deadline.earlier(final_s)
        if not math.isinf(deadline.at):
            self.selecting = deadline.within(policy.SELECTION_SHARE * self.scoring.left)


def choose_method(
    task: CalibrationTask, placement: Placement, deadline: Deadline = NEVER, least_db: float = -math.inf
) -> tuple[Method, dict[str, float]]:
    """The method that leaves the least error when ``placement`` is quantized, and the SQNR in dB of all that ran.

    Methods for which there is no time are left out, and all but the first one where that leaves less than ``least_db``.
    Ranges are those of the second half of the samples, without fixed ones.
    """
    methods = task.methods
    if not len(placement):
        return methods[0], {}
    observed, scores = task.observed.half(1), dict[str, float]()
    tables = ((CalibrationChoice(method).table(task.prepared, observed), placement) for method in methods)
    begun = deadline.clock()
    for method, db in zip(counting(methods, "judge ranges by method"), task.score(tables), strict=False):
        if not isinstance(db, Failed):
            scores[method] = db
            if method == methods[0] and db < least_db:
                break
        ended, begun = begun, deadline.clock()
        if not deadline.fits((policy.METHODS_IN_TIME - 1) * (begun - ended)):
            break
    return max((m for m in methods if m in scores), key=lambda m: scores[m], default=methods[0]), scores


def _are_alike(scores: Mapping[str, float], least_db: float) -> bool:
    """Whether several methods for all values were compared, and it hardly matters which one is taken.

    Below ``least_db`` that says nothing: the noise of a few values drowns what ranges do to the others.
    """
    best = max(scores.values())
    return len(scores) >= policy.COMPARED and best >= least_db and best - min(scores.values()) < policy.ALIKE_DB


def _with_another_method(search: TableSearch) -> tuple[TableSearch, float]:
    """``search`` with its method, or another one that was good before, and the SQNR of that in dB.

    With weights rounded to the nearest integers, clipping and rounding may make up for each other by chance.
    """
    scores = search.choice.scores
    scored = sorted((m for m in search.task.methods if m in scores), key=lambda method: -scores[method])
    choices = [replace(search.choice, method=method) for method in scored[: policy.METHODS_AGAIN]]
    found = [(search.choice, -math.inf)]
    for choice, db in zip(choices, search.scores(choices), strict=False):
        if not isinstance(db, Failed):
            found.append((choice, db))
        if not search.until.left:
            break
    choice, db = max(found, key=lambda each: each[1])
    return replace(search, choice=choice), db


def _with_single_ranges(
    search: TableSearch, db: float, seconds: float, begun: float
) -> tuple[TableSearch, dict[str, Any], list[str]]:
    """Methods for single domains and the correction of biases: for all, or for the part that may keep the constraint.

    Domains outside that part take the method that is most common in it.

    Args:
        search: for one method for all.
        db: SQNR of its choice.
        seconds: by the clock of the search, for all of it since ``begun``.
        begun: the reading of the clock before weights were rounded.

    Returns:
        The search for that part, with the choice as it was where nothing came of it; a report of how it went, and what
        was left out.
    """
    least_db, before = search.task.min_sqnr_db, search.choice
    try:
        if least_db is not None and db < least_db:
            search = search.restricted(least_db, policy.SENSITIVITY_SHARE * seconds)
        left = max(policy.MIN_SELECTION_SHARE * seconds, seconds - (search.clock() - begun))
        ranges, means = search.select_ranges(left)
    except TimedOut:
        return search, {}, [_ONE_FOR_ALL]
    except (TargetError, ModelError):  # what is rounded stands
        return search, {UNPROBED: True}, []
    most_common = Counter(ranges.methods.values()).most_common(1)
    others = dict.fromkeys(search.members, most_common[0][0] if most_common else before.method)
    chosen = {d: m for d, m in {**others, **ranges.methods}.items() if m != before.method}
    report = {
        "simulated_before_db": ranges.before_db,
        "simulated_after_db": ranges.after_db,
        "runs": ranges.runs,
        "complete": ranges.complete,
    }
    choice = replace(before, chosen=chosen, weight_error_means=means)
    return replace(search, choice=choice), report, [_FEWER_TRIED] * ranges.cut


def _best(
    search: TableSearch, single: CalibrationChoice, others: Sequence[tuple[CalibrationChoice, float]]
) -> tuple[CalibrationChoice, float, float] | None:
    """The best of ``single`` and ``others`` with their credits in dB, its SQNR and that of ``single``.

    None where ``single`` fails: one method for all values, with weights rounded to the nearest integers.
    """
    before_db, *after_db = search.scores([single, *(choice for choice, _ in others)])
    if isinstance(before_db, Failed):
        return None
    ranked = [(before_db, (single, before_db, before_db))]
    for (choice, credit), db in zip(others, after_db, strict=True):
        if not isinstance(db, Failed):
            ranked.append((db + credit, (choice, db, before_db)))
    return max(ranked, key=lambda each: each[0])[1]


def _counts(search: TableSearch, choice: CalibrationChoice) -> dict[str, Any]:
    """How often each method was chosen, and what else the choice holds, for the report."""
    counts = Counter(dict.fromkeys((*search.task.methods, STRESS), 0))
    counts.update(choice.chosen.get(d, choice.method) for d in search.members)
    return {
        "methods": {m: n for m, n in counts.items() if n},
        "bias_correction": bool(choice.weight_error_means),
        "corrected_units": len(choice.weight_error_means),
        "rounded_weights": len(choice.rounding.steps),
        "ports": len(search.placement),
    }


def _widened(
    search: TableSearch, stress: StressTask, choice: CalibrationChoice, db: float
) -> tuple[CalibrationChoice, float, dict[str, Any]]:
    """A choice with headroom for what variations of the samples overrun, where samples lose little by it.

    Tried are the ranges that are overrun by several shares. Variations must gain; of those tables the worse of both
    SQNRs decides, after an allowance of ``STRESS_ALLOWANCE_DB`` for variations, and samples may lose
    ``STRESS_PRICE_DB`` at most (:mod:`inlay.calibrate.policy`). With its SQNR on samples, and a report.
    """
    overs = dict.fromkeys(frozenset(search.overrun(choice, share)) for share in policy.OVERRUNS)
    others = [
        (len(over), replace(choice, chosen={**choice.chosen, **dict.fromkeys(sorted(over), STRESS)}))
        for over in overs
        if over
    ]
    wider = [other for _, other in others]
    of_samples, of_varied = search.scores(wider), search.scores([choice, *wider], stress.score)
    varied = next(of_varied)
    if isinstance(varied, Failed):  # which says nothing about ranges
        return choice, db, {}
    found, before = (db, varied, choice, 0), varied
    for (count, other), wide, wide_varied in zip(others, of_samples, of_varied, strict=True):
        if isinstance(wide, Failed) or isinstance(wide_varied, Failed) or wide < db - policy.STRESS_PRICE_DB:
            continue
        if wide_varied > found[1] and _counted(wide, wide_varied) > _counted(*found[:2]) + policy.MIN_GAIN_DB:
            found = wide, wide_varied, other, count
    after, varied, chosen, count = found
    report = {"widened": count, "varied_before_db": before, "varied_after_db": varied, "price_db": db - after}
    return chosen, after, report


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
