"""``inlay fleet``: slices of time, each one resumed :func:`inlay.tune`, until the budget is spent or all are done.

What a run found is in its own folder and journal. The fleet's journal holds a fact for each run, written after each of
its slices, and the time that was spent; after a kill at any moment the slice under way is resumed like any run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

from inlay import api
from inlay.deadline import Clock
from inlay.errors import InlayError, TooShort
from inlay.files import refuse_overwriting
from inlay.fleet import policy
from inlay.fleet.allocate import Progressed, next_slice
from inlay.fleet.page import PAGE, write_page
from inlay.fleet.plan import Entry, FleetPlan, read_plan
from inlay.fleet.pool import PatternPool
from inlay.fleet.result import Figures, FleetResult, Row
from inlay.measure.journal import Fact, Journal, spent_in
from inlay.prepare import options
from inlay.prepare.declare import Option, documented
from inlay.run.call import seconds_of
from inlay.run.plan import Plan
from inlay.run.progress import Logged, Progress, SearchStep
from inlay.run.result import TuneResult, write_json
from inlay.run.session import work_in
from inlay.run.tune import EXHAUSTED

JOURNAL = "fleet.sqlite"
_OUTPUTS = ("result.json", PAGE, JOURNAL)
_PLAN = Option("Models, targets, constraints.", metavar="FLEET.yaml", type=Path, positional=True, show_default=False)
_BUDGET = replace(
    options.BUDGET,
    help="Time for all runs together, earlier sessions included; overrides the budget in the file.",
    python="",
)
Tune = Callable[..., TuneResult]


@dataclass(frozen=True)
class RunState:
    """What the fleet keeps of a run.

    Attributes:
        digest: of what its result depends on (:attr:`~inlay.fleet.plan.Entry.digest`).
        slices: see :class:`~inlay.fleet.allocate.Progressed`.
        done: why it needs no more time; empty where it may gain from more.
        figures: of its latest result.
    """

    digest: str
    slices: tuple[tuple[float, float], ...] = ()
    done: str = ""
    figures: Figures | None = None

    @classmethod
    def from_json(cls, data: Any) -> RunState:
        """What :meth:`as_json` made."""
        slices = tuple((float(spent), float(gain)) for spent, gain in data["slices"])
        return cls(data["digest"], slices, data["done"], Figures.from_json(data["figures"]))

    def as_json(self) -> dict[str, Any]:
        """As the journal keeps it."""
        assert self.figures is not None
        return {"digest": self.digest, "slices": self.slices, "done": self.done, "figures": self.figures.as_json()}


RUN: Fact[RunState] = Fact("run", RunState.from_json, RunState.as_json)


@documented
def fleet(
    plan: Annotated[str | Path, _PLAN],
    *,
    out: Annotated[str | Path, options.OUT] = "inlay-fleet",
    budget: Annotated[str | float | None, replace(_BUDGET, show_default=False)] = None,
    ray: Annotated[str | None, options.RAY] = None,
    restart: Annotated[bool, options.RESTART] = False,
    progress: Annotated[Progress | None, options.PROGRESS] = None,
    before_s: Annotated[float, options.BEFORE] = 0.0,
) -> FleetResult:
    """Tune many models for many targets under one budget, spending time where it gains most.

    The same call on the same ``out`` continues where it was stopped. A run that fails stops no other.

    Raises:
        InlayError: the plan or the folder cannot be used.
    """
    wanted = read_plan(Path(plan))
    if budget is not None:
        wanted = replace(wanted, budget_s=seconds_of(budget))
    refuse_overwriting([Path(out) / name for name in _OUTPUTS], [plan, *wanted.files])
    tune = cast(Tune, partial(api.tune, ray=ray))  # overloads by target, of which a run has one
    return run_fleet(wanted, Path(out), progress or Logged(), restart=restart, before_s=before_s, tune=tune)


def run_fleet(
    plan: FleetPlan,
    out: Path,
    progress: Progress,
    *,
    restart: bool = False,
    before_s: float = 0.0,
    tune: Tune = api.tune,
    clock: Clock = time.monotonic,
) -> FleetResult:
    """As :func:`fleet`, for a plan that was read.

    Args:
        plan: what is wanted.
        out: folder of the fleet.
        progress: hears what all runs report.
        restart: forget earlier runs in ``out``.
        before_s: seconds of the budget that were used up before the call.
        tune: gives one slice.
        clock: counts the budget.
    """
    begun = clock() - before_s
    with work_in(out), _journal(out / JOURNAL, restart, lambda: clock() - begun) as journal:
        going = _Fleet(plan, out, journal, progress, tune, restart)
        deadline = Plan.of(plan.budget_s, journal.spent_s, begun, clock).deadline
        interrupted = False
        try:
            going.until(lambda: deadline.left)
        except KeyboardInterrupt:
            interrupted = True
        wall_s = journal.spent_s + clock() - begun
        result = FleetResult(out, going.rows(), plan.budget_s, wall_s, interrupted)
        write_json(out / "result.json", result.as_json())
        write_page(out, result)
        return result


@contextmanager
def _journal(path: Path, restart: bool, seconds: Callable[[], float]) -> Iterator[Journal]:
    journal = Journal(path, {"fleet": "1"}, restart, seconds)
    try:
        yield journal
    finally:
        journal.close()


@dataclass
class _Fleet:
    """The runs of one command: what is known of them, by number, and the way to give them time."""

    plan: FleetPlan
    out: Path
    journal: Journal
    progress: Progress
    tune: Tune
    restart: bool
    states: list[RunState] = field(init=False)
    progressed: list[Progressed] = field(init=False)
    failed: dict[int, str] = field(default_factory=dict)
    pool: PatternPool = field(init=False)

    def __post_init__(self) -> None:
        self.pool = PatternPool(self.out)
        self.states = [self._known(entry) for entry in self.plan.entries]
        self.progressed = [self._progressed(n) for n in range(len(self.states))]

    def until(self, left_s: Callable[[], float]) -> None:
        """Give slices until there is no time left, or nobody who needs it."""
        while (chosen := next_slice(self.progressed, left_s())) is not None:
            self._slice(chosen.number, chosen.total_s)

    def rows(self) -> tuple[Row, ...]:
        """What became of each run."""
        return tuple(self._row(number) for number in range(len(self.states)))

    def _row(self, number: int) -> Row:
        entry, state, each = self.plan.entries[number], self.states[number], self.progressed[number]
        why = self.failed.get(number, "")
        if state.figures is None and not why:
            needs = f": it needs {each.least_s:.0f} s or more" if each.least_s else ""
            why = f"the budget left no time for it{needs}"
        return Row(
            name=entry.name,
            model=entry.model,
            target=entry.target,
            figures=state.figures,
            why=why,
            seconds=each.spent_s,
            slices=len(state.slices),
        )

    def _known(self, entry: Entry) -> RunState:
        """What an earlier session recorded of the same run, if its files are still there."""
        state, digest = self.journal.fact(RUN.of(entry.name)), entry.digest
        kept = state is not None and state.digest == digest and (self.out / entry.name / "model.onnx").is_file()
        return state if state is not None and kept else RunState(digest)

    def _progressed(self, number: int, least_s: float = 0.0) -> Progressed:
        state, most_s = self.states[number], self.plan.entries[number].most_s
        done = bool(state.done) or number in self.failed
        return Progressed(state.slices, least_s, math.inf if most_s is None else most_s, done)

    def _slice(self, number: int, total_s: float) -> None:
        entry, before, least_s = self.plan.entries[number], self.states[number], 0.0
        folder = self.out / entry.name
        hears = _Heard(f"[{number + 1}/{len(self.states)}] {entry.name}", self.progress, self.journal)
        hears.stage("without a time limit" if math.isinf(total_s) else f"up to {total_s:.0f} s in all")
        try:
            result = self.tune(**{**entry.options, **self._given(entry, total_s, hears, not before.slices)})
            if result.interrupted:
                raise KeyboardInterrupt
            spent_s = max(spent_in(folder / "run.sqlite"), before.slices[-1][0] if before.slices else 0.0)
            figures = Figures.of(result)
            done = figures.stopped_because if _done(before, spent_s, total_s, figures) else ""
            slices = (*before.slices, (spent_s, max(figures.gain, before.slices[-1][1] if before.slices else 0.0)))
            self.states[number] = RunState(before.digest, slices, done, figures)
        except TooShort as error:
            least_s = error.least_s
            if entry.most_s is not None and entry.most_s < least_s:
                self.failed[number] = str(error)
        except InlayError as error:
            self.failed[number] = str(error)
        except Exception as error:  # what nobody foresaw in one run must not end the others
            self.failed[number] = " ".join(f"{type(error).__name__}: {error}".split())
        if number in self.failed:
            hears.stage(f"failed: {self.failed[number]}")
        elif self.states[number] is not before:
            if not before.slices:
                self.pool.learn(entry.target, folder)
            self.journal.record_fact(RUN.of(entry.name), self.states[number])
        self.progressed[number] = self._progressed(number, least_s)

    def _given(self, entry: Entry, total_s: float, progress: Progress, first: bool) -> dict[str, Any]:
        """What the fleet adds to the options of a run."""
        folder = self.out / entry.name
        given: dict[str, Any] = {"out": folder, "budget": f"{math.ceil(total_s)}s", "progress": progress}
        given["restart"] = self.restart and first
        if "pattern_cache" not in entry.options:
            given["pattern_cache"] = self.pool.snapshot(entry.target, folder, first)
        return given


def _done(before: RunState, spent_s: float, total_s: float, figures: Figures) -> bool:
    """Whether a run needs no more time: by its own words, or because it left most of its slice unused."""
    had_s = before.slices[-1][0] if before.slices else 0.0
    return figures.stopped_because == EXHAUSTED or spent_s - had_s < (1 - policy.UNUSED_SHARE) * (total_s - had_s)


@dataclass(frozen=True, eq=False)
class _Heard:
    """Passes on what one run reports, under its name; the time that it takes is the fleet's."""

    name: str
    progress: Progress
    journal: Journal

    def stage(self, text: str) -> None:
        """Pass it on with the name."""
        self.progress.stage(f"{self.name}: {text}")
        self.journal.record_seconds()

    def doing(self, text: str) -> None:
        """Pass it on."""
        self.progress.doing(text)

    def trial(self, step: SearchStep) -> None:
        """Pass it on."""
        self.progress.trial(step)
        self.journal.record_seconds()

    def close(self) -> None:
        """Nothing to do: the fleet goes on."""
