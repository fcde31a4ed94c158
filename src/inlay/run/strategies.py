"""Which strategies a run uses, and in which order: anchors first, then what the configuration names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from inlay.prepare.config import TuneConfig
from inlay.prepare.model import PreparedModel
from inlay.prepare.qdq_import import Imported
from inlay.regions.cache import PatternCache
from inlay.regions.config import Config
from inlay.regions.evolve import Evolve
from inlay.run.evaluate import Evaluator
from inlay.search.base import Chain, LazyStrategy, Strategy
from inlay.search.baselines import WEIGHTED, Anchors
from inlay.search.guided import Guided
from inlay.search.refine import Refine
from inlay.types import Placement


@dataclass(frozen=True, eq=False)
class Plan:
    """The strategies of one run.

    Attributes:
        anchors: the first of them, whose trials are reported by name.
        strategy: all of them, as one.
        harvest: what region-pattern evolution learned, or None when its turn did not come.
    """

    anchors: Anchors
    strategy: Strategy
    harvest: Callable[[], PatternCache | None]


def compose(
    prepared: PreparedModel,
    imported: Imported,
    config: TuneConfig,
    evaluator: Evaluator,
    anchors: Anchors,
    guided: Guided,
) -> Plan:
    """The plan for a prepared model: ``anchors``, then by default ``guided``, then evolution on what is left.

    Raises:
        UsageError: the pattern cache cannot be read.
    """
    units = prepared.selectable
    chosen = {
        "full-int8": frozenset(u.name for u in units),
        "conv-matmul": frozenset(u.name for u in units if u.op_type in WEIGHTED),
    }
    cache = None if config.pattern_cache is None else PatternCache.load(config.pattern_cache)

    def make_evolve() -> Evolve:
        return Evolve(
            prepared.graph,
            prepared.rules,
            base=evaluator.incumbent.placement or Placement(),
            config=Config(schemes_per_region=config.schemes_per_region, seed=config.seed),
            rng=np.random.default_rng([config.seed, 3]),
            cache=cache,
            space=prepared.space(),
            seeds=[placement for _, placement in imported.placements],
            rewrites=guided.rewrites,
        )

    evolve = LazyStrategy("evolve", make_evolve)
    refine = Refine(units, prepared.label, anchors.trials, chosen)
    after: dict[str, list[Strategy]] = {
        "auto": [guided, evolve],
        "guided": [guided],
        "evolve": [evolve],
        "refine": [refine],
        "anchors": [],
    }

    def harvest() -> PatternCache | None:
        made = evolve.strategy
        return made.learned() if isinstance(made, Evolve) and made.best.speedup is not None else None

    return Plan(anchors, Chain([anchors, *after[config.strategy]]), harvest)
