"""Minimum s-t cuts of networks with real capacities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SOURCE, SINK = 0, 1  # the first two nodes of every network
_MAX_CAPACITY = 1 << 30  # scipy's flows are 32-bit integers


class FlowNetwork:
    """A flow network from :data:`SOURCE` to :data:`SINK`, whatever its capacities: they are given with each cut.

    Args:
        edges: tail and head of each; several between the same two nodes count together.
    """

    def __init__(self, nodes: int, edges: Sequence[tuple[int, int]]) -> None:
        self._nodes = nodes
        tail, head = np.array(edges, np.int64).reshape(-1, 2).T
        code, self._slot = np.unique(tail * nodes + head, return_inverse=True)
        self._from_source = tail == SOURCE
        self._heads = (code % nodes).astype(np.int32)
        self._rows = np.searchsorted(code // nodes, np.arange(nodes + 1)).astype(np.int32)

    def source_side(self, capacities: np.ndarray) -> np.ndarray:
        """Which nodes are on the source's side of a minimum cut, the fewest of several; shape (nodes,), bool.

        ``capacities``, shape (edges,): negative ones count as zero, infinite ones are not cut.
        """
        from scipy.sparse import csr_array  # takes long to load: what is refused or fails before is so at once
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow

        near = np.zeros(self._nodes, bool)
        # no flow exceeds what leaves the source, so that sum caps every capacity, and stands for infinity
        most = float(np.maximum(capacities[self._from_source], 0.0).sum())
        if not most > 0.0:
            return near
        scaled = np.clip(capacities, 0.0, most) / most * _MAX_CAPACITY
        data = np.minimum(np.rint(np.bincount(self._slot, scaled, len(self._heads))), _MAX_CAPACITY).astype(np.int32)
        network = csr_array((data, self._heads, self._rows), shape=(self._nodes, self._nodes))
        residual = csr_array(network - maximum_flow(network, SOURCE, SINK).flow)
        residual.data = (residual.data > 0).astype(np.int32)
        residual.eliminate_zeros()
        near[breadth_first_order(residual, SOURCE, return_predecessors=False)] = True
        return near
