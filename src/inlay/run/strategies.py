"""Which strategies a run uses, and in which order: the anchors first, then what ``--strategy`` names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inlay.prepare.config import TuneConfig
from inlay.prepare.model import PreparedModel
from inlay.prepare.qdq_import import ImportedQDQ
from inlay.regions.evolve import Evolve
from inlay.run.evaluate import Evaluator
from inlay.run.patterns import RunPatterns
from inlay.search.bars import Barred
from inlay.search.base import Chain, LazyStrategy, Strategy
from inlay.search.baselines import FLOAT, Anchors, anchor_units
from inlay.search.guided import Guided
from inlay.search.refine import Refine
from inlay.space.units import STATIC
from inlay.types import Placement

_EVOLUTION_STREAM = 3
"""Tells the random stream of evolution from others of the same seed."""


@dataclass(frozen=True, eq=False)
class Strategies:
    """The strategies of one run.

    Attributes:
        anchors: the first of them; their trials are reported by name.
        guided: the cost-model strategy; also searches again where the winner fails on unseen samples.
        evolve: region-pattern evolution, made when its turn comes.
        chain: all that the run uses, one after the other.
    """

    anchors: Anchors
    guided: Guided
    evolve: LazyStrategy
    chain: Strategy

    @property
    def barred(self) -> tuple[Barred, ...]:
        """What the runtime refused or computed wrong, as far as it was found out."""
        return tuple(self.guided.surrogate.bars.found)

    @property
    def evolution(self) -> Evolve | None:
        """Region-pattern evolution, or None where its turn did not come."""
        made = self.evolve.strategy
        return made if isinstance(made, Evolve) else None


def compose(
    prepared: PreparedModel,
    imported: ImportedQDQ,
    config: TuneConfig,
    evaluator: Evaluator,
    anchors: Anchors,
    guided: Guided,
    patterns: RunPatterns,
) -> Strategies:
    """The strategies for a prepared model: ``anchors``, then by default ``guided``, then evolution of what it found.

    Where there are no times of kernels, ``refine`` follows ``guided``, which knows only what a table says.
    """

    def make_evolve() -> Evolve:
        return Evolve(
            patterns.space,
            base=evaluator.incumbent.placement or Placement(),
            config=patterns.config,
            rng=np.random.default_rng([config.seed, _EVOLUTION_STREAM]),
            cache=patterns.cache,
            seeds=[placement for _, placement in imported.placements],
            rewrites=guided.rewrites,
        )

    low_precision = {
        name: frozenset(units)
        for name, units in anchor_units(prepared.graph, prepared.units).items()
        if name != FLOAT and all(precision == STATIC for precision in units.values())
    }
    evolve = LazyStrategy("evolve", make_evolve)
    refine = Refine(prepared.selectable, prepared.label, anchors.trials, low_precision)
    after_anchors: dict[str, list[Strategy]] = {
        "auto": [guided, *(() if evaluator.times_kernels else (refine,)), evolve],
        "guided": [guided],
        "evolve": [evolve],
        "refine": [refine],
        "anchors": [],
    }
    return Strategies(anchors, guided, evolve, Chain([anchors, *after_anchors[config.strategy]]))
