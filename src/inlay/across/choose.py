"""Which target to deploy with, or which single file serves all targets, from measurements in blocks that they share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from inlay.across.candidates import candidates
from inlay.across.comparing import Comparison
from inlay.across.result import GIVEN, ONE, Cell, Ratio, Table, regret
from inlay.errors import RunFailed
from inlay.measure.panel import Readings
from inlay.measure.policy import BUSY
from inlay.search.baselines import ORIGINAL
from inlay.targets.base import Artifact

_TRIES = 3
"""Files that are verified on unseen samples before the choice is among those that the runs delivered: each look at
these samples weakens what they prove."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What is delivered, and why.

    Attributes:
        row: of the table.
        deployed: label of the target to deploy with, or None.
        origin: what proposed the file; empty where the row's own run tells.
        file: the delivered file.
        table: what was measured.
        ratios: what the choice gains or costs.
        blocks: that these rest on.
        notes: for people.
        best: the row of the best file for each target, where one file is for all.
    """

    row: str
    deployed: str | None
    origin: str
    file: Artifact
    table: Table
    ratios: tuple[Ratio, ...]
    blocks: int
    notes: tuple[str, ...] = ()
    best: Mapping[str, str] = field(default_factory=dict)


def choose_target(comparison: Comparison, delivered: Mapping[str, Artifact]) -> Chosen:
    """The fastest pair of target and file: what each run delivered, and the given model, on every target.

    A file may well be the fastest on a target that it was not made for, whose own run had too little time.
    """
    given = comparison.session.given
    files = {label: {GIVEN: given, label: file, **delivered} for label, file in delivered.items()}
    table, readings = comparison.measure(files, verify=True)
    serving = {cell: ms for cell, each in table.items() if each.serves and (ms := each.latency_ms) is not None}
    if not serving:
        raise RunFailed("nothing keeps the bound on any target: " + _reasons(table))
    usual = [cell for cell in table if cell[0] in (GIVEN, cell[1])]
    best = min([c for c in serving if c in usual] or serving, key=lambda cell: serving[cell])
    for cell in sorted(serving, key=lambda cell: serving[cell]):
        if cell not in usual and readings.ratio(best, cell).shows_gain():
            best = cell
            break
    row, label = best
    rivals = {c: Ratio(row, _named(*c), label, readings.ratio(c, best)) for c in serving if c != best and c in usual}
    notes = [f"{_named(*c)} cannot be used: {why}" for c in usual if (why := table[c].reason)]
    others = [(c, r) for c, r in rivals.items() if c[1] != label]
    runner_up = min(others, key=lambda each: serving[each[0]], default=None)
    if runner_up is not None and not runner_up[1].ratio.shows_gain():
        notes.append(f"{label} is not measurably faster than {_named(*runner_up[0])}")
    file = given if row == GIVEN else delivered[row]
    origin = "" if row != GIVEN else ORIGINAL
    return Chosen(
        row=row,
        deployed=label,
        origin=origin,
        file=file,
        table=table,
        ratios=tuple(rivals.values()),
        blocks=readings.blocks,
        notes=(*notes, *_busy(readings)),
    )


def choose_file(comparison: Comparison, delivered: Mapping[str, Artifact]) -> Chosen:
    """The file whose worst regret over all targets is smallest, and what the best file for each target gains over it.

    That is its own one, unless another is measurably faster there: a run may have had too little time for its target.
    Candidates are compared in few blocks, by the samples that the searches looked at. The figures come from other
    blocks, in fresh processes, and accuracy from samples that nothing has seen; a file that fails there gives way to
    the next.
    """
    session, labels = comparison.session, list(delivered)
    found = candidates(session, delivered)
    session.stage(f"look for one file for all: {len(found)} candidates on {len(labels)} targets")
    rows = {GIVEN: session.given, **{n: f for n, f in found.items() if f.digest != session.given.digest}}
    looked = comparison.look(dict.fromkeys(labels, rows))
    ranked = sorted(rows, key=lambda row: regret(looked, row, list(rows), labels))
    own = {label: {GIVEN: session.given, **delivered} for label in labels}
    for row in ranked[:_TRIES]:
        files = {label: {**own[label], ONE: rows[row]} for label in labels}
        table, readings = comparison.measure(files, verify=True)
        served = [r for r in (ONE, *labels, GIVEN) if all(table[r, label].serves for label in labels)]
        if ONE in served or not session.left_s:
            break
    best = min(served, key=lambda r: regret(table, r, served, labels), default=GIVEN)
    kept = {GIVEN, best, *labels}  # of which there are files at the end
    fastest = {label: r for label in labels if (r := _best_on(table, readings, label, kept)) is not None}
    ratios = tuple(Ratio(r, best, label, readings.ratio((best, label), (r, label))) for label, r in fastest.items())
    file = {**own[labels[0]], ONE: rows[row]}[best]
    origin = {GIVEN: ORIGINAL, ONE: row}.get(best, "")
    return Chosen(
        row=best,
        deployed=None,
        origin=origin,
        file=file,
        table=table,
        ratios=ratios,
        blocks=readings.blocks,
        notes=tuple(_busy(readings)),
        best=fastest,
    )


def _best_on(table: Table, readings: Readings, label: str, rows: Collection[str]) -> str | None:
    """The row of a target's own file, or of the fastest where that is measurably faster or the own one is not for use.

    None where none of ``rows`` is.
    """
    cells = {row: cell for (row, on), cell in table.items() if on == label and row in rows and cell.serves}
    serving = {row: ms for row, cell in cells.items() if (ms := cell.latency_ms) is not None}
    for row in sorted(serving, key=lambda row: serving[row]):
        if label not in serving or readings.ratio((label, label), (row, label)).shows_gain():
            return row
    return label if label in serving else None


def _named(row: str, label: str) -> str:
    if row == GIVEN:
        return f"the given model on {label}"
    return label if row == label else f"the file for {row} on {label}"


def _reasons(table: Mapping[tuple[str, str], Cell]) -> str:
    return "; ".join(f"{_named(*c)}: {e.reason}" for c, e in table.items())


def _busy(readings: Readings) -> list[str]:
    if np.mean(readings.timing.preempted) <= BUSY:
        return []
    return ["the machine was busy: other processes took a part of many readings; measure again on a quiet machine"]
