"""``fleet.html``: the table of a fleet on one page, with a link to the report of each run."""

from __future__ import annotations

from pathlib import Path

from inlay.files import write_text
from inlay.fleet.result import FleetResult
from inlay.installed import __version__
from inlay.trial import shown_ratio, shown_sqnr

PAGE = "fleet.html"
"""Name of the page in a fleet's folder."""


def write_page(folder: Path, result: FleetResult) -> Path:
    """Write the page into ``folder``: one document that refers only to the runs' own pages. Raises JournalError."""
    from inlay.report.page import style, template  # templates and drawings: no other command waits for them

    reports = {row.name for row in result.rows if (folder / row.name / "report.html").is_file()}
    text = template("inlay.fleet", "page.html.j2").render(
        result=result, reports=reports, ratio=shown_ratio, decibels=shown_sqnr, style=style(), version=__version__
    )
    write_text(folder / PAGE, text)
    return folder / PAGE
