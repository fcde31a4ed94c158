"""``inlay report``, ``inlay export``, ``inlay card`` and ``inlay check``."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from inlay.cli.options import options_of
from inlay.cli.progress import progress_of
from inlay.cli.terminal import JSON, answer
from inlay.report import api, gate


@options_of(api.write_report)
def report(*, as_json: Annotated[bool, JSON] = False, **options: Any) -> None:
    """Write OUT/report.html again: the run on one page, for a browser.

    Example:
        inlay report out
    """
    _written(as_json, api.write_report(**options))


@options_of(api.export)
def export(*, as_json: Annotated[bool, JSON] = False, **options: Any) -> None:
    """Write what a run found for other tools: lists for quantizers, metadata for viewers, trials for tables.

    Example:
        inlay export out --as ort-exclude
    """
    _written(as_json, api.export(**options))


@options_of(api.card)
def card(*, as_json: Annotated[bool, JSON] = False, **options: Any) -> None:
    """Write the card of the delivered model, for a model hub or a release: OUT/README.md.

    Example:
        inlay card out
    """
    _written(as_json, api.card(**options))


@options_of(gate.gate)
def check(*, as_json: Annotated[bool, JSON] = False, **options: Any) -> None:
    """Hold the model that a run delivered against limits, measured on this machine: one line and an exit code."""
    with closing(progress_of(True)) as progress:
        found = gate.gate(**options, progress=progress)
    answer(as_json, {**vars(found), "exit_code": found.exit_code}, lambda: [str(found)])
    raise typer.Exit(found.exit_code)


def _written(as_json: bool, path: Path) -> None:
    answer(as_json, {"path": path}, lambda: [f"Wrote {path}."])
