"""The command line in this process."""

from __future__ import annotations

import pytest

from inlay.cli import commands
from tests.support.command_line import Outcome, RunCommand


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> RunCommand:
    """Runs a command; what was printed before it is dropped. What no command should raise fails the test."""
    monkeypatch.setenv("INLAY_TRACEBACK", "1")

    def command(*arguments: object) -> Outcome:
        capfd.readouterr()
        code = commands.run(lambda: commands.app([str(a) for a in arguments], standalone_mode=False))
        return Outcome(code, *capfd.readouterr())

    return command
