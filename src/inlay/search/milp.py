"""Exact labellings as an integer program: any number of labels, every boundary cost, any sign, linear limits.

A label is the form in which a unit computes: float, uint8, int8, … Label 0 is the form of everything that is not a
unit (graph inputs and outputs, operators that cannot be quantized). A value is made in its producer's form; each other
form that some reader wants costs one conversion, however many readers share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from inlay.model.silence import silence
from inlay.search.labeling import FusionPenalty, Limit, Problem


@dataclass(frozen=True, eq=False)
class Value:
    """Costs of one value.

    Attributes:
        producer: unit, or -1 for something in label 0.
        consumers: units.
        plain_reader: something in label 0 reads it that is not a unit.
        convert: paid once where it is made in form ``a`` and some reader wants ``b``; shape (labels, labels).
        present: paid where it exists in form ``b``, made or wanted; shape (labels,).
    """

    producer: int
    consumers: tuple[int, ...]
    plain_reader: bool
    convert: np.ndarray
    present: np.ndarray


@dataclass(frozen=True, eq=False)
class Labelling:
    """Which label each of ``n`` units gets.

    Attributes:
        costs: of each unit under each label, shape (n, labels).
        values: costs of what the units hand to each other.
        allowed: labels that each unit may have, at least one; shape (n, labels).
        ties: groups of units that must have the same label.
        traps: costs of units that have label 0 although none of the causes has.
    """

    costs: np.ndarray
    values: Sequence[Value]
    allowed: np.ndarray
    ties: Sequence[Sequence[int]] = ()
    traps: Sequence[FusionPenalty] = ()

    def cost(self, labels: np.ndarray) -> float:
        """Total cost of a labelling, integers of shape (n,); infinite where it breaks a tie or is not allowed."""
        n = len(self.costs)
        if not self.allowed[np.arange(n), labels].all() or any(len({int(labels[i]) for i in t}) > 1 for t in self.ties):
            return float("inf")
        total = float(self.costs[np.arange(n), labels].sum()) + sum(self._value_cost(v, labels) for v in self.values)
        return total + sum(trap.cost for trap in self.traps if trap.sprung(labels != 0))

    @staticmethod
    def _value_cost(value: Value, labels: np.ndarray) -> float:
        made = 0 if value.producer < 0 else int(labels[value.producer])
        wanted = {int(labels[c]) for c in value.consumers} | ({0} if value.plain_reader else set())
        return float(sum(value.convert[made, b] for b in wanted) + sum(value.present[b] for b in wanted | {made}))


@dataclass(frozen=True, eq=False)
class Ceiling:
    """A linear limit: weights in the places of the costs, whose sum is at most ``most``.

    Attributes:
        units: shape (n, labels).
        convert: shape (values, labels, labels).
        most: the limit.
    """

    units: np.ndarray
    convert: np.ndarray
    most: float


_Row = tuple[list[int], list[float], float, float]


@dataclass
class _Program:
    """Rows and columns as they are found; the first columns are the units' labels, one for each label."""

    columns: int
    cost: list[float]
    rows: list[_Row] = field(default_factory=list)

    def column(self, cost: float) -> int:
        self.columns += 1
        self.cost.append(cost)
        return self.columns - 1

    def maximum(self, cost: float, parts: Sequence[int], constant: int, signs: set[int]) -> int:
        """A column that is the largest of 0/1 columns and a constant, as far as ``signs`` of its weights ask."""
        z = self.column(cost)
        if 1 in signs:
            self.rows += [([z, p], [1.0, -1.0], 0.0, np.inf) for p in parts]
            self.rows.append(([z], [1.0], float(constant), np.inf))
        if -1 in signs and not constant:
            self.rows.append(([z, *parts], [1.0, *[-1.0] * len(parts)], -np.inf, 0.0))
        return z

    def both(self, cost: float, a: int, b: int, signs: set[int]) -> int:
        """A column that is 1 where two 0/1 columns are."""
        z = self.column(cost)
        if 1 in signs:
            self.rows.append(([z, a, b], [1.0, -1.0, -1.0], -1.0, np.inf))
        if -1 in signs:
            self.rows += [([z, p], [1.0, -1.0], -np.inf, 0.0) for p in (a, b)]
        return z


