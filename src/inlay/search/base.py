"""The seam between search and everything else: strategies propose placements and are told what came of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Protocol

from inlay.trial import Proposal, Trial


class Strategy(Protocol):
    """Ask/tell search over placements.

    Contract:
        * ``ask`` returns the next placement to judge, or None when nothing promising is left.
        * Every asked proposal is told back, once, before the next ``ask``; a proposal that was judged before (in this
          run, or in a run that is being resumed) is answered from the journal without a new measurement.
        * A strategy is a deterministic function of its constructor arguments (a seed or generator among them) and of
          what it was told, so that a resumed run asks the same questions.
    """

    name: str

    def ask(self) -> Proposal | None:
        """The next proposal, or None to stop."""
        ...

    def tell(self, trial: Trial) -> None:
        """Take in what was found out about the proposal last asked for."""
        ...


Dialogue = Generator[Proposal, Trial, None]
"""A strategy written as a generator: ``trial = yield proposal``."""


class Scripted:
    """A strategy from a dialogue.

    Args:
        name: for people.
        start: makes the dialogue; called at the first ``ask``, so that it can look at what other strategies found.
    """

    def __init__(self, name: str, start: Callable[[], Dialogue]) -> None:
        self.name = name
        self._start = start
        self._dialogue: Dialogue | None = None
        self._answer: Trial | None = None
        self._over = False

    def ask(self) -> Proposal | None:
        """The next proposal of the dialogue."""
        if self._over:
            return None
        try:
            if self._dialogue is None:
                self._dialogue = self._start()
                return next(self._dialogue)
            assert self._answer is not None, "ask before the last proposal was told back"
            return self._dialogue.send(self._answer)
        except StopIteration:
            self._over = True
            return None

    def tell(self, trial: Trial) -> None:
        """Keep the answer for the dialogue."""
        self._answer = trial


class Chain:
    """Strategies one after the other: the next begins when the one before it has nothing left to ask."""

    name = "chain"

    def __init__(self, strategies: Sequence[Strategy]) -> None:
        self._left = list(strategies)

    def ask(self) -> Proposal | None:
        """The next proposal of the first strategy that has one."""
        while self._left:
            proposal = self._left[0].ask()
            if proposal is not None:
                return proposal
            self._left.pop(0)
        return None

    def tell(self, trial: Trial) -> None:
        """Tell the strategy that asked."""
        self._left[0].tell(trial)
