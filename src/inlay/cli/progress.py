"""Progress for people: a live table on a terminal, plain lines in a log."""

from __future__ import annotations

import math
import time
from typing import TextIO

from rich.live import Live
from rich.table import Table

from inlay.cli.render import fidelity
from inlay.cli.terminal import Terminal, plain
from inlay.run.progress import SearchStep
from inlay.trial import Failed, Infeasible, Trial

_LATEST = 8  # trials that the live table shows


class Lines:
    """One plain line for each stage and trial."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._start = time.monotonic()

    def stage(self, text: str) -> None:
        """Print it."""
        self._print(text)

    def trial(self, step: SearchStep) -> None:
        """Print the trial; ``*`` marks a new incumbent."""
        mark = "*" if step.trial.accepted else " "
        self._print(f"{mark} {step.trial.proposal.origin}: {describe(step.trial)}")

    def close(self) -> None:
        """Flush the stream."""
        self._stream.flush()

    def _print(self, text: str) -> None:
        print(f"[{time.monotonic() - self._start:6.1f} s] {plain(text)}", file=self._stream, flush=True)


class LiveTable:
    """A table that is redrawn: incumbent, interval, trials, budget left, and the latest trials."""

    def __init__(self, console: Terminal) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._live.start()
        self._title = self._caption = ""
        self._rows: list[tuple[str, str]] = []

    def stage(self, text: str) -> None:
        """Change the title."""
        self._title = text
        self._draw()

    def trial(self, step: SearchStep) -> None:
        """Add a row and redraw."""
        left = "no limit" if math.isinf(step.left_s) else f"{step.left_s:.0f} s left"
        self._title = "search"
        self._caption = (
            f"best so far {describe(step.incumbent)} ({step.incumbent.proposal.origin}) · "
            f"{step.judged} judged, {step.timed} timed, {step.failed} failed · {left}"
        )
        mark = "★ " if step.trial.accepted else "  "
        self._rows = [*self._rows, (mark + step.trial.proposal.origin, describe(step.trial))][-_LATEST:]
        self._draw()

    def close(self) -> None:
        """Take the table off the screen."""
        self._live.stop()

    def _draw(self) -> None:
        table = Table(title=self._title, caption=self._caption, show_header=False, box=None, title_justify="left")
        for row in self._rows:
            table.add_row(*row)
        self._live.update(table)


def describe(trial: Trial) -> str:
    """The outcome of a trial in a few words."""
    outcome = trial.outcome
    if isinstance(outcome, Failed):
        return f"failed in {outcome.stage}: {outcome.message}"
    if isinstance(outcome, Infeasible):
        return outcome.accuracy.reason
    gain = outcome.latency.speedup
    metric = "" if outcome.accuracy.metric is None else f", metric {outcome.accuracy.metric:.4f}"
    bound = "" if outcome.accuracy.feasible else " (outside the bound)"
    interval = "" if gain.low == gain.high else f" [{gain.low:.3f}, {gain.high:.3f}]"
    return f"{gain.value:.3f}x{interval}, {fidelity(outcome.accuracy)}{metric}{bound}"
