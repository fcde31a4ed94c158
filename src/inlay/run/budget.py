"""How long a search goes on: seconds, measurements, builds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

from inlay.measure.client import Worker
from inlay.measure.journal import Journal
from inlay.prepare.config import TuneConfig
from inlay.run.evaluate import Evaluator
from inlay.run.facts import HURRIED, SEARCH_S
from inlay.trial import Measured, Proposal
from inlay.types import Placement

_BUILDS_OF_A_TRIAL = 3
"""At most: one build to judge it, and a second one with a profile beside it."""
_HURRIED = 0.5
"""Of the budget: where the anchors took as much, what is outside the accuracy bound is not explored."""
_MOST_OF_BUDGET = 3.0
"""Times the budget that a search may take which has found nothing in low precision yet."""
_ATTEMPTS = 4
"""Proposals that it may judge past the budget."""


class Limits(Protocol):
    """What ends a search.

    Attributes:
        budget_s: seconds that the search may take; None for no limit.
    """

    budget_s: float | None

    @property
    def seconds(self) -> float:
        """Spent on the search so far."""
        ...

    def refuses(self, proposal: Proposal, key: str, evaluator: Evaluator) -> str:
        """Why ``proposal`` is not judged any more; empty where it is.

        Args:
            proposal: what the strategy asks for.
            key: identifies its model.
            evaluator: judged what came before.
        """
        ...


class Unlimited:
    """No limits: the strategy alone ends the search."""

    budget_s: float | None = None
    seconds = 0.0

    def refuses(self, proposal: Proposal, key: str, evaluator: Evaluator) -> str:
        """Refuse nothing."""
        return ""


class Budget:
    """The limits of one search: seconds, over all sessions of a run that was interrupted; measurements; builds.

    Anchors are judged in any case: the result must not be slower than the best of them. Where a model is so slow that
    they take the whole time, and none in low precision keeps the accuracy bound, the run would end with nothing to
    show. Then the search goes on until a proposal does, for a few proposals and a few times the budget at most.

    Args:
        config: the limits.
        journal: knows the seconds of earlier sessions.
        worker: counts what it builds.
        clock: seconds.
    """

    def __init__(self, config: TuneConfig, journal: Journal, worker: Worker, clock: Callable[[], float]) -> None:
        self._config, self._journal, self._worker, self._clock = config, journal, worker, clock
        self._before = journal.fact(SEARCH_S) or 0.0
        self.budget_s = config.budget_s
        self._begun: float | None = None
        self._late = 0  # proposals past the budget

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of the block, and journal it."""
        self._begun = self._clock()
        try:
            yield
        finally:
            self._journal.record_fact(SEARCH_S, self.seconds)

    @property
    def seconds(self) -> float:
        """Spent on the search so far, in all sessions."""
        return self._before + (0.0 if self._begun is None else self._clock() - self._begun)

    def hurried(self) -> bool:
        """Whether half of the time was spent when this was asked first; a resumed run gets the same answer."""
        return self._journal.once(HURRIED, lambda: self._over(_HURRIED))

    def refuses(self, proposal: Proposal, key: str, evaluator: Evaluator) -> str:
        """See :class:`Limits`; what an earlier session judged costs nothing and is never refused."""
        if proposal.anchor or self._journal.trial(key) is not None:
            return ""
        if self._over(1.0):
            found = any(c.trial.feasible and c.placement != Placement() for c in evaluator.judged[1:])
            if found or self._late == _ATTEMPTS or self._over(_MOST_OF_BUDGET):
                return f"the budget of {self.budget_s:.0f} s is spent"
            self._late += 1
        most = self._config.max_measurements
        timed = sum(isinstance(c.trial.outcome, Measured) for c in evaluator.judged)
        if most is not None and timed >= most:
            return f"{most} measurements are made"
        builds = self._config.max_builds
        if builds is not None and self._worker.builds + _BUILDS_OF_A_TRIAL > builds:
            return f"{self._worker.builds} models are built, of at most {builds}"
        return ""

    def _over(self, times: float) -> bool:
        return self.budget_s is not None and self.seconds >= times * self.budget_s
