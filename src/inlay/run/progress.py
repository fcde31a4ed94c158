"""What a run reports while it works; :mod:`inlay.cli.progress` renders it for terminals and logs."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from inlay.trial import Failed, Measured, Trial, shown_ratio, shown_sqnr

_LOGGER = logging.getLogger("inlay")


@dataclass(frozen=True)
class SearchStep:
    """The search after one more trial.

    Attributes:
        trial: the trial.
        incumbent: the best trial so far.
        judged: candidates judged so far, the given model aside.
        timed: races so far.
        failed: failed trials so far.
        left_s: seconds that the search may still take; infinite without a limit.
    """

    trial: Trial
    incumbent: Trial
    judged: int
    timed: int
    failed: int
    left_s: float


class Progress(Protocol):
    """What a run reports to."""

    def stage(self, text: str) -> None:
        """A new stage began."""
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

    def trial(self, step: SearchStep) -> None:
        """Discard it."""

    def close(self) -> None:
        """Nothing to do."""


class Logged:
    """Tells the logger ``inlay`` at level INFO: what callers hear who pass no progress of their own."""

    def stage(self, text: str) -> None:
        """Log it."""
        _LOGGER.info("%s", text)

    def trial(self, step: SearchStep) -> None:
        """Log what became of the candidate."""
        trial, outcome = step.trial, step.trial.outcome
        if isinstance(outcome, Measured):
            found = f"{shown_ratio(outcome.latency.speedup)}, {shown_sqnr(outcome.accuracy.sqnr_db)}"
        else:
            found = f"failed in {outcome.stage}" if isinstance(outcome, Failed) else outcome.accuracy.reason
        best = "; the best so far" if trial.accepted else ""
        _LOGGER.info("%s: %s%s", trial.proposal.origin, found, best)

    def close(self) -> None:
        """Nothing to do."""
