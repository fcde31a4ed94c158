"""The measured models as points: the front of speed and accuracy, and the search as it went."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from inlay.measure.journal import Record
from inlay.report.folder import FinishedRun, facts_of
from inlay.search.baselines import ORIGINAL
from inlay.targets.base import unit_of
from inlay.trial import SHOWN_AS_EXACT_DB, Failed, Infeasible, Interval, Measured, shown_ratio, shown_sqnr


@dataclass(frozen=True)
class Axis:
    """A linear axis from ``low`` to ``high`` in data, from ``begin`` to ``end`` on the page."""

    low: float
    high: float
    begin: float
    end: float

    @classmethod
    def around(cls, values: Iterable[float], begin: float, end: float, margin: float = 0.06) -> Axis:
        """An axis that holds the finite ones of ``values``, with a share of its length as margin at both ends."""
        finite = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
        low, high = min(finite), max(finite)
        spread = high - low or max(abs(high), 1.0) * 0.1
        return cls(low - margin * spread, high + margin * spread, begin, end)

    def at(self, value: float) -> float:
        """Where ``value`` is on the page; the nearest end where it lies outside."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.begin + share * (self.end - self.begin), 2)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """About five round numbers: where they are on the page, and as text."""
        rough = (self.high - self.low) / 5.0
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= rough * 0.999)
        first = math.ceil(self.low / step)
        values = [i * step for i in range(first, first + 12) if i * step <= self.high]
        digits = max(0, -math.floor(math.log10(step)) + (1 if step / power == 2.5 else 0))
        return [(self.at(v), f"{v:.{digits}f}") for v in values]


_WIDTH, _HEIGHT = 640.0, 340.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 66.0, 24.0, 16.0, 44.0
_MOST_SPAN = 1.5
"""Intervals of few blocks are wide or open: an axis goes this factor beyond the extreme values, and bars that
go on end there in an arrow."""
_BAND = (0.05, 0.95)  # quantiles of the given model's own readings that make the noise band


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One point of a chart: where it is, how it looks, and what is said about it."""

    # x, y: on the page
    x: float
    y: float
    # low, high: ends of its error bar there; equal to `y` without one
    low: float
    high: float
    shape: str  # `anchor`, `best`, `point`, `outside` or `failed`
    label: str  # its name
    details: Sequence[tuple[str, str]]  # pairs of words to show when it is chosen
    command: str = ""  # the line that writes this model; empty where there is none
    # whether the error bar goes on beyond the lower and the upper end of the chart
    cut: tuple[bool, bool] = (False, False)


@dataclass(frozen=True)
class Chart:
    """A chart: its axes, its marks, and lines and bands in page units."""

    x: Axis
    y: Axis
    marks: Sequence[Mark]
    line: str = ""
    band: tuple[float, float] | None = None
    exact_x: float = 0.0
    width: float = _WIDTH
    height: float = _HEIGHT


def front(run: FinishedRun) -> Chart:
    """Speed-up over the given model against SQNR, of all models that were timed; a line joins those that none beats.

    Figures are those of the search; what was confirmed stands where it was confirmed.
    """
    timed = _timed(run)
    delivered = "" if run.evidence is None else run.evidence.delivered
    commands = select_lines(run)
    finite = [m.accuracy.sqnr_db for _, m in timed if m.accuracy.sqnr_db < SHOWN_AS_EXACT_DB]
    right = _WIDTH - _RIGHT - 56.0
    x = Axis.around(finite or [0.0, 40.0], _LEFT, right)
    exact_x = right + 50.0
    speeds = [run.speeds[t.candidate] for t, _ in timed]
    y = Axis.around([1.0, *_span(speeds)], _HEIGHT - _BOTTOM, _TOP)
    kept = run.result["best"]["origin"] == ORIGINAL
    given = [("latency", _latency(run, run.baseline_ms)), ("this is", "the model as it was given")]
    marks = [
        Mark(
            x=exact_x,
            y=y.at(1.0),
            low=y.at(1.0),
            high=y.at(1.0),
            shape="best" if kept else "anchor",
            label=ORIGINAL,
            details=given,
        )
    ]
    for (trial, measured), speed in zip(timed, speeds, strict=True):
        accuracy, details = measured.accuracy, _details(run, trial, measured)
        if trial.candidate == delivered:
            details = [("file", "model.onnx"), *details]
        shape = "anchor" if trial.origin in {str(a["name"]) for a in run.result.get("anchors", ())} else "point"
        shape = "best" if trial.candidate == delivered else shape if accuracy.feasible else "outside"
        marks.append(
            Mark(
                x=exact_x if accuracy.sqnr_db >= SHOWN_AS_EXACT_DB else x.at(accuracy.sqnr_db),
                y=y.at(speed.value),
                low=y.at(speed.low),
                high=y.at(speed.high),
                shape=shape,
                label=trial.origin,
                details=details,
                command=commands.get(trial.candidate, ""),
                cut=_cut(y, speed),
            )
        )
    marks.sort(key=lambda m: (m.shape == "best", bool(m.command)))  # what matters most lies on top, and can be chosen
    order = sorted((m for m in marks if m.command), key=lambda m: (m.x, m.y))
    line = " ".join(f"{m.x},{m.y}" for m in order)
    return Chart(x, y, marks, line, exact_x=exact_x)


