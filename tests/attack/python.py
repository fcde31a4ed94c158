"""Parts of the Python interface as commands, for cases that no command of Inlay reaches."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from inlay.autotune import QDQAutotuner
from inlay.cli.commands import app, run


def load_state(model: str, state: str) -> None:
    """Continue step-by-step tuning from a file."""

    warnings.simplefilter("ignore")  # that ranges come from random data: what is looked for is what a bad file gives

    def load() -> None:
        tuner = QDQAutotuner(model)
        tuner.initialize()
        tuner.load_state(state)

    sys.exit(run(load))


def list_modules(path: str, *arguments: str) -> None:
    """Run a command, and write the names of all modules that are imported then."""
    run(lambda: app(list(arguments), standalone_mode=False))  # whatever comes of it
    Path(path).write_text(" ".join(sys.modules), encoding="utf8")
