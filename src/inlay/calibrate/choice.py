"""The numbers of a run: a range for every value and corrected biases, chosen by what they do to the outputs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from inlay.calibrate.bias_correction import bias_errors
from inlay.calibrate.range_probe import RangeProbe
from inlay.calibrate.range_selection import Ranges, choose_ranges
from inlay.calibrate.scale_sharing import flip_sharing
from inlay.calibrate.tables import choose_method, classes_of, sharing, table_from
from inlay.data import Feed, evenly_spaced
from inlay.errors import ModelError, TargetError
from inlay.model.reference import Session
from inlay.prepare.config import DEFAULT_BUDGET_S
from inlay.prepare.model import PreparedModel
from inlay.quant.accuracy import EXACT_DB
from inlay.quant.calibrator import Observed, halves
from inlay.quant.noise_probe import NoiseProbe
from inlay.quant.observers import METHODS, Method
from inlay.quant.qparams import QParamsTable, covered
from inlay.quant.sensitivity import plan, quiet_units, sensitivity
from inlay.trial import noise_of
from inlay.types import Placement, QParams, QType

SHARE = 0.06
"""Of a run's budget, for choosing ranges."""
DEFAULT_S = SHARE * DEFAULT_BUDGET_S
"""Seconds where there is no budget."""
_MOST_FEEDS = 12
_SENSITIVITY_SHARE = 0.3  # of the time, where a part of the model must be found first
_LEAST_SHARE = 0.25  # of the time, that is left for choosing ranges however long all else took
_TRIES = 3
_NEAR_DB = 3.0
_PREMIUM_DB = 1.0  # on the samples at hand, for ranges that larger numbers do not overrun
_TICK_S = 0.02
_LEAST_TICK_S = 0.002
_SECONDS_PER_NUMBER = 6e-9  # of an activation, in the run or two of the simulated model that a question takes

