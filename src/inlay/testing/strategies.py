"""The conformance suite of strategies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from inlay.search.base import Strategy
from inlay.trial import Accuracy, Failed, Infeasible, Interval, Latency, Measured, Proposal, Trial


class StrategyTestCase:
    """Checks the contract of :class:`inlay.search.base.Strategy`.

    Subclass it, define :meth:`strategy`, and let pytest collect the subclass::

        class TestMyStrategy(StrategyTestCase):
            def strategy(self) -> Strategy:
                return MyStrategy(graph, rules, seed=0)

    Attributes:
        most_asks: number of proposals after which a strategy counts as one that never ends.
    """

    most_asks = 2000

    def strategy(self) -> Strategy:
        """A new strategy, constructed with the same arguments each time."""
        raise NotImplementedError("define strategy()")

    def answer(self, proposal: Proposal, number: int) -> Trial:
        """The trial that answers the ``number``-th proposal; by default its figures depend on the placement alone."""
        draw = np.random.default_rng(int(proposal.placement.digest, 16))
        gain = float(np.exp(draw.normal(0.05, 0.3)))
        feasible = bool(draw.random() < 0.6)
        accuracy = Accuracy(feasible, float(draw.normal(25.0, 8.0)), reason="" if feasible else "outside the bound")
        latency = Latency(1e6 / gain, Interval(gain, gain * 0.99, gain * 1.01), 6)
        accepted = feasible and draw.random() < 0.3
        return Trial(proposal, Measured(latency, accuracy), accepted, Interval(gain, gain * 0.99, gain * 1.01))

    def test_it_ends_and_stays_ended(self) -> None:
        """``ask`` returns None at last, and None again afterwards."""
        strategy, proposals = self.strategy(), self._drive(self.answer)
        assert len(proposals) <= self.most_asks
        for number in range(self.most_asks):
            proposal = strategy.ask()
            if proposal is None:
                break
            strategy.tell(self.answer(proposal, number))
        assert strategy.ask() is None
        assert strategy.ask() is None

    def test_it_is_deterministic(self) -> None:
        """Two strategies with the same arguments ask the same if they get the same answers."""
        first, second = self._drive(self.answer), self._drive(self.answer)
        assert [(p.placement, p.origin, p.anchor) for p in first] == [(p.placement, p.origin, p.anchor) for p in second]

    def test_guesses_change_nothing(self) -> None:
        """It asks the same whether or not it is asked, in between, for what is likely next."""
        guesses = list[int]()

        def guess(strategy: Strategy) -> None:
            guesses.append(len(strategy.upcoming(3)))

        proposals = [(p.placement, p.origin) for p in self._drive(self.answer, guess)]
        assert proposals == [(p.placement, p.origin) for p in self._drive(self.answer)]
        assert max(guesses, default=0) <= 3

    def test_proposals_are_named(self) -> None:
        """The strategy has a name, and each proposal an origin."""
        assert self.strategy().name
        assert all(p.origin for p in self._drive(self.answer))

    def test_failures_do_not_stop_it_early_or_ever(self) -> None:
        """It ends without raising even if every trial fails or is infeasible."""
        self._drive(lambda p, n: Trial(p, Failed("compile", "refused")))
        self._drive(lambda p, n: Trial(p, Infeasible(Accuracy(False, 5.0, reason="outside the bound"))))

    def _drive(
        self, answer: Callable[[Proposal, int], Trial], between: Callable[[Strategy], None] = lambda strategy: None
    ) -> list[Proposal]:
        strategy, proposals = self.strategy(), []
        while (proposal := strategy.ask()) is not None:
            assert isinstance(proposal, Proposal)
            proposals.append(proposal)
            assert len(proposals) <= self.most_asks, f"{strategy.name} made {len(proposals)} proposals and does not end"
            between(strategy)
            strategy.tell(answer(proposal, len(proposals) - 1))
        return proposals
