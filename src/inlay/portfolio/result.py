"""What a command for several runs found, as values and as ``result.json``: files on targets, and rows of a fleet."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from inlay.installed import __version__
from inlay.portfolio.runs import Figures
from inlay.run.result import NO_DOUBT, Doubt, exit_code, speedup_json
from inlay.targets.base import Artifact, Fingerprint, TargetSpec
from inlay.trial import Accuracy, Interval

GIVEN = "given"  # the row of the model as it was given
ONE = "one for all"  # the row of the single file for all targets


# --- one model, several targets --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """One target."""

    spec: TargetSpec  # its name and options
    fingerprint: Fingerprint | None = None  # what measurements on it depend on; None where it cannot be used
    folder: str | None = None  # of its own run; None where it was not tuned for
    why: str = ""  # it was not, for people

    @property
    def facts(self) -> Mapping[str, str]:
        """Of the fingerprint; none where it cannot be used."""
        return {} if self.fingerprint is None else self.fingerprint.facts

    def as_json(self) -> dict[str, Any]:
        """As in ``result.json``."""
        known = None if self.fingerprint is None else self.fingerprint.digest
        return {
            "name": self.spec.name,
            "options": dict(self.spec.options),
            **({} if known is None else {"fingerprint": known, "facts": dict(self.facts)}),
        }


@dataclass(frozen=True)
class Cell:
    """One file on one target: what was measured, or why it was not."""

    latency_ms: float | None = None  # median of one inference
    speedup: Interval | None = None  # over the given model on the same target, paired
    accuracy: Accuracy | None = None  # against the given model
    why: str = ""  # it has no figures

    @property
    def serves(self) -> bool:
        """Whether the file runs there and keeps the bound."""
        return self.speedup is not None and self.accuracy is not None and self.accuracy.feasible

    @property
    def reason(self) -> str:
        """Why it is not for use; empty where it is."""
        return self.why or ("" if self.accuracy is None else self.accuracy.reason)

    def as_json(self) -> dict[str, Any]:
        """As in ``result.json``."""
        return {
            "latency_ms": self.latency_ms,
            **speedup_json(self.speedup),
            "sqnr_db": None if self.accuracy is None else self.accuracy.sqnr_db,
            "metric": None if self.accuracy is None else self.accuracy.metric,
            "feasible": self.serves,
            "why": self.reason,
        }


Table = Mapping[tuple[str, str], Cell]
"""Cells by row (:data:`GIVEN`, :data:`ONE`, or the target that a file was tuned for) and column (a target)."""


@dataclass(frozen=True)
class Ratio:
    """One latency over another: the model ``of`` on target ``on``, over that of ``over``, which are rows or targets."""

    of: str
    over: str
    on: str
    ratio: Interval


def regret(table: Table, row: str, rows: Collection[str], columns: Collection[str]) -> float:
    """How much slower than the best of ``rows`` a row is where that is most; infinite where it does not serve.

    All speed-ups of a column are over the same model in the same blocks, so that their ratios compare rows.
    """
    worst = 1.0
    for column in columns:
        found = {r: c.speedup.value for r in rows if (c := table.get((r, column))) and c.serves and c.speedup}
        if row not in found:
            return math.inf
        worst = max(worst, max(found.values()) / found[row])
    return worst


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What is delivered, and why."""

    row: str  # the row of the table that is delivered
    deployed: str | None  # label of the target to deploy with; None where one file was made for all of them
    origin: str  # what proposed the delivered file
    file: Artifact  # the delivered file, where it was made
    table: Table  # what was measured
    ratios: tuple[Ratio, ...]  # what the choice gains or costs, paired, in fresh processes
    blocks: int  # that these rest on
    notes: tuple[str, ...] = ()  # for people
    # the row of the best file for each target, where one file was made for all of them
    best: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AcrossResult(Chosen):
    """The outcome of :func:`inlay.tune` for several targets: what was chosen, and what it was chosen from."""

    folder: Path  # where `model.onnx` and `result.json` are, and a folder with the run of each target
    model: tuple[str, str]  # path and SHA-256 of the given model
    columns: Mapping[str, Column]  # the targets by label
    size_bytes: int  # of the delivered file with its weights
    bound: str  # the accuracy bound, as text
    seed: int  # of the run
    wall_s: float  # seconds of all sessions of the command
    interrupted: bool = False  # the user ended it
    doubt: Doubt = NO_DOUBT  # why the bound is not shown for the delivered file
    accept_unproven: bool = False  # that was accepted beforehand

    @property
    def unproven(self) -> str:
        """That the bound is broken, or not shown for new samples, and why, for the first line; empty where it is."""
        return str(self.doubt)

    @property
    def exit_code(self) -> int:
        """Of the command, as of :class:`~inlay.run.result.TuneResult`."""
        return exit_code(self.interrupted, self.unproven, self.accept_unproven)

    @property
    def model_path(self) -> Path:
        """The delivered model."""
        return self.folder / "model.onnx"

    @property
    def sha256(self) -> str:
        """Of the delivered file."""
        return self.file.digest

    def path_of(self, row: str) -> Path:
        """The file of a row of the table."""
        if row == GIVEN:
            return Path(self.model[0])
        return self.model_path if row == self.row else self.folder / (self.columns[row].folder or "") / "model.onnx"

    @property
    def rows(self) -> list[str]:
        """The rows of the table, in order."""
        return list(dict.fromkeys(row for row, _ in self.table))

    @property
    def used(self) -> list[str]:
        """The targets that were measured, by label."""
        return list(dict.fromkeys(column for _, column in self.table))

    @property
    def cell(self) -> Cell:
        """The delivered file on the target to deploy with, or on the first."""
        return self.table[self.row, self.deployed or self.used[0]]

    @property
    def worst_regret(self) -> float | None:
        """Of the delivered file, where it is for all targets; None where it was not measured on each of them."""
        worst = math.inf if self.deployed else regret(self.table, self.row, self.rows, self.used)
        return worst if math.isfinite(worst) else None

    @property
    def unmeasured(self) -> Mapping[str, str]:
        """Why there is no figure of the delivered file, by the targets where there is none."""
        cells = {label: self.table.get((self.row, label), Cell()) for label in self.used}
        return {label: cell.reason for label, cell in cells.items() if cell.speedup is None}

    @property
    def advantage(self) -> float | None:
        """Geometric mean of what the best file for each target gains over the single one."""
        return None if self.deployed else _mean([r.ratio.value for r in self.ratios if r.over == self.row])

    def as_json(self) -> dict[str, Any]:
        """The content of ``result.json``: stable keys."""
        label = self.deployed or self.used[0]
        return {
            "version": __version__,
            "model": {"path": self.model[0], "sha256": self.model[1]},
            "target": self.columns[label].as_json(),
            "deploy": self.deployed,
            "bound": self.bound,
            "baseline": {"latency_ms": self.table[GIVEN, label].latency_ms},
            "best": {
                "origin": self.origin,
                **self.cell.as_json(),
                "bound_note": self.doubt.note,
                "bound_broken": self.doubt.broken,
                "output_sha256": self.sha256,
                "size_bytes": self.size_bytes,
            },
            "targets": [
                {
                    "label": name,
                    **each.as_json(),
                    "folder": each.folder,
                    "why": each.why,
                    "file": None if name not in self.best else str(self.path_of(self.best[name])),
                }
                for name, each in self.columns.items()
            ],
            "table": [{"tuned_for": row, "run_on": on, **cell.as_json()} for (row, on), cell in self.table.items()],
            "ratios": [{"of": r.of, "over": r.over, "on": r.on, **speedup_json(r.ratio)} for r in self.ratios],
            "worst_regret": self.worst_regret,
            "own_files_over_single": self.advantage,
            "blocks": self.blocks,
            "search": {"wall_s": round(self.wall_s, 3)},
            "seed": self.seed,
            "notes": list(self.notes),
        }


