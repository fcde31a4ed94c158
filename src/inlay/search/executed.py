"""Ask the runtime which units really ran in low precision; what it did counts, whatever the rules say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inlay.search.unit_graph import UnitGraph
from inlay.targets.base import KernelTime

_INTEGERS = frozenset({"int8", "uint8", "int4", "uint4"})


@dataclass(frozen=True)
class Disagreement:
    """A unit that ran otherwise than its label says.

    Attributes:
        unit: its name.
        op_type: its operator.
        wanted_low: what the label says.
        kernels: operators and element types that ran instead.
    """

    unit: str
    op_type: str
    wanted_low: bool
    kernels: tuple[str, ...]


def disagreements(structure: UnitGraph, labels: np.ndarray, kernels: Sequence[KernelTime]) -> list[Disagreement]:
    """Units whose kernels compute in another precision than the labelling asks for.

    Units without a kernel of their own (fused into another's, or dropped as they only move elements) do not count, nor
    do kernels whose precision is not known. A fused form counts as low when any of its kernels reads integers.
    """
    ran: dict[int, list[KernelTime]] = {}
    for kernel in kernels:
        owner = structure.owner(kernel.nodes)
        if owner is not None and kernel.kind == "compute" and kernel.precision:
            ran.setdefault(owner, []).append(kernel)
    found = []
    for i, mine in sorted(ran.items()):
        low = any(k.precision in _INTEGERS for k in mine)
        if structure.free[i] and low != bool(labels[i]):
            unit = structure.units[i]
            names = tuple(f"{k.op_type} ({k.precision})" for k in mine)
            found.append(Disagreement(unit.name, unit.op_type, bool(labels[i]), names))
    return found
