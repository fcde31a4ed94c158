"""Tables of qparams in comparison: rounding of weights, the part near the bound, ranges of single domains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property

from inlay.calibrate import policy
from inlay.calibrate.bias import weight_error_means
from inlay.calibrate.clock import FeedsUntil
from inlay.calibrate.gptq import only, round_weights, rounding_seconds, weights_alone
from inlay.calibrate.observe import Observed
from inlay.calibrate.ranges import RangeProbe, Ranges, RangeTask, choose_ranges
from inlay.calibrate.scorer import ExactOutputs, Score, TableScorer, in_process
from inlay.calibrate.tables import CalibrationChoice, FixedQParams, WeightErrorMeans, domains_of
from inlay.data import Feed, evenly_spaced
from inlay.deadline import NEVER, Deadline
from inlay.errors import TimedOut
from inlay.prepare.model import PreparedModel
from inlay.quant.accuracy import Judge
from inlay.quant.fake_quant import NoiseProbe
from inlay.quant.gptq import NEAREST, Rounding, Steps
from inlay.quant.observers import STRESS, Method
from inlay.quant.parts import Reference
from inlay.quant.qparams import QParamsTable, covered
from inlay.quant.sensitivity import Powers, probe_budget, sensitivity, units_within
from inlay.trial import Failed, noise_of
from inlay.types import Placement, QParams, QType


@dataclass(frozen=True, eq=False)
class TableSearch:
    """What all comparisons of tables share.

    Attributes:
        prepared: the model.
        observed: histograms.
        placement: what is quantized.
        method: of calibration, for all values; it also decides what is shared.
        methods: to choose from.
        fixed: qparams that replace the computed ones.
        feeds: samples, alternating between the first and the second half of all.
        clock: returns seconds.
        exact: outputs of the float model for these samples.
        until: when range selection is cut short.
        rounding: how weights are rounded.
    """

    prepared: PreparedModel
    observed: Observed
    placement: Placement
    method: Method
    methods: Sequence[Method]
    fixed: FixedQParams | None
    _: KW_ONLY
    feeds: Sequence[Feed]
    clock: Callable[[], float]
    exact: ExactOutputs
    until: Deadline = NEVER
    rounding: Rounding = NEAREST

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
        choice = CalibrationChoice(self.method, chosen, means or {}).rounding_by(self.rounding)
        return choice.table(self.prepared, observed, self.fixed)

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
        return score(self._second_half(choice), placement)

    def scores(self, choices: Iterable[CalibrationChoice], score: Score) -> Iterator[float | Failed]:
        """The same of several, of all that is quantized."""
        return score.each((self._second_half(choice), self.placement) for choice in choices)

    def _second_half(self, choice: CalibrationChoice) -> QParamsTable:
        return choice.table(self.prepared, self.observed.half(1), self.fixed)

    def weight_error_means(self) -> WeightErrorMeans:
        """Of all rounded weights whose biases are quantized."""
        prepared = self.prepared
        units = [u for u in prepared.units if u.biases and self.placement.qtype(u.biases[0]) is QType.INT32]
        table, positions = self.table(self.method), self.observed.positions
        means = weight_error_means(prepared, units, table, self.feeds, positions)
        return {node: tuple(float(x) for x in mean) for node, mean in means.items()}

    def rounded(self, seconds: float, time_share: float) -> RoundedSearch:
        """The same with the weights rounded as their outputs ask for, where outputs of the model gain.

        Rounding rests on the second half of the samples, as ranges do that are scored; the first half judges it, in the
        numeric reference: a target may need seconds for a build, and a search its limit of them.

        Args:
            seconds: of a usual processor, for the steps of rounding alone.
            time_share: of the time that is left, after which weights stay as they are.

        Raises:
            CompileFailed, RunFailed: the float model does not run.
            TimedOut: there was no time for the mean errors either.
        """
        until = self.until if math.isinf(self.until.at) else self.until.within(time_share * self.until.left)
        kept, in_time = self._rounded_types(seconds, until)
        search = replace(self, rounding=Rounding(kept)) if kept else self
        try:
            return RoundedSearch(search, search.weight_error_means(), in_time)
        except TimedOut:
            if not kept:
                raise
            return RoundedSearch(search, {}, False)

    def _rounded_types(self, seconds: float, until: Deadline) -> tuple[dict[tuple[str, QType], Steps], bool]:
        """The steps of the types of weights that gain by them, and whether there was time for all types."""
        kept = dict[tuple[str, QType], Steps]()
        finding = until if math.isinf(until.at) else until.within(policy.FINDING_SHARE * until.left)
        feeds = FeedsUntil(self.feeds, until)
        second = feeds[1::2] or feeds
        try:
            table, positions = self.table(self.method), self.observed.positions
            found = round_weights(self.prepared, table, second, positions, seconds, finding)
            steps = found.rounding.steps
            if not steps:
                return kept, found.in_time
            score, nearest = self._reference_score(feeds[::2]), CalibrationChoice(self.method)
            parts = {t: only(found.rounding, t) for t in dict.fromkeys(t for _, t in steps)}  # the usual type first
            # weights alone: activations make more noise, and chance would decide
            scores = score.each(
                (self._second_half(choice), weights_alone(self.prepared, t))
                for t, part in parts.items()
                for choice in (nearest, nearest.rounding_by(part))
            )
            for part in parts.values():
                if not until.left:
                    return kept, False
                old_db, new_db = next(scores), next(scores)
                if not isinstance(new_db, Failed) and (isinstance(old_db, Failed) or new_db > old_db):
                    kept.update(part.steps)
        except TimedOut:
            return kept, False
        return kept, found.in_time

    def _reference_score(self, first: Sequence[Feed]) -> Score:
        """The score on some of these samples, in the numeric reference. Raises TimedOut."""
        feeds = [first[i] for i in evenly_spaced([*range(len(first))], policy.ROUNDING_JUDGED)]
        return TableScorer(self._judge(feeds), in_process(self.prepared, feeds))

    def _judge(self, feeds: Sequence[Feed]) -> Judge:
        """Compares with the float model on ``feeds``. Raises CompileFailed, RunFailed."""
        return Judge.of_model(self.prepared.file.model, feeds, self.exact.of(feeds), self.observed.mask)

    def restricted(
        self,
        min_sqnr_db: float,
        means: WeightErrorMeans,
        seconds: float,
        score: Callable[[Placement], float | Failed],
    ) -> TableSearch:
        """The same for the units whose noise is about what the constraint allows; for all where none is left."""
        prepared, graph = self.prepared, self.prepared.graph
        table = self.table(self.method, means)
        begun = self.clock()
        # units are left out by the noise of their activations: the weights, in all of their types, would only make the
        # probe model a multiple of the given one
        units = [replace(u, weights=(), biases=(), unsearched=frozenset(u.forms)) for u in prepared.units]
        probe = NoiseProbe(prepared.probe_base, prepared.store, graph, units, prepared.rules, table)
        budget = probe_budget(probe, self.feeds, seconds - (self.clock() - begun), self.clock)
        ranked = self.feeds[: budget.ranked_samples]
        probe.use(ranked, self.observed.mask, self._judge(ranked).parts)

        def alone(placements: Iterable[Placement]) -> Iterator[Powers]:
            for noise in probe.noises(placements, samples=budget.source_samples):
                for _ in range(budget.source_samples):
                    self.clock()
                yield noise

        noise = sensitivity(probe.switches, prepared.selectable, alone, budget.questions).values
        found, limit_db, had_db = self.placement, min_sqnr_db, min_sqnr_db
        for _ in range(policy.RESTRICTION_ROUNDS):
            part = prepared.label(units_within(graph, prepared.selectable, noise, noise_of(limit_db)))
            if not len(part):  # a step too far
                limit_db = (had_db + limit_db) / 2
                continue
            found, had_db = part, limit_db
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
        references = self.exact.of(self.feeds)
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

        task = RangeTask(
            options=by_feed,
            own_noise=own_noise,
            feeds=self.feeds,
            reference=Reference(self.feeds, references, self.observed.mask, self._judge(self.feeds).parts),
            seconds=max(0.0, seconds - (self.clock() - begun)),
            clock=self.clock,
            headroom=headroom,
            until=self.until,
        )
        found = choose_ranges(probes, self.method, task)
        return found, means if found.probe else {}

    def _noise(self, domain: str, params: QParams) -> float:
        """The largest error at a value of ``domain``, relative to its power."""
        found = covered(params)
        return max((self.observed.histograms[v].noise(found) for v in self.members.get(domain, ())), default=0.0)


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
    positions = observed.positions
    plain = choice.rounding_by(NEAREST).table(prepared, observed, fixed)
    seconds = rounding_seconds(prepared, choice.rounding)
    found = round_weights(prepared, plain, some, positions, 2.0 * seconds, until)
    if not found.in_time:
        raise TimedOut("there was no time to round the weights")
    steps = {k: s for k, s in found.rounding.steps.items() if k in choice.rounding.steps}
    again = choice.rounding_by(Rounding(steps))
    units = [u for u in prepared.units if u.name in choice.weight_error_means]
    table = again.table(prepared, observed, fixed)
    means = weight_error_means(prepared, units, table, some, positions)
    return replace(again, weight_error_means={node: tuple(map(float, mean)) for node, mean in means.items()})


@dataclass(frozen=True, eq=False)
class RoundedSearch:
    """A search with its weights rounded, or as it was.

    Attributes:
        search: the search.
        means: the mean errors of its weights.
        in_time: there was time for all of it.
    """

    search: TableSearch
    means: WeightErrorMeans
    in_time: bool
