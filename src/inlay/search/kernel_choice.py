"""Which of two kernels an operator is faster in, where the form of its weight decides: told by one profile of each.

Weights off zero (:attr:`inlay.types.Placement.offset`) give the same numbers in another kernel. Which one is faster
depends on the machine and the operator's shape, but not on its neighbours, so it is no matter for the search over
labels: it is decided once, for every operator alone, and every later candidate is written accordingly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from inlay.search.unit_graph import UnitGraph
from inlay.targets.base import KernelTime
from inlay.types import Placement, Port

_LEAST_GAIN = 0.03  # of the kernel's time
_LEAST_NS = 1000.0  # runtimes tell whole microseconds
_YARDSTICKS = 3  # kernels that run alike in both profiles, to tell how fast the machine was


@dataclass(frozen=True)
class Kernels:
    """What is known of the other kernels.

    Attributes:
        offset: weights that are off zero, by the port that reads each: the other kernel is faster.
        gains: of the units with these weights, by name: time in the other kernel over that in the usual one.
    """

    offset: frozenset[Port] = frozenset()
    gains: Mapping[str, float] = field(default_factory=dict)

    def applied(self, structure: UnitGraph, placement: Placement, times: Sequence[KernelTime]) -> list[KernelTime]:
        """What the kernels of ``placement`` would take with its weights off zero where that is faster.

        Args:
            structure: of the model.
            placement: as it was profiled.
            times: its profile.
        """
        missing = {p.node for p in self.offset if p in placement and p not in placement.offset}
        found = []
        for kernel in times:
            unit = _unit(structure, kernel)
            name = "" if unit is None else structure.units[unit].name
            found.append(replace(kernel, ns=kernel.ns * self.gains[name]) if name in missing else kernel)
        return found


def choose_kernels(
    structure: UnitGraph, ports: Iterable[Port], usual: Sequence[KernelTime], other: Sequence[KernelTime]
) -> Kernels:
    """The operators that are faster with their weights off zero.

    A gain counts where it is larger than what profiles of the same kernel differ by. The machine may have been slower
    or faster in one profile than in the other: what ran in the same kernels tells by how much.

    Args:
        structure: of the model.
        ports: weights that may be off zero.
        usual: profile of a placement with none of them off zero.
        other: profile of the same placement with all of them off zero.
    """
    before, after = _by_unit(structure, usual), _by_unit(structure, other)
    asked = {structure.index[p.node]: p for p in ports}
    both = [i for i in before if i in after and before[i] > 0.0]
    same = [after[i] / before[i] for i in both if i not in asked and before[i] > 10 * _LEAST_NS]
    pace = float(np.median(same)) if len(same) >= _YARDSTICKS else 1.0
    gains = {i: after[i] / pace / before[i] for i in both if i in asked}
    chosen = {i: g for i, g in gains.items() if before[i] * (1.0 - g) > max(_LEAST_GAIN * before[i], _LEAST_NS)}
    return Kernels(frozenset(asked[i] for i in chosen), {structure.units[i].name: g for i, g in chosen.items()})


def _by_unit(structure: UnitGraph, times: Sequence[KernelTime]) -> Mapping[int, float]:
    found: defaultdict[int, float] = defaultdict(float)
    for kernel in times:
        unit = _unit(structure, kernel)
        if unit is not None:
            found[unit] += kernel.ns
    return found


def _unit(structure: UnitGraph, kernel: KernelTime) -> int | None:
    """The unit that a kernel computes; None where it serves a boundary, or is nobody's."""
    if kernel.kind != "compute" or kernel.values:
        return None
    return structure.owner(kernel.nodes)
