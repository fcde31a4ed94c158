"""Exact labelings by a minimum s-t cut, where no boundary cost is negative.

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

from inlay.search.labeling import LabelingProblem

_MAX_CAPACITY = 1 << 30  # scipy's flows are 32-bit integers
_SOURCE, _SINK = 0, 1  # low precision, float
_FIRST = 2  # node of the first unit


class _Kind(enum.IntEnum):
    """Which cost is an edge's capacity; the first three are rows of :attr:`LabelingProblem.boundary_costs`."""

    QUANTIZE = 0
    DEQUANTIZE = 1
    ANY_LOW = 2
    LOSS = 3  # what a unit costs more in low precision than in float
    GAIN = 4  # what it costs less
    INFINITE = 5


class Network:
    """The flow network of a problem's units and values; costs are given to :meth:`cut`.

    Args:
        problem: units, values, which are selectable, and ties. Its costs are not used.
    """

    def __init__(self, problem: LabelingProblem) -> None:
        self._units = len(problem.float_cost)
        self._nodes = self._units + _FIRST
        self._edges: list[tuple[int, int, int, int]] = []  # tail, head, kind, unit or boundary
        for i in range(self._units):
            self._edges += [(i + _FIRST, _SINK, _Kind.LOSS, i), (_SOURCE, i + _FIRST, _Kind.GAIN, i)]
        for i in np.flatnonzero(~problem.selectable).tolist():
            self._infinite(i + _FIRST, _SINK)
        for tie in problem.ties:
            for a, b in pairwise(tie):
                self._infinite(a + _FIRST, b + _FIRST)
                self._infinite(b + _FIRST, a + _FIRST)
        for k, boundary in enumerate(problem.boundaries):
            producer = _SINK if boundary.producer < 0 else boundary.producer + _FIRST
            consumers = [c + _FIRST for c in boundary.consumers]
            if producer != _SINK:
                self._unless_all_low(producer, [_SINK] if boundary.float_reader else consumers, k)
            self._if_any_low(consumers, producer, _Kind.QUANTIZE, k)
            if boundary.any_low:
                self._if_any_low([m for m in (producer, *consumers) if m != _SINK], _SINK, _Kind.ANY_LOW, k)
        table = np.array(self._edges, np.int64).reshape(-1, 4)
        code, self._slot = np.unique(table[:, 0] * self._nodes + table[:, 1], return_inverse=True)
        self._heads = (code % self._nodes).astype(np.int32)
        self._rows = np.searchsorted(code // self._nodes, np.arange(self._nodes + 1)).astype(np.int32)
        self._kind, self._index = table[:, 2], table[:, 3]

    @property
    def size(self) -> tuple[int, int]:
        """Number of nodes and of edges."""
        return self._nodes, len(self._edges)

    def cut(self, loss: np.ndarray, boundary_costs: np.ndarray) -> np.ndarray:
        """The labeling of least cost; among equals it prefers float. Shape (n,).

        Args:
            loss: what each unit costs more in low precision than in float, shape (n,).
            boundary_costs: as :attr:`LabelingProblem.boundary_costs`; negative ones count as zero.
        """
        low = np.zeros(self._nodes, bool)
        from_source = float(np.maximum(-loss, 0.0).sum())
        if not from_source > 0.0:
            return low[_FIRST : self._units + _FIRST]
        # no flow exceeds what leaves the source, so that sum caps every capacity, and stands for infinity
        capacity = np.full(len(self._kind), from_source)
        for kind in _Kind:
            at = self._kind == kind
            index = self._index[at]
            if kind == _Kind.LOSS:
                capacity[at] = loss[index]
            elif kind == _Kind.GAIN:
                capacity[at] = -loss[index]
            elif kind != _Kind.INFINITE:
                capacity[at] = boundary_costs[kind][index]
        scaled = np.clip(capacity, 0.0, from_source) / from_source * _MAX_CAPACITY
        data = np.minimum(np.rint(np.bincount(self._slot, scaled, len(self._heads))), _MAX_CAPACITY).astype(np.int32)
        network = csr_array((data, self._heads, self._rows), shape=(self._nodes, self._nodes))
        residual = csr_array(network - maximum_flow(network, _SOURCE, _SINK).flow)
        residual.data = (residual.data > 0).astype(np.int32)
        residual.eliminate_zeros()
        low[breadth_first_order(residual, _SOURCE, return_predecessors=False)] = True
        return low[_FIRST : self._units + _FIRST]

    def _infinite(self, tail: int, head: int) -> None:
        self._edges.append((tail, head, _Kind.INFINITE, 0))

    def _unless_all_low(self, producer: int, readers: list[int], k: int) -> None:
        """``dequantize`` is paid unless all readers are low; an auxiliary node stands for several of them."""
        if len(readers) > 1:
            for reader in readers:
                self._infinite(self._nodes, reader)
            readers = [self._auxiliary()]
        self._edges += [(producer, reader, _Kind.DEQUANTIZE, k) for reader in readers]

    def _if_any_low(self, members: list[int], head: int, kind: _Kind, k: int) -> None:
        """A cost is paid where some member is low; an auxiliary node stands for several of them."""
        if len(members) > 1:
            for member in members:
                self._infinite(member, self._nodes)
            members = [self._auxiliary()]
        self._edges += [(member, head, kind, k) for member in members]

    def _auxiliary(self) -> int:
        self._nodes += 1
        return self._nodes - 1


def minimum_cut(problem: LabelingProblem) -> np.ndarray:
    """The labeling of least cost; among equals it prefers float. Shape (n,).

    Raises:
        ValueError: there are negative boundary costs or fusion penalties: use :func:`inlay.search.milp.solve`.
    """
    if not problem.is_cut:
        raise ValueError("a cut cannot express negative boundary costs or fusion penalties: use an integer program")
    return Network(problem).cut(problem.low_cost - problem.float_cost, problem.boundary_costs)
