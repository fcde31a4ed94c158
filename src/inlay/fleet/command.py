"""``inlay fleet``: the command, and its table as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Annotated, Any

import typer

from inlay.cli.answer import JSON, answer
from inlay.cli.options import options_of
from inlay.cli.progress import progress_of, seconds_before
from inlay.cli.terminal import Table
from inlay.fleet import fleet as run_fleet
from inlay.fleet.page import PAGE
from inlay.fleet.result import FleetResult, Row
from inlay.prepare.declare import Option
from inlay.trial import shown_ratio, shown_sqnr

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
    """
    with closing(progress_of(quiet)) as progress:
        result = run_fleet(**options, progress=progress, before_s=seconds_before())
    answer(as_json, result, lambda: verdict(result))
    raise typer.Exit(result.exit_code)


def verdict(result: FleetResult) -> Iterator[str | Table]:
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