def solve_labels(
    problem: Labelling, ceilings: Sequence[Ceiling] = (), seconds: float = 5.0, gap: float = 1e-4
) -> np.ndarray | None:
    """The best labelling (HiGHS through SciPy): integers of shape (n,).

    Args:
        problem: costs.
        ceilings: what must hold besides.
        seconds: time limit; the best labelling found by then is returned.
        gap: relative distance to the optimum that is good enough.

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
        {int(at): float(c.units.ravel()[at]) for at in np.flatnonzero(c.units.ravel())} for c in ceilings
    ]
    one = program.column(0.0)  # a producer that is no unit has label 0
    program.rows.append(([one], [1.0], 1.0, 1.0))
    for k, value in enumerate(problem.values):
        _add(program, k, value, labels, one, ceilings, weights)
    for trap in problem.traps:
        z, causes = program.column(trap.cost), [c * labels for c in trap.causes]
        program.rows.append(([z, trap.unit * labels, *causes], [1.0, -1.0, *[1.0] * len(causes)], 0.0, np.inf))
    for ceiling, row in zip(ceilings, weights, strict=True):
        top = max(abs(float(ceiling.most)), 1e-300)
        program.rows.append((list(row), [w / top for w in row.values()], -np.inf, float(ceiling.most) / top))
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


def _add(
    program: _Program,
    k: int,
    value: Value,
    labels: int,
    one: int,
    ceilings: Sequence[Ceiling],
    weights: Sequence[dict[int, float]],
) -> None:
    """Columns for one value, where some cost or limit asks for them."""
    signs = {
        (a, b): {int(np.sign(w)) for w in (value.convert[a, b], *(c.convert[k, a, b] for c in ceilings)) if w}
        for a in range(labels)
        for b in range(labels)
        if value.producer >= 0 or a == 0
    }
    for b in range(labels):
        readers = [c * labels + b for c in value.consumers]
        plain = int(value.plain_reader and b == 0)
        mine = {a: s for (a, other), s in signs.items() if other == b and s}
        if mine and (readers or plain):
            wanted = program.maximum(0.0, readers, plain, set().union(*mine.values()))
            for a, sign in mine.items():
                made = one if value.producer < 0 else value.producer * labels + a
                both = program.both(float(value.convert[a, b]), made, wanted, sign)
                for ceiling, row in zip(ceilings, weights, strict=True):
                    if ceiling.convert[k, a, b]:
                        row[both] = float(ceiling.convert[k, a, b])
        if value.present[b]:
            makers = [] if value.producer < 0 else [value.producer * labels + b]
            always = int(plain or (value.producer < 0 and b == 0))
            program.maximum(float(value.present[b]), [*readers, *makers], always, {int(np.sign(value.present[b]))})


def _matrix(rows: Sequence[_Row], columns: int) -> LinearConstraint:
    at = np.array([r for r, row in enumerate(rows) for _ in row[0]], np.int64)
    where = np.array([c for row in rows for c in row[0]], np.int64)
    weight = np.array([w for row in rows for w in row[1]], np.float64)
    matrix = coo_array((weight, (at, where)), shape=(len(rows), columns)).tocsr()
    return LinearConstraint(matrix, np.array([r[2] for r in rows]), np.array([r[3] for r in rows]))


def solve(problem: Problem, limits: Sequence[Limit] = (), seconds: float = 5.0, gap: float = 1e-4) -> np.ndarray | None:
    """The best labelling with two labels, float and low. Negative boundary costs and limits are allowed.

    The arguments are those of :func:`solve_labels`.

    Returns:
        Labels as booleans, or None when none was found in time or none exists.
    """
    ceilings = []
    for limit in limits:
        convert = np.zeros((len(problem.terms), 2, 2))
        convert[:, 0, 1] = limit.up
        ceilings.append(Ceiling(np.stack([np.zeros_like(limit.units), limit.units], axis=1), convert, limit.most))
    found = solve_labels(two_labels(problem), ceilings, seconds, gap)
    return None if found is None else (found == 1) & problem.free


def two_labels(problem: Problem) -> Labelling:
    """The same with labels 0 (float) and 1 (low precision)."""
    values = [
        Value(
            t.producer,
            t.consumers,
            t.float_reader,
            np.array([[0.0, t.up], [t.down, 0.0]]),
            np.array([0.0, t.touched]),
        )
        for t in problem.terms
    ]
    allowed = np.stack([np.ones(len(problem.free), bool), problem.free], axis=1)
    costs = np.stack([problem.float_cost, problem.low_cost], axis=1)
    return Labelling(costs, values, allowed, problem.ties, problem.traps)
