"""A strategy that is made when its turn comes, from what the strategies before it found."""

from __future__ import annotations

from collections.abc import Callable

from inlay.search.base import Strategy
from inlay.trial import Proposal, Trial


class LazyStrategy:
    """Stands in for a strategy until the first ``ask``.

    Args:
        name: for people.
        make: makes the strategy, such as an ``Evolve`` that starts from the incumbent of that moment.
    """

    def __init__(self, name: str, make: Callable[[], Strategy]) -> None:
        self.name = name
        self._make = make
        self.strategy: Strategy | None = None

    def ask(self) -> Proposal | None:
        """The next proposal of the strategy, which is made now if it was not yet."""
        if self.strategy is None:
            self.strategy = self._make()
        return self.strategy.ask()

    def tell(self, trial: Trial) -> None:
        """Tell the strategy."""
        assert self.strategy is not None, "tell without ask"
        self.strategy.tell(trial)
