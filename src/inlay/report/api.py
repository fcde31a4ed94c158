"""What a run left, made into what others read: :func:`inlay.write_report`, :func:`inlay.export`, :func:`inlay.card`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from inlay.errors import UsageError
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
    "ort-exclude, ort-overrides, nncf, netron, model-explorer, csv (of the trials), card, or card-json.",
    flags=("--as",),
    metavar="FORM",
)
"""Not with the other options: no room below names what is of one runtime."""


_CARD_FORMAT = Option("markdown, or json.", flags=("--format",), metavar="FORMAT")
_CARD_FORMS = {"markdown": exports.CARD, "json": exports.CARD_JSON}


@documented
def card(
    out: Annotated[str | Path, declared.RUN],
    *,
    form: Annotated[str, _CARD_FORMAT] = "markdown",
    to: Annotated[str | Path | None, declared.EXPORTED] = None,
) -> Path:
    """Write what a model hub or a release should say of the delivered model: README.md, or card.json.

    Returns:
        The file. It holds no folders of this machine.

    Raises:
        UsageError: no such format, or a README that no card wrote stands in the way.
        JournalError: there is no finished run in ``out``, or ``model.onnx`` is no longer what it delivered.
    """
    if form not in _CARD_FORMS:
        raise UsageError(f"--format {form}: give {' or '.join(_CARD_FORMS)}")
    return exports.export(Path(out), _CARD_FORMS[form], None if to is None else Path(to))


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
