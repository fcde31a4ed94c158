"""Strategies that join a run through entry points: what they bring to its search, and what they leave behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from inlay.installed import STRATEGIES, joined
from inlay.prepare.config import TuneConfig
from inlay.prepare.model import PreparedModel
from inlay.run.evaluate import Candidate
from inlay.search.base import Strategy
from inlay.trial import Trial
from inlay.types import Placement, PortRewrite


class JoinedStrategy(Protocol):
    """A strategy for one run. The entry point is its class; its name is one of those that ``--strategy`` takes."""

    def __init__(self, prepared: PreparedModel, config: TuneConfig) -> None:
        """One for a prepared model and the settings of its run."""

    @staticmethod
    def check(config: TuneConfig) -> None:
        """Raise UsageError, before any work is done, where files that ``config`` names for it cannot be used."""
        ...

    def anchors(self, say: Callable[[str], None]) -> Sequence[tuple[str, Placement]]:
        """Placements, by name, that are measured before the search begins; ``say`` hears where they are from."""
        ...

    def strategy(
        self, incumbent: Placement, imported: Sequence[Placement], rewrites: frozenset[PortRewrite]
    ) -> Strategy:
        """What proposes, made when its turn comes.

        Args:
            imported: placements of quantized models that the user gave.
            rewrites: selectable rewrites that make their operators faster.
        """
        ...

    def leave(self, folder: Path, judged: Sequence[Candidate]) -> None:
        """Write into the folder of the run what later runs may learn from what was ``judged``."""
        ...

    def notes(self, anchors: Mapping[str, Trial]) -> Sequence[str]:
        """What users should know about its part in the result; ``anchors`` are the trials of anchors by name."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """What ``result.json`` has of it under ``search``."""
        ...

    def regions(self) -> Mapping[tuple[int, int], Sequence[str]]:
        """Regions of the model for its report, by their id and their parent's (-1 for none): the nodes in each."""
        ...


def joined_strategies() -> Mapping[str, type[JoinedStrategy]]:
    """The classes by name, sorted."""
    return {name: each.load() for name, each in joined(STRATEGIES).items()}
