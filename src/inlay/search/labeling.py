"""The labeling problem: which units to run in low precision, what that costs, and what limits it must keep.

Labels are booleans of shape (n,): True for low precision, False for float. Costs are nanoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from inlay.search.edges import EdgeArrays

LEAST_LIMIT = 1e-300  # stands in for a limit of zero, so that usage stays finite


@dataclass(frozen=True)
class BoundaryCost:
    """Costs of one value by the labels around it; each is paid once, however many consumers there are.

    Attributes:
        producer: unit, or -1 for a producer that is always float.
        consumers: units.
        float_reader: some reader is always float.
        quantize: paid where the producer is float and some consumer is low.
        dequantize: paid where the producer is low and some reader is float.
    """

    producer: int
    consumers: tuple[int, ...]
    float_reader: bool = False
    quantize: float = 0.0
    dequantize: float = 0.0


@dataclass(frozen=True)
class FusionPenalty:
    """A cost that is paid where ``unit`` is float although all ``neighbors`` are low."""

    unit: int
    neighbors: tuple[int, ...]
    cost: float

    def applies(self, labels: np.ndarray | Sequence[bool]) -> bool:
        """Whether it is paid."""
        return not labels[self.unit] and all(labels[n] for n in self.neighbors)


@dataclass(frozen=True, eq=False)
class LabelingProblem:
    """Which of ``n`` units to run in low precision.

    Attributes:
        float_cost: cost of each unit in float, shape (n,).
        low_cost: cost of each unit in low precision, shape (n,).
        boundaries: costs of values.
        selectable: units that may be low; the others are float. Shape (n,).
        penalties: costs of units that do not stay float between low ones.
    """

    float_cost: np.ndarray
    low_cost: np.ndarray
    boundaries: Sequence[BoundaryCost]
    selectable: np.ndarray
    penalties: Sequence[FusionPenalty] = ()

    @cached_property
    def boundary_costs(self) -> np.ndarray:
        """Rows ``quantize`` and ``dequantize`` of all boundaries; shape (2, boundaries)."""
        return np.array([[b.quantize, b.dequantize] for b in self.boundaries], np.float64).reshape(-1, 2).T

    @property
    def is_cut(self) -> bool:
        """Whether a minimum cut solves it exactly: there is no negative boundary cost and no fusion penalty."""
        return not self.penalties and not bool((self.boundary_costs < 0.0).any())

    def cost(self, labels: np.ndarray) -> float:
        """Total cost of a labeling; infinite where a unit that is not selectable is low."""
        if bool((labels & ~self.selectable).any()):
            return float("inf")
        total = float(np.where(labels, self.low_cost, self.float_cost).sum())
        total += sum(penalty.cost for penalty in self.penalties if penalty.applies(labels))
        return total + float((self.boundary_costs * self.paid(labels)).sum())

    def paid(self, labels: np.ndarray) -> np.ndarray:
        """Which boundary costs a labeling pays: rows as in :attr:`boundary_costs`, shape (2, boundaries)."""
        return self.paid_given(self.arrays.low_producer(labels), self.arrays.low_consumers(labels))

    def paid_given(
        self, low_producer: np.ndarray, low_consumers: np.ndarray, at: np.ndarray | slice = slice(None)
    ) -> np.ndarray:
        """:meth:`paid` of the boundaries ``at``, given whether the producer is low and how many consumers are."""
        some_float = self.arrays.some_float(low_consumers, at)
        return np.stack([~low_producer & (low_consumers > 0), low_producer & some_float])

    @cached_property
    def boundaries_of(self) -> Sequence[Sequence[int]]:
        """Indices of the boundaries that each unit takes part in."""
        found: list[list[int]] = [[] for _ in self.float_cost]
        for k, boundary in enumerate(self.boundaries):
            for member in {boundary.producer, *boundary.consumers} - {-1}:
                found[member].append(k)
        return found

    @cached_property
    def penalties_of(self) -> Sequence[Sequence[int]]:
        """Indices of the fusion penalties that each unit takes part in."""
        found: list[list[int]] = [[] for _ in self.float_cost]
        for k, penalty in enumerate(self.penalties):
            for member in (penalty.unit, *penalty.neighbors):
                found[member].append(k)
        return found

    @cached_property
    def arrays(self) -> EdgeArrays:
        """Producers and consumers of the boundaries."""
        return EdgeArrays.of([(b.producer, b.consumers, b.float_reader) for b in self.boundaries])


@dataclass(frozen=True, eq=False)
class Limit:
    """A linear constraint: a weighted sum is at most ``maximum``. Weights are not negative.

    Attributes:
        quantize: weight of each boundary whose producer is float and some consumer is low, shape (boundaries,).
        low: weight of each unit that is low, shape (n,).
        maximum: of the sum.
    """

    quantize: np.ndarray
    low: np.ndarray
    maximum: float

    def usage(self, problem: LabelingProblem, labels: np.ndarray) -> float:
        """Weighted sum of a labeling over the maximum: the limit is kept up to 1."""
        total = float(self.low[labels].sum() + self.quantize[problem.paid(labels)[0]].sum())
        return total / max(self.maximum, LEAST_LIMIT)
