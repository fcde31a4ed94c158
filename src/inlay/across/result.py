"""What several targets have to do with one model, as values and as ``result.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from inlay.installed import __version__
from inlay.run.result import NO_DOUBT, Doubt, exit_code
from inlay.targets.base import Fingerprint, TargetSpec
from inlay.trial import Accuracy, Interval

GIVEN = "given"
"""The row of the model as it was given."""
ONE = "one for all"
"""The row of the single file for all targets."""


@dataclass(frozen=True)
class Column:
    """One target.

    Attributes:
        spec: its name and options.
        fingerprint: what measurements on it depend on; None where it cannot be used.
        folder: of its own run; None where it was not tuned for.
        why: it was not, for people.
    """

    spec: TargetSpec
    fingerprint: Fingerprint | None = None
    folder: str | None = None
    why: str = ""

    @property
    def facts(self) -> Mapping[str, str]:
        """Of the fingerprint; none where it cannot be used."""
        return {} if self.fingerprint is None else self.fingerprint.facts


@dataclass(frozen=True)
class Cell:
    """One file on one target: what was measured, or why it was not.

    Attributes:
        latency_ms: median of one inference.
        speedup: over the given model on the same target, paired.
        accuracy: against the given model.
        why: it has no figures.
    """

    latency_ms: float | None = None
    speedup: Interval | None = None
    accuracy: Accuracy | None = None
    why: str = ""

    @property
    def serves(self) -> bool:
        """Whether the file runs there and keeps the bound."""
        return self.speedup is not None and self.accuracy is not None and self.accuracy.feasible

    @property
    def reason(self) -> str:
        """Why it is not for use; empty where it is."""
        return self.why or ("" if self.accuracy is None else self.accuracy.reason)


@dataclass(frozen=True)
class Ratio:
    """One latency over another: the model ``of`` on target ``on``, over that of ``over``, which are rows or targets."""

    of: str
    over: str
    on: str
    ratio: Interval

    def as_json(self) -> dict[str, Any]:
        """As in ``result.json``."""
        return {"of": self.of, "over": self.over, "on": self.on, **_interval("speedup", self.ratio)}


Table = Mapping[tuple[str, str], Cell]
"""Cells by row (:data:`GIVEN`, :data:`ONE`, or the target that a file was tuned for) and column (a target)."""


def regret(table: Table, row: str, rows: list[str], columns: list[str]) -> float:
    """How much slower than the best of ``rows`` a row is where that is most; infinite where it does not serve.

    All speed-ups of a column are over the same model in the same blocks, so that their ratios compare rows.
    """
    worst = 1.0
    for column in columns:
        best = max(
            (s.value for r in rows if (c := table.get((r, column))) and c.serves and (s := c.speedup)), default=0.0
        )
        own = table.get((row, column))
        if own is None or not own.serves or own.speedup is None:
            return float("inf")
        worst = max(worst, best / own.speedup.value)
    return worst


@dataclass(frozen=True)
class AcrossResult:
    """The outcome of :func:`inlay.tune` for several targets.

    Attributes:
        folder: where ``model.onnx`` and ``result.json`` are, and a folder with the run of each target.
        model: path and SHA-256 of the given model.
        columns: the targets by label.
        row: the row of the table that was delivered.
        deployed: label of the target to deploy with; None where one file was made for all of them.
        origin: what proposed the delivered file.
        sha256: of the delivered file.
        size_bytes: of it with its weights.
        table: what was measured.
        ratios: what the choice gains or costs, paired, in fresh processes.
        blocks: that these rest on.
        bound: the accuracy bound, as text.
        seed: of the run.
        wall_s: seconds of all sessions of the command.
        notes: for people.
        interrupted: the user ended it.
        best: the row of the best file for each target, where one file was made for all of them.
        doubt: why the bound is not shown for the delivered file.
        accept_unproven: that was accepted beforehand.
    """

    folder: Path
    model: tuple[str, str]
    columns: Mapping[str, Column]
    row: str
    deployed: str | None
    origin: str
    sha256: str
    size_bytes: int
    table: Table
    ratios: tuple[Ratio, ...]
    blocks: int
    bound: str
    seed: int
    wall_s: float
    notes: tuple[str, ...] = ()
    interrupted: bool = field(default=False)
    best: Mapping[str, str] = field(default_factory=dict)
    doubt: Doubt = NO_DOUBT
    accept_unproven: bool = False

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
        cells = {label: self.table.get((self.row, label)) for label in self.used}
        return {n: "" if c is None else c.reason for n, c in cells.items() if c is None or c.speedup is None}

    @property
    def advantage(self) -> float | None:
        """Geometric mean of what the best file for each target gains over the single one."""
        logs = [np.log(r.ratio.value) for r in self.ratios if r.over == self.row]
        return None if self.deployed or not logs else float(np.exp(np.mean(logs)))

    def as_json(self) -> dict[str, Any]:
        """The content of ``result.json``: stable keys."""
        label = self.deployed or self.used[0]
        column, cell = self.columns[label], self.cell
        given = self.table[GIVEN, label]
        return {
            "version": __version__,
            "model": {"path": self.model[0], "sha256": self.model[1]},
            "target": {
                "name": column.spec.name,
                "options": dict(column.spec.options),
                **({} if column.fingerprint is None else _fingerprint(column.fingerprint)),
            },
            "deploy": self.deployed,
            "bound": self.bound,
            "baseline": {"latency_ms": given.latency_ms},
            "best": {
                "origin": self.origin,
                **_cell(cell),
                "bound_note": self.doubt.note,
                "bound_broken": self.doubt.broken,
                "output_sha256": self.sha256,
                "size_bytes": self.size_bytes,
            },
            "targets": [
                {
                    "label": name,
                    "name": each.spec.name,
                    "options": dict(each.spec.options),
                    **({} if each.fingerprint is None else _fingerprint(each.fingerprint)),
                    "folder": each.folder,
                    "why": each.why,
                    "file": None if name not in self.best else str(self.path_of(self.best[name])),
                }
                for name, each in self.columns.items()
            ],
            "table": [{"tuned_for": row, "run_on": on, **_cell(each)} for (row, on), each in self.table.items()],
            "ratios": [r.as_json() for r in self.ratios],
            "worst_regret": self.worst_regret,
            "own_files_over_single": self.advantage,
            "blocks": self.blocks,
            "search": {"wall_s": round(self.wall_s, 3)},
            "seed": self.seed,
            "notes": list(self.notes),
        }


def _fingerprint(found: Fingerprint) -> dict[str, Any]:
    return {"fingerprint": found.digest, "facts": dict(found.facts)}


def _cell(cell: Cell) -> dict[str, Any]:
    accuracy = cell.accuracy
    return {
        "latency_ms": cell.latency_ms,
        **_interval("speedup", cell.speedup),
        "sqnr_db": None if accuracy is None else accuracy.sqnr_db,
        "metric": None if accuracy is None else accuracy.metric,
        "feasible": cell.serves,
        "why": cell.reason,
    }


def _interval(name: str, found: Interval | None) -> dict[str, float | None]:
    low, high = (None, None) if found is None else (found.low, found.high)
    return {
        name: None if found is None else found.value,
        f"{name}_low": low if low is not None and np.isfinite(low) else None,
        f"{name}_high": high if high is not None and np.isfinite(high) else None,
    }
