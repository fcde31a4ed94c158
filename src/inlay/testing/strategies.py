"""The conformance class of strategies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from inlay.search.base import Strategy
from inlay.trial import Accuracy, Failed, Infeasible, Interval, Latency, Measured, Proposal, Trial


class StrategyTestCase:
    """The ask/tell contract. Subclass it, define :meth:`strategy`, and let pytest collect the subclass.

    Attributes:
        most_asks: a strategy that asks more often counts as one that never ends.
    """

    most_asks = 2000

    def strategy(self) -> Strategy:
        """A new strategy, built with the same arguments each time."""
        raise NotImplementedError("define strategy()")

    def answer(self, proposal: Proposal, number: int) -> Trial:
        """What the ``number``-th proposal is told: by default speeds and accuracies that depend on its digest only."""
        draw = np.random.default_rng(int(proposal.placement.digest, 16))
        gain = float(np.exp(draw.normal(0.05, 0.3)))
        feasible = bool(draw.random() < 0.6)
        accuracy = Accuracy(feasible, float(draw.normal(25.0, 8.0)), reason="" if feasible else "outside the bound")
        latency = Latency(1e6 / gain, Interval(gain, gain * 0.99, gain * 1.01), 6)
        accepted = feasible and draw.random() < 0.3
        return Trial(proposal, Measured(latency, accuracy), accepted, Interval(gain, gain * 0.99, gain * 1.01))

    def test_it_ends_and_stays_ended(self) -> None:
        """``ask`` returns None at last, and None again afterwards."""
        strategy, asked = self.strategy(), self._talk(self.answer)
        assert len(asked) <= self.most_asks
        for number in range(self.most_asks):
            proposal = strategy.ask()
            if proposal is None:
                break
            strategy.tell(self.answer(proposal, number))
        assert strategy.ask() is None
        assert strategy.ask() is None

    def test_it_is_deterministic(self) -> None:
        """Two strategies built with the same arguments and told the same ask the same."""
        first, second = self._talk(self.answer), self._talk(self.answer)
        assert [(p.placement, p.origin, p.anchor) for p in first] == [(p.placement, p.origin, p.anchor) for p in second]

    def test_proposals_are_named(self) -> None:
        """The strategy and each of its proposals say where they come from."""
        assert self.strategy().name
        assert all(p.origin for p in self._talk(self.answer))

    def test_failures_do_not_stop_it_early_or_ever(self) -> None:
        """When everything fails it still ends, and does not raise."""
        self._talk(lambda p, n: Trial(p, Failed("compile", "refused")))
        self._talk(lambda p, n: Trial(p, Infeasible(Accuracy(False, 5.0, reason="outside the bound"))))

    def _talk(self, answer: Callable[[Proposal, int], Trial]) -> list[Proposal]:
        strategy, asked = self.strategy(), []
        while (proposal := strategy.ask()) is not None:
            assert isinstance(proposal, Proposal)
            asked.append(proposal)
            assert len(asked) <= self.most_asks, f"{strategy.name} asked {len(asked)} times and goes on"
            strategy.tell(answer(proposal, len(asked) - 1))
        return asked
