"""Choose, for each operator alone, among the target's selectable rewrites: by one profile with each of them.

A selectable rewrite (:class:`inlay.quant.rewrite.Rewrite`) gives the same results in another kernel. Which kernel is
faster depends on the machine and on the operator's shape, but not on its neighbors. So this is decided once, before
the search over labels, and every later candidate is written accordingly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from inlay.search import policy
from inlay.search.unit_graph import UnitGraph
from inlay.targets.base import KernelTime
from inlay.types import Placement, PortRewrite


@dataclass(frozen=True)
class RewriteChoice:
    """Which rewrites are faster."""

    rewrites: frozenset[PortRewrite] = frozenset()  # those to apply wherever their ports are quantized
    # by name of their units: kernel time with the rewrite, less that of units that it takes over, over the time
    # without; at least 0
    ratios: Mapping[str, float] = field(default_factory=dict)

    def applied(self, graph: UnitGraph, placement: Placement, times: Sequence[KernelTime]) -> list[KernelTime]:
        """The profile ``times`` of ``placement`` as it would be with the chosen rewrites."""
        missing = {r.port.node for r in self.rewrites if r.port in placement and r not in placement.rewrites}
        found = []
        for kernel in times:
            unit = _unit(graph, kernel)
            name = "" if unit is None else graph.units[unit].name
            found.append(replace(kernel, ns=kernel.ns * self.ratios[name]) if name in missing else kernel)
        return found

    def named(self, name: str) -> RewriteChoice:
        """The part that consists of one rewrite."""
        rewrites = frozenset(r for r in self.rewrites if r.name == name)
        units = {r.port.node for r in rewrites}
        return RewriteChoice(rewrites, {unit: ratio for unit, ratio in self.ratios.items() if unit in units})

    def __or__(self, other: RewriteChoice) -> RewriteChoice:
        """Both; where they disagree about a unit, the faster one."""
        slower = {n for n, ratio in other.ratios.items() if ratio < self.ratios.get(n, np.inf)}
        mine = {r for r in self.rewrites if r.port.node not in slower}
        taken = {r.port.node for r in mine}
        others = {r for r in other.rewrites if r.port.node not in taken}
        ratios = {**other.ratios, **{n: x for n, x in self.ratios.items() if n not in slower}}
        return RewriteChoice(frozenset(mine | others), ratios)


def choose_rewrites(
    graph: UnitGraph, rewrites: Iterable[PortRewrite], plain: Sequence[KernelTime], rewritten: Sequence[KernelTime]
) -> RewriteChoice:
    """Those of ``rewrites`` that make their operator faster by more than profiles of one kernel differ.

    ``plain`` is the profile of a placement without them, ``rewritten`` of the same one with all of them, at most one
    for a unit. Units before one that ran without it and are not there with it were taken over: their time counts as
    saved. The machine may have been slower in one profile than in the other: kernels that both share tell by how
    much.
    """
    before, after = _by_unit(graph, plain), _by_unit(graph, rewritten)
    asked = {graph.index[r.port.node]: r for r in rewrites}
    both = [i for i in before if i in after and before[i] > 0.0]
    unchanged = [after[i] / before[i] for i in both if i not in asked and before[i] > 10 * policy.REWRITE_MIN_GAIN_NS]
    pace = float(np.median(unchanged)) if len(unchanged) >= policy.REWRITE_MIN_UNCHANGED else 1.0
    saved = {i: _taken_over(graph, i, before, after) for i in both if i in asked}
    ratios = {i: max(after[i] / pace - ns, 0.0) / before[i] for i, ns in saved.items()}
    chosen = {
        i: r
        for i, r in ratios.items()
        if before[i] * (1.0 - r) > max(policy.REWRITE_MIN_GAIN * before[i], policy.REWRITE_MIN_GAIN_NS)
    }
    return RewriteChoice(frozenset(asked[i] for i in chosen), {graph.units[i].name: r for i, r in chosen.items()})


def _taken_over(graph: UnitGraph, unit: int, before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Nanoseconds of the units that led to ``unit`` in the one profile, and have no kernel in the other."""
    saved, source = 0.0, int(graph.layout_source[unit])
    while source >= 0 and source not in after:
        saved += before.get(source, 0.0)
        source = int(graph.layout_source[source])
    return saved


def _by_unit(graph: UnitGraph, times: Sequence[KernelTime]) -> Mapping[int, float]:
    found: defaultdict[int, float] = defaultdict(float)
    for kernel in times:
        unit = _unit(graph, kernel)
        if unit is not None:
            found[unit] += kernel.ns
    return found


def _unit(graph: UnitGraph, kernel: KernelTime) -> int | None:
    """The unit that a kernel computes; None where it serves a boundary, or is nobody's."""
    if kernel.kind != "compute" or kernel.values:
        return None
    return graph.owner(kernel.nodes)