Judge = Callable[[QParamsTable, Placement], float]
Fixed = Mapping[tuple[str, QType], QParams]
Shifts = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class CalibrationChoice:
    """How the numbers of one run are made: a fact, so that a run that is continued has the same.

    Attributes:
        method: of all values but those in ``chosen``.
        chosen: another method, by class of values.
        shifts: by node, the mean error of its rounded weight, which its bias makes up for: one number per channel.
        flipped: operators for which the target found the opposite decision about sharing one scale better.
        scores: SQNR in dB of each method alone.
        report: what was found, for people.
    """

    method: Method
    chosen: Mapping[str, Method] = field(default_factory=dict)
    shifts: Shifts = field(default_factory=dict)
    flipped: tuple[str, ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)

    def table(self, prepared: PreparedModel, observed: Observed, fixed: Fixed | None = None) -> QParamsTable:
        """The numbers themselves."""
        shifts = {node: np.array(shift, np.float64) for node, shift in self.shifts.items()}
        return table_from(prepared, observed, self.method, fixed, self.chosen, shifts, self.flipped)

    @property
    def identity(self) -> str:
        """Text that tells this choice from every other."""
        return f"{self.method} {sorted(self.chosen.items())} {sorted(self.shifts.items())} {self.flipped or ''}"

    def as_json(self) -> dict[str, Any]:
        """As plain data; see :meth:`from_json`."""
        return {
            "method": self.method,
            "chosen": dict(self.chosen),
            "shifts": {node: list(shift) for node, shift in self.shifts.items()},
            "flipped": list(self.flipped),
            "scores": dict(self.scores),
            "report": dict(self.report),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CalibrationChoice:
        """The choice that gave ``data``."""
        shifts = {node: tuple(shift) for node, shift in data["shifts"].items()}
        return cls(data["method"], data["chosen"], shifts, tuple(data["flipped"]), data["scores"], data["report"])

    def __str__(self) -> str:
        report = self.report
        if not report:
            return f"ranges by {self.method}"
        counts = ", ".join(f"{method} {count}" for method, count in report["methods"].items())
        bias = "biases corrected" if report["bias_correction"] else "biases as they were"
        before, after = report["before_db"], report["after_db"]
        what = "full INT8" if report["whole"] else "the part near the bound"
        gain = f"{before:.1f} dB -> {after:.1f} dB on unseen samples"
        return f"ranges by {counts}; {bias}: {what} {gain}, in {report['seconds']:.1f} s"


class Ticks:
    """A clock that moves on by a fixed step whenever it is read: the same decisions on a machine of any speed."""

    def __init__(self, step: float = _TICK_S) -> None:
        self._now, self._step = 0.0, step

    @classmethod
    def of(cls, prepared: PreparedModel) -> Ticks:
        """One whose step is about what a question costs on this model: by its size, whatever the machine."""
        graph = prepared.graph
        numbers = sum(graph.size(v) or 0 for n in graph.nodes for v in n.outputs if v)
        return cls(max(_LEAST_TICK_S, _SECONDS_PER_NUMBER * numbers))

    def __call__(self) -> float:
        """Seconds."""
        self._now += self._step
        return self._now


def choose_calibration(
    prepared: PreparedModel,
    observed: Observed,
    placement: Placement,
    feeds: Sequence[Feed],
    judge: Judge,
    seconds: float,
    least_db: float | None = None,
    methods: Sequence[Method] = METHODS,
    fixed: Fixed | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> CalibrationChoice:
    """Choose how ranges are made and whether biases are corrected.

    One method for all values is chosen first, then methods for single values and the correction, on ``feeds`` with
    simulated rounding. ``judge``, which looks at other samples with the real kernels, has the last word.

    Where ``placement`` is far from what may be delivered, a few loud values drown all others. Then the choice is made
    for the part of the model that is expected to fit inside the bound.

    Args:
        prepared: the model.
        observed: histograms.
        placement: all that may be quantized.
        feeds: calibration samples; without any (or with random ones, which tell nothing) one method serves for all.
        judge: SQNR in dB of a placement with a table, on samples of no scene that the second half of ``feeds`` shows;
            raises TargetError where it does not run.
        seconds: rough limit of the choice for single values.
        least_db: the bound on the SQNR, or None.
        methods: to choose from.
        fixed: numbers that are given.
        clock: tells seconds.
    """
    method, scores = choose_method(prepared, observed.of(1), placement, lambda table: judge(table, placement), methods)
    plain = CalibrationChoice(method, scores=scores)
    if not scores or not feeds:
        return plain
    begun = clock()
    try:
        trial = _Trial(prepared, observed, placement, method, methods, fixed, _alternating(feeds), clock)
        shifts = trial.shifts()
        if least_db is not None and scores[method] < least_db:
            trial = trial.within(least_db, shifts, _SENSITIVITY_SHARE * seconds, lambda p: trial.judge(plain, judge, p))
        left = max(_LEAST_SHARE * seconds, seconds - (clock() - begun))
        ranges, corrected = trial.choose(shifts, left)
    except (TargetError, ModelError):  # what simulates it cannot be built: one method serves
        return plain
    usual = Counter(ranges.methods.values()).most_common(1)
    others = dict.fromkeys(trial.members, usual[0][0] if usual else method)  # which the trial left in float
    chosen = {c: m for c, m in {**others, **ranges.methods}.items() if m != method}
    contenders = [
        plain,
        CalibrationChoice(method, {}, shifts, scores=scores),
        CalibrationChoice(method, chosen, corrected, scores=scores),
    ]
    known = [trial.judge(c, judge, trial.placement) for c in contenders]
    best = int(np.argmax([*known[:-1], known[-1] + _PREMIUM_DB]))
    winner = contenders[best]
    counts = Counter(dict.fromkeys(methods, 0))
    counts.update(winner.chosen.get(c, method) for c in trial.members)
    report = {
        "methods": {m: n for m, n in counts.items() if n},
        "bias_correction": bool(winner.shifts),
        "corrected_units": len(winner.shifts),
        "whole": trial.placement == placement,
        "ports": len(trial.placement),
        "before_db": known[0],
        "after_db": known[best],
        "simulated_before_db": ranges.before_db,
        "simulated_after_db": ranges.after_db,
        "runs": ranges.runs,
        "complete": ranges.complete,
        "seconds": round(clock() - begun, 3),
    }
    return CalibrationChoice(method, winner.chosen, winner.shifts, scores=scores, report=report)


def flip(
    numbers: CalibrationChoice,
    prepared: PreparedModel,
    observed: Observed,
    measure: Callable[[QParamsTable], tuple[float, float]],
) -> CalibrationChoice:
    """Ask a target whose readings have no noise about each decision to share one scale or to requantize.

    Args:
        numbers: how numbers are made so far.
        prepared: the model.
        observed: histograms.
        measure: latency (any unit) and fidelity in dB of what may be quantized, with a table.
    """
    decisions = sharing(prepared, observed, numbers.method)

    def ask(names: frozenset[str]) -> tuple[float, float]:
        return measure(replace(numbers, flipped=tuple(sorted(names))).table(prepared, observed))

    try:
        flipped = flip_sharing(decisions, ask)
    except TargetError:  # what cannot be built tells nothing
        return numbers
    return replace(numbers, flipped=tuple(sorted(flipped)))


def _alternating(feeds: Sequence[Feed]) -> list[Feed]:
    """Some of ``feeds``, in turn of their first and of their second half."""
    if len(feeds) < 2:
        return list(feeds)
    parts = (evenly_spaced([*half], _MOST_FEEDS // 2) for half in halves(len(feeds)))
    return [feeds[i] for pair in zip(*parts, strict=False) for i in pair]


@dataclass(frozen=True, eq=False)
class _Trial:
    """What all comparisons have in common; ``feeds`` are in turn of the first and of the second half of the samples."""

    prepared: PreparedModel
    observed: Observed
    placement: Placement
    method: Method
    methods: Sequence[Method]
    fixed: Fixed | None
    feeds: Sequence[Feed]
    clock: Callable[[], float]

    @cached_property
    def classes(self) -> Mapping[str, str]:
        """What shares numbers; it does not change when a class gets another method."""
        return classes_of(self.prepared, self.observed, self.method)

    @cached_property
    def members(self) -> Mapping[str, list[str]]:
        """The observed values of each class."""
        found: dict[str, list[str]] = {}
        for value in self.observed.histograms:
            found.setdefault(self.classes.get(value, value), []).append(value)
        return found

    def table(self, method: Method, shifts: Shifts | None = None, half: int | None = None) -> QParamsTable:
        """Numbers by ``method`` for every class, ranges from one half of the samples or from all."""
        chosen = dict.fromkeys(self.members, method)
        observed = self.observed if half is None else self.observed.of(half)
        return CalibrationChoice(self.method, chosen, shifts or {}).table(self.prepared, observed, self.fixed)

    def shifts(self) -> Shifts:
        """Mean errors of all rounded weights whose biases are quantized."""
        prepared = self.prepared
        units = [u for u in prepared.units if u.biases and self.placement.qtype(u.biases[0]) is QType.INT32]
        base, table = prepared.emitter.base, self.table(self.method)
        means = bias_errors(base, prepared.store, prepared.graph, units, prepared.rules, table, self.feeds)
        return {node: tuple(float(x) for x in mean) for node, mean in means.items()}

    def within(self, least_db: float, shifts: Shifts, seconds: float, measure: Callable[[Placement], float]) -> _Trial:
        """The same for the units whose noise is about what the bound allows; for all where none would be left."""
        prepared, graph = self.prepared, self.prepared.graph
        table = self.table(self.method, shifts)
        begun = self.clock()
        probe = NoiseProbe(prepared.emitter.base, prepared.store, graph, prepared.units, prepared.rules, table)
        fits = plan(probe, self.feeds, seconds - (self.clock() - begun), self.clock)
        probe.use(self.feeds[: fits.samples])
        ask = partial(probe.noise, samples=fits.loud)
        noise = sensitivity(probe.switches, prepared.selectable, ask, fits.questions).values
        found, limit_db = self.placement, least_db
        for _ in range(_TRIES):
            part = prepared.label(quiet_units(graph, prepared.selectable, noise, noise_of(limit_db)))
            if not len(part):
                break
            found, off = part, measure(part) - least_db
            if abs(off) < _NEAR_DB:
                break
            limit_db -= off  # noises do not quite add up: by as much the next limit is another one
        return replace(self, placement=found)

    def judge(self, numbers: CalibrationChoice, judge: Judge, placement: Placement) -> float:
        """SQNR in dB; the worst of all where it does not run."""
        try:
            return judge(numbers.table(self.prepared, self.observed.of(1), self.fixed), placement)
        except TargetError:
            return -EXACT_DB

    def choose(self, shifts: Shifts, seconds: float) -> tuple[Ranges, Shifts]:
        """Methods by class, and ``shifts`` where they lessen the error; the search starts from the better of both."""
        begun = self.clock()
        reference = Session(self.prepared.emitter.base, self.prepared.store, optimize=True)
        wanted = [reference.run(feed) for feed in self.feeds]
        probes = [self._probe(used) for used in ([{}, shifts] if shifts else [{}])]
        activation = self.prepared.rules.activation
        classes = probes[0].classes

        def options(half: int) -> dict[str, dict[Method, QParams]]:
            tables = {method: self.table(method, half=half) for method in self.methods}
            return {c: {m: t.params(c, activation) for m, t in tables.items()} for c in classes}

        others = options(1), options(0)  # each sample judges ranges of the half that it does not belong to
        given = [others[i % 2] for i in range(len(self.feeds))]
        local = {c: {m: self._noise(c, params) for m, params in known.items()} for c, known in others[0].items()}
        histograms = self.observed.histograms
        larger = {c: max((histograms[v].spread for v in self.members.get(c, ())), default=0.0) for c in classes}

        def search(probe: RangeProbe, seconds: float) -> Ranges:
            return choose_ranges(probe, given, local, self.method, self.feeds, wanted, seconds, self.clock, larger)

        starts = [search(probe, 0.0).before_db for probe in probes]
        best = int(np.argmax(starts))
        found = search(probes[best], max(0.0, seconds - (self.clock() - begun)))
        return found, shifts if best else {}

    def _probe(self, shifts: Shifts) -> RangeProbe:
        prepared = self.prepared
        return RangeProbe(
            prepared.emitter,
            prepared.graph,
            prepared.store,
            self.placement,
            self.table(self.method, shifts),
            self.classes,
            prepared.rules.activation,
        )

    def _noise(self, name: str, params: QParams) -> float:
        """The largest error at a value of the class, relative to its power."""
        found = covered(params)
        return max((self.observed.histograms[v].noise(found) for v in self.members.get(name, ())), default=0.0)
