"""Exact labellings by a minimum s-t cut, where no boundary cost is negative.

The sum of unit costs and boundary costs is a cut in a network whose source side is low precision: each unit is a node,
and each value with several consumers gets an auxiliary node, so that one Q (or one DQ) is paid once however many
consumers it has. The construction is that of Kolmogorov and Zabih, *What energy functions can be minimized via graph
cuts?* (2004), for terms that are the minimum or maximum of labels.
"""

from __future__ import annotations

import enum
from itertools import pairwise

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from inlay.search.labeling import Problem

_FLOW_LIMIT = 1 << 30  # scipy's flows are 32-bit
_SOURCE, _SINK = 0, 1  # low precision, float
_FIRST = 2  # node of the first unit


class _Kind(enum.IntEnum):
    """Where an edge's capacity comes from; the first three are rows of :attr:`Problem.weights`."""

    UP = 0
    DOWN = 1
    TOUCHED = 2
    DEARER = 3  # what a unit costs more in low precision
    CHEAPER = 4  # what it costs less
    ENDLESS = 5


class Network:
    """The flow network of a problem's units and values, for any costs of them.

    Args:
        problem: units, values, which are free, and ties. Its costs are not looked at.
    """

    def __init__(self, problem: Problem) -> None:
        self._units = len(problem.float_cost)
        self._nodes = self._units + _FIRST
        self._edges: list[tuple[int, int, int, int]] = []  # tail, head, kind, which
        for i in range(self._units):
            self._edges += [(i + _FIRST, _SINK, _Kind.DEARER, i), (_SOURCE, i + _FIRST, _Kind.CHEAPER, i)]
        for i in np.flatnonzero(~problem.free).tolist():
            self._endless(i + _FIRST, _SINK)
        for tie in problem.ties:
            for a, b in pairwise(tie):
                self._endless(a + _FIRST, b + _FIRST)
                self._endless(b + _FIRST, a + _FIRST)
        for k, term in enumerate(problem.terms):
            producer = _SINK if term.producer < 0 else term.producer + _FIRST
            consumers = [c + _FIRST for c in term.consumers]
            if producer != _SINK:
                self._below_all(producer, [_SINK] if term.float_reader else consumers, k)
            self._above_all(consumers, producer, _Kind.UP, k)
            if term.touched:
                self._above_all([m for m in (producer, *consumers) if m != _SINK], _SINK, _Kind.TOUCHED, k)
        table = np.array(self._edges, np.int64).reshape(-1, 4)
        code, self._slot = np.unique(table[:, 0] * self._nodes + table[:, 1], return_inverse=True)
        self._heads = (code % self._nodes).astype(np.int32)
        self._rows = np.searchsorted(code // self._nodes, np.arange(self._nodes + 1)).astype(np.int32)
        self._kind, self._which = table[:, 2], table[:, 3]

    def _endless(self, tail: int, head: int) -> None:
        self._edges.append((tail, head, _Kind.ENDLESS, 0))

    def _below_all(self, producer: int, readers: list[int], k: int) -> None:
        """``down`` is paid unless every reader is low, which a node of its own stands for where there are several."""
        if len(readers) > 1:
            for reader in readers:
                self._endless(self._nodes, reader)
            readers = [self._fresh()]
        self._edges += [(producer, reader, _Kind.DOWN, k) for reader in readers]

    def _above_all(self, members: list[int], head: int, kind: _Kind, k: int) -> None:
        """A cost is paid where some member is low, which a node of its own stands for where there are several."""
        if len(members) > 1:
            for member in members:
                self._endless(member, self._nodes)
            members = [self._fresh()]
        self._edges += [(member, head, kind, k) for member in members]

    def _fresh(self) -> int:
        self._nodes += 1
        return self._nodes - 1

    def cut(self, dearer: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """The labelling of least cost, as booleans (low precision). Among equals it prefers float.

        Args:
            dearer: what each unit costs more in low precision than in float, shape (n,).
            weights: costs of values as in :attr:`Problem.weights`; negative ones count as nothing. Shape (3, terms).
        """
        side = np.zeros(self._nodes, bool)
        out = float(np.maximum(-dearer, 0.0).sum())
        if not out > 0.0:
            return side[_FIRST : self._units + _FIRST]
        # no flow exceeds what leaves the source, so that sum bounds every capacity, and stands for infinity
        capacity = np.full(len(self._kind), out)
        for kind in _Kind:
            at = self._kind == kind
            which = self._which[at]
            if kind == _Kind.DEARER:
                capacity[at] = dearer[which]
            elif kind == _Kind.CHEAPER:
                capacity[at] = -dearer[which]
            elif kind != _Kind.ENDLESS:
                capacity[at] = weights[kind][which]
        summed = np.bincount(self._slot, np.clip(capacity, 0.0, out) / out * _FLOW_LIMIT, len(self._heads))
        data = np.minimum(np.rint(summed), _FLOW_LIMIT).astype(np.int32)
        network = csr_array((data, self._heads, self._rows), shape=(self._nodes, self._nodes))
        residual = csr_array(network - maximum_flow(network, _SOURCE, _SINK).flow)
        residual.data = (residual.data > 0).astype(np.int32)
        residual.eliminate_zeros()
        side[breadth_first_order(residual, _SOURCE, return_predecessors=False)] = True
        return side[_FIRST : self._units + _FIRST]


def minimum_cut(problem: Problem) -> np.ndarray:
    """The labelling of least cost, as booleans (low precision). Among equals it prefers float.

    Raises:
        ValueError: a boundary cost is negative, or there are traps: use :func:`~inlay.search.milp.solve`.
    """
    if problem.negative < 0.0 or problem.traps:
        raise ValueError("negative boundary costs and traps are no cut: they need an integer program")
    return Network(problem).cut(problem.low_cost - problem.float_cost, problem.weights)