def select_lines(run: FinishedRun) -> dict[str, str]:
    """The ``inlay select`` line that writes each model that no other beats in both speed and accuracy, by key.

    ``inlay select`` writes the fastest model of at least so many dB: of the models here, that with the bound in this
    line is the one.
    """
    found: dict[str, str] = {}
    least = -math.inf
    able = [(t, m) for t, m in _timed(run) if t.candidate in run.selectable]
    for trial, measured in sorted(able, key=lambda p: -p[1].latency.speedup.value):
        db = measured.accuracy.sqnr_db
        if db <= least:
            continue
        rounded = math.floor(db * 100.0) / 100.0
        bound = f"{rounded:g}" if rounded > least and float(f"{rounded:g}") <= db else repr(db)
        if float(bound) <= least:
            bound = repr(db)
        folder = shlex.quote(str(run.folder))
        found[trial.candidate] = f"inlay select {folder} --min-sqnr {bound} --to model-{bound}dB.onnx"
        least = db
    return found


def trace(run: FinishedRun) -> Chart:
    """Speed-up of every trial in order, the best so far as a line, and the noise band of the given model around 1."""
    trials = run.trials
    timed = [run.speeds[t.candidate] for t in trials if isinstance(t.outcome, Measured)]
    ratios = sentinel_ratios(run)
    band = np.quantile(ratios, _BAND).tolist() if len(ratios) > 2 else None
    x = Axis(0.0, max(len(trials) + 1.0, 2.0), _LEFT, _WIDTH - _RIGHT)
    y = Axis.around([1.0, *_span(timed), *(band or ())], _HEIGHT - _BOTTOM, _TOP)
    marks, line, best = [], [], 1.0
    for number, trial in enumerate(trials, 1):
        outcome = trial.outcome
        at, shape, details = x.at(number), "failed", []
        low = high = where = y.begin
        cut = False, False
        if isinstance(outcome, Measured):
            speed = run.speeds[trial.candidate]
            where, low, high, cut = y.at(speed.value), y.at(speed.low), y.at(speed.high), _cut(y, speed)
            shape = "best" if trial.accepted else "point" if outcome.accuracy.feasible else "outside"
            details = _details(run, trial, outcome)
            if trial.accepted:
                best = speed.value
        elif isinstance(outcome, Infeasible):
            shape, details = "outside", [("not timed", outcome.accuracy.reason)]
        elif isinstance(outcome, Failed):
            details = [(f"failed in {outcome.stage}", outcome.message[:300])]
        line.append(f"{at},{y.at(best)}")
        marks.append(
            Mark(
                x=at,
                y=where,
                low=low,
                high=high,
                shape=shape,
                label=f"{number}. {trial.origin}",
                details=details,
                cut=cut,
            )
        )
    return Chart(x, y, marks, " ".join(line), None if band is None else (y.at(band[1]), y.at(band[0])))


def sentinel_ratios(run: FinishedRun) -> list[float]:
    """Each reading of the given model in a race over the median of all of them."""
    if not run.sentinel:
        return []
    typical = float(np.median(run.sentinel))
    return [ns / typical for ns in run.sentinel] if typical > 0.0 else []


def sentinel(run: FinishedRun) -> Chart | None:
    """The given model's latency in every block of every race, over its median: how steady the machine was."""
    ratios = sentinel_ratios(run)
    if len(ratios) < 3:
        return None
    x = Axis(0.0, float(len(ratios) - 1), _LEFT, _WIDTH - _RIGHT)
    y = Axis.around([1.0, *ratios], 120.0, 12.0)
    line = " ".join(f"{x.at(i)},{y.at(r)}" for i, r in enumerate(ratios))
    low, high = np.quantile(ratios, _BAND).tolist()
    return Chart(x, y, [], line, (y.at(high), y.at(low)), height=150.0)


def _span(speeds: Sequence[Interval]) -> Iterator[float]:
    """The values, and the ends of their intervals as far as these leave the values' differences visible."""
    low, high = min((s.value for s in speeds), default=1.0), max((s.value for s in speeds), default=1.0)
    for speed in speeds:
        yield from (speed.value, max(speed.low, low / _MOST_SPAN), min(speed.high, high * _MOST_SPAN))


def _cut(y: Axis, speed: Interval) -> tuple[bool, bool]:
    """Whether an interval goes on beyond the lower and the upper end of the axis."""
    return speed.low < y.low, speed.high > y.high


def _timed(run: FinishedRun) -> list[tuple[Record, Measured]]:
    return [(t, t.outcome) for t in run.trials if isinstance(t.outcome, Measured)]


def _latency(run: FinishedRun, figure: float) -> str:
    return f"{figure:.3f} {unit_of(facts_of(run.result))}"


def _details(run: FinishedRun, trial: Record, measured: Measured) -> list[tuple[str, str]]:
    speed, accuracy, size = run.speeds[trial.candidate], measured.accuracy, run.sizes.get(trial.candidate)
    rows = [
        *([("latency", _latency(run, run.baseline_ms / speed.value))] if speed.is_told else ()),
        ("speed-up over the given model", shown_ratio(speed)),
        ("SQNR of the worst output", shown_sqnr(accuracy.sqnr_db)),
    ]
    if accuracy.metric is not None:
        rows.append(("metric", f"{accuracy.metric:.4f}"))
    if size is not None:
        rows.append(("size", f"{size / 1e6:.2f} MB"))
    if speed == measured.latency.speedup:
        rows.append(("blocks", str(measured.latency.blocks)))
    else:
        rows.append(("in the search", f"{shown_ratio(measured.latency.speedup)} in {measured.latency.blocks} blocks"))
    if measured.equal_to:
        rows.append(
            ("note", "the runtime makes the same graph of it as of an earlier candidate, whose figures these are")
        )
    if not accuracy.feasible:
        rows.append(("outside the bound", accuracy.reason))
    return rows
