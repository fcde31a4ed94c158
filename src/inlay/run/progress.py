"""What a run reports while it works; :mod:`inlay.cli.progress` renders it for terminals and logs."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from inlay.deadline import Clock
from inlay.model.heard import Hears
from inlay.trial import Failed, Measured, Trial, shown_ratio, shown_sqnr

_LOGGER = logging.getLogger("inlay")


@dataclass(frozen=True)
class SearchStep:
    """The search after one more trial."""

    trial: Trial  # the trial
    incumbent: Trial  # the best trial so far
    judged: int  # candidates judged so far, the given model aside
    timed: int  # races so far
    failed: int  # failed trials so far
    left_s: float  # seconds that the search may still take; infinite without a limit


QUIET_S = 10.0  # seconds without a line in a log after which the next thing that is done is told


class NowAndThen:
    """Whether a log has been silent for so long that where a stage is should be told."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock, self._latest = clock, clock()

    def said(self) -> None:
        """Something was told."""
        self._latest = self._clock()

    def is_due(self) -> bool:
        """Whether it is time again, which then counts as told."""
        if self._clock() - self._latest < QUIET_S:
            return False
        self.said()
        return True


class Progress(Protocol):
    """What a run reports to."""

    def stage(self, text: str) -> None:
        """A new stage began."""
        ...

    def doing(self, text: str) -> None:
        """Where the stage is, with its name: often, and again while it is still there."""
        ...

    def trial(self, step: SearchStep) -> None:
        """A candidate was judged."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...


class Silent:
    """Discards every report."""

    def stage(self, text: str) -> None:
        """Discard it."""

    def doing(self, text: str) -> None:
        """Discard it."""

    def trial(self, step: SearchStep) -> None:
        """Discard it."""

    def close(self) -> None:
        """Nothing to do."""


class Logged(Silent):
    """Tells the logger ``inlay`` at level INFO: what callers hear who pass no progress of their own."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._now_and_then = NowAndThen(clock)

    def stage(self, text: str) -> None:
        """Log it."""
        self._now_and_then.said()
        _LOGGER.info("%s", text)

    def doing(self, text: str) -> None:
        """Log it where nothing was logged for a while."""
        if self._now_and_then.is_due():
            _LOGGER.info("%s", text)

    def trial(self, step: SearchStep) -> None:
        """Log what became of the candidate."""
        self._now_and_then.said()
        trial, outcome = step.trial, step.trial.outcome
        if isinstance(outcome, Measured):
            found = f"{shown_ratio(outcome.latency.speedup)}, {shown_sqnr(outcome.accuracy.sqnr_db)}"
        else:
            found = f"failed in {outcome.stage}" if isinstance(outcome, Failed) else outcome.accuracy.reason
        best = "; the best so far" if trial.accepted else ""
        _LOGGER.info("%s: %s%s", trial.proposal.origin, found, best)


class Phases:
    """The stages of a command as ``progress`` hears them: what is done, how far it is, and how long it takes at most.

    Args:
        progress: hears them; one that does not ask where stages are, as of earlier versions, is not told.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._hears: Hears = getattr(progress, "doing", Silent().doing)
        self._left_s: Callable[[], float] = lambda: math.inf
        self._stage = self._step = ""

    def begin(self, text: str, left_s: Callable[[], float] = lambda: math.inf) -> None:
        """A stage begins, which takes at most as long as ``left_s`` says at any time, in seconds."""
        self._stage, self._step, self._left_s = text, "", left_s
        self._progress.stage(f"{text}{_at_most(left_s())}")

    def doing(self, text: str) -> None:
        """Where it is; with an empty text, it is still there."""
        self._step = text or self._step
        self._hears(": ".join(filter(None, [self._stage, self._step])) + _at_most(self._left_s()))


def _at_most(seconds: float) -> str:
    return "" if math.isinf(seconds) or seconds < 1.0 else f", at most {seconds:.0f} s more by plan"
