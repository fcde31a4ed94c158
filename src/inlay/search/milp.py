"""Exact labelings by a mixed-integer linear program: any number of labels, costs of any sign, linear limits.

A label is the precision in which a unit computes: float, uint8, int8, … Label 0 is that of everything that is not a
unit (graph inputs and outputs, operators that cannot be quantized). A value is produced in its producer's label; each
other label that some reader wants costs one conversion, however many readers share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from inlay.model.silence import silence
from inlay.search.labeling import LEAST_LIMIT, FusionPenalty, LabelingProblem, Limit


@dataclass(frozen=True, eq=False)
class ValueCosts:
    """Costs of one value.

    Attributes:
        producer: unit, or -1 for something with label 0.
        consumers: units.
        float_reader: something that is not a unit reads it with label 0.
        convert: paid once where it is produced with label ``a`` and some reader wants ``b``; shape (labels, labels).
        present: paid where it exists with label ``b``, produced or wanted; shape (labels,).
    """

    producer: int
    consumers: tuple[int, ...]
    float_reader: bool
    convert: np.ndarray
    present: np.ndarray


@dataclass(frozen=True, eq=False)
class MultiLabelProblem:
    """Which label each of ``n`` units gets; the general form of :class:`~inlay.search.labeling.LabelingProblem`.

    Attributes:
        costs: of each unit under each label, shape (n, labels).
        values: costs of the values between units.
        allowed: labels that each unit may have, at least one; shape (n, labels).
        ties: groups of units that must have the same label.
        penalties: costs of units with label 0 whose neighbors all have another one.
    """

    costs: np.ndarray
    values: Sequence[ValueCosts]
    allowed: np.ndarray
    ties: Sequence[Sequence[int]] = ()
    penalties: Sequence[FusionPenalty] = ()

    def cost(self, labels: np.ndarray) -> float:
        """Total cost of a labeling, integers of shape (n,); infinite where it breaks a tie or is not allowed."""
        n = len(self.costs)
        if not self.allowed[np.arange(n), labels].all() or any(len({int(labels[i]) for i in t}) > 1 for t in self.ties):
            return float("inf")
        total = float(self.costs[np.arange(n), labels].sum()) + sum(self._value_cost(v, labels) for v in self.values)
        return total + sum(penalty.cost for penalty in self.penalties if penalty.applies(labels != 0))

    @staticmethod
    def _value_cost(value: ValueCosts, labels: np.ndarray) -> float:
        made = 0 if value.producer < 0 else int(labels[value.producer])
        wanted = {int(labels[c]) for c in value.consumers} | ({0} if value.float_reader else set())
        return float(sum(value.convert[made, b] for b in wanted) + sum(value.present[b] for b in wanted | {made}))


@dataclass(frozen=True, eq=False)
class MultiLabelLimit:
    """A linear constraint: a sum, weighted like the costs, is at most ``maximum``.

    Attributes:
        units: weight of each unit under each label, shape (n, labels).
        convert: weight of each conversion, shape (values, labels, labels).
        maximum: of the sum.
    """

    units: np.ndarray
    convert: np.ndarray
    maximum: float


_Row = tuple[list[int], list[float], float, float]  # columns, coefficients, lower and upper bound


@dataclass
class _Program:
    """Rows and columns as they are added; the first columns are the units' labels, one for each label."""

    columns: int
    cost: list[float]
    rows: list[_Row] = field(default_factory=list)

    def column(self, cost: float) -> int:
        self.columns += 1
        self.cost.append(cost)
        return self.columns - 1

    def maximum(self, cost: float, parts: Sequence[int], constant: int, signs: set[int]) -> int:
        """A column equal to the maximum of 0/1 columns and a constant.

        It is bounded from below where ``signs`` holds 1 (a positive weight pushes it down), from above where it holds
        -1.
        """
        z = self.column(cost)
        if 1 in signs:
            self.rows += [([z, p], [1.0, -1.0], 0.0, np.inf) for p in parts]
            self.rows.append(([z], [1.0], float(constant), np.inf))
        if -1 in signs and not constant:
            self.rows.append(([z, *parts], [1.0, *[-1.0] * len(parts)], -np.inf, 0.0))
        return z

    def both(self, cost: float, a: int, b: int, signs: set[int]) -> int:
        """A column that is 1 where two 0/1 columns are; ``signs`` as in :meth:`maximum`."""
        z = self.column(cost)
        if 1 in signs:
            self.rows.append(([z, a, b], [1.0, -1.0, -1.0], -1.0, np.inf))
        if -1 in signs:
            self.rows += [([z, p], [1.0, -1.0], -np.inf, 0.0) for p in (a, b)]
        return z


