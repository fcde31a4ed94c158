"""Progress for people: a live table on a terminal, plain lines in a log."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TextIO

from rich.live import Live
from rich.table import Column, Table

from inlay.cli.start import seconds_since_start
from inlay.cli.terminal import Terminal, plain
from inlay.deadline import Clock
from inlay.errors import UsageError
from inlay.run.progress import NowAndThen, Progress, SearchStep, Silent
from inlay.trial import Failed, Infeasible, Measured, Trial, shown_ratio, shown_sqnr

_BEGUN: ContextVar[float] = ContextVar("begun")
"""When this process began, on the monotonic clock; unset in a program that calls commands itself."""
_LATEST = 8  # trials that the live table shows
_SUMMED_UP_S = 20.0  # between two lines of a log that say what has been gained, and when the search ends


class Lines:
    """One plain line for each stage and trial, and for where a stage is, now and then.

    Args:
        before_s: seconds that the command took until now.
    """

    def __init__(self, stream: TextIO, before_s: float = 0.0, clock: Clock = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._start = clock() - before_s
        self._now_and_then = NowAndThen(clock)
        self._summed_up = clock()

    def stage(self, text: str) -> None:
        """Print it."""
        self._print(text)

    def doing(self, text: str) -> None:
        """Print it where nothing was printed for a while."""
        if self._now_and_then.is_due():
            self._print(text)

    def trial(self, step: SearchStep) -> None:
        """Print the trial; ``*`` marks a new incumbent. Now and then, print where the search is."""
        mark = "*" if step.trial.accepted else " "
        self._print(f"{mark} {step.trial.proposal.origin}: {describe(step.trial)}")
        if self._clock() - self._summed_up >= _SUMMED_UP_S:
            self._summed_up = self._clock()
            self._print(so_far(step))

    def close(self) -> None:
        """Flush the stream."""
        self._stream.flush()

    def _print(self, text: str) -> None:
        self._now_and_then.said()
        print(f"[{self._clock() - self._start:6.1f} s] {plain(text)}", file=self._stream, flush=True)


class LiveTable:
    """A table that is redrawn: stage, incumbent, interval, trials, budget left, and the latest trials.

    Args:
        before_s: seconds that the command took until now.
    """

    def __init__(self, console: Terminal, before_s: float = 0.0) -> None:
        self._start = time.monotonic() - before_s
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._live.start()
        self._title = self._caption = ""
        self._rows: list[tuple[str, str]] = []

    def stage(self, text: str) -> None:
        """Change the title."""
        self._title = text
        self._draw()

    def doing(self, text: str) -> None:
        """Change the title."""
        self.stage(text)

    def trial(self, step: SearchStep) -> None:
        """Add a row and redraw."""
        self._caption = so_far(step)
        mark = "★ " if step.trial.accepted else "  "
        self._rows = [*self._rows, (mark + step.trial.proposal.origin, describe(step.trial))][-_LATEST:]
        self._draw()

    def close(self) -> None:
        """Take the table off the screen."""
        self._live.stop()

    def _draw(self) -> None:
        table = Table(
            Column(overflow="fold"),  # a name or figure is never cut
            Column(overflow="fold"),
            title=f"{self._title} · {time.monotonic() - self._start:.0f} s",
            caption=self._caption,
            show_header=False,
            box=None,
            title_justify="left",
        )
        for row in self._rows:
            table.add_row(*row)
        self._live.update(table)


def so_far(step: SearchStep) -> str:
    """What a search has gained, how much it has tried, and when it ends at the latest, by the clock on the wall."""
    left = "no limit"
    if math.isfinite(step.left_s):
        end = time.strftime("%H:%M:%S", time.localtime(time.time() + step.left_s))
        left = f"at most {step.left_s:.0f} s left, until {end}"
    return (
        f"best so far {describe(step.incumbent)} ({step.incumbent.proposal.origin}) · "
        f"{step.judged} judged, {step.timed} timed, {step.failed} failed · {left}"
    )


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
    return f"{shown_ratio(gain, 3)}, {shown_sqnr(outcome.accuracy.sqnr_db)}{metric}{bound}"


class JsonLines:
    """One JSON object a line and event, for programs; what is said goes on to ``others`` as well.

    ``stage``, and ``doing`` now and then: ``{event, s, text}``. ``trial``: ``{event, s, origin, outcome, accepted,
    latency_ms, speedup, speedup_low, speedup_high, sqnr_db, metric, feasible, why, best_speedup, judged, timed, failed,
    left_s}``, with null for what is not known. ``result``: ``{event, s, result}``, the content of ``result.json``; it
    comes last, unless the run failed.
    """

    def __init__(self, path: Path, others: Progress) -> None:
        self._path, self._others = path, others
        self._stream: TextIO | None = None
        self._start = time.monotonic()
        self._now_and_then = NowAndThen()

    def stage(self, text: str) -> None:
        """Write it."""
        self._write("stage", text=text)
        self._others.stage(text)

    def doing(self, text: str) -> None:
        """Write it where nothing was written for a while."""
        if self._now_and_then.is_due():
            self._write("doing", text=text)
        self._others.doing(text)

    def trial(self, step: SearchStep) -> None:
        """Write the trial, and where the search is with it."""
        trial = step.trial
        latency = trial.outcome.latency if isinstance(trial.outcome, Measured) else None
        accuracy = trial.accuracy
        failure = trial.outcome.message if isinstance(trial.outcome, Failed) else ""
        self._write(
            "trial",
            origin=trial.proposal.origin,
            outcome=type(trial.outcome).__name__.lower(),
            accepted=trial.accepted,
            latency_ms=None if latency is None else latency.ns / 1e6,
            speedup=None if latency is None else latency.speedup.value,
            speedup_low=None if latency is None else _number(latency.speedup.low),
            speedup_high=None if latency is None else _number(latency.speedup.high),
            sqnr_db=None if accuracy is None else accuracy.sqnr_db,
            metric=None if accuracy is None else accuracy.metric,
            feasible=trial.feasible,
            why=failure if accuracy is None else accuracy.reason,
            best_speedup=step.incumbent.speedup,
            judged=step.judged,
            timed=step.timed,
            failed=step.failed,
            left_s=_number(step.left_s),
        )
        self._others.trial(step)

    def result(self, result: Mapping[str, Any]) -> None:
        """Write the content of ``result.json``."""
        self._write("result", result=result)

    def close(self) -> None:
        """Close the file."""
        self._others.close()
        if self._stream is not None:
            self._stream.close()

    def _write(self, event: str, **facts: Any) -> None:
        self._now_and_then.said()
        line = {"event": event, "s": round(time.monotonic() - self._start, 3), **facts}
        try:
            if self._stream is None:  # a command that is refused has no events, and leaves what was there
                self._stream = _log(self._path)
            print(json.dumps(line, allow_nan=False), file=self._stream, flush=True)
        except OSError as error:
            if self._stream is not None:
                with contextlib.suppress(OSError):  # it would write the same again
                    self._stream.close()
                self._stream = None
            raise UsageError(f"--json-log {self._path} cannot be written: {error.strerror or error}") from error


def _log(path: Path) -> TextIO:
    """A file to write to; a pipe is one as well, where somebody reads it: nobody is waited for."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NONBLOCK", 0), 0o666)
    os.set_blocking(number, True)
    return os.fdopen(number, "w", encoding="utf8")


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def begin_clock() -> None:
    """Count the time of commands from the start of this process."""
    _BEGUN.set(time.monotonic() - seconds_since_start())


def seconds_before() -> float:
    """Seconds from the start of this process until now; 0 in a program that calls commands itself."""
    return time.monotonic() - _BEGUN.get(time.monotonic())


def progress_of(quiet: bool) -> Progress:
    """What shows the progress of a command: a table on a terminal, lines elsewhere, nothing where it is ``quiet``."""
    if quiet:
        return Silent()
    console = Terminal(stderr=True)
    return LiveTable(console, seconds_before()) if console.is_terminal else Lines(sys.stderr, seconds_before())
