"""Tables of qparams in comparison: rounding of weights, the part near the bound, ranges of single domains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from inlay.calibrate import policy
from inlay.calibrate.bias import weight_error_means
from inlay.calibrate.clock import FeedsUntil
from inlay.calibrate.gptq import only, round_weights, rounding_seconds, weight_types, weights_alone
from inlay.calibrate.observe import Observed, stretched
from inlay.calibrate.ranges import RangeProbe, Ranges, RangeTask, choose_ranges
from inlay.calibrate.scorer import ExactOutputs, Score, in_process, score_by
from inlay.calibrate.tables import CalibrationChoice, FixedQParams, WeightErrorMeans, domains_of
from inlay.data import Feed, StressSet, evenly_spaced
from inlay.deadline import NEVER, Deadline
from inlay.errors import TimedOut
from inlay.prepare.model import PreparedModel
from inlay.prepare.options import DEFAULT_MIN_SQNR_DB
from inlay.quant.accuracy import Judge
from inlay.quant.gptq import NEAREST, Rounding, Steps
from inlay.quant.observers import METHODS, STRESS, Method
from inlay.quant.parts import Reference
from inlay.quant.qparams import QParamsTable, covered
from inlay.quant.sensitivity import Powers, probe_budget, sensitivity, units_within
from inlay.trial import Failed, decibels, noise_of
from inlay.types import Placement, QParams, QType


@dataclass(frozen=True, eq=False, kw_only=True)
class StressTask:
    """Variations of samples: ranges that these overrun are widened where that pays."""

    reach: StressSet  # variations of the calibration samples, one inference each
    score: Score  # as of `CalibrationTask`, on variations of its samples


@dataclass(frozen=True, eq=False, kw_only=True)
class CalibrationTask:
    """What qparams are chosen for, and by what."""

    prepared: PreparedModel  # the model
    observed: Observed  # histograms
    placement: Placement  # all that may be quantized
    # calibration samples; without any (or with random ones, which say nothing about ranges) one method serves for all
    feeds: Sequence[Feed]
    score: Score  # of tables and placements, on samples of no scene that the second half of `feeds` shows
    min_sqnr_db: float | None = None  # the accuracy constraint in dB, or None
    methods: Sequence[Method] = METHODS  # to choose from; earlier ones win ties
    fixed: FixedQParams | None = None  # qparams that replace the computed ones
    stress: StressTask | None = None
    # the part of `placement` in which operators with weights read low precision, and nothing else does
    products: Placement = field(default_factory=Placement)

    @cached_property
    def stretched(self) -> Observed:
        """The histograms with the reach of variations, found out once: it takes an inference for each."""
        return self.observed if self.stress is None else stretched(self.observed, self.prepared, self.stress.reach)

    def observed_for(self, choice: CalibrationChoice) -> Observed:
        """The histograms that the ranges of ``choice`` rest on."""
        return self.stretched if choice.is_widened else self.observed

    def second_half(self, choice: CalibrationChoice) -> QParamsTable:
        """The table of a choice with ranges of the second half of the samples: what ``score`` is asked about."""
        return choice.table(self.prepared, self.observed.half(1), self.fixed)


@dataclass(frozen=True, eq=False, kw_only=True)
class TableSearch:
    """What all comparisons of tables share, and the choice so far."""

    task: CalibrationTask  # the model, histograms and what scores tables
    placement: Placement  # what is quantized
    choice: CalibrationChoice  # how qparams are made so far; its method also decides what is shared
    feeds: Sequence[Feed]  # samples, alternating between the first and the second half of all
    exact: ExactOutputs  # outputs of the float model for these samples
    clock: Callable[[], float]  # returns seconds
    until: Deadline = NEVER  # when range selection is cut short
    # SQNR in dB of what the task's score was asked about, by digests of choice and placement
    scored: dict[tuple[str, str], float | Failed] = field(default_factory=dict)

    @cached_property
    def domains(self) -> Mapping[str, str]:
        """The domain of each value that shares its qparams; it stays when a domain gets another method."""
        return domains_of(self.task.prepared, self.task.observed, self.choice.method)

    @cached_property
    def members(self) -> Mapping[str, list[str]]:
        """The observed values of each domain."""
        found: dict[str, list[str]] = {}
        for value in self.task.observed.histograms:
            found.setdefault(self.domains.get(value, value), []).append(value)
        return found

    def _table(self, method: Method | None = None, half: int | None = None) -> QParamsTable:
        """QParams by one method for every domain, ranges from one half of the samples or from all."""
        chosen = dict.fromkeys(self.members, method or self.choice.method)
        observed = self.task.observed if half is None else self.task.observed.half(half)
        return replace(self.choice, chosen=chosen).table(self.task.prepared, observed, self.task.fixed)

    def overrun(self, choice: CalibrationChoice, share: float) -> list[str]:
        """Domains whose range variations exceed by more than ``share`` of it."""
        found = []
        for domain, values in self.members.items():
            histograms = [self.task.observed.ranged[v] for v in values]
            method = choice.chosen.get(domain, choice.method)
            (low, high), (far_low, far_high) = (
                (min(r.low for r in ranges), max(r.high for r in ranges))
                for ranges in ([h.range(m) for h in histograms] for m in (method, STRESS))
            )
            if max(far_high - high, low - far_low) > share * (high - low):
                found.append(domain)
        return found

    def scores(self, choices: Iterable[CalibrationChoice], score: Score | None = None) -> Iterator[float | Failed]:
        """SQNR in dB of all that is quantized by each choice: by the task's score, asked once, or another one."""
        scored = self.scored if score is None else {}
        asked = [((choice.digest(self.task.observed), self.placement.digest), choice) for choice in choices]
        new = {key: choice for key, choice in asked if key not in scored}
        found = (score or self.task.score)((self.task.second_half(choice), self.placement) for choice in new.values())
        for key, _ in asked:
            if key not in scored:
                scored[key] = next(found)
            yield scored[key]

    def rounded(self, seconds: float, time_share: float) -> tuple[TableSearch, bool]:
        """The same with weights rounded as their outputs ask for, where outputs of the model gain, and biases for that.

        Types whose weights make so little noise alone that the model could hardly gain are left to the nearest
        integers, and of the usual type so are the biases. Rounding rests on the second half of the samples, as ranges
        do that are scored; the first half judges it, in the numeric reference: a target may need seconds for a build,
        and a search its limit of them.

        Args:
            seconds: of a usual processor, for the steps of rounding alone.
            time_share: of the time that is left, after which weights stay as they are.

        Returns:
            The search, and whether there was time for all of it.

        Raises:
            CompileFailed, RunFailed: the float model does not run.
            TimedOut: there was no time for the mean errors either.
        """
        until = self.until if math.isinf(self.until.at) else self.until.within(time_share * self.until.left)
        prepared, kept = self.task.prepared, dict[tuple[str, QType], Steps]()
        in_time, is_loud = False, True
        try:
            scored = self._scored_weights(FeedsUntil(self.feeds, until))
            types = weight_types(prepared)
            scores = zip(types, scored((t, NEAREST) for t in types), strict=True)
            alone = {t: db for t, db in scores if self._matters(t, db)}
        except TimedOut:
            pass  # nothing is known of any type
        else:
            is_loud = prepared.rules.weight in alone
            kept, in_time = self._round_types(alone, scored, seconds, until)
        search = replace(self, choice=self.choice.rounding_by(Rounding(kept))) if kept else self
        if not is_loud:
            return search, in_time
        units = [u for u in prepared.units if u.biases and self.placement.qtype(u.biases[0]) is QType.INT32]
        try:
            means = weight_error_means(prepared, units, search._table(), self.feeds, self.task.observed.positions)
        except TimedOut:
            if not kept:
                raise
            return search, False
        return replace(search, choice=search.choice.correcting(means)), in_time

    def _scored_weights(self, feeds: Sequence[Feed]) -> _ScoredWeights:
        """Scores all weights of a type, so rounded, and nothing else: activations make more noise."""
        task, first = self.task, feeds[::2]
        some = [first[i] for i in evenly_spaced([*range(len(first))], policy.ROUNDING_JUDGED)]
        score = score_by(self._judge(some), in_process(task.prepared, some))
        nearest = CalibrationChoice(self.choice.method)

        def scored(asked: Iterable[tuple[QType, Rounding]]) -> Iterator[float | Failed]:
            return score(
                (task.second_half(nearest.rounding_by(rounding)), weights_alone(task.prepared, qtype))
                for qtype, rounding in asked
            )

        return scored

    def _matters(self, qtype: QType, alone_db: float | Failed) -> bool:
        """Whether a model gains by less noise of weights that have ``alone_db``: it as a whole, or one at the bound."""
        if isinstance(alone_db, Failed):
            return True
        least_db = DEFAULT_MIN_SQNR_DB if self.task.min_sqnr_db is None else self.task.min_sqnr_db
        is_usual = qtype is self.task.prepared.rules.weight
        if not is_usual and alone_db < least_db - policy.ROUNDING_GAINS_DB:
            return False
        whole_db = max([least_db + policy.RESTRICTION_TOLERANCE_DB, *self.choice.scores.values()])
        return most_gained_db(alone_db, whole_db) >= policy.ROUNDING_WORTH_DB

    def _round_types(
        self,
        alone: Mapping[QType, float | Failed],
        scored: _ScoredWeights,
        seconds: float,
        until: Deadline,
    ) -> tuple[dict[tuple[str, QType], Steps], bool]:
        """The steps of the types of weights that gain by them, and whether there was time for all types.

        Args:
            alone: the types, and their SQNR in dB with the nearest integers.
        """
        task, kept = self.task, dict[tuple[str, QType], Steps]()
        finding = until if math.isinf(until.at) else until.within(policy.FINDING_SHARE * until.left)
        feeds = FeedsUntil(self.feeds, until)
        try:
            second, positions = feeds[1::2] or feeds, task.observed.positions
            found = round_weights(task.prepared, self._table(), second, positions, seconds, finding, [*alone])
            parts = {t: only(found.rounding, t) for t in alone if any(key[1] is t for key in found.rounding.steps)}
            scores = scored(parts.items())
            for qtype, part in parts.items():
                if not until.left:
                    return kept, False
                old_db, new_db = alone[qtype], next(scores)
                if not isinstance(new_db, Failed) and (isinstance(old_db, Failed) or new_db > old_db):
                    kept.update(part.steps)
        except TimedOut:
            return kept, False
        return kept, found.in_time

    def _judge(self, feeds: Sequence[Feed]) -> Judge:
        """Compares with the float model on ``feeds``. Raises CompileFailed, RunFailed."""
        return Judge.of_model(self.task.prepared.file.model, feeds, self.exact.of(feeds), self.task.observed.mask)

    def restricted(self, min_sqnr_db: float, seconds: float) -> TableSearch:
        """The same for the units whose noise is about what the constraint allows; for all where none is left."""
        prepared, mask = self.task.prepared, self.task.observed.mask
        table, begun = self._table(), self.clock()
        # units are left out by the noise of their activations: the weights, in all of their types, would only make the
        # probe model a multiple of the given one
        units = [replace(u, weights=(), biases=(), unsearched=frozenset(u.forms)) for u in prepared.units]
        probe = prepared.probe(table, units)
        budget = probe_budget(probe, self.feeds, seconds - (self.clock() - begun), self.clock)
        ranked = self.feeds[: budget.ranked_samples]
        probe.use(ranked, mask, self._judge(ranked).parts)

        def alone(placements: Iterable[Placement]) -> Iterator[Powers]:
            for noise in probe.noises(placements, samples=budget.source_samples):
                for _ in range(budget.source_samples):
                    self.clock()
                yield noise

        noise = sensitivity(probe.switches, prepared.selectable, alone, budget.questions).values
        found, limit_db, had_db = self.placement, min_sqnr_db, min_sqnr_db
        for _ in range(policy.RESTRICTION_ROUNDS):
            part = prepared.label(units_within(prepared.graph, prepared.selectable, noise, noise_of(limit_db)))
            if not len(part):  # a step too far
                limit_db = (had_db + limit_db) / 2
                continue
            found, had_db = part, limit_db
            measured_db = next(self.task.score([(self.task.second_half(self.choice), part)]))
            if isinstance(measured_db, Failed):
                break
            excess_db = measured_db - min_sqnr_db
            if abs(excess_db) < policy.RESTRICTION_TOLERANCE_DB:
                break
            limit_db -= excess_db  # single noises do not quite add up: correct the next limit by as much
        return replace(self, placement=found)

    def select_ranges(self, seconds: float) -> tuple[Ranges, WeightErrorMeans]:
        """Methods by domain, and the mean errors where correcting lessens the error; it starts from the better one."""
        begun, task, choice = self.clock(), self.task, self.choice
        reference = Reference(self.feeds, self.exact.of(self.feeds), task.observed.mask, self._judge(self.feeds).parts)
        plain = replace(self, choice=replace(choice, weight_error_means={}))
        tables = [each._table() for each in ((plain, self) if choice.weight_error_means else (plain,))]
        probes = [RangeProbe(task.prepared, self.placement, table, self.domains) for table in tables]
        activation, domains = task.prepared.rules.activation, probes[0].domains

        def options(half: int) -> dict[str, dict[Method, QParams]]:
            tables = {method: self._table(method, half) for method in task.methods}
            return {d: {m: t.params(d, activation) for m, t in tables.items()} for d in domains}

        of_halves = options(1), options(0)  # each sample judges ranges of the half that it does not belong to
        histograms = {d: [task.observed.histograms[v] for v in self.members.get(d, ())] for d in domains}

        def noise(domain: str, params: QParams) -> float:
            """The largest error at a value of ``domain``, relative to its power."""
            return max((h.noise(covered(params)) for h in histograms[domain]), default=0.0)

        ranges = RangeTask(
            options=[of_halves[i % 2] for i in range(len(self.feeds))],
            own_noise={d: {m: noise(d, p) for m, p in params.items()} for d, params in of_halves[0].items()},
            feeds=self.feeds,
            reference=reference,
            seconds=max(0.0, seconds - (self.clock() - begun)),
            clock=self.clock,
            headroom={d: max((h.headroom for h in histograms[d]), default=0.0) for d in domains},
            until=self.until,
        )
        found = choose_ranges(probes, choice.method, ranges)
        return found, choice.weight_error_means if found.probe else {}


