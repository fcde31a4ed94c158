"""Labels that a runtime refuses or computes wrong: found by models between one that failed and one that ran.

A runtime may refuse a model for one operator alone, or compute that one wrong, which no table foretold. What is learned
of that operator spares the search all other models with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from inlay.search.labeling import LabelingProblem
from inlay.search.unit_graph import UnitGraph

_ALIKE = 2
"""Units of one operator that failed in one label, after which that label is barred for all of them; unless one ran."""
_DEAR = 10.0
"""Costs of all units by which a barred label is dearer: no gain makes up for it, and solvers know it as a cost."""


@dataclass(frozen=True)
class Barred:
    """A unit that may not have a label."""

    unit: str  # its name
    op_type: str  # its operator
    refused: bool  # the runtime refused it; else it computed something else


class Bars:
    """Which units may not have which labels."""

    def __init__(self, graph: UnitGraph) -> None:
        self._graph = graph
        self._barred = np.zeros((len(graph.units), 2 + len(graph.forms)), bool)
        self._failed: Counter[tuple[str, int]] = Counter()
        self.found: list[Barred] = []  # those to blame, in the order in which they were found

    def add(self, unit: int, label: int, ran: Sequence[np.ndarray], refused: bool = True) -> None:
        """A model failed because of a unit in a label: bar it.

        Where others of its operator were, all of them are barred that had not this label in a model that ``ran``.
        """
        units, operator = self._graph.units, self._graph.units[unit].op_type
        self._barred[unit, label] = True
        self.found.append(Barred(units[unit].name, operator, refused))
        self._failed[operator, label] += 1
        alike = [i for i, other in enumerate(units) if other.op_type == operator and self._graph.changeable[i]]
        spared = any(each.any() and (each[alike] == label).any() for each in ran)
        if self._failed[operator, label] >= _ALIKE and not spared:
            self._barred[alike, label] = True

    def forbid(self, labels: np.ndarray) -> bool:
        """Whether a labeling has a barred label; all float never has, as that is the model as it came."""
        return bool(labels.any() and self._barred[np.arange(len(labels)), labels.astype(np.int64)].any())

    def priced(self, problem: LabelingProblem) -> LabelingProblem:
        """A problem in which barred labels cost more than anything."""
        if not self._barred.any():
            return problem
        finite = problem.unit_costs[np.isfinite(problem.unit_costs)]
        more = self._barred * (_DEAR * float(np.abs(finite).sum()))
        forms = None if problem.form_cost is None else problem.form_cost + more[:, 2:]
        return replace(
            problem, float_cost=problem.float_cost + more[:, 0], low_cost=problem.low_cost + more[:, 1], form_cost=forms
        )


def between(
    failed: np.ndarray, ran: np.ndarray, graph: UnitGraph
) -> Generator[np.ndarray, bool, tuple[int, int] | None]:
    """Find the unit whose label makes a labeling fail: yields labelings to be tried, and is told whether they run.

    Each halves what the two differ by. Where labels that follow from others leave nothing in between, it ends.

    Returns:
        The unit and its label; None where several fail only together.
    """
    before = len(failed) + 1
    while True:
        differing = np.flatnonzero((failed != ran) & graph.changeable)
        if len(differing) >= before:
            return None
        before = len(differing)
        if before <= 1:
            return (int(differing[0]), int(failed[differing[0]])) if before else None
        for half in (differing[: before // 2], differing[before // 2 :]):
            middle = failed.copy()
            middle[half] = ran[half]
            middle = graph.fixed_point(middle)
            if not (middle == failed).all() and not (middle == ran).all():
                break
        else:
            return None
        if (yield middle):
            ran = middle
        else:
            failed = middle
