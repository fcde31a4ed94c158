"""What a run reports while it works; :mod:`inlay.cli.progress` renders it for terminals and logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from inlay.trial import Trial


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
