"""Many models on many targets: slices of time, each one resumed :func:`inlay.tune`, until all are done or time is up.

What a run found is in its own folder and journal. The fleet's journal holds a fact for each run, written after each of
its slices, and the time that was spent; after a kill at any moment the slice under way is resumed like any run.

All runs on a target share a pattern cache: what the first slices of earlier runs learned, later runs start from. A run
keeps the cache that it began with in its own folder, so that its later slices, and a resumed one, see the same. Costs
by signature need no pool: they are kept for all runs of a machine (:mod:`inlay.run.machine_costs`).
"""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from inlay import api
from inlay.deadline import Clock
from inlay.errors import InlayError, TooShort
from inlay.files import as_file_name, refuse_overwriting, replacing, write_text
from inlay.installed import __version__
from inlay.measure.journal import Fact, made, spent_in
from inlay.patterns.cache import PatternCache
from inlay.portfolio import policy
from inlay.portfolio.allocate import Progressed, next_slice
from inlay.portfolio.plan import Entry, FleetPlan, read_plan
from inlay.portfolio.result import FleetResult, Row
from inlay.portfolio.runs import Figures, Portfolio, open_portfolio
from inlay.prepare import options
from inlay.prepare.declare import documented
from inlay.report.page import style, template
from inlay.run.call import seconds_of
from inlay.run.notebook import usual
from inlay.run.progress import Progress
from inlay.run.result import TuneResult, write_json
from inlay.run.tune import EXHAUSTED
from inlay.trial import shown_ratio, shown_sqnr

JOURNAL, PAGE = "fleet.sqlite", "fleet.html"
Tune = Callable[..., TuneResult]


@dataclass(frozen=True)
class RunState:
    """What the fleet keeps of a run."""

    digest: str  # of what its result depends on (`digest`)
    slices: tuple[tuple[float, float], ...] = ()  # see `Progressed`
    done: str = ""  # why it needs no more time; empty where it may gain from more
    figures: Figures | None = None  # of its latest result; None without one

    @property
    def had(self) -> tuple[float, float]:
        """Seconds that it has had, and the logarithm of its speed-up."""
        return self.slices[-1] if self.slices else (0.0, 0.0)


RUN: Fact[RunState] = Fact("run", partial(made, RunState), asdict)


