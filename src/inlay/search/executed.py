"""Executed precision: which units really ran in low precision. The profile counts, whatever the rules say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inlay.search.unit_graph import UnitGraph
from inlay.targets.base import KernelTime

_INTEGERS = frozenset({"int8", "uint8", "int4", "uint4"})


@dataclass(frozen=True)
class Disagreement:
    """A unit that did not run as labeled.

    Attributes:
        unit: its name.
        op_type: its operator.
        wanted_low: its label.
        kernels: operators and element types that ran instead.
    """

    unit: str
    op_type: str
    wanted_low: bool
    kernels: tuple[str, ...]


def disagreements(graph: UnitGraph, labels: np.ndarray, kernels: Sequence[KernelTime]) -> list[Disagreement]:
    """Units whose kernels compute in another precision than their label.

    Units without a kernel of their own (fused into another's, or removed as they only move elements) do not count, nor
    do kernels of unknown precision. A unit with several kernels counts as low when any of them reads integers.
    """
    by_unit: defaultdict[int, list[KernelTime]] = defaultdict(list)
    for kernel in kernels:
        owner = graph.owner(kernel.nodes)
        if owner is not None and kernel.kind == "compute" and kernel.precision:
            by_unit[owner].append(kernel)
    found = []
    for i, own in sorted(by_unit.items()):
        low = any(k.precision in _INTEGERS for k in own)
        if graph.selectable[i] and low != bool(labels[i]):
            unit = graph.units[i]
            names = tuple(f"{k.op_type} ({k.precision})" for k in own)
            found.append(Disagreement(unit.name, unit.op_type, bool(labels[i]), names))
    return found
