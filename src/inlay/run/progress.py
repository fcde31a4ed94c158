"""Tell people what a run is doing: a live table on a terminal, plain lines in a log, or nothing."""

from __future__ import annotations

import time
from typing import Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from inlay.run.evaluate import Evaluator
from inlay.trial import Failed, Infeasible, Trial


class Progress(Protocol):
    """What a run reports."""

    def stage(self, text: str) -> None:
        """A new stage began."""
        ...

    def trial(self, trial: Trial, evaluator: Evaluator, seconds: float, budget: float | None) -> None:
        """A candidate was judged; ``seconds`` of the search are spent."""
        ...

    def close(self) -> None:
        """Nothing more comes."""
        ...


class Silent:
    """Reports nothing."""

    def stage(self, text: str) -> None:
        """Nothing."""

    def trial(self, trial: Trial, evaluator: Evaluator, seconds: float, budget: float | None) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Lines:
    """One plain line for each stage and trial."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._start = time.monotonic()

    def stage(self, text: str) -> None:
        """A line."""
        self._print(text)

    def trial(self, trial: Trial, evaluator: Evaluator, seconds: float, budget: float | None) -> None:
        """A line."""
        mark = "*" if trial.accepted else " "
        self._print(f"{mark} {trial.proposal.origin}: {describe(trial)}")

    def close(self) -> None:
        """Flush."""
        self._stream.flush()

    def _print(self, text: str) -> None:
        print(f"[{time.monotonic() - self._start:6.1f} s] {text}", file=self._stream, flush=True)


class LiveTable:
    """A table that is redrawn: incumbent, interval, trials, budget left, and the latest trials."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._live.start()
        self._stage = ""
        self._rows: list[tuple[str, str]] = []
        self._head = ""

    def stage(self, text: str) -> None:
        """Change the title."""
        self._stage = text
        self._draw()

    def trial(self, trial: Trial, evaluator: Evaluator, seconds: float, budget: float | None) -> None:
        """Add a row and redraw."""
        best = evaluator.incumbent
        left = "no limit" if budget is None else f"{max(0.0, budget - seconds):.0f} s left"
        tally = evaluator.tally
        self._stage = "search"
        self._head = (
            f"best so far {describe(best.trial)} ({best.trial.proposal.origin}) · "
            f"{len(evaluator.judged) - 1} judged, {tally.measurements} timed, {tally.failed} failed · {left}"
        )
        self._rows = [*self._rows[-7:], (("★ " if trial.accepted else "  ") + trial.proposal.origin, describe(trial))]
        self._draw()

    def close(self) -> None:
        """Take the table off the screen."""
        self._live.stop()

    def _draw(self) -> None:
        table = Table(title=self._stage, caption=self._head, show_header=False, box=None, title_justify="left")
        for row in self._rows:
            table.add_row(*row)
        self._live.update(table)


def describe(trial: Trial) -> str:
    """What came of a trial, in a few words."""
    outcome = trial.outcome
    if isinstance(outcome, Failed):
        return f"failed in {outcome.stage}: {outcome.message}"
    if isinstance(outcome, Infeasible):
        return outcome.accuracy.reason
    gain = outcome.latency.speedup
    sqnr = outcome.accuracy.sqnr_db
    fidelity = "exact" if sqnr >= 120.0 else f"{sqnr:.1f} dB"
    metric = "" if outcome.accuracy.metric is None else f", metric {outcome.accuracy.metric:.4f}"
    bound = "" if outcome.accuracy.feasible else " (outside the bound)"
    interval = "" if gain.low == gain.high else f" [{gain.low:.3f}, {gain.high:.3f}]"
    return f"{gain.value:.3f}x{interval}, {fidelity}{metric}{bound}"
