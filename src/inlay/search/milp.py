"""Exact labelings by a mixed-integer linear program: costs of any sign, and linear limits.

Each unit has a 0/1 column for float and one for low precision, and one for each of its forms, which is a way of being
float. A value is produced in its producer's precision; where some reader
wants the other one, a conversion is paid once, however many readers share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from inlay.model.libraries import silence
from inlay.search.edges import FIRST_FORM, FLOAT, LOW
from inlay.search.labeling import LEAST_LIMIT, LabelingProblem, Limit

if TYPE_CHECKING:
    from scipy.optimize import LinearConstraint

_Row = tuple[list[int], list[float], float, float]  # columns, coefficients, lower and upper bound


@dataclass
class _Program:
    """Rows and columns as they are added; columns ``2 i`` and ``2 i + 1`` say that unit ``i`` is float, and low."""

    cost: list[float]
    rows: list[_Row] = field(default_factory=list)

    def column(self, cost: float) -> int:
        self.cost.append(cost)
        return len(self.cost) - 1

    def conversion(self, cost: float, made: int, readers: Sequence[int], always_read: bool, signs: set[float]) -> int:
        """A column that is 1 where a 0/1 column ``made`` is, and some of ``readers`` (or it is always read).

        It is bounded from below where ``signs`` holds 1 (a positive weight pushes it down), from above where it holds
        -1.
        """
        wanted = self.column(0.0)
        if 1 in signs:
            self.rows += [([wanted, r], [1.0, -1.0], 0.0, np.inf) for r in readers]
            self.rows.append(([wanted], [1.0], float(always_read), np.inf))
        if -1 in signs and not always_read:
            self.rows.append(([wanted, *readers], [1.0, *[-1.0] * len(readers)], -np.inf, 0.0))
        both = self.column(cost)
        if 1 in signs:
            self.rows.append(([both, made, wanted], [1.0, -1.0, -1.0], -1.0, np.inf))
        if -1 in signs:
            self.rows += [([both, part], [1.0, -1.0], -np.inf, 0.0) for part in (made, wanted)]
        return both

    def constraints(self) -> LinearConstraint:
        from scipy.optimize import LinearConstraint
        from scipy.sparse import coo_array

        row_index = np.array([r for r, row in enumerate(self.rows) for _ in row[0]], np.int64)
        column_index = np.array([c for row in self.rows for c in row[0]], np.int64)
        coefficients = np.array([w for row in self.rows for w in row[1]], np.float64)
        shape = len(self.rows), len(self.cost)
        matrix = coo_array((coefficients, (row_index, column_index)), shape=shape).tocsr()
        return LinearConstraint(matrix, np.array([r[2] for r in self.rows]), np.array([r[3] for r in self.rows]))


def solve(
    problem: LabelingProblem, limits: Sequence[Limit] = (), seconds: float = 5.0, gap: float = 1e-4
) -> np.ndarray | None:
    """The best labeling that keeps ``limits`` (HiGHS through SciPy), shape (n,).

    It is the best one found within ``seconds``, or the first within a relative optimality ``gap``. None when none was
    found in time or none exists.
    """
    from scipy.optimize import Bounds, milp  # takes long to load: what is refused or fails before is so at once

    n = len(problem.float_cost)
    program = _Program(np.stack([problem.float_cost, problem.low_cost], axis=1).ravel().tolist())
    program.rows += [([2 * i, 2 * i + 1], [1.0, 1.0], 1.0, 1.0) for i in range(n)]
    weights = [{2 * i + 1: float(limit.low[i]) for i in np.flatnonzero(limit.low).tolist()} for limit in limits]
    forms = _add_forms(program, problem, limits, weights)
    one = program.column(0.0)  # a producer that is not a unit is float
    program.rows.append(([one], [1.0], 1.0, 1.0))
    for k, boundary in enumerate(problem.boundaries):
        owned, consumers = boundary.producer >= 0, boundary.consumers
        if boundary.dequantize and owned and (consumers or boundary.float_reader):
            made, readers = 2 * boundary.producer + 1, [2 * c for c in consumers]
            signs = {float(np.sign(boundary.dequantize))}
            program.conversion(boundary.dequantize, made, readers, boundary.float_reader, signs)
        signs = {float(np.sign(w)) for w in (boundary.quantize, *(limit.quantize[k] for limit in limits)) if w}
        if signs and consumers:
            made, readers = 2 * boundary.producer if owned else one, [2 * c + 1 for c in consumers]
            column = program.conversion(boundary.quantize, made, readers, False, signs)
            for limit, columns in zip(limits, weights, strict=True):
                if limit.quantize[k]:
                    columns[column] = float(limit.quantize[k])
    for penalty in problem.penalties:
        z, neighbors = program.column(penalty.cost), [2 * m for m in penalty.neighbors]
        row = [z, 2 * penalty.unit, *neighbors], [1.0, -1.0, *[1.0] * len(neighbors)], 0.0, np.inf
        program.rows.append(row)
    for limit, columns in zip(limits, weights, strict=True):
        scale = max(abs(float(limit.maximum)), LEAST_LIMIT)
        program.rows.append((list(columns), [w / scale for w in columns.values()], -np.inf, limit.maximum / scale))
    cost = np.array(program.cost)
    upper, integral = np.ones(len(cost)), np.zeros(len(cost), np.int64)
    upper[1 : 2 * n : 2], integral[: 2 * n] = problem.selectable, 1
    integral[list(forms)] = 1
    with silence():  # HiGHS prints a line of its own now and then, whatever ``disp`` says
        found = milp(
            cost / (np.abs(cost).max(initial=0.0) or 1.0),
            integrality=integral,
            bounds=Bounds(np.zeros(len(cost)), upper),
            constraints=program.constraints(),
            options={"time_limit": seconds, "mip_rel_gap": gap},
        )
    if found.x is None:
        return None
    labels = np.where((found.x[1 : 2 * n : 2] > found.x[: 2 * n : 2]) & problem.selectable, LOW, FLOAT).astype(np.int8)
    for column, (unit, label) in forms.items():
        if found.x[column] > 0.5 and labels[unit] != LOW:
            labels[unit] = label
    return labels


def _add_forms(
    program: _Program, problem: LabelingProblem, limits: Sequence[Limit], weights: Sequence[dict[int, float]]
) -> dict[int, tuple[int, int]]:
    """Columns that say that a unit has a form: at most one of them is 1, and only where the unit is not low.

    Returns the unit and the label of each, and enters its weights in the limits.
    """
    found: dict[int, tuple[int, int]] = {}
    offered = np.isfinite(problem.unit_costs)
    for unit in np.flatnonzero(offered[:, FIRST_FORM:].any(axis=1)).tolist():
        own = []
        for label in (FIRST_FORM + np.flatnonzero(offered[unit, FIRST_FORM:])).tolist():
            column = program.column(float(problem.unit_costs[unit, label] - problem.float_cost[unit]))
            found[column] = unit, label
            own.append(column)
            for limit, columns in zip(limits, weights, strict=True):
                if limit.unit_weights[unit, label]:
                    columns[column] = float(limit.unit_weights[unit, label])
        program.rows.append(([2 * unit, *own], [1.0, *[-1.0] * len(own)], 0.0, np.inf))
    return found
