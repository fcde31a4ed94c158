"""Which strategies a run uses, and in which order: the anchors first, then what ``--strategy`` names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from inlay.prepare.config import TuneConfig
from inlay.prepare.model import PreparedModel
from inlay.prepare.qdq_import import ImportedQDQ
from inlay.run.evaluate import Evaluator
from inlay.run.joined import JoinedStrategy
from inlay.search.bars import Barred
from inlay.search.base import Chain, LazyStrategy, Strategy
from inlay.search.baselines import FLOAT, Anchors, anchor_units
from inlay.search.guided import Guided
from inlay.search.refine import Refine
from inlay.space.units import STATIC
from inlay.types import Placement


@dataclass(frozen=True, eq=False)
class Strategies:
    """The strategies of one run.

    Attributes:
        anchors: the first of them; their trials are reported by name.
        guided: the cost-model strategy; also searches again where the winner fails on unseen samples.
        chain: all that the run uses, one after the other.
    """

    anchors: Anchors
    guided: Guided
    chain: Strategy

    @property
    def barred(self) -> tuple[Barred, ...]:
        """What the runtime refused or computed wrong, as far as it was found out."""
        return tuple(self.guided.surrogate.bars.found)


def compose(
    prepared: PreparedModel,
    imported: ImportedQDQ,
    config: TuneConfig,
    evaluator: Evaluator,
    anchors: Anchors,
    guided: Guided,
    joined: Mapping[str, JoinedStrategy],
) -> Strategies:
    """The strategies for a prepared model: ``anchors``, then by default ``guided``, then those that joined.

    Where there are no times of kernels, ``refine`` follows ``guided``, which knows only what a table says.
    """

    def begun(joining: JoinedStrategy) -> Strategy:
        given = [placement for _, placement in imported.placements]
        return joining.strategy(evaluator.incumbent.placement or Placement(), given, guided.rewrites)

    low_precision = {
        name: frozenset(units)
        for name, units in anchor_units(prepared.graph, prepared.units).items()
        if name != FLOAT and all(precision == STATIC for precision in units.values())
    }
    further = {name: LazyStrategy(name, partial(begun, each)) for name, each in joined.items()}
    refine = Refine(prepared.selectable, prepared.label, anchors.trials, low_precision)
    after_anchors: dict[str, list[Strategy]] = {
        **{name: [each] for name, each in further.items()},
        "auto": [guided, *(() if evaluator.times_kernels else (refine,)), *further.values()],
        "guided": [guided],
        "refine": [refine],
        "anchors": [],
    }
    return Strategies(anchors, guided, Chain([anchors, *after_anchors[config.strategy]]))
