"""What a command for several runs holds open: its folder, its journal and its time; and what it keeps of each run."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from inlay.deadline import Clock, Deadline
from inlay.measure.journal import Journal
from inlay.run.folder import work_in
from inlay.run.progress import Progress, SearchStep, Silent
from inlay.run.result import Doubt, TuneResult
from inlay.run.schedule import deadline_of
from inlay.targets.base import is_estimate, unit_of
from inlay.trial import Interval


@dataclass(frozen=True, eq=False)
class Portfolio:
    """A command for several runs; see :func:`open_portfolio`."""

    out: Path  # folder of its results, and of the folders of its runs
    work: Path  # folder for scratch files
    journal: Journal  # of the command; each run keeps its own
    progress: Progress  # hears what happens
    deadline: Deadline  # of the command
    begun: float  # when it began, on the clock of `deadline`

    @property
    def seconds(self) -> float:
        """That all sessions of the command took."""
        return self.journal.spent_s + self.deadline.clock() - self.begun

    def stage(self, text: str) -> None:
        """Report that a stage begins, and record the time that was spent until then."""
        self.progress.stage(text)
        self.journal.record_seconds()

    def hears(self, run: str) -> Progress:
        """What a run of this name reports to: it is passed on, and the time that it takes is the command's."""
        return _Named(run, self)


@dataclass(frozen=True, eq=False)
class _Named(Silent):
    run: str
    command: Portfolio

    def stage(self, text: str) -> None:
        """Pass it on with the run's name."""
        self.command.stage(f"{self.run}: {text}")

    def doing(self, text: str) -> None:
        """Pass it on."""
        self.command.progress.doing(text)

    def trial(self, step: SearchStep) -> None:
        """Pass it on."""
        self.command.progress.trial(step)
        self.command.journal.record_seconds()


@contextlib.contextmanager
def open_portfolio(
    journal: Path,
    identity: Mapping[str, str],
    progress: Progress,
    *,
    restart: bool,
    budget_s: float | None,
    begun: float,
    clock: Clock,
) -> Iterator[Portfolio]:
    """Lock the folder of ``journal``, and open that.

    Args:
        identity: what must be equal for the command to go on where an earlier session stopped.
        budget_s: seconds of all sessions; None for no limit.

    Raises:
        JournalError: the folder is in use, belongs to another command, or cannot be written.
    """
    out = journal.parent
    with (
        work_in(out) as work,
        contextlib.closing(Journal(journal, identity, restart, lambda: clock() - begun)) as opened,
    ):
        deadline = deadline_of(budget_s, opened.spent_s, begun, clock)
        yield Portfolio(out, work, opened, progress, deadline, begun)


@dataclass(frozen=True)
class Figures:
    """What one run found, as far as others need it; see :class:`~inlay.run.result.Best`."""

    origin: str
    is_float: bool
    confirmed: bool
    # speedup, speedup_low, speedup_high: over the given model; bounds are None where they are infinite
    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    # baseline_ms, latency_ms: of the given and of the delivered model
    baseline_ms: float
    latency_ms: float
    sqnr_db: float
    metric: float | None
    bound: str  # the accuracy bound, as text
    output_sha256: str
    stopped_because: str  # why its latest search ended
    notes: tuple[str, ...] = ()  # of the run
    facts: Mapping[str, str] = field(default_factory=dict)  # those of the target's that say what its figures are
    # bound_note, bound_broken: why the bound is not shown, as of `Doubt`
    bound_note: str = ""
    bound_broken: bool = False
    accept_unproven: bool = False  # that was accepted beforehand

    @property
    def gained(self) -> Interval:
        """The speed-up with its interval."""
        low, high = self.speedup_low, self.speedup_high
        return Interval(self.speedup, 0.0 if low is None else low, math.inf if high is None else high)

    @property
    def gain(self) -> float:
        """Logarithm of the speed-up that is certain: the interval's lower end, and never below none."""
        return math.log(max(1.0, self.speedup if self.speedup_low is None else self.speedup_low))

    @property
    def doubt(self) -> Doubt:
        """Why the bound is not shown."""
        return Doubt(self.bound_note, self.bound_broken)

    @property
    def unproven(self) -> str:
        """The same as text."""
        return str(self.doubt)

    @property
    def unit(self) -> str:
        """In which the target gives its figures."""
        return unit_of(self.facts)

    @property
    def estimated(self) -> bool:
        """Whether the target computes its figures, and measures none."""
        return is_estimate(self.facts)

    @classmethod
    def of(cls, result: TuneResult) -> Figures:
        """Those of a finished run."""
        best, doubt = result.best.as_json(), result.best.doubt
        shared = {each.name: best[each.name] for each in fields(cls) if each.name in best}
        return cls(
            **{**shared, "bound_note": doubt.note, "bound_broken": doubt.broken},
            baseline_ms=result.baseline_ms,
            bound=result.bound,
            stopped_because=str(result.search["stopped_because"]),
            notes=result.notes,
            facts={name: value for name, value in result.facts.items() if name in ("kind", "unit", "measures")},
            accept_unproven=result.accept_unproven,
        )
