"""The parameters of the cost model: a cost for each unit by its label and context, and for each value by its state.

A unit has four *forms*: its own label, and its context, which is the label of its layout source. A value has the four
states of :class:`~inlay.search.edges.State`. The latency of a labeling is the sum of one parameter for each of them.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from inlay.search.edges import State
from inlay.search.labeling import BoundaryCost, FusionPenalty, LabelingProblem
from inlay.search.unit_graph import UnitGraph
from inlay.targets.base import KernelTime

STATES = len(State)
FORMS = 4  # of a unit: 2 * (it is low) + (its layout source is low)


class CostParameters:
    """Which parameters there are, which a labeling pays, and the labeling problem that they make.

    Args:
        graph: units and values.
    """

    def __init__(self, graph: UnitGraph) -> None:
        self.graph = graph
        self.first_edge = FORMS * len(graph.units)  # parameters before are those of units
        self.size = self.first_edge + STATES * len(graph.edges)

    def paid(self, labels: np.ndarray) -> np.ndarray:
        """Indices of the parameters that propagated labels pay: of units, then of edges; shape (units + edges,)."""
        graph = self.graph
        forms = 2 * labels.astype(np.int64) + graph.layout_contexts(labels)
        units = np.arange(len(graph.units)) * FORMS + forms
        edges = self.first_edge + np.arange(len(graph.edges)) * STATES + graph.states(labels)
        return np.concatenate([units, edges])

    def cause(self, kernel: KernelTime, paid: np.ndarray) -> int | None:
        """The one of the ``paid`` parameters that a kernel's time belongs to; None where it serves none of them."""
        for value in kernel.values:
            k = self.graph.edge_of.get(value)
            if k is not None:
                return int(paid[len(self.graph.units) + k])
        owner = self.graph.owner(kernel.nodes)
        return None if owner is None else int(paid[owner])

    @cached_property
    def signatures(self) -> tuple[str, ...]:
        """Of each parameter: parameters with equal signatures have equal costs, in any model on one target."""
        units = (str(("unit", s, form)) for s in self.graph.signatures for form in range(FORMS))
        values = (str(("value", e.signature, state)) for e in self.graph.edges for state in range(STATES))
        return (*units, *values)

    def problem(self, costs: np.ndarray) -> LabelingProblem:
        """The labeling problem under given costs of the parameters, nanoseconds.

        A cost ``(a, b, c, d)`` by the labels (00, 01, 10, 11) of a producer ``p`` and its consumer ``u`` is
        ``a + (c - a) p + (d - c) u + (b + c - a - d) (1 - p) u``: unit costs, and one boundary cost. That is exact; the
        boundary cost is negative where equal labels cost more than different ones, which a cut cannot express. Labels
        that do not propagate to themselves cost more than what they propagate to.
        """
        graph, propagation = self.graph, self.graph.propagation
        forms = costs[: self.first_edge].reshape(-1, 2, 2)
        edges = costs[self.first_edge :].reshape(-1, STATES)
        float_cost, low_cost = forms[:, 0, 0].copy(), forms[:, 1, 0].copy()
        boundaries = []
        # what runs low whatever its label must not look cheap in float: this is more than all units can gain
        prohibitive = 2.0 * float(np.abs(np.concatenate([float_cost, low_cost])).sum())
        for producer, consumer, implied in propagation.implications:
            quantize, dequantize = (0.0, prohibitive) if implied == consumer else (prohibitive, 0.0)
            boundaries.append(BoundaryCost(producer, (consumer,), quantize=quantize, dequantize=dequantize))
        for unit, source in enumerate(graph.layout_source.tolist()):
            if source >= 0 and graph.selectable[source]:
                (a, b), (c, d) = forms[unit].T  # by the label of the source, then by its own
                low_cost[source] += c - a
                low_cost[unit] = a + d - c
                if graph.selectable[unit]:
                    boundaries.append(BoundaryCost(source, (unit,), quantize=float(b + c - a - d)))
        for edge, (in_float, quantize, dequantize, low) in zip(graph.edges, edges, strict=True):
            ends = edge.producer, edge.consumers, edge.float_reader
            if edge.producer < 0:
                boundaries.append(BoundaryCost(*ends, quantize=float(quantize - in_float)))
                continue
            float_cost[edge.producer] += in_float
            low_cost[edge.producer] += low
            boundaries.append(BoundaryCost(*ends, float(quantize - in_float), float(dequantize - low)))
        penalties = [FusionPenalty(unit, neighbors, prohibitive) for unit, neighbors in propagation.fusions]
        return LabelingProblem(float_cost, low_cost, boundaries, graph.selectable, penalties=penalties)
