"""Commands run in this process, where they cost no start-up, and what every failure of one must look like."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

FAST = ("--target", "null", "--max-measurements", "3", "--accept-unproven", "--quiet")
"""Options of a short ``tune``, which most give no samples."""


class Outcome(NamedTuple):
    """Exit code, standard output and standard error."""

    code: int
    out: str
    err: str


class RunCommand(Protocol):
    """Runs ``inlay`` with these arguments."""

    def __call__(self, *arguments: object) -> Outcome: ...


def failed(outcome: Outcome, code: int, *words: str) -> None:
    """It ended with ``code`` and one line on standard error that has all ``words``."""
    assert outcome.code == code, outcome.err
    lines = outcome.err.strip().splitlines()
    assert len(lines) == 1, outcome.err
    assert lines[0].startswith("inlay: ")
    assert "Traceback" not in outcome.err
    for word in words:
        assert word in lines[0], lines[0]


def nothing_written(folder: Path) -> None:
    """No deliverable, and no scratch file, is left in ``folder``."""
    left = {p.name for p in folder.iterdir()} if folder.exists() else set()
    assert left <= {"run.sqlite", "run.sqlite-wal", "run.sqlite-shm"}, left
