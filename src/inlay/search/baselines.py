"""Anchors: the placements that are measured first. The result is never slower than the best of them."""

from __future__ import annotations

from collections.abc import Sequence

from inlay.model.graph import Graph
from inlay.search.base import Dialogue, Scripted
from inlay.space.recipe import WEIGHTED
from inlay.space.rules import Rules
from inlay.space.units import Unit, placement_from_labels
from inlay.trial import Proposal, Trial
from inlay.types import Placement

FLOAT, FULL_INT8, CONV_MATMUL = "float", "full-int8", "conv-matmul"
"""Names of the anchors, which results and recipes use too: the normalized model without Q/DQ nodes, every selectable
unit, and units with a weight only."""
ORIGINAL = "original"
"""Name of the model as it was given, which every speed-up refers to."""


class Anchors(Scripted):
    """Float; every selectable unit; units with Conv, MatMul and Gemm only; imported placements.

    Attributes:
        trials: of the anchors so far, by name.
    """

    def __init__(
        self, graph: Graph, units: Sequence[Unit], rules: Rules, imported: Sequence[tuple[str, Placement]] = ()
    ) -> None:
        super().__init__("anchors", self._propose)
        self.trials: dict[str, Trial] = {}
        self._placements = anchor_placements(graph, units, rules, imported)

    def _propose(self) -> Dialogue:
        for name, placement in self._placements:
            self.trials[name] = yield Proposal(placement, name, anchor=True)


def anchor_units(units: Sequence[Unit]) -> dict[str, frozenset[str]]:
    """For each anchor that is not imported, the units that it runs in low precision, by name."""
    selectable = [u for u in units if u.selectable]
    return {
        FLOAT: frozenset(),
        FULL_INT8: frozenset(u.name for u in selectable),
        CONV_MATMUL: frozenset(u.name for u in selectable if u.op_type in WEIGHTED),
    }


def anchor_placements(
    graph: Graph, units: Sequence[Unit], rules: Rules, imported: Sequence[tuple[str, Placement]] = ()
) -> list[tuple[str, Placement]]:
    """Name and placement of every anchor; of equal placements the first."""

    def placement(low: frozenset[str]) -> Placement:
        return placement_from_labels(graph, units, rules, lambda unit: unit.name in low)

    first: dict[Placement, str] = {}
    for name, anchor in [*((n, placement(low)) for n, low in anchor_units(units).items()), *imported]:
        first.setdefault(anchor, name)
    return [(name, anchor) for anchor, name in first.items()]
