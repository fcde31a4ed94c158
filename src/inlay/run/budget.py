"""How long a search goes on: seconds, measurements, builds."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from inlay.deadline import Deadline
from inlay.measure.client import Worker
from inlay.measure.journal import Journal
from inlay.prepare.config import TuneConfig
from inlay.run.evaluate import Evaluator
from inlay.run.facts import HURRIED
from inlay.trial import Measured, Proposal

_BUILDS_OF_A_TRIAL = 3
"""At most: one build to judge it, and a second one with a profile beside it."""
_HURRIED = 0.5
"""Of the search's time: where the anchors took as much, what is outside the accuracy bound is not explored."""
_RECENT = 3
"""Trials whose longest is what the next one is expected to take."""


class Limits(Protocol):
    """What ends a search."""

    @property
    def left_s(self) -> float:
        """Seconds that are left; infinite without a limit."""
        ...

    def refuses(self, proposal: Proposal, key: str, evaluator: Evaluator) -> str:
        """Why ``proposal`` is not judged any more; empty where it is.

        Args:
            proposal: what the strategy asks for.
            key: identifies its model.
            evaluator: judged what came before.
        """
        ...


class TimeLimit:
    """The time of a search. A trial that would not be over in time is not begun.

    Args:
        search: when the search must end.
        anchors: the same for anchors, which come first: the result must not be slower than the best of them.
        journal: knows what earlier sessions judged; that costs nothing and is never refused.
        trial_s: seconds that a trial takes, before there was one.
        budget_s: what the user gave, for people; None for no limit.
    """

    def __init__(
        self, search: Deadline, anchors: Deadline, journal: Journal, trial_s: float, budget_s: float | None
    ) -> None:
        self._search, self._anchors, self._journal, self._budget_s = search, anchors, journal, budget_s
        self._recent = deque([trial_s], maxlen=_RECENT)
        self._begun: float | None = None  # of the trial that is under way

    @property
    def left_s(self) -> float:
        """See :class:`Limits`."""
        return self._search.left

    def refuses(self, proposal: Proposal, key: str, evaluator: Evaluator) -> str:
        """See :class:`Limits`."""
        now = self._search.clock()
        if self._begun is not None:  # with what the strategy thought about in between
            self._recent.append(now - self._begun)
        self._begun = None
        if self._journal.trial(key) is not None:
            return ""
        deadline = self._anchors if proposal.anchor else self._search
        if not deadline.fits(max(self._recent)):
            return f"the budget of {self._budget_s:.0f} s is spent"
        self._begun = now
        return ""


class Budget(TimeLimit):
    """The limits of the main search: its time; measurements; builds.

    Args:
        search: see :class:`TimeLimit`, as ``anchors``, ``journal`` and ``trial_s``.
        config: the limits.
        worker: counts what it builds.
    """

    def __init__(
        self,
        search: Deadline,
        anchors: Deadline,
        journal: Journal,
        trial_s: float,
        config: TuneConfig,
        worker: Worker,
    ) -> None:
        super().__init__(search, anchors, journal, trial_s, config.budget_s)
        self._config, self._worker = config, worker
        self._half_time = search.earlier((1.0 - _HURRIED) * search.left)

    def hurried(self) -> bool:
        """Whether half of the time was spent when this was asked first; a resumed run gets the same answer."""
        return self._journal.once(HURRIED, lambda: not self._half_time.left)

    def refuses(self, proposal: Proposal, key: str, evaluator: Evaluator) -> str:
        """See :class:`Limits`."""
        refused = super().refuses(proposal, key, evaluator)
        if refused or proposal.anchor or self._journal.trial(key) is not None:
            return refused
        most = self._config.max_measurements
        timed = sum(isinstance(c.trial.outcome, Measured) for c in evaluator.judged)
        if most is not None and timed >= most:
            return f"{most} measurements are made"
        builds = self._config.max_builds
        if builds is not None and self._worker.builds + _BUILDS_OF_A_TRIAL > builds:
            return f"{self._worker.builds} models are built, of at most {builds}"
        return ""
