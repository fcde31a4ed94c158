"""Which target to deploy with, or which single file serves all targets, from measurements in blocks that they share."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping

import numpy as np

from inlay.deadline import Deadline
from inlay.errors import InlayError, RunFailed
from inlay.measure.journal import Journal, Record
from inlay.measure.panel import Readings
from inlay.measure.policy import BUSY
from inlay.portfolio import policy
from inlay.portfolio.comparing import Comparison
from inlay.portfolio.result import GIVEN, ONE, Chosen, Ratio, Table, regret
from inlay.run.finished import writer_of
from inlay.search.baselines import ORIGINAL
from inlay.targets.base import Artifact
from inlay.trial import Measured
from inlay.types import Placement

_TRIES = 3
"""Files verified on unseen samples before the choice is among what the runs delivered: each look weakens these."""


def choose_target(comparison: Comparison, delivered: Mapping[str, Artifact], spared: Collection[str] = ()) -> Chosen:
    """The fastest pair of target and file: what each run delivered, and the given model, on every target.

    A file may well be the fastest on a target that it was not made for, whose own run had too little time. On those
    that were ``spared`` a run, the given model alone is measured.
    """
    own = {GIVEN: comparison.given, **delivered}
    files = {label: {GIVEN: own[GIVEN], label: own[label], **delivered} for label in delivered}
    files.update({label: {GIVEN: own[GIVEN]} for label in spared})
    table, readings = comparison.measure(files)
    serving = {cell: ms for cell, each in table.items() if each.serves and (ms := each.latency_ms) is not None}
    if not serving:
        why = "; ".join(f"{_named(*cell)}: {each.reason}" for cell, each in table.items())
        raise RunFailed(f"nothing keeps the bound on any target: {why}")
    order = sorted(serving, key=lambda cell: serving[cell])
    usual = [cell for cell in table if cell[0] in (GIVEN, cell[1])]
    best = next((c for c in order if c in usual), order[0])
    best = next((c for c in order if c not in usual and readings.ratio(best, c).shows_gain()), best)
    row, label = best
    rivals = {c: readings.ratio(c, best) for c in serving if c != best and c in usual}
    notes = [f"{_named(*c)} cannot be used: {why}" for c in usual if (why := table[c].reason)]
    runner_up = next((c for c in order if c in rivals and c[1] != label), None)
    if runner_up is not None and not rivals[runner_up].shows_gain():
        notes.append(f"{label} is not measurably faster than {_named(*runner_up)}")
    return Chosen(
        row=row,
        deployed=label,
        origin=ORIGINAL if row == GIVEN else "",
        file=own[row],
        table=table,
        ratios=tuple(Ratio(row, _named(*c), label, ratio) for c, ratio in rivals.items()),
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
    labels, own = list(delivered), {GIVEN: comparison.given, **delivered}
    found = _candidates(comparison, delivered)
    comparison.held.stage(f"look for one file for all: {len(found)} candidates on {len(labels)} targets")
    rows = {GIVEN: own[GIVEN], **{n: f for n, f in found.items() if f.digest != own[GIVEN].digest}}
    looked = comparison.look(dict.fromkeys(labels, rows))
    for row in sorted(rows, key=lambda row: regret(looked, row, rows, labels))[:_TRIES]:
        files = {**own, ONE: rows[row]}
        table, readings = comparison.measure(dict.fromkeys(labels, files))
        served = [r for r in (ONE, *labels, GIVEN) if all(table[r, label].serves for label in labels)]
        if ONE in served or not comparison.left_s:
            break
    best = min(served, key=lambda r: regret(table, r, served, labels), default=GIVEN)
    kept = {GIVEN, best, *labels}  # of which there are files at the end
    fastest = {label: r for label in labels if (r := _best_on(table, readings, label, kept)) is not None}
    return Chosen(
        row=best,
        deployed=None,
        origin={GIVEN: ORIGINAL, ONE: row}.get(best, ""),
        file=files[best],
        table=table,
        ratios=tuple(Ratio(r, best, on, readings.ratio((best, on), (r, on))) for on, r in fastest.items()),
        blocks=readings.blocks,
        notes=_busy(readings),
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


def _busy(readings: Readings) -> tuple[str, ...]:
    if np.mean(readings.timing.preempted) <= BUSY:
        return ()
    return ("the machine was busy: other processes took a part of many readings; measure again on a quiet machine",)


# --- files that may be the single one --------------------------------------------------------------------------------


def _candidates(comparison: Comparison, delivered: Mapping[str, Artifact]) -> dict[str, Artifact]:
    """Of every run its delivered model, and the fastest of its front, by a name that says so; each content once."""
    found = {comparison.given.digest: ("the given model", comparison.given)}
    for label, file in delivered.items():
        found.setdefault(file.digest, (f"{label}: what it delivers", file))
    end = comparison.share(policy.WRITING_SHARE)
    for label in delivered:
        if not end.left:
            break
        with contextlib.suppress(InlayError):  # a front that cannot be read again leaves what was delivered
            for origin, file in _front(comparison, label, end):
                found.setdefault(file.digest, (f"{label}: {origin}", file))
    return dict(found.values())


def _front(comparison: Comparison, label: str, end: Deadline) -> list[tuple[str, Artifact]]:
    folder = comparison.folder(label)
    work = comparison.held.work / f"front-{folder.name}"
    with contextlib.closing(Journal(folder / "run.sqlite", None)) as journal:
        chosen = _fastest(journal)
        if not chosen:
            return []
        work.mkdir()
        write = writer_of(journal, comparison.inputs.file, work)
        return [(r.origin, write(p, work / f"{r.candidate}.onnx")) for r, p in chosen if end.left]


def _fastest(journal: Journal) -> list[tuple[Record, Placement]]:
    """Measured candidates that keep the bound: those that no other beats in speed and accuracy first, then by speed."""
    kept = [
        (record, placement, outcome)
        for record in journal.trials()
        if isinstance(outcome := record.outcome, Measured)
        and outcome.accuracy.feasible
        and (placement := journal.placement(record.candidate)) is not None
    ]
    front, others, best_db = list[tuple[Record, Placement]](), list[tuple[Record, Placement]](), float("-inf")
    for record, placement, outcome in sorted(kept, key=lambda each: -each[2].latency.speedup.value):
        (front if outcome.accuracy.sqnr_db > best_db else others).append((record, placement))
        best_db = max(best_db, outcome.accuracy.sqnr_db)
    return [*front, *others][: policy.CANDIDATES - 1]
