"""What became of a fleet: one row for each run, as values and as ``result.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from inlay.installed import __version__
from inlay.run.result import Doubt, TuneResult, exit_code
from inlay.targets.base import is_estimate, unit_of
from inlay.trial import Interval


@dataclass(frozen=True)
class Figures:
    """What one run found, as far as a table shows it; see :class:`~inlay.run.result.Best`.

    Attributes:
        speedup, speedup_low, speedup_high: over the given model; bounds are None where they are infinite.
        baseline_ms, latency_ms: of the given and of the delivered model.
        bound: the accuracy bound, as text.
        stopped_because: why its latest search ended.
        notes: of the run.
        facts: those of the target's that say what its figures are.
        bound_note, bound_broken: why the bound is not shown, as of :class:`~inlay.run.result.Doubt`.
        accept_unproven: that was accepted beforehand.
    """

    origin: str
    is_float: bool
    confirmed: bool
    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    baseline_ms: float
    latency_ms: float
    sqnr_db: float
    metric: float | None
    bound: str
    output_sha256: str
    stopped_because: str
    notes: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    bound_note: str = ""
    bound_broken: bool = False
    accept_unproven: bool = False

    @property
    def gained(self) -> Interval:
        """The speed-up with its interval."""
        low, high = self.speedup_low, self.speedup_high
        return Interval(self.speedup, 0.0 if low is None else low, math.inf if high is None else high)

    @property
    def unproven(self) -> str:
        """That the bound is broken, or not shown for new samples, and why; empty where it is."""
        return str(Doubt(self.bound_note, self.bound_broken))

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
        best = result.best.as_json()
        return cls(
            **{name: best[name] for name in _OF_BEST},
            baseline_ms=result.baseline_ms,
            bound=result.bound,
            stopped_because=str(result.search["stopped_because"]),
            notes=result.notes,
            bound_note=result.best.doubt.note,
            bound_broken=result.best.doubt.broken,
            accept_unproven=result.accept_unproven,
            facts={name: value for name, value in result.facts.items() if name in ("kind", "unit", "measures")},
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Figures:
        """What :meth:`as_json` made."""
        return cls(**{**data, "notes": tuple(data["notes"])})

    def as_json(self) -> dict[str, Any]:
        """As in ``result.json``."""
        return asdict(self)

    @property
    def gain(self) -> float:
        """Logarithm of the speed-up that is certain: the interval's lower end, and never below none."""
        sure = self.speedup if self.speedup_low is None else self.speedup_low
        return math.log(max(1.0, sure))


_OF_BEST = (
    "origin", "is_float", "confirmed", "speedup", "speedup_low", "speedup_high", "latency_ms", "sqnr_db", "metric",
    "output_sha256",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run of a fleet.

    Attributes:
        name: of its folder.
        figures: what it found; None where it has no result.
        why: the reason why it failed or has no result, or stopped before its time; may be empty.
        seconds: that it has had.
        slices: in how many parts.
    """

    name: str
    model: str
    target: str
    figures: Figures | None
    why: str
    seconds: float
    slices: int

    def as_json(self) -> dict[str, Any]:
        """As in ``result.json``."""
        return {**asdict(self), "figures": None if self.figures is None else self.figures.as_json()}


@dataclass(frozen=True)
class FleetResult:
    """The outcome of ``inlay fleet``.

    Attributes:
        folder: where ``result.json``, ``fleet.html`` and the folders of the runs are.
        rows: the runs, in the order of the plan.
        budget_s: seconds for all; None for no limit.
        wall_s: seconds that all sessions took.
        interrupted: the user stopped it.
        notes: what else people should know.
    """

    folder: Path
    rows: tuple[Row, ...]
    budget_s: float | None
    wall_s: float
    interrupted: bool = False
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> tuple[Row, ...]:
        """Runs that failed, or have no result."""
        return tuple(row for row in self.rows if row.why)

    @property
    def exit_code(self) -> int:
        """Of the command: 130 interrupted, 1 where a run failed, 3 where a bound is not shown and that not accepted."""
        if self.failed and not self.interrupted:
            return 1
        found = [row.figures for row in self.rows if row.figures is not None]
        unproven = next((f.unproven for f in found if f.unproven and not f.accept_unproven), "")
        return exit_code(self.interrupted, unproven, accepted=False)

    @property
    def mean_of(self) -> str:
        """What :attr:`speedup` is the mean of, where not all of it was measured; otherwise empty."""
        found = [row.figures.estimated for row in self.rows if row.figures is not None]
        if not any(found):
            return ""
        return "all estimated" if all(found) else f"{sum(found)} of {len(found)} estimated"

    @property
    def speedup(self) -> float | None:
        """Geometric mean of the speed-ups; None where no run has a result."""
        found = [math.log(row.figures.speedup) for row in self.rows if row.figures is not None]
        return math.exp(sum(found) / len(found)) if found else None

    def as_json(self) -> dict[str, Any]:
        """The content of ``result.json``: stable keys."""
        return {
            "version": __version__,
            "budget_s": self.budget_s,
            "wall_s": round(self.wall_s, 3),
            "speedup": self.speedup,
            "interrupted": self.interrupted,
            "runs": [row.as_json() for row in self.rows],
            "notes": list(self.notes),
        }