@documented
def fleet(
    plan: Annotated[str | Path, options.FLEET],
    *,
    out: Annotated[str | Path, options.OUT] = "inlay-fleet",
    budget: Annotated[str | float | None, options.FLEET_BUDGET] = None,
    ray: Annotated[str | None, options.RAY] = None,
    device: Annotated[str | None, options.DEVICE] = None,
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
    refuse_overwriting([Path(out) / name for name in ("result.json", PAGE, JOURNAL)], [plan, *wanted.files])
    tune = partial(api.tune, ray=ray, device=device)
    return run_fleet(wanted, Path(out), progress or usual(), restart=restart, before_s=before_s, tune=tune)


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
        before_s: seconds of the budget that were used up before the call.
    """
    with open_portfolio(
        out / JOURNAL,
        {"fleet": "1"},
        progress,
        restart=restart,
        budget_s=plan.budget_s,
        begun=clock() - before_s,
        clock=clock,
    ) as held:
        fleet = Fleet(plan.entries, held, tune, restart)
        try:
            fleet.give_slices()
            interrupted = False
        except KeyboardInterrupt:
            interrupted = True
        result = FleetResult(out, tuple(map(fleet.row, plan.entries)), plan.budget_s, held.seconds, interrupted)
        write_json(out / "result.json", result.as_json())
        write_page(result)
        return result


def write_page(result: FleetResult) -> None:
    """Write ``fleet.html``: one document that refers only to the runs' own pages. Raises JournalError."""
    reports = {row.name for row in result.rows if (result.folder / row.name / "report.html").is_file()}
    text = template("inlay.portfolio", "page.html.j2").render(
        result=result, reports=reports, ratio=shown_ratio, decibels=shown_sqnr, style=style(), version=__version__
    )
    write_text(result.folder / PAGE, text)


class Fleet:
    """The runs of one command, by name: what is known of them, and the way to give them time.

    Args:
        weights: what each gains counts for, by name; all alike without.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        held: Portfolio,
        tune: Tune,
        restart: bool,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self._entries, self._held, self._tune, self._restart = entries, held, tune, restart
        self._weights = weights or {}
        self._states = {entry.name: self._known(entry) for entry in entries}
        self._failed: dict[str, str] = {}
        self._least_s: dict[str, float] = {}

    def _known(self, entry: Entry) -> RunState:
        """What an earlier session recorded of the same run, if its files are still there."""
        state, digest = self._held.journal.fact(RUN.of(entry.name)), entry.digest
        kept = state is not None and state.digest == digest and (self._folder(entry) / "model.onnx").is_file()
        return state if state is not None and kept else RunState(digest)

    def _folder(self, entry: Entry) -> Path:
        return self._held.out / entry.name

    def row(self, entry: Entry) -> Row:
        """What became of a run."""
        state, why = self._states[entry.name], self._failed.get(entry.name, "")
        if state.figures is None and not why:
            least_s = self._least_s.get(entry.name)
            why = f"the budget left no time for it{f': it needs {least_s:.0f} s or more' if least_s else ''}"
        return Row(
            name=entry.name,
            model=entry.model,
            target=entry.target,
            figures=state.figures,
            why=why,
            seconds=state.had[0],
            slices=len(state.slices),
        )

    def give_slices(self) -> None:
        """Give slices until there is no time left, or nobody who needs it."""
        while (chosen := next_slice([*map(self._progressed, self._entries)], self._held.deadline.left)) is not None:
            entry = self._entries[chosen.number]
            progress = self._held.hears(f"[{chosen.number + 1}/{len(self._entries)}] {entry.name}")
            limit = "without a time limit" if math.isinf(chosen.total_s) else f"up to {chosen.total_s:.0f} s in all"
            progress.stage(limit)
            try:
                state = self._slice(entry, chosen.total_s, progress)
            except TooShort as error:
                self._least_s[entry.name] = error.least_s
                if entry.most_s < error.least_s:
                    self._failed[entry.name] = str(error)
            except InlayError as error:
                self._failed[entry.name] = str(error)
            except Exception as error:  # what nobody foresaw in one run must not end the others
                self._failed[entry.name] = " ".join(f"{type(error).__name__}: {error}".split())
            else:
                self._states[entry.name] = self._held.journal.record_fact(RUN.of(entry.name), state)
            if entry.name in self._failed:
                progress.stage(f"failed: {self._failed[entry.name]}")

    def _progressed(self, entry: Entry) -> Progressed:
        state, least_s = self._states[entry.name], self._least_s.get(entry.name, 0.0)
        done = bool(state.done) or entry.name in self._failed
        return Progressed(state.slices, least_s, entry.most_s, done, weight=self._weights.get(entry.name, 1.0))

    def _slice(self, entry: Entry, total_s: float, progress: Progress) -> RunState:
        """Give a run time until it has had so many seconds in all; what is then known of it."""
        before, folder = self._states[entry.name], self._folder(entry)
        (had_s, gain), first = before.had, not before.slices
        options = {**entry.options, "out": folder, "budget": f"{math.ceil(total_s)}s", "progress": progress}
        if "pattern_cache" not in entry.options:
            options["pattern_cache"] = self._patterns(entry, first)
        result = self._tune(**options, restart=self._restart and first)
        if result.interrupted:
            raise KeyboardInterrupt
        figures, spent_s = Figures.of(result), max(spent_in(folder / "run.sqlite"), had_s)
        done = figures.stopped_because if _done(figures, spent_s - had_s, total_s - had_s) else ""
        if first:
            self._learn(entry)
        return RunState(before.digest, (*before.slices, (spent_s, max(figures.gain, gain))), done, figures)

    def _pool(self, entry: Entry) -> Path:
        return self._held.out / f"patterns-{as_file_name(entry.target)}.yaml"

    def _learn(self, entry: Entry) -> None:
        """Add the patterns of a run to its target's pool; adding them twice changes nothing."""
        pool, learned = self._pool(entry), self._folder(entry) / "pattern_cache.yaml"
        with contextlib.suppress(InlayError, OSError):  # it only saves time
            if not pool.is_file():
                shutil.copyfile(learned, pool)
            elif pool.stat().st_size <= policy.MOST_POOLED_BYTES:
                merged = PatternCache.load(pool)
                merged.merge(PatternCache.load(learned))
                merged.save(pool)

    def _patterns(self, entry: Entry, first: bool) -> Path | None:
        """The cache that a run begins with, or began with; None where there was none."""
        folder, pool = self._folder(entry), self._pool(entry)
        kept = folder / "known_patterns.yaml"
        if first and not kept.is_file() and not (folder / "run.sqlite").is_file() and pool.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(kept) as fresh:
                shutil.copyfile(pool, fresh)
        return kept if kept.is_file() else None


def _done(figures: Figures, used_s: float, given_s: float) -> bool:
    """Whether a run needs no more time: by its own words, or because it left most of its slice unused."""
    return figures.stopped_because == EXHAUSTED or used_s < (1 - policy.UNUSED_SHARE) * given_s
