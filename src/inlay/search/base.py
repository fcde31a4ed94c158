"""The seam between search and everything else: strategies propose placements and are told the trials."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Protocol

from inlay.trial import Proposal, Trial
from inlay.types import Placement


class Strategy(Protocol):
    """Ask/tell search over placements.

    Contract:
        * ``ask`` returns the next placement to evaluate, or None when nothing promising is left.
        * Every proposal is told back, once, before the next ``ask``; a proposal that was evaluated before (in this run,
          or in the run that is resumed) is answered from the journal without a new measurement.
        * A strategy is a deterministic function of its constructor arguments (a seed or generator among them) and of
          the trials it is told, so that a resumed run asks for the same placements.
    """

    name: str

    def ask(self) -> Proposal | None:
        """The next proposal, or None to stop."""
        ...

    def tell(self, trial: Trial) -> None:
        """Learn from the trial of the last proposal."""
        ...

    def upcoming(self, count: int) -> Sequence[Placement]:
        """So many placements that it may ask for after the last one, the likeliest first; fewer where it cannot say.

        A guess, by which models are built ahead: it changes nothing, and draws from no generator of the strategy.
        """
        ...


Dialogue = Generator[Proposal, Trial, None]  # A strategy written as a generator: `trial = yield proposal`


class Scripted:
    """A strategy from a dialogue.

    Args:
        start: makes the dialogue, at the first ``ask``, so that it can use what earlier strategies found.
    """

    def __init__(self, name: str, start: Callable[[], Dialogue]) -> None:
        self.name = name
        self._start = start
        self._dialogue: Dialogue | None = None
        self._trial: Trial | None = None
        self._exhausted = False

    def ask(self) -> Proposal | None:
        """The next proposal of the dialogue."""
        if self._exhausted:
            return None
        try:
            if self._dialogue is None:
                self._dialogue = self._start()
                return next(self._dialogue)
            assert self._trial is not None, "ask before the last proposal was told back"
            return self._dialogue.send(self._trial)
        except StopIteration:
            self._exhausted = True
            return None

    def tell(self, trial: Trial) -> None:
        """Keep the trial for the dialogue."""
        self._trial = trial

    def upcoming(self, count: int) -> Sequence[Placement]:
        """None, unless a subclass knows where its dialogue is."""
        return ()


class Chain:
    """Strategies one after another: each begins when the one before it is exhausted, unless it is ``done`` by then.

    Args:
        strategies: or what makes one at its turn, such as an ``Evolve`` that starts from the incumbent of that moment.
    """

    name = "chain"

    def __init__(
        self, strategies: Sequence[Strategy | Callable[[], Strategy]], done: Callable[[], bool] = lambda: False
    ) -> None:
        self._left, self._done = list(strategies), done
        self._now: Strategy | None = None  # whose turn it is

    def ask(self) -> Proposal | None:
        """The next proposal of the first strategy that has one."""
        while self._left:
            if self._now is None:
                self._now = self._left[0]() if callable(self._left[0]) else self._left[0]
            proposal = self._now.ask()
            if proposal is not None:
                return proposal
            self._now, self._left = None, [] if self._done() else self._left[1:]
        return None

    def tell(self, trial: Trial) -> None:
        """Tell the strategy that asked."""
        assert self._now is not None, "tell without ask"
        self._now.tell(trial)

    def upcoming(self, count: int) -> Sequence[Placement]:
        """As the strategy that asked last says."""
        return () if self._now is None else self._now.upcoming(count)
