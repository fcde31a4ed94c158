"""Good labelings in milliseconds, where an exact one is not worth an integer program.

*Lagrangian relaxation*: limits become prices on what they limit, so that a minimum cut solves the rest; the prices are
searched for the cheapest labeling within the limits. *Majorization*: a negative boundary cost is replaced by a linear
one that is nowhere below it and equal at the current labeling, and the cut is repeated; each step lowers the true cost
(the submodular-supermodular procedure of Narasimhan and Bilmes, 2005). What prices cannot express (any number of units
just inside a limit) and what a cut cannot (fusion penalties) is left to
:class:`~inlay.search.local_search.LocalSearch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from inlay.search import policy
from inlay.search.edges import FLOAT, LOW
from inlay.search.labeling import LEAST_LIMIT, LabelingProblem, Limit
from inlay.search.local_search import LocalSearch
from inlay.search.mincut import Network


class LagrangianSolver:
    """Solutions of one problem under any limits.

    Args:
        problem: costs; negative boundary costs and fusion penalties are allowed.
        known: labelings to improve on as well; what is found is at least as good as those that keep the limits.
    """

    def __init__(self, problem: LabelingProblem, known: Sequence[np.ndarray] = ()) -> None:
        self._problem = problem
        self._relaxed = replace(problem, penalties=())
        self._known = known
        self._network = Network(problem)
        self._loss = problem.low_cost - problem.float_cost
        self._negative = np.flatnonzero((problem.boundary_costs < 0.0).any(axis=0)).tolist()

    @property
    def boundaries(self) -> int:
        """Number of the problem's boundaries."""
        return len(self._problem.boundaries)

    @cached_property
    def unconstrained(self) -> np.ndarray:
        """A labeling of low cost without limits, shape (n,)."""
        units = len(self._loss)
        no_prices = np.zeros(self._problem.unit_costs.shape), np.zeros(self.boundaries)
        starts = (np.zeros(units, np.int8), np.full(units, LOW, np.int8), None)
        found = min((self._minimize(*no_prices, start) for start in starts), key=self._relaxed.cost)
        return self._best([found, *self._known], ())

    def within(self, limits: Sequence[Limit]) -> np.ndarray:
        """A labeling of low cost that keeps ``limits``; all float where none was found. Shape (n,)."""
        problem = self._relaxed
        labels = self.unconstrained
        usage = _usage(problem, limits, labels)
        if (usage <= 1.0).all():
            return labels
        unit_weights = np.array([limit.unit_weights / max(limit.maximum, LEAST_LIMIT) for limit in limits])
        boundary_weights = np.array([limit.quantize / max(limit.maximum, LEAST_LIMIT) for limit in limits])
        share = np.maximum(usage, 1e-6) / usage.sum()  # of each limit in the price
        scale, low, high = policy.FIRST_PRICE * float(np.abs(self._loss).sum()), 0.0, np.inf
        inside, outside = np.zeros_like(labels), labels
        for _ in range(policy.PRICES):
            price = scale * share
            labels = self._minimize(np.tensordot(price, unit_weights, 1), price @ boundary_weights, None)
            usage = _usage(problem, limits, labels)
            if (usage <= 1.0).all():
                high = scale
                if problem.cost(labels) < problem.cost(inside):
                    inside = labels
            else:
                low, outside = scale, labels
                share = share * np.maximum(usage / usage.max(), policy.LEAST_SHARE) ** policy.SHARE_EXPONENT
                share /= share.sum()
            if high <= low * policy.PRICE_TOLERANCE:
                break
            if low > 0.0 and high < np.inf:
                scale = float(np.sqrt(low * high))
            else:
                scale *= policy.PRICE_STEP if low else 1 / policy.PRICE_STEP
        return self._best([inside, outside, *self._known], limits)

    def _best(self, starts: Sequence[np.ndarray], limits: Sequence[Limit]) -> np.ndarray:
        """The cheapest result of local search from ``starts``; all float where none keeps the limits."""
        searches = [LocalSearch(self._problem, limits, labels) for labels in starts]
        for search in searches:
            search.improve()
        fitting = [s for s in searches if s.fits()]
        return min(fitting, key=lambda s: s.cost).labels if fitting else np.zeros_like(starts[0])

    def _minimize(self, unit_prices: np.ndarray, quantize_prices: np.ndarray, start: np.ndarray | None) -> np.ndarray:
        """The labeling of least cost plus prices, by majorization from ``start``.

        Which form a unit takes concerns nobody else, so it is the cheapest one, and the cut sees the better of it and
        float. Without a start, the first majorant takes every negative cost as paid.

        Args:
            unit_prices: of each unit by label, shape (n, 2 + forms).
            quantize_prices: of each boundary that quantizes.
            start: labels to begin with.
        """
        priced = self._problem.unit_costs + unit_prices
        outside = np.delete(priced, LOW, axis=1)  # float and the forms
        choice = outside.argmin(axis=1)
        others = np.where(choice == 0, FLOAT, choice + 1).astype(np.int8)
        low = np.where(self._problem.selectable, priced[:, LOW], self._problem.low_cost)
        loss = low - outside[np.arange(len(choice)), choice]
        costs = self._problem.boundary_costs.copy()
        costs[0] += quantize_prices
        labels = start
        for _ in range(policy.MAJORIZATION_STEPS):
            before = labels
            cut = self._network.cut(loss + self._majorant(costs, labels), costs)
            labels = np.where(cut, LOW, others).astype(np.int8)
            if not self._negative or (before is not None and (labels == before).all()):
                break
        assert labels is not None
        return labels

    def _majorant(self, costs: np.ndarray, labels: np.ndarray | None) -> np.ndarray:
        """Unit costs that are nowhere below the negative boundary costs (less a constant), and equal at ``labels``.

        With ``p`` the producer's label and ``u`` those of its readers.
        """
        units = np.zeros(len(self._loss))
        for k in self._negative:
            boundary, (quantize, dequantize) = self._problem.boundaries[k], costs[:, k]
            low_producer = boundary.producer >= 0 and (labels is None or bool(labels[boundary.producer] == LOW))
            lows = [c for c in boundary.consumers if labels is None or labels[c] == LOW]
            floats = [c for c in boundary.consumers if labels is None or labels[c] != LOW]
            if quantize < 0.0 and lows and (labels is None or not low_producer):  # (1 - p) max(u) >= u - p
                units[lows[0]] += quantize
                if boundary.producer >= 0:
                    units[boundary.producer] -= quantize
            if dequantize < 0.0 and low_producer and (boundary.float_reader or floats):  # p (1 - min(u)) >= p - u
                units[boundary.producer] += dequantize
                if not boundary.float_reader:
                    units[floats[0]] -= dequantize
        return units


def _usage(problem: LabelingProblem, limits: Sequence[Limit], labels: np.ndarray) -> np.ndarray:
    return np.array([limit.usage(problem, labels) for limit in limits], np.float64)
