"""Local search over labelings: single units, and merges around values, with costs and limits updated incrementally."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from inlay.search import policy
from inlay.search.edges import FLOAT, LOW
from inlay.search.labeling import LEAST_LIMIT, LabelingProblem, Limit


class LocalSearch:
    """A labeling with its cost and its usage of each limit, and the changes that improve it.

    It begins with ``labels``, in which each unit has its label. A change costs time proportional to the
    boundaries that it touches.
    """

    def __init__(self, problem: LabelingProblem, limits: Sequence[Limit], labels: np.ndarray) -> None:
        boundaries = len(problem.boundaries)
        self._problem = problem
        self._labels: list[int] = labels.astype(int).tolist()
        self._costs = problem.unit_costs
        self._offered: np.ndarray = np.isfinite(self._costs)
        self._low_consumers: list[int] = problem.arrays.low_consumers(labels).tolist()
        maximum = np.array([max(limit.maximum, LEAST_LIMIT) for limit in limits])
        weights = np.array([c.unit_weights for c in limits], np.float64).reshape(len(limits), *self._costs.shape)
        self._unit_weights = np.moveaxis(weights, 0, -1) / maximum  # shape (n, labels, limits)
        self._quantize_weights = (
            np.array([c.quantize for c in limits], np.float64).reshape(len(limits), boundaries).T / maximum
        )
        # of each limit, kept up to 1; shape (limits,)
        self.usage: np.ndarray = np.array([limit.usage(problem, labels) for limit in limits], np.float64)
        self.cost = problem.cost(labels)  # of the current labels

    @property
    def labels(self) -> np.ndarray:
        """The current labels, shape (n,)."""
        return np.array(self._labels, np.int8)

    def fits(self) -> bool:
        """Whether every limit is kept."""
        return _excess(self.usage) == 0.0

    def improve(self) -> None:
        """Keep the limits at the least additional cost, then greedily make every change that pays."""
        self._repair()
        if self.fits():
            for _ in range(policy.PASSES):
                if not (self._change_units() | self._merge_values()):
                    return

    def _repair(self) -> None:
        """Change units until the limits are kept, the least cost per unit of excess first."""
        excess = _excess(self.usage)
        while excess > 0.0:
            cost, usage = self._changes()
            broken = self.usage > 1.0
            saved = np.minimum(-usage, np.maximum(self.usage - 1.0, 0.0))[:, :, broken].sum(axis=2)
            useful = np.argwhere(np.isfinite(cost) & (saved > policy.ROUNDING))  # less counts as nothing below, too
            at = tuple(useful.T)
            best = useful[np.argsort(np.maximum(cost, 0.0)[at] / saved[at], kind="stable")]
            before = excess
            for unit, label in best[: max(1, int(len(useful) * policy.BATCH_SHARE))].tolist():
                left = _excess(self.usage + self._preview([unit], label)[1])
                if left < excess - policy.ROUNDING:
                    self._set([unit], label)
                    excess = left
            if excess == before:
                return

    def _change_units(self) -> bool:
        """Change single units where that pays, the highest gain per usage first. Whether any was changed."""
        cost, usage = self._changes()
        paying = np.argwhere(cost < 0.0)
        at = tuple(paying.T)
        per_usage = cost[at] / (usage[at].max(axis=1, initial=0.0) + policy.FREE_USAGE)
        best = paying[np.argsort(per_usage, kind="stable")]
        return self._take(((unit,), label) for unit, label in best.tolist())

    def _merge_values(self) -> bool:
        """Give all units around a value one label where they differ and that pays. Whether any was changed."""
        members = [
            (b.producer, *b.consumers) if b.producer >= 0 else b.consumers
            for b in self._problem.boundaries
            if b.consumers
        ]
        return self._take((m, to) for m in members if len({self._labels[i] for i in m}) > 1 for to in (LOW, FLOAT))

    def _take(self, changes: Iterable[tuple[Sequence[int], int]]) -> bool:
        taken = False
        for members, label in changes:
            changed = [m for m in members if self._offered[m, label] and self._labels[m] != label]
            if changed:
                cost, usage = self._preview(changed, label)
                if cost < -policy.ROUNDING and _excess(self.usage + usage) == 0.0:
                    self._set(changed, label)
                    taken = True
        return taken

    def _changes(self) -> tuple[np.ndarray, np.ndarray]:
        """Additional cost and usage of giving each unit alone each label; shapes (n, labels) and (n, labels, limits).

        The cost is infinite where a unit does not have a label, or has it now.
        """
        now, units = self.labels.astype(np.int64), np.arange(len(self._labels))
        across_cost, across_usage = self._crossings(now == LOW)
        cost = self._costs - self._costs[units, now][:, None]
        usage = self._unit_weights - self._unit_weights[units, now][:, None]
        crosses = (np.arange(cost.shape[1]) == LOW) != (now == LOW)[:, None]
        cost = np.where(crosses, cost + across_cost[:, None], cost)
        usage = np.where(crosses[:, :, None], usage + across_usage[:, None], usage)
        cost[units, now] = np.inf
        return cost, usage

    def _crossings(self, low: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What boundaries and penalties add where each unit alone becomes low, or ceases to be; as of :meth:`_changes`.

        Shapes (n,) and (n, limits).
        """
        problem, arrays, n = self._problem, self._problem.arrays, len(low)
        low_producer, low_consumers = arrays.low_producer(low), arrays.low_consumers(low)
        now = problem.paid_given(low_producer, low_consumers).astype(np.int8)
        by_producer = problem.paid_given(~low_producer, low_consumers).astype(np.int8) - now
        step = np.where(low[arrays.consumer], -1, 1)
        flipped = problem.paid_given(low_producer[arrays.edge], low_consumers[arrays.edge] + step, arrays.edge)
        by_consumer = flipped.astype(np.int8) - now[:, arrays.edge]
        costs, owned = problem.boundary_costs, arrays.producer >= 0
        cost = np.bincount(arrays.producer[owned], (costs * by_producer).sum(axis=0)[owned], n).astype(np.float64)
        cost += np.bincount(arrays.consumer, (costs[:, arrays.edge] * by_consumer).sum(axis=0), n)
        for penalty in problem.penalties:
            averting = [penalty.unit] if low[penalty.unit] else []
            averting += [m for m in penalty.neighbors if not low[m]]
            if not averting:
                cost[[penalty.unit, *penalty.neighbors]] -= penalty.cost
            elif len(averting) == 1:
                cost[averting[0]] += penalty.cost
        usage = np.zeros((n, self._quantize_weights.shape[1]))
        for j in range(usage.shape[1]):
            weights = self._quantize_weights[:, j]
            usage[:, j] += np.bincount(arrays.producer[owned], (weights * by_producer[0])[owned], n)
            usage[:, j] += np.bincount(arrays.consumer, weights[arrays.edge] * by_consumer[0], n)
        return cost, usage

    def _preview(self, units: Sequence[int], label: int) -> tuple[float, np.ndarray]:
        """Additional cost and usage of giving ``units`` one label."""
        cost, usage = self.cost, self.usage
        before = [(i, self._labels[i]) for i in dict.fromkeys(units)]
        self._set(units, label)
        added = self.cost - cost, self.usage - usage
        for old in dict.fromkeys(was for _, was in before):
            self._set([i for i, was in before if was == old], old)
        self.cost, self.usage = cost, usage  # without accumulated rounding
        return added

    def _set(self, units: Sequence[int], label: int) -> None:
        problem = self._problem
        changed = [i for i in dict.fromkeys(units) if self._labels[i] != label]
        near = dict.fromkeys(k for i in changed for k in problem.boundaries_of[i])
        before = [self._boundary_cost(k) for k in near]
        penalties = [problem.penalties[k] for k in dict.fromkeys(k for i in changed for k in problem.penalties_of[i])]
        self.cost -= sum(p.cost for p in penalties if p.applies(self._labels))
        usage = np.zeros_like(self.usage)
        joined = {i: (label == LOW) - (self._labels[i] == LOW) for i in changed}
        for i in changed:
            self.cost += float(self._costs[i, label] - self._costs[i, self._labels[i]])
            usage = usage + self._unit_weights[i, label] - self._unit_weights[i, self._labels[i]]
            self._labels[i] = label
        self.cost += sum(p.cost for p in penalties if p.applies(self._labels))
        for k, (cost, quantized) in zip(near, before, strict=True):
            self._low_consumers[k] += sum(joined.get(c, 0) for c in problem.boundaries[k].consumers)
            new_cost, now_quantized = self._boundary_cost(k)
            self.cost += new_cost - cost
            if now_quantized is not quantized:
                usage = usage + (self._quantize_weights[k] if now_quantized else -self._quantize_weights[k])
        self.usage = self.usage + usage

    def _boundary_cost(self, k: int) -> tuple[float, bool]:
        """Cost of a boundary, and whether its value is quantized behind a float producer."""
        boundary, low_consumers = self._problem.boundaries[k], self._low_consumers[k]
        low_producer = boundary.producer >= 0 and self._labels[boundary.producer] == LOW
        quantized = not low_producer and low_consumers > 0
        cost = boundary.quantize if quantized else 0.0
        if low_producer and (boundary.float_reader or low_consumers < len(boundary.consumers)):
            cost += boundary.dequantize
        return cost, quantized


def _excess(usage: np.ndarray) -> float:
    """Sum by which limits are exceeded, rounding aside."""
    return float(np.maximum(usage - 1.0 - policy.ROUNDING, 0.0).sum())
