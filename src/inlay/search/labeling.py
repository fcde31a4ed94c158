"""The labeling problem: which precision each unit gets, what that costs, and what limits it must keep.

Labels are integers of shape (n,): float, low precision, or a form (:mod:`inlay.search.edges`). A form reads and writes
float, so that it concerns no boundary. Costs are nanoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from inlay.search.edges import LOW, EdgeArrays

LEAST_LIMIT = 1e-300  # stands in for a limit of zero, so that usage stays finite


@dataclass(frozen=True)
class BoundaryCost:
    """Costs of one value by the labels around it; each is paid once, however many consumers there are."""

    producer: int  # unit, or -1 for a producer that is always float
    consumers: tuple[int, ...]  # units
    float_reader: bool = False  # some reader is always float
    quantize: float = 0.0  # paid where the producer is float and some consumer is low
    dequantize: float = 0.0  # paid where the producer is low and some reader is float


@dataclass(frozen=True)
class FusionPenalty:
    """A cost that is paid where ``unit`` is not low although all ``neighbors`` are."""

    unit: int
    neighbors: tuple[int, ...]
    cost: float

    def applies(self, labels: np.ndarray | Sequence[int]) -> bool:
        """Whether it is paid."""
        return labels[self.unit] != LOW and all(labels[n] == LOW for n in self.neighbors)


@dataclass(frozen=True, eq=False)
class LabelingProblem:
    """Which of ``n`` units to run in which precision."""

    float_cost: np.ndarray  # cost of each unit in float, shape (n,)
    low_cost: np.ndarray  # cost of each unit in low precision, shape (n,)
    boundaries: Sequence[BoundaryCost]  # costs of values
    selectable: np.ndarray  # units that may be low. Shape (n,).
    penalties: Sequence[FusionPenalty] = ()  # costs of units that do not stay float between low ones
    # cost of each unit in each form, infinite where it does not have it; shape (n, forms)
    form_cost: np.ndarray | None = None

    @cached_property
    def unit_costs(self) -> np.ndarray:
        """Cost of each unit by label, infinite where it does not have it; shape (n, 2 + forms)."""
        low = np.where(self.selectable, self.low_cost, np.inf)
        plain = np.stack([self.float_cost, low], axis=1)
        return plain if self.form_cost is None else np.concatenate([plain, self.form_cost], axis=1)

    @cached_property
    def changeable(self) -> np.ndarray:
        """Whether each unit can be anything but float, shape (n,)."""
        return np.asarray(np.isfinite(self.unit_costs[:, 1:]).any(axis=1))

    @cached_property
    def boundary_costs(self) -> np.ndarray:
        """Rows ``quantize`` and ``dequantize`` of all boundaries; shape (2, boundaries)."""
        return np.array([[b.quantize, b.dequantize] for b in self.boundaries], np.float64).reshape(-1, 2).T

    @property
    def is_cut(self) -> bool:
        """Whether a minimum cut solves it exactly: there is no negative boundary cost and no fusion penalty."""
        return not self.penalties and not bool((self.boundary_costs < 0.0).any())

    def cost(self, labels: np.ndarray) -> float:
        """Total cost of a labeling; infinite where a unit does not have its label."""
        total = float(self.unit_costs[np.arange(len(labels)), labels.astype(np.int64)].sum())
        if not np.isfinite(total):
            return float("inf")
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
    """A linear constraint: a weighted sum is at most ``maximum``. Weights are not negative."""

    # weight of each boundary whose producer is float and some consumer is low, shape (boundaries,)
    quantize: np.ndarray
    low: np.ndarray  # weight of each unit that is low, shape (n,)
    maximum: float  # of the sum
    forms: np.ndarray | None = None  # weight of each unit in each form, shape (n, forms)

    @cached_property
    def unit_weights(self) -> np.ndarray:
        """Weight of each unit by label, shape (n, 2 + forms)."""
        plain = np.stack([np.zeros_like(self.low), self.low], axis=1)
        return plain if self.forms is None else np.concatenate([plain, self.forms], axis=1)

    def usage(self, problem: LabelingProblem, labels: np.ndarray) -> float:
        """Weighted sum of a labeling over the maximum: the limit is kept up to 1."""
        units = self.unit_weights[np.arange(len(labels)), labels.astype(np.int64)]
        total = float(units.sum() + self.quantize[problem.paid(labels)[0]].sum())
        return total / max(self.maximum, LEAST_LIMIT)
