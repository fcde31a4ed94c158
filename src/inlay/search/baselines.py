"""The placements that everybody would try first; the result is never slower than the best of them."""

from __future__ import annotations

from collections.abc import Sequence

from inlay.model.graph import Graph
from inlay.search.base import Dialogue, Scripted
from inlay.space.rules import Rules
from inlay.space.units import Unit, placement_from_labels
from inlay.trial import Proposal, Trial
from inlay.types import Placement

WEIGHTED = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})


class Anchors(Scripted):
    """Float; every operator that the target runs in low precision; Conv, MatMul and Gemm only; imported placements.

    Attributes:
        trials: what was found out, by the anchor's name.
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


def anchor_placements(
    graph: Graph, units: Sequence[Unit], rules: Rules, imported: Sequence[tuple[str, Placement]] = ()
) -> list[tuple[str, Placement]]:
    """Every anchor by name, without repetitions."""
    wishes = [
        ("float", Placement()),
        ("full-int8", placement_from_labels(graph, units, rules, lambda u: True)),
        ("conv-matmul", placement_from_labels(graph, units, rules, lambda u: u.op_type in WEIGHTED)),
        *imported,
    ]
    seen: set[Placement] = set()
    return [(n, p) for n, p in wishes if not (p in seen or seen.add(p))]  # type: ignore[func-returns-value]
