"""The result for several targets as text."""

from __future__ import annotations

from collections.abc import Iterator

from inlay.across.result import GIVEN, AcrossResult, Cell
from inlay.cli.terminal import Table
from inlay.search.baselines import ORIGINAL
from inlay.targets.base import is_estimate, unit_of
from inlay.trial import UNTOLD, shown_latency, shown_ratio, shown_sqnr


def verdict(result: AcrossResult) -> Iterator[str | Table]:
    """The result in a few lines, with the table of files on targets."""
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
