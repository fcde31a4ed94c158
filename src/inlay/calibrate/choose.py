"""Choose the qparams of a run: a range for every value and corrected biases, by what they do to the outputs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from inlay.calibrate import policy
from inlay.calibrate.bias_correction import weight_error_means
from inlay.calibrate.clock import FeedsUntil, StepClock
from inlay.calibrate.range_probe import RangeProbe
from inlay.calibrate.range_selection import Ranges, choose_ranges
from inlay.calibrate.scale_sharing import flip_sharing
from inlay.calibrate.scorer import Score
from inlay.calibrate.tables import CalibrationChoice, FixedQParams, WeightErrorMeans, domains_of, sharing_of
from inlay.data import Feed, evenly_spaced
from inlay.deadline import NEVER, Deadline
from inlay.errors import ModelError, TargetError, TimedOut
from inlay.model.reference import Session
from inlay.prepare.model import PreparedModel
from inlay.quant.calibrator import Observed, halves
from inlay.quant.noise_probe import NoiseProbe
from inlay.quant.observers import METHODS, STRESS, Method
from inlay.quant.qparams import QParamsTable, covered
from inlay.quant.sensitivity import Powers, probe_budget, sensitivity, units_within
from inlay.trial import Failed, noise_of
from inlay.types import Placement, QParams, QType

_ONE_FOR_ALL = "one way to choose ranges for all values"
_FEWER_TRIED = "ranges of single values chosen by fewer trials"


def choose_calibration(
    prepared: PreparedModel,
    observed: Observed,
    placement: Placement,
    feeds: Sequence[Feed],
    score: Score,
    seconds: float,
    min_sqnr_db: float | None = None,
    methods: Sequence[Method] = METHODS,
    fixed: FixedQParams | None = None,
    clock: Callable[[], float] | None = None,
    deadline: Deadline = NEVER,
    stress_score: Score | None = None,
) -> CalibrationChoice:
    """Choose a method of calibration for every domain of values, and whether biases are corrected.

    First one method for all values is chosen; then methods for single domains and the correction, on ``feeds`` with
    simulated rounding. Between the contenders ``score`` decides, which uses other samples and the real kernels.

    Where ``placement`` is far below the accuracy constraint, a few noisy values drown all others. Then the choice is
    made for the part of the model that is expected to keep the constraint.

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
            then methods.
        stress_score: as ``score``, on variations of its samples, where ``observed`` knows how far variations reach:
            then ranges that these overrun are widened where that pays, see :func:`_widened`.
    """
    clock = clock or StepClock.for_model(prepared)
    started = deadline.clock()
    method, scores = choose_method(prepared, observed.half(1), placement, score, methods, deadline)
    single = CalibrationChoice(method, scores=scores)
    scoring_s = (deadline.clock() - started) / max(len(scores), 1)
    if not scores or not feeds:
        return single
    if not deadline.fits(policy.SCORINGS_IN_TIME * scoring_s):
        return replace(single, cut=_ONE_FOR_ALL)
    before_scoring = deadline.earlier(policy.FINAL_SCORINGS * scoring_s)
    until = before_scoring if math.isinf(deadline.at) else deadline.within(policy.SELECTION_SHARE * before_scoring.left)
    begun = clock()
    try:
        search = _Search(
            prepared,
            observed,
            placement,
            method,
            methods,
            fixed,
            FeedsUntil(_alternating(feeds), before_scoring),
            clock,
            until,
        )
        means = search.weight_error_means()
        if min_sqnr_db is not None and scores[method] < min_sqnr_db:
            of_part = partial(search.score, single, score)
            search = search.restricted(min_sqnr_db, means, policy.SENSITIVITY_SHARE * seconds, of_part)
        left = max(policy.MIN_SELECTION_SHARE * seconds, seconds - (clock() - begun))
        ranges, corrected = search.select_ranges(means, left)
    except TimedOut:
        return replace(single, cut=_ONE_FOR_ALL)
    except (TargetError, ModelError):  # the probe models cannot be built
        return single
    most_common = Counter(ranges.methods.values()).most_common(1)
    others = dict.fromkeys(search.members, most_common[0][0] if most_common else method)  # outside the part
    chosen = {d: m for d, m in {**others, **ranges.methods}.items() if m != method}
    contenders = [
        (single, 0.0),
        (CalibrationChoice(method, {}, means, scores=scores), 0.0),
        (CalibrationChoice(method, chosen, corrected, scores=scores), policy.SELECTION_CREDIT_DB),
    ]
    found = [(search.score(choice, score, search.placement), choice, credit) for choice, credit in contenders]
    ran = [(db, choice, credit) for db, choice, credit in found if not isinstance(db, Failed)]
    if not ran or ran[0][1] is not single:  # nothing to compare with
        return single
    before_db = ran[0][0]
    after_db, winner, _ = max(ran, key=lambda each: each[0] + each[2])
    widened: Mapping[str, Any] = {}
    if stress_score is not None and observed.stressed:
        after_db, winner, widened = _widened(search, winner, after_db, score, stress_score)
    counts = Counter(dict.fromkeys((*methods, STRESS), 0))
    counts.update(winner.chosen.get(d, method) for d in search.members)
    report = {
        "methods": {m: n for m, n in counts.items() if n},
        "bias_correction": bool(winner.weight_error_means),
        "corrected_units": len(winner.weight_error_means),
        "whole": search.placement == placement,
        "ports": len(search.placement),
        "before_db": before_db,
        "after_db": after_db,
        "simulated_before_db": ranges.before_db,
        "simulated_after_db": ranges.after_db,
        "runs": ranges.runs,
        "complete": ranges.complete,
        "seconds": round(clock() - begun, 3),
        **widened,
    }
    return replace(winner, report=report, cut=_FEWER_TRIED if ranges.cut else "")


def choose_method(
    prepared: PreparedModel,
    observed: Observed,
    placement: Placement,
    score: Score,
    methods: Sequence[Method] = METHODS,
    deadline: Deadline = NEVER,
) -> tuple[Method, dict[str, float]]:
    """The method that leaves the least error when ``placement`` is quantized, and the SQNR in dB of all that ran.

    Methods for which there is no time are left out.
    """
    if not len(placement):
        return methods[0], {}
    found: dict[Method, float | Failed] = {}
    for method in methods:
        begun = deadline.clock()
        found[method] = score(CalibrationChoice(method).table(prepared, observed), placement)
        if not deadline.fits(deadline.clock() - begun):
            break
    scores: dict[str, float] = {method: db for method, db in found.items() if not isinstance(db, Failed)}
    return max((m for m in methods if m in scores), key=lambda m: scores[m], default=methods[0]), scores


def _widened(
    search: _Search, choice: CalibrationChoice, db: float, score: Score, stress_score: Score
) -> tuple[float, CalibrationChoice, dict[str, Any]]:
    """``choice`` with headroom for what variations of the samples overrun, where its price on the samples is small.

    Tried are the ranges that are overrun by several shares. Variations must gain; of those tables the worse of both
    SQNRs decides, after an allowance of ``STRESS_ALLOWANCE_DB`` for variations, and samples may lose
    ``STRESS_PRICE_DB`` at most (:mod:`inlay.calibrate.policy`).

    Returns:
        SQNR on the samples in dB, the choice, and what was found, for the report.
    """
    placement = search.placement
    varied = search.score(choice, stress_score, placement)
    if isinstance(varied, Failed):  # which says nothing about ranges
        return db, choice, {}
    best, before, tried = (db, varied, choice, 0), varied, {frozenset[str]()}
    for share in policy.OVERRUNS:
        over = frozenset(search.overrun(choice, share))
        if over in tried:
            continue
        tried.add(over)
        other = replace(choice, chosen={**choice.chosen, **dict.fromkeys(sorted(over), STRESS)})
        wide, wide_varied = (search.score(other, each, placement) for each in (score, stress_score))
        if isinstance(wide, Failed) or isinstance(wide_varied, Failed) or wide < db - policy.STRESS_PRICE_DB:
            continue
        if wide_varied > best[1] and _counted(wide, wide_varied) > _counted(*best[:2]) + policy.MIN_GAIN_DB:
            best = wide, wide_varied, other, len(over)
    after, varied, chosen, count = best
    found = {"widened": count, "varied_before_db": before, "varied_after_db": varied, "price_db": db - after}
    return after, chosen, found


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


@dataclass(frozen=True, eq=False)
class _Search:
    """What all comparisons share; ``feeds`` alternate between the first and the second half of the samples."""

    prepared: PreparedModel
    observed: Observed
    placement: Placement
    method: Method
    methods: Sequence[Method]
    fixed: FixedQParams | None
    feeds: Sequence[Feed]
    clock: Callable[[], float]
    until: Deadline = NEVER

    @cached_property
    def domains(self) -> Mapping[str, str]:
        """The domain of each value that shares its qparams; it stays when a domain gets another method."""
        return domains_of(self.prepared, self.observed, self.method)

    @cached_property
    def members(self) -> Mapping[str, list[str]]:
        """The observed values of each domain."""
        found: dict[str, list[str]] = {}
        for value in self.observed.histograms:
            found.setdefault(self.domains.get(value, value), []).append(value)
        return found

    def table(self, method: Method, means: WeightErrorMeans | None = None, half: int | None = None) -> QParamsTable:
        """QParams by ``method`` for every domain, ranges from one half of the samples or from all."""
        chosen = dict.fromkeys(self.members, method)
        observed = self.observed if half is None else self.observed.half(half)
        return CalibrationChoice(self.method, chosen, means or {}).table(self.prepared, observed, self.fixed)

    def overrun(self, choice: CalibrationChoice, share: float) -> list[str]:
        """Domains whose range variations exceed by more than ``share`` of it."""
        found = []
        for domain, values in self.members.items():
            histograms = [self.observed.ranged[v] for v in values]
            method = choice.chosen.get(domain, choice.method)
            (low, high), (far_low, far_high) = (
                (min(r.low for r in ranges), max(r.high for r in ranges))
                for ranges in ([h.range(m) for h in histograms] for m in (method, STRESS))
            )
            if max(far_high - high, low - far_low) > share * (high - low):
                found.append(domain)
        return found

    def score(self, choice: CalibrationChoice, score: Score, placement: Placement) -> float | Failed:
        """SQNR in dB of ``placement`` with ranges of the second half of the samples."""
        return score(choice.table(self.prepared, self.observed.half(1), self.fixed), placement)

    def weight_error_means(self) -> WeightErrorMeans:
        """Of all rounded weights whose biases are quantized."""
        prepared = self.prepared
        units = [u for u in prepared.units if u.biases and self.placement.qtype(u.biases[0]) is QType.INT32]
        table, positions = self.table(self.method), self.observed.positions
        means = weight_error_means(prepared, units, table, self.feeds, positions)
        return {node: tuple(float(x) for x in mean) for node, mean in means.items()}

    def restricted(
        self,
        min_sqnr_db: float,
        means: WeightErrorMeans,
        seconds: float,
        score: Callable[[Placement], float | Failed],
    ) -> _Search:
        """The same for the units whose noise is about what the constraint allows; for all where none is left."""
        prepared, graph = self.prepared, self.prepared.graph
        table = self.table(self.method, means)
        begun = self.clock()
        probe = NoiseProbe(prepared.probe_base, prepared.store, graph, prepared.units, prepared.rules, table)
        budget = probe_budget(probe, self.feeds, seconds - (self.clock() - begun), self.clock)
        probe.use(self.feeds[: budget.ranked_samples], self.observed.mask)

        def noise_alone(placement: Placement) -> Powers:
            for _ in range(budget.source_samples):
                self.clock()
            return probe.noise(placement, samples=budget.source_samples)

        noise = sensitivity(probe.switches, prepared.selectable, noise_alone, budget.questions).values
        found, limit_db = self.placement, min_sqnr_db
        for _ in range(policy.RESTRICTION_ROUNDS):
            part = prepared.label(units_within(graph, prepared.selectable, noise, noise_of(limit_db)))
            if not len(part):
                break
            found = part
            measured_db = score(part)
            if isinstance(measured_db, Failed):
                break
            excess_db = measured_db - min_sqnr_db
            if abs(excess_db) < policy.RESTRICTION_TOLERANCE_DB:
                break
            limit_db -= excess_db  # single noises do not quite add up: correct the next limit by as much
        return replace(self, placement=found)

    def select_ranges(self, means: WeightErrorMeans, seconds: float) -> tuple[Ranges, WeightErrorMeans]:
        """Methods by domain, and ``means`` where correcting lessens the error; selection starts from the better one."""
        begun = self.clock()
        reference = Session(self.prepared.emitter.base, self.prepared.store, optimize=True)
        references = [reference.run(feed) for feed in self.feeds]
        tables = [self.table(self.method, each) for each in ([{}, means] if means else [{}])]
        probes = [RangeProbe(self.prepared, self.placement, table, self.domains) for table in tables]
        activation = self.prepared.rules.activation
        domains = probes[0].domains

        def options(half: int) -> dict[str, dict[Method, QParams]]:
            tables = {method: self.table(method, half=half) for method in self.methods}
            return {d: {m: t.params(d, activation) for m, t in tables.items()} for d in domains}

        of_halves = options(1), options(0)  # each sample judges ranges of the half that it does not belong to
        by_feed = [of_halves[i % 2] for i in range(len(self.feeds))]
        own_noise = {d: {m: self._noise(d, p) for m, p in params.items()} for d, params in of_halves[0].items()}
        histograms = self.observed.histograms
        headroom = {d: max((histograms[v].headroom for v in self.members.get(d, ())), default=0.0) for d in domains}

        def select(probe: RangeProbe, seconds: float) -> Ranges:
            return choose_ranges(
                probe,
                by_feed,
                own_noise,
                self.method,
                self.feeds,
                references,
                seconds,
                self.clock,
                headroom,
                self.until,
                self.observed.mask,
            )

        starts = [select(probe, 0.0).before_db for probe in probes]
        best = int(np.argmax(starts))
        found = select(probes[best], max(0.0, seconds - (self.clock() - begun)))
        return found, means if best else {}

    def _noise(self, domain: str, params: QParams) -> float:
        """The largest error at a value of ``domain``, relative to its power."""
        found = covered(params)
        return max((self.observed.histograms[v].noise(found) for v in self.members.get(domain, ())), default=0.0)