_ScoredWeights = Callable[[Iterable[tuple[QType, Rounding]]], Iterator[float | Failed]]
"""SQNR in dB of all weights of a type alone, so rounded, for each question in turn."""


def most_gained_db(part_db: float, whole_db: float) -> float:
    """How many dB something of ``whole_db`` gains where it loses a part of its noise that alone leaves ``part_db``.

    Infinite where that part alone is as loud.
    """
    share = noise_of(part_db) / noise_of(whole_db)
    return decibels(1.0 - share) if share < 1.0 else math.inf


def on_other_samples(
    choice: CalibrationChoice,
    prepared: PreparedModel,
    observed: Observed,
    feeds: Sequence[Feed],
    fixed: FixedQParams | None,
    until: Deadline = NEVER,
) -> CalibrationChoice:
    """A choice with weights rounded, and biases corrected for it, as ``feeds`` ask for: no others had a part in it.

    Raises:
        CompileFailed, RunFailed: the float model does not run.
        TimedOut: it takes longer than ``until``.
    """
    if not choice.rounding.steps:
        return choice
    some = FeedsUntil([feeds[i] for i in evenly_spaced([*range(len(feeds))], policy.MAX_FEEDS // 2)], until)
    plain = choice.rounding_by(NEAREST).table(prepared, observed, fixed)
    seconds = rounding_seconds(prepared, choice.rounding)
    found = round_weights(prepared, plain, some, observed.positions, 2.0 * seconds, until)
    if not found.in_time:
        raise TimedOut("there was no time to round the weights")
    steps = {k: s for k, s in found.rounding.steps.items() if k in choice.rounding.steps}
    again = choice.rounding_by(Rounding(steps))
    units = [u for u in prepared.units if u.name in choice.weight_error_means]
    table = again.table(prepared, observed, fixed)
    return again.correcting(weight_error_means(prepared, units, table, some, observed.positions))
