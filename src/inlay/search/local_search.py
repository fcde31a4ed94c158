"""Local search over labelings: flips and merges around values, with costs and limits updated incrementally."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from inlay.search import policy
from inlay.search.labeling import LEAST_LIMIT, FusionPenalty, LabelingProblem, Limit


class LocalSearch:
    """A labeling with its cost and its usage of each limit, and the changes that improve it.

    It begins with ``labels``, in which only selectable units are low. A change costs time proportional to the
    boundaries that it touches.

    Attributes:
        cost: of the current labels.
        usage: of each limit, kept up to 1; shape (limits,).
    """

    def __init__(self, problem: LabelingProblem, limits: Sequence[Limit], labels: np.ndarray) -> None:
        n, boundaries = len(problem.float_cost), len(problem.boundaries)
        self._problem = problem
        self._low: list[bool] = labels.tolist()
        self._loss: np.ndarray = problem.low_cost - problem.float_cost
        self._low_consumers: list[int] = problem.arrays.low_consumers(labels).tolist()
        maximum = np.array([max(limit.maximum, LEAST_LIMIT) for limit in limits])
        self._unit_weights = np.array([c.low for c in limits], np.float64).reshape(len(limits), n).T / maximum
        self._quantize_weights = (
            np.array([c.quantize for c in limits], np.float64).reshape(len(limits), boundaries).T / maximum
        )
        self.usage: np.ndarray = np.array([limit.usage(problem, labels) for limit in limits], np.float64)
        self.cost = problem.cost(labels)

    @property
    def labels(self) -> np.ndarray:
        """The current labels, shape (n,)."""
        return np.array(self._low, bool)

    def fits(self) -> bool:
        """Whether every limit is kept."""
        return _excess(self.usage) == 0.0

    def improve(self) -> None:
        """Keep the limits at the least additional cost, then greedily make every change that pays."""
        self._repair()
        if self.fits():
            for _ in range(policy.PASSES):
                if not (self._flip_units() | self._merge_values()):
                    return

    def _repair(self) -> None:
        """Flip units until the limits are kept, the least cost per unit of excess first."""
        excess = _excess(self.usage)
        while excess > 0.0:
            cost, usage = self._flips()
            broken = self.usage > 1.0
            saved = np.minimum(-usage, np.maximum(self.usage - 1.0, 0.0))[:, broken].sum(axis=1)
            useful = np.flatnonzero(self._problem.selectable & (saved > 0.0))
            best = useful[np.argsort(np.maximum(cost, 0.0)[useful] / saved[useful], kind="stable")]
            before = excess
            for unit in best[: max(1, int(useful.size * policy.BATCH_SHARE))].tolist():
                low = not self._low[unit]
                left = _excess(self.usage + self._preview([unit], low)[1])
                if left < excess - policy.ROUNDING:
                    self._set([unit], low)
                    excess = left
            if excess == before:
                return

    def _flip_units(self) -> bool:
        """Flip single units where that pays, the highest gain per usage first. Whether any was flipped."""
        cost, usage = self._flips()
        paying = np.flatnonzero(self._problem.selectable & (cost < 0.0))
        per_usage = cost[paying] / (usage[paying].max(axis=1, initial=0.0) + policy.FREE_USAGE)
        best = paying[np.argsort(per_usage, kind="stable")]
        return self._take(((unit,), not self._low[unit]) for unit in best.tolist())

    def _merge_values(self) -> bool:
        """Give all units around a value one label where they differ and that pays. Whether any was changed."""
        members = [
            (b.producer, *b.consumers) if b.producer >= 0 else b.consumers
            for b in self._problem.boundaries
            if b.consumers
        ]
        return self._take((m, low) for m in members if len({self._low[i] for i in m}) > 1 for low in (True, False))

    def _take(self, changes: Iterable[tuple[Sequence[int], bool]]) -> bool:
        taken = False
        for members, low in changes:
            changed = [m for m in members if self._problem.selectable[m] and self._low[m] is not low]
            if changed:
                cost, usage = self._preview(changed, low)
                if cost < -policy.ROUNDING and _excess(self.usage + usage) == 0.0:
                    self._set(changed, low)
                    taken = True
        return taken

    def _flips(self) -> tuple[np.ndarray, np.ndarray]:
        """Additional cost and usage of flipping each unit alone; shapes (n,) and (n, limits)."""
        problem, arrays, n = self._problem, self._problem.arrays, len(self._low)
        low = self.labels
        low_producer, low_consumers = arrays.low_producer(low), arrays.low_consumers(low)
        now = problem.paid_given(low_producer, low_consumers).astype(np.int8)
        by_producer = problem.paid_given(~low_producer, low_consumers).astype(np.int8) - now
        step = np.where(low[arrays.consumer], -1, 1)
        flipped = problem.paid_given(low_producer[arrays.edge], low_consumers[arrays.edge] + step, arrays.edge)
        by_consumer = flipped.astype(np.int8) - now[:, arrays.edge]
        costs, owned = problem.boundary_costs, arrays.producer >= 0
        sign = np.where(low, -1.0, 1.0)
        cost = sign * self._loss
        cost += np.bincount(arrays.producer[owned], (costs * by_producer).sum(axis=0)[owned], n)
        cost += np.bincount(arrays.consumer, (costs[:, arrays.edge] * by_consumer).sum(axis=0), n)
        for penalty in problem.penalties:
            averting = [m for m, label in _paying_labels(penalty) if self._low[m] is not label]
            if not averting:
                cost[[penalty.unit, *penalty.neighbors]] -= penalty.cost
            elif len(averting) == 1:
                cost[averting[0]] += penalty.cost
        usage = sign[:, None] * self._unit_weights
        for j in range(usage.shape[1]):
            weights = self._quantize_weights[:, j]
            usage[:, j] += np.bincount(arrays.producer[owned], (weights * by_producer[0])[owned], n)
            usage[:, j] += np.bincount(arrays.consumer, weights[arrays.edge] * by_consumer[0], n)
        return cost, usage

    def _preview(self, units: Sequence[int], low: bool) -> tuple[float, np.ndarray]:
        """Additional cost and usage of labeling ``units`` as ``low``."""
        cost, usage = self.cost, self.usage
        changed = [i for i in dict.fromkeys(units) if self._low[i] is not low]
        self._set(changed, low)
        added = self.cost - cost, self.usage - usage
        self._set(changed, not low)
        self.cost, self.usage = cost, usage  # without accumulated rounding
        return added

    def _set(self, units: Sequence[int], low: bool) -> None:
        problem = self._problem
        changed = [i for i in dict.fromkeys(units) if self._low[i] is not low]
        near = dict.fromkeys(k for i in changed for k in problem.boundaries_of[i])
        before = [self._boundary_cost(k) for k in near]
        penalties = [problem.penalties[k] for k in dict.fromkeys(k for i in changed for k in problem.penalties_of[i])]
        self.cost -= sum(p.cost for p in penalties if p.applies(self._low))
        sign = 1.0 if low else -1.0
        for i in changed:
            self._low[i] = low
            self.cost += sign * float(self._loss[i])
        self.cost += sum(p.cost for p in penalties if p.applies(self._low))
        members = set(changed)
        usage = sign * self._unit_weights[changed].sum(axis=0)
        for k, (cost, quantized) in zip(near, before, strict=True):
            self._low_consumers[k] += int(sign) * len(members.intersection(problem.boundaries[k].consumers))
            new_cost, now_quantized = self._boundary_cost(k)
            self.cost += new_cost - cost
            if now_quantized is not quantized:
                usage = usage + (self._quantize_weights[k] if now_quantized else -self._quantize_weights[k])
        self.usage = self.usage + usage

    def _boundary_cost(self, k: int) -> tuple[float, bool]:
        """Cost of a boundary, and whether its value is quantized behind a float producer."""
        boundary, low_consumers = self._problem.boundaries[k], self._low_consumers[k]
        low_producer = boundary.producer >= 0 and self._low[boundary.producer]
        quantized = not low_producer and low_consumers > 0
        cost = boundary.quantize if quantized else 0.0
        if low_producer and (boundary.float_reader or low_consumers < len(boundary.consumers)):
            cost += boundary.dequantize
        return cost, quantized


def _excess(usage: np.ndarray) -> float:
    """Sum by which limits are exceeded, rounding aside."""
    return float(np.maximum(usage - 1.0 - policy.ROUNDING, 0.0).sum())


def _paying_labels(penalty: FusionPenalty) -> list[tuple[int, bool]]:
    """Units of a penalty, each with the label that it has where the penalty is paid."""
    return [(penalty.unit, False), *((neighbor, True) for neighbor in penalty.neighbors)]