# --- many models, many targets ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run of a fleet."""

    name: str  # of its folder
    model: str
    target: str
    figures: Figures | None  # what it found; None where it has no result
    why: str  # the reason why it failed or has no result, or stopped before its time; may be empty
    seconds: float  # that it has had
    slices: int  # in how many parts


@dataclass(frozen=True)
class FleetResult:
    """The outcome of ``inlay fleet``."""

    folder: Path  # where `result.json`, `fleet.html` and the folders of the runs are
    rows: tuple[Row, ...]  # the runs, in the order of the plan
    budget_s: float | None  # seconds for all; None for no limit
    wall_s: float  # seconds that all sessions took
    interrupted: bool = False  # the user stopped it

    @property
    def found(self) -> list[Figures]:
        """Those of all runs that have a result."""
        return [row.figures for row in self.rows if row.figures is not None]

    @property
    def failed(self) -> tuple[Row, ...]:
        """Runs that failed, or have no result."""
        return tuple(row for row in self.rows if row.why)

    @property
    def exit_code(self) -> int:
        """Of the command: 130 interrupted, 1 where a run failed, 3 where a bound is not shown and that not accepted."""
        if self.failed and not self.interrupted:
            return 1
        unproven = next((f.unproven for f in self.found if f.unproven and not f.accept_unproven), "")
        return exit_code(self.interrupted, unproven, accepted=False)

    @property
    def mean_of(self) -> str:
        """What :attr:`speedup` is the mean of, where not all of it was measured; otherwise empty."""
        estimated = [each.estimated for each in self.found]
        if not any(estimated):
            return ""
        return "all estimated" if all(estimated) else f"{sum(estimated)} of {len(estimated)} estimated"

    @property
    def speedup(self) -> float | None:
        """Geometric mean of the speed-ups; None where no run has a result."""
        return _mean([each.speedup for each in self.found])

    def as_json(self) -> dict[str, Any]:
        """The content of ``result.json``: stable keys."""
        return {
            "version": __version__,
            "budget_s": self.budget_s,
            "wall_s": round(self.wall_s, 3),
            "speedup": self.speedup,
            "interrupted": self.interrupted,
            "runs": [asdict(row) for row in self.rows],
            "notes": [],
        }


def _mean(ratios: list[float]) -> float | None:
    """Their geometric mean; None of none."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