def solve_labels(
    problem: MultiLabelProblem, limits: Sequence[MultiLabelLimit] = (), seconds: float = 5.0, gap: float = 1e-4
) -> np.ndarray | None:
    """The best labeling (HiGHS through SciPy): integers of shape (n,).

    Args:
        problem: costs.
        limits: what must hold as well.
        seconds: time limit; the best labeling found by then is returned.
        gap: relative optimality gap that is good enough.

    Returns:
        Labels, or None when none was found in time or none exists.
    """
    n, labels = problem.costs.shape
    program = _Program(n * labels, problem.costs.ravel().tolist())
    program.rows += [([i * labels + a for a in range(labels)], [1.0] * labels, 1.0, 1.0) for i in range(n)]
    for tie in problem.ties:
        for i, j in pairwise(tie):
            program.rows += [([i * labels + a, j * labels + a], [1.0, -1.0], 0.0, 0.0) for a in range(labels)]
    weights: list[dict[int, float]] = [
        {int(at): float(c.units.ravel()[at]) for at in np.flatnonzero(c.units.ravel())} for c in limits
    ]
    one = program.column(0.0)  # a producer that is not a unit has label 0
    program.rows.append(([one], [1.0], 1.0, 1.0))
    for k, value in enumerate(problem.values):
        _add_value(program, k, value, labels, one, limits, weights)
    for penalty in problem.penalties:
        z, neighbors = program.column(penalty.cost), [m * labels for m in penalty.neighbors]
        row = [z, penalty.unit * labels, *neighbors], [1.0, -1.0, *[1.0] * len(neighbors)], 0.0, np.inf
        program.rows.append(row)
    for limit, coefficients in zip(limits, weights, strict=True):
        scale = max(abs(float(limit.maximum)), LEAST_LIMIT)
        scaled = [w / scale for w in coefficients.values()]
        program.rows.append((list(coefficients), scaled, -np.inf, float(limit.maximum) / scale))
    cost = np.array(program.cost)
    upper, integral = np.ones(program.columns), np.zeros(program.columns, np.int64)
    upper[: n * labels], integral[: n * labels] = problem.allowed.ravel(), 1
    with silence():  # HiGHS prints a line of its own now and then, whatever ``disp`` says
        found = milp(
            cost / (np.abs(cost).max(initial=0.0) or 1.0),
            integrality=integral,
            bounds=Bounds(np.zeros(program.columns), upper),
            constraints=_matrix(program.rows, program.columns),
            options={"time_limit": seconds, "mip_rel_gap": gap},
        )
    return None if found.x is None else np.asarray(found.x[: n * labels].reshape(n, labels).argmax(axis=1))


def _add_value(
    program: _Program,
    k: int,
    value: ValueCosts,
    labels: int,
    one: int,
    limits: Sequence[MultiLabelLimit],
    weights: Sequence[dict[int, float]],
) -> None:
    """Add columns for one value, where some cost or limit needs them; ``weights`` are extended by those of limits."""
    signs = {
        (a, b): {int(np.sign(w)) for w in (value.convert[a, b], *(c.convert[k, a, b] for c in limits)) if w}
        for a in range(labels)
        for b in range(labels)
        if value.producer >= 0 or a == 0
    }
    for b in range(labels):
        readers = [c * labels + b for c in value.consumers]
        always_read = int(value.float_reader and b == 0)
        by_producer = {a: s for (a, wanted), s in signs.items() if wanted == b and s}
        if by_producer and (readers or always_read):
            wanted = program.maximum(0.0, readers, always_read, set().union(*by_producer.values()))
            for a, sign in by_producer.items():
                made = one if value.producer < 0 else value.producer * labels + a
                both = program.both(float(value.convert[a, b]), made, wanted, sign)
                for limit, coefficients in zip(limits, weights, strict=True):
                    if limit.convert[k, a, b]:
                        coefficients[both] = float(limit.convert[k, a, b])
        if value.present[b]:
            producers = [] if value.producer < 0 else [value.producer * labels + b]
            always = int(always_read or (value.producer < 0 and b == 0))
            program.maximum(float(value.present[b]), [*readers, *producers], always, {int(np.sign(value.present[b]))})


def _matrix(rows: Sequence[_Row], columns: int) -> LinearConstraint:
    row_index = np.array([r for r, row in enumerate(rows) for _ in row[0]], np.int64)
    column_index = np.array([c for row in rows for c in row[0]], np.int64)
    coefficients = np.array([w for row in rows for w in row[1]], np.float64)
    matrix = coo_array((coefficients, (row_index, column_index)), shape=(len(rows), columns)).tocsr()
    return LinearConstraint(matrix, np.array([r[2] for r in rows]), np.array([r[3] for r in rows]))


def solve(
    problem: LabelingProblem, limits: Sequence[Limit] = (), seconds: float = 5.0, gap: float = 1e-4
) -> np.ndarray | None:
    """The best labeling with two labels, as booleans of shape (n,). Negative boundary costs and limits are allowed.

    The arguments are those of :func:`solve_labels`.

    Returns:
        Labels, or None when none was found in time or none exists.
    """
    general = []
    for limit in limits:
        convert = np.zeros((len(problem.boundaries), 2, 2))
        convert[:, 0, 1] = limit.quantize
        general.append(MultiLabelLimit(np.stack([np.zeros_like(limit.low), limit.low], axis=1), convert, limit.maximum))
    found = solve_labels(as_multi_label(problem), general, seconds, gap)
    return None if found is None else (found == 1) & problem.selectable


def as_multi_label(problem: LabelingProblem) -> MultiLabelProblem:
    """The same problem with labels 0 (float) and 1 (low precision)."""
    values = [
        ValueCosts(
            b.producer,
            b.consumers,
            b.float_reader,
            np.array([[0.0, b.quantize], [b.dequantize, 0.0]]),
            np.array([0.0, b.any_low]),
        )
        for b in problem.boundaries
    ]
    allowed = np.stack([np.ones(len(problem.selectable), bool), problem.selectable], axis=1)
    costs = np.stack([problem.float_cost, problem.low_cost], axis=1)
    return MultiLabelProblem(costs, values, allowed, problem.ties, problem.penalties)
