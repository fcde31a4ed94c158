""":func:`inlay.write_report` and :func:`inlay.export`: what a run left, made into what others read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from inlay.prepare import options as declared
from inlay.prepare.declare import Option, documented
from inlay.report import exports, page


@documented
def write_report(out: Annotated[str | Path, declared.RUN]) -> Path:
    """Write ``report.html`` of an earlier run into its folder, as ``tune`` does at its end.

    Returns:
        The file: one page without references to anything outside.

    Raises:
        JournalError: there is no finished run in ``out``, or the folder cannot be written to.
    """
    return page.write_report(Path(out))


_FORM = Option(
    "ort-exclude, ort-overrides, nncf, netron, model-explorer, or csv (of the trials).", flags=("--as",), metavar="FORM"
)
"""Not with the other options: no room below names what is of one runtime."""


@documented
def export(
    out: Annotated[str | Path, declared.RUN],
    form: Annotated[str, _FORM],
    to: Annotated[str | Path | None, declared.EXPORTED] = None,
) -> Path:
    """Write what a run found in the terms of another tool, and return the path.

    Raises:
        UsageError: no such form, or ``to`` is a file of the run.
        JournalError: there is no finished run in ``out``, or it lacks what the form needs.
    """
    return exports.export(Path(out), form, None if to is None else Path(to))
