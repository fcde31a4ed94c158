"""Exact labelings by a minimum s-t cut, where no boundary cost is negative.

The sum of unit costs and boundary costs is a cut in a network whose source side is low precision: each unit is a node,
and each value with several consumers gets an auxiliary node, so that one Q (or one DQ) is paid once however many
consumers it has. The construction is that of Kolmogorov and Zabih, *What energy functions can be minimized via graph
cuts?* (2004), for terms that are the minimum or maximum of labels.
"""

from __future__ import annotations

import numpy as np

from inlay.search.labeling import LabelingProblem

_MAX_CAPACITY = 1 << 30  # scipy's flows are 32-bit integers
_SOURCE, _SINK = 0, 1  # low precision, float
_FIRST = 2  # node of the first unit
_INFINITE = -1  # index of the capacity that stands for infinity


class Network:
    """The flow network of a problem's units and values, whatever its costs: they are given to :meth:`cut`."""

    def __init__(self, problem: LabelingProblem) -> None:
        self._units = len(problem.float_cost)
        self._nodes = self._units + _FIRST
        self._edges: list[tuple[int, int, int]] = []  # tail, head, index of the capacity: see cut
        for i in range(self._units):
            self._edges += [(i + _FIRST, _SINK, i), (_SOURCE, i + _FIRST, self._units + i)]
        for i in np.flatnonzero(~problem.selectable).tolist():
            self._edges.append((i + _FIRST, _SINK, _INFINITE))
        quantize = 2 * self._units
        dequantize = quantize + len(problem.boundaries)
        for k, boundary in enumerate(problem.boundaries):
            consumers = [c + _FIRST for c in boundary.consumers]
            producer = _SINK if boundary.producer < 0 else boundary.producer + _FIRST
            if producer != _SINK:
                readers = [_SINK] if boundary.float_reader else consumers
                if len(readers) > 1:  # paid once, unless all of them are low
                    self._edges += [(self._nodes, reader, _INFINITE) for reader in readers]
                    readers = [self._auxiliary()]
                self._edges += [(producer, reader, dequantize + k) for reader in readers]
            if len(consumers) > 1:  # paid once, if any of them is low
                self._edges += [(consumer, self._nodes, _INFINITE) for consumer in consumers]
                consumers = [self._auxiliary()]
            self._edges += [(consumer, producer, quantize + k) for consumer in consumers]
        tail, head, self._capacity = np.array(self._edges, np.int64).reshape(-1, 3).T
        code, self._slot = np.unique(tail * self._nodes + head, return_inverse=True)
        self._heads = (code % self._nodes).astype(np.int32)
        self._rows = np.searchsorted(code // self._nodes, np.arange(self._nodes + 1)).astype(np.int32)

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
        from scipy.sparse import csr_array  # takes long to load: what is refused or fails before is so at once
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow

        low = np.zeros(self._nodes, bool)
        from_source = float(np.maximum(-loss, 0.0).sum())
        if not from_source > 0.0:
            return low[_FIRST : self._units + _FIRST]
        # no flow exceeds what leaves the source, so that sum caps every capacity, and stands for infinity
        costs = np.concatenate([loss, -loss, *boundary_costs, [from_source]])
        scaled = np.clip(costs, 0.0, from_source)[self._capacity] / from_source * _MAX_CAPACITY
        data = np.minimum(np.rint(np.bincount(self._slot, scaled, len(self._heads))), _MAX_CAPACITY).astype(np.int32)
        network = csr_array((data, self._heads, self._rows), shape=(self._nodes, self._nodes))
        residual = csr_array(network - maximum_flow(network, _SOURCE, _SINK).flow)
        residual.data = (residual.data > 0).astype(np.int32)
        residual.eliminate_zeros()
        low[breadth_first_order(residual, _SOURCE, return_predecessors=False)] = True
        return low[_FIRST : self._units + _FIRST]

    def _auxiliary(self) -> int:
        self._nodes += 1
        return self._nodes - 1
