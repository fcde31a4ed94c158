"""The seam between search and everything else: strategies propose placements and are told what came of them."""

from __future__ import annotations

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
