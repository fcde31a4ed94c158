"""``inlay fleet``, the command; its table, and the results for several targets and for several models, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Annotated, Any

import typer

from inlay.cli.options import options_of
from inlay.cli.progress import progress_of, seconds_before
from inlay.cli.terminal import JSON, Table, answer
from inlay.portfolio.fleet import PAGE
from inlay.portfolio.fleet import fleet as run_fleet
from inlay.portfolio.pipeline_result import PartResult, PipelineResult
from inlay.portfolio.result import GIVEN, AcrossResult, Cell, FleetResult, Row
from inlay.prepare.declare import Option
from inlay.search.baselines import ORIGINAL
from inlay.targets.base import is_estimate, unit_of
from inlay.trial import UNTOLD, Interval, counted, shown_latency, shown_ratio, shown_sqnr

_HEAD = ("model", "target", "bound", "speed-up", "accuracy", "time", "folder")


@options_of(run_fleet)
def fleet(
    *,
    quiet: Annotated[bool, Option("Print the table only.", flags=("--quiet", "-q"), type=bool)] = False,
    as_json: Annotated[bool, JSON] = False,
    **options: Any,
) -> None:
    """Tune many models for many targets under one budget, spending time where it gains most.

    The same command on the same OUT continues where it was stopped; a run that fails stops no other.

    Example:
        inlay fleet fleet.yaml --budget 4h -o out
    """
    with closing(progress_of(quiet)) as progress:
        result = run_fleet(**options, progress=progress, before_s=seconds_before())
    answer(as_json, result, lambda: fleet_verdict(result))
    raise typer.Exit(result.exit_code)


def fleet_verdict(result: FleetResult) -> Iterator[str | Table]:
    """One line for each run, and what the fleet took."""
    yield Table("<" * len(_HEAD), [_HEAD, *(_cells(row) for row in result.rows)], indent=2)
    yield ""
    for row in result.rows:
        if row.figures is not None and row.figures.unproven:
            yield f"  {row.name}: {row.figures.unproven}."
    for row in result.failed:
        yield f"  {row.name}: {row.why}."
    for row in result.rows:
        for note in () if row.figures is None else row.figures.notes:
            if note.isupper() or note.split(":")[0].isupper():  # what makes figures mean something else
                yield f"  {row.name}: {note}."
    mean = "" if result.speedup is None else f"; geometric mean of the speed-ups {result.speedup:.2f}x"
    mean += f" ({result.mean_of})" if mean and result.mean_of else ""
    budget = "no limit" if result.budget_s is None else f"{result.budget_s:.0f} s"
    found = sum(row.figures is not None for row in result.rows)
    yield f"  {found} of {len(result.rows)} runs have a result; {result.wall_s:.0f} s of {budget}{mean}."
    if result.interrupted:
        yield "  Interrupted: run the same command again to continue."
    yield f"  Wrote {result.folder / PAGE} and {result.folder / 'result.json'}."


def _cells(row: Row) -> Sequence[str]:
    found = row.figures
    if found is None:
        return (row.model, row.target, "", "failed" if row.slices else "none", "", f"{row.seconds:.0f} s", row.name)
    metric = "" if found.metric is None else f"{found.metric:.4f}, "
    speedup = shown_ratio(found.gained) + ("" if found.confirmed else " ?") + " (estimated)" * found.estimated
    accuracy = metric + shown_sqnr(found.sqnr_db)
    return (row.model, row.target, found.bound, speedup, accuracy, f"{row.seconds:.0f} s", row.name)


# --- several models of one program -----------------------------------------------------------------------------------


def _of_pipeline(result: PipelineResult) -> Iterator[str | Table]:
    """A row for each model, and what all of them gain together."""
    if str(result.doubt):
        yield f"{result.doubt}."
    yield f"{counted(len(result.parts), 'model')} of {result.pipeline} on {result.spec.name}"
    yield ""
    unit = unit_of(result.facts)
    head = ("model", "runs", "share", "latency", "speed-up", "SQNR", "delivered")
    yield Table("<>>>>><", [head, *(_part_row(part, unit) for part in result.parts)], indent=2)
    yield ""
    changed = sum(part.origin != ORIGINAL for part in result.parts)
    before = "" if result.ms is None else f"{result.ms:.3f} {unit}"
    if changed:
        took = before and f" ({before} -> {_faster(result.ms, result.speedup, unit)} for all runs)"
        estimated = " (estimated)" if is_estimate(result.facts) else ""
        gained = f"{shown_ratio(result.speedup)} over the given models together{took}{estimated}"
        yield f"Verdict: {gained}: {changed} of {len(result.parts)} changed."
    else:
        yield f"Verdict: the given models{before and f' ({before} for all runs)'}: nothing faster keeps the bound."
    if result.said:
        yield f"  {result.said}."
    blocks = counted(result.blocks, "block")
    yield f"  Bound: {result.bound}; {blocks} that all models share; {result.wall_s:.0f} s."
    for note in result.notes:
        yield f"  Note: {note}."
    yield f"  Wrote {result.files} and {result.folder / 'result.json'}."


def _part_row(part: PartResult, unit: str) -> Sequence[str]:
    shared = (part.name, f"{part.runs:g}", f"{100 * part.share:.0f} %")
    if part.origin == ORIGINAL or part.speedup is None:
        return (*shared, "" if part.ms is None else f"{part.ms:.3f} {unit}", "", "", "as given")
    return (
        *shared,
        _faster(part.ms, part.speedup, unit),
        shown_ratio(part.speedup),
        shown_sqnr(part.sqnr_db),
        part.origin,
    )


def _faster(ms: float | None, gained: Interval, unit: str) -> str:
    return "" if ms is None else shown_latency(ms / gained.value, gained, unit)


# --- one model, several targets --------------------------------------------------------------------------------------


def verdict(result: AcrossResult | PipelineResult) -> Iterator[str | Table]:
    """The result for several targets, or for the models of a program, in a few lines with a table."""
    return _of_pipeline(result) if isinstance(result, PipelineResult) else _of_targets(result)


def _of_targets(result: AcrossResult) -> Iterator[str | Table]:
    if result.unproven:
        yield f"{result.unproven}."
    yield f"{result.model[0]} on {', '.join(result.used)}"
    yield ""
    yield _table(result)
    yield ""
    if result.deployed is not None:
        yield from _deploy(result)
    else:
        yield from _compromise(result)
    yield f"  Bound: {result.bound}; {result.blocks} blocks in fresh processes; {result.wall_s:.0f} s."
    for label, column in result.columns.items():
        if column.why and column.fingerprint is not None:
            yield f"  Not tuned for {label}: {column.why}."
    absent = [label for label, column in result.columns.items() if column.fingerprint is None]
    if absent:
        yield f"  Not usable here: {', '.join(absent)}; inlay targets says why."
    for note in result.notes:
        yield f"  Note: {note}."
    yield f"  Wrote {result.model_path} (sha256 {result.sha256[:16]}…) and {result.folder / 'result.json'}."


def _table(result: AcrossResult) -> Table:
    facts = {c: result.columns[c].facts for c in result.used}
    head = ("tuned for / run on", *(f"{c} (estimated)" if is_estimate(facts[c]) else c for c in result.used))
    cells = result.table
    rows = [(row, *(_cell(row, cells.get((row, c)), unit_of(facts[c])) for c in result.used)) for row in result.rows]
    return Table("<" + ">" * len(result.used), [head, *rows], indent=2)


def _cell(row: str, cell: Cell | None, unit: str) -> str:
    if cell is None:
        return "-"
    if cell.latency_ms is None or cell.speedup is None:
        return "outside the bound" if cell.accuracy is not None else "does not run"
    if not cell.speedup.is_told:
        return UNTOLD
    least, wide = cell.speedup.low, cell.speedup.is_wide
    shown = "" if row == GIVEN else f" at least {least:.2f}x" if wide else f" {cell.speedup.value:.2f}x"
    accuracy = (
        "" if cell.accuracy is None or (row == GIVEN and cell.serves) else f" {shown_sqnr(cell.accuracy.sqnr_db)}"
    )
    latency = shown_latency(cell.latency_ms, cell.speedup, unit)
    return f"{latency}{shown}{accuracy}{'' if cell.serves or cell.accuracy is None else ' !'}"


def _deploy(result: AcrossResult) -> Iterator[str]:
    assert result.deployed is not None
    column, cell = result.columns[result.deployed], result.cell
    options = " ".join(f"{k}={v}" for k, v in column.spec.options.items())
    what = "the given model" if result.origin == ORIGINAL else result.origin
    name = f"{column.spec.name} ({options})" if options else column.spec.name
    figure = f"{cell.latency_ms:.3f} {unit_of(column.facts)}{' (estimated)' * is_estimate(column.facts)}"
    yield f"Verdict: deploy with {name}: {what}, {figure}."
    for each in result.ratios:
        yield f"  {shown_ratio(each.ratio)} over {each.over}."
    if cell.accuracy is not None:
        yield f"  SQNR {shown_sqnr(cell.accuracy.sqnr_db)} against the given model on the reference."


def _compromise(result: AcrossResult) -> Iterator[str]:
    worst = result.worst_regret
    what = "the given model" if result.origin == ORIGINAL else result.origin
    behind = "it was not compared everywhere"
    if worst is not None:
        behind = f"at worst {worst:.2f} times as slow as the best file there"
    yield f"Verdict: one file for all: {what}; {behind}."
    for label, why in result.unmeasured.items():
        yield f"  {label}: not measured there{f': {why}' if why else ''}."
    for each in result.ratios:
        if each.of == result.row:
            yield f"  {each.on}: nothing is measurably faster there."
        elif each.of == each.on:
            yield f"  {each.on}: its own file is {shown_ratio(each.ratio)} as fast."
        else:
            path = result.path_of(each.of)
            yield f"  {each.on}: {path} is {shown_ratio(each.ratio)} as fast, and faster than what its own run found."
    if result.advantage is not None:
        yield f"  The best file for each over the single one, geometric mean: {result.advantage:.2f}x."
