"""``inlay record``: the command, and what it found, as text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from inlay.cli.grouped import Grouped
from inlay.cli.options import options_of
from inlay.cli.terminal import JSON, Table, answer
from inlay.recording import api
from inlay.recording.gather import Recording
from inlay.recording.pipeline import PIPELINE, relative
from inlay.trial import counted

record_app = typer.Typer(add_completion=False, rich_markup_mode=None)
_NOTHING = (
    "no session of ONNX Runtime ran in the program, so nothing is written; Python started with -I, -E or -S, programs "
    "in other languages, and processes on other machines are not recorded"
)


@record_app.command("record", cls=Grouped, context_settings={"allow_interspersed_args": False})
@options_of(api.record_program)
def record(*, as_json: Annotated[bool, JSON] = False, **options: Any) -> None:
    """Run a program of yours, and keep what each of its models was fed as samples for --data.

    The exit code is the program's. With --json, what the program prints goes to standard error.

    Example:
        inlay record -- python transcribe.py
    """
    found = api.record_program(**options, quiet=as_json)
    if as_json or found.models:
        answer(as_json, as_json_of(found), lambda: recorded(found))
    if not found.models:
        for line in (*found.notes, _NOTHING):
            typer.echo(f"inlay: {line}", err=True)
    raise typer.Exit(found.exit_code or (0 if found.models else 1))


def as_json_of(found: Recording) -> dict[str, Any]:
    """Stable keys."""
    models = [
        {**asdict(each.part), "model": str(each.part.model), **{k: v for k, v in asdict(each).items() if k != "part"}}
        for each in found.models
    ]
    file = found.folder / PIPELINE if found.models else None
    return {"exit_code": found.exit_code, "pipeline": file, "models": models, "notes": found.notes}


def recorded(found: Recording) -> Iterator[str | Table]:
    """What was recorded, and how to go on."""
    for note in found.notes:
        yield f"Note: {note}."
    whole = sum(each.part.seconds or 0.0 for each in found.models)
    rows = [("model", "runs", "time", "share", "samples", "shapes")]
    for each in found.models:
        seconds = each.part.seconds or 0.0
        share = f"{100 * seconds / whole:.0f} %" if whole else ""
        cells = (f"{each.part.runs:.0f}", f"{seconds:.3f} s", share, str(each.samples), str(each.shapes))
        rows.append((each.part.name, *cells))
    yield f"Recorded {counted(len(found.models), 'model')}; the program ended with exit code {found.exit_code}."
    yield ""
    yield Table("<>>>>>", rows, indent=2)
    yield ""
    for each in found.models:
        for note in each.notes:
            yield f"  {each.part.name}: {note}."
    for each in found.models:
        if each.part.data is not None:
            paths = each.part.model, found.folder / each.part.data
            model, data = (shlex.quote(relative(path, Path.cwd())) for path in paths)
            yield f"  inlay tune {model} --data {data}"
    yield f"  Wrote {found.folder / PIPELINE}."
