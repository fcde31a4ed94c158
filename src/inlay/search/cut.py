"""Exact labellings: a minimum s-t cut where the costs allow it, an integer program where they do not.

With non-negative boundary costs the sum of unit costs and boundary costs is a cut in a network whose source side is low
precision: each unit is a node, and each value with several consumers gets an auxiliary node, so that one Q (or one DQ)
is paid once however many consumers it has. The construction is that of Kolmogorov and Zabih, *What energy functions
can be minimized via graph cuts?* (2004), for terms that are the minimum or maximum of labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from inlay.search.program import Ceiling, Labelling, Value, solve_labels

_FLOW_LIMIT = 1 << 30  # scipy's flows are 32-bit


@dataclass(frozen=True)
class Term:
    """Costs of one value.

    Attributes:
        producer: unit, or -1 for one that is always float.
        consumers: units.
        float_reader: some reader is always float.
        up: paid when the producer is float and some consumer is low.
        down: paid when the producer is low and some reader is float.
        touched: paid when the producer or any consumer is low.
    """

    producer: int
    consumers: tuple[int, ...]
    float_reader: bool = False
    up: float = 0.0
    down: float = 0.0
    touched: float = 0.0


@dataclass(frozen=True, eq=False)
class Problem:
    """Which of ``n`` units to run in low precision.

    Attributes:
        float_cost: cost of each unit in float, shape (n,).
        low_cost: cost of each unit in low precision, shape (n,).
        terms: costs of values.
        free: units that may be low; the others are float. Shape (n,).
        ties: groups of units that must have the same label.
    """

    float_cost: np.ndarray
    low_cost: np.ndarray
    terms: Sequence[Term]
    free: np.ndarray
    ties: Sequence[Sequence[int]] = ()

    @property
    def negative(self) -> float:
        """Sum of the negative boundary costs: nothing, where a cut is exact."""
        return sum(min(0.0, t.up) + min(0.0, t.down) + min(0.0, t.touched) for t in self.terms)

    def clipped(self) -> Problem:
        """The same without the negative boundary costs."""
        terms = [replace(t, up=max(0.0, t.up), down=max(0.0, t.down), touched=max(0.0, t.touched)) for t in self.terms]
        return replace(self, terms=terms)

    def cost(self, labels: np.ndarray) -> float:
        """Total cost of a labelling; infinite where it breaks a tie or labels a unit that is not free."""
        if bool((labels & ~self.free).any()) or any(len({bool(labels[i]) for i in tie}) > 1 for tie in self.ties):
            return float("inf")
        total = float(np.where(labels, self.low_cost, self.float_cost).sum())
        for term in self.terms:
            producer = term.producer >= 0 and bool(labels[term.producer])
            low = any(bool(labels[c]) for c in term.consumers)
            some_float = term.float_reader or not all(bool(labels[c]) for c in term.consumers)
            total += term.up * (not producer and low) + term.down * (producer and some_float)
            total += term.touched * (producer or low)
        return total


@dataclass(frozen=True, eq=False)
class Limit:
    """A further constraint: a weighted sum is at most ``most``.

    Attributes:
        up: weight of each term's value where its producer is float and some consumer is low, shape (terms,).
        units: weight of each unit where it is low, shape (n,).
        most: the limit.
    """

    up: np.ndarray
    units: np.ndarray
    most: float


class _Network:
    """Edges of a flow network, collected in lists; nodes 0 and 1 are source (low) and sink (float)."""

    def __init__(self, units: int) -> None:
        self.nodes = units + 2
        self.tail: list[int] = []
        self.head: list[int] = []
        self.weight: list[float] = []

    def fresh(self) -> int:
        self.nodes += 1
        return self.nodes - 1

    def edge(self, tail: int, head: int, weight: float) -> None:
        if weight > 0.0 and tail != head:
            self.tail.append(tail)
            self.head.append(head)
            self.weight.append(weight)


def minimum_cut(problem: Problem) -> np.ndarray:
    """The labelling of least cost, as booleans (low precision). Among equals it prefers float.

    Raises:
        ValueError: a boundary cost is negative: use :func:`solve`.
    """
    n = len(problem.float_cost)
    net = _Network(n)
    inf = float("inf")
    difference = problem.low_cost - problem.float_cost
    for i in range(n):
        net.edge(i + 2, 1, inf if not problem.free[i] else max(0.0, float(difference[i])))
        net.edge(0, i + 2, max(0.0, -float(difference[i])))
    for tie in problem.ties:
        for a, b in pairwise(tie):
            net.edge(a + 2, b + 2, inf)
            net.edge(b + 2, a + 2, inf)
    for term in problem.terms:
        if min(term.up, term.down, term.touched) < 0.0:
            raise ValueError("boundary costs must not be negative in a cut")
        _add(net, term)
    side = _source_side(net)
    return np.asarray(side[2 : n + 2] & problem.free)


def _add(net: _Network, term: Term) -> None:
    producer = 1 if term.producer < 0 else term.producer + 2
    consumers = [c + 2 for c in term.consumers]
    inf = float("inf")
    if producer != 1 and term.down > 0.0:  # a stands for "every reader is low"
        if term.float_reader or not consumers:
            net.edge(producer, 1, term.down if term.float_reader else 0.0)
        elif len(consumers) == 1:
            net.edge(producer, consumers[0], term.down)
        else:
            a = net.fresh()
            net.edge(producer, a, term.down)
            for c in consumers:
                net.edge(a, c, inf)
    if term.up > 0.0 and consumers:  # b stands for "some consumer is low"
        if len(consumers) == 1:
            net.edge(consumers[0], producer, term.up)
        else:
            b = net.fresh()
            net.edge(b, producer, term.up)
            for c in consumers:
                net.edge(c, b, inf)
    if term.touched > 0.0:
        members = [m for m in (producer, *consumers) if m != 1]
        d = net.fresh()
        net.edge(d, 1, term.touched)
        for m in members:
            net.edge(m, d, inf)


def _source_side(net: _Network) -> np.ndarray:
    """Nodes that the source reaches in the residual network of a maximum flow."""
    tail, head = np.array(net.tail, np.int64), np.array(net.head, np.int64)
    weight = np.array(net.weight, np.float64)
    side = np.zeros(net.nodes, bool)
    side[0] = True
    out = weight[tail == 0].sum() if weight.size else 0.0
    if not out > 0.0:
        return side
    # no flow exceeds what leaves the source, so that sum bounds every capacity, and stands for infinity
    scaled = np.minimum(np.rint(np.minimum(weight, out) * (_FLOW_LIMIT / out)), _FLOW_LIMIT)
    scaled = np.where(np.isinf(weight), _FLOW_LIMIT, scaled).astype(np.int64)
    summed = coo_array((scaled, (tail, head)), shape=(net.nodes, net.nodes)).tocsr()
    summed.data = np.minimum(summed.data, _FLOW_LIMIT)
    capacity = csr_array(
        (summed.data.astype(np.int32), summed.indices.astype(np.int32), summed.indptr.astype(np.int32)),
        shape=summed.shape,
    )
    flow = maximum_flow(capacity, 0, 1).flow
    residual = csr_array(capacity - flow)
    residual.data = np.where(residual.data > 0, 1, 0).astype(np.int32)
    residual.eliminate_zeros()
    reached = breadth_first_order(residual, 0, return_predecessors=False)
    side[reached] = True
    return side


def solve(problem: Problem, limits: Sequence[Limit] = (), seconds: float = 5.0, gap: float = 1e-4) -> np.ndarray | None:
    """The best labelling by the integer program of :mod:`inlay.search.program`, with two labels: float and low.

    Negative boundary costs and limits are allowed; the arguments are those of
    :func:`~inlay.search.program.solve_labels`.

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
    return Labelling(np.stack([problem.float_cost, problem.low_cost], axis=1), values, allowed, problem.ties)
