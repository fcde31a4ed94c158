"""Exact labelings by a minimum s-t cut, where no boundary cost is negative.

The sum of unit costs and boundary costs is a cut in a network whose source side is low precision: each unit is a node,
and each value with several consumers gets an auxiliary node, so that one Q (or one DQ) is paid once however many
consumers it has. The construction is that of Kolmogorov and Zabih, *What energy functions can be minimized via graph
cuts?* (2004), for terms that are the minimum or maximum of labels.
"""

from __future__ import annotations

import numpy as np

from inlay.model.min_cut import SINK, SOURCE, FlowNetwork
from inlay.search.labeling import LabelingProblem

_FIRST = 2  # node of the first unit
_INFINITE = -1  # index of the capacity that stands for infinity


class Network:
    """The flow network of a problem's units and values, whatever its costs: they are given to :meth:`cut`."""

    def __init__(self, problem: LabelingProblem) -> None:
        self._units = len(problem.float_cost)
        self._nodes = self._units + _FIRST
        self._edges: list[tuple[int, int, int]] = []  # tail, head, index of the capacity: see cut
        for i in range(self._units):
            self._edges += [(i + _FIRST, SINK, i), (SOURCE, i + _FIRST, self._units + i)]
        for i in np.flatnonzero(~problem.selectable).tolist():
            self._edges.append((i + _FIRST, SINK, _INFINITE))
        quantize = 2 * self._units
        dequantize = quantize + len(problem.boundaries)
        for k, boundary in enumerate(problem.boundaries):
            consumers = [c + _FIRST for c in boundary.consumers]
            producer = SINK if boundary.producer < 0 else boundary.producer + _FIRST
            if producer != SINK:
                readers = [SINK] if boundary.float_reader else consumers
                if len(readers) > 1:  # paid once, unless all of them are low
                    self._edges += [(self._nodes, reader, _INFINITE) for reader in readers]
                    readers = [self._auxiliary()]
                self._edges += [(producer, reader, dequantize + k) for reader in readers]
            if len(consumers) > 1:  # paid once, if any of them is low
                self._edges += [(consumer, self._nodes, _INFINITE) for consumer in consumers]
                consumers = [self._auxiliary()]
            self._edges += [(consumer, producer, quantize + k) for consumer in consumers]
        self._capacity = np.array([index for *_, index in self._edges], np.int64)
        self._flow = FlowNetwork(self._nodes, [(tail, head) for tail, head, _ in self._edges])

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
        costs = np.concatenate([loss, -loss, *boundary_costs, [np.inf]])
        return self._flow.source_side(costs[self._capacity])[_FIRST : self._units + _FIRST]

    def _auxiliary(self) -> int:
        self._nodes += 1
        return self._nodes - 1
