"""Good labellings in milliseconds, where an exact one is not worth an integer program.

Limits become prices on what they limit (Lagrangian relaxation), so that a cut solves the rest; the prices are searched
for the cheapest labelling within the limits. A negative boundary cost is replaced by a linear one that is nowhere below
it and equal at the labelling at hand, and the cut is repeated: each step lowers the true cost (the submodular-
supermodular procedure of Narasimhan and Bilmes, 2005). What prices cannot express (any number of units just inside a
limit) is left to single changes: see :class:`~inlay.search.local_search.LocalSearch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from inlay.search.labeling import Limit, Problem
from inlay.search.local_search import LocalSearch
from inlay.search.mincut import Network

_MAJORIZE = 4  # steps of the procedure
_PRICES = 12  # that are tried
_STEP = 4.0  # from one price to the next, until the right one is between two
_NEAR = 1.03  # prices this close are one
_FIRST_PRICE = 0.1  # of all that is at stake, for using up all of a limit
_TURN = 0.5  # how fast the price of the scarcest limit gains on the others


class LagrangianSolver:
    """Solutions of one problem under any limits.

    Args:
        problem: costs; negative boundary costs are allowed.
        known: labels that are known to be good: what is found is at least as good.
    """

    def __init__(self, problem: Problem, known: Sequence[np.ndarray] = ()) -> None:
        self._problem = problem
        self._bare = replace(problem, traps=())  # cuts know nothing of traps: single changes get out of them
        self._known = known
        self._network = Network(problem)
        self._dearer = problem.low_cost - problem.float_cost
        self._negative = np.flatnonzero((problem.weights < 0.0).any(axis=0)).tolist()

    @property
    def terms(self) -> int:
        """Number of the problem's terms."""
        return len(self._problem.terms)

    @cached_property
    def free(self) -> np.ndarray:
        """A labelling of little cost, whatever it uses up; shape (n,)."""
        units = len(self._dearer)
        nothing = np.zeros(units), np.zeros(len(self._problem.terms))
        starts = (np.zeros(units, bool), np.ones(units, bool), None)
        found = min((self._lower(*nothing, start) for start in starts), key=self._bare.cost)
        return self._best([found, *self._known], ())

    def within(self, limits: Sequence[Limit]) -> np.ndarray:
        """A labelling of little cost that keeps ``limits``; float where none was found. Shape (n,)."""
        problem = self._bare
        labels = self.free
        used = _used(problem, limits, labels)
        if (used <= 1.0).all():
            return labels
        units = np.array([limit.units / max(limit.most, 1e-300) for limit in limits])
        ups = np.array([limit.up / max(limit.most, 1e-300) for limit in limits])
        share = np.maximum(used, 1e-6) / used.sum()
        scale, low, high = _FIRST_PRICE * float(np.abs(self._dearer).sum()), 0.0, np.inf
        inside, outside = np.zeros_like(labels), labels
        for _ in range(_PRICES):
            price = scale * share
            labels = self._lower(price @ units, price @ ups, None)
            used = _used(problem, limits, labels)
            if (used <= 1.0).all():
                high = scale
                if problem.cost(labels) < problem.cost(inside):
                    inside = labels
            else:
                low, outside = scale, labels
                share = share * np.maximum(used / used.max(), 0.1) ** _TURN
                share /= share.sum()
            if high <= low * _NEAR:
                break
            scale = float(np.sqrt(low * high)) if low > 0.0 and high < np.inf else scale * (_STEP if low else 1 / _STEP)
        return self._best([inside, outside, *self._known], limits)

    def _best(self, starts: Sequence[np.ndarray], limits: Sequence[Limit]) -> np.ndarray:
        """The cheapest that single changes make of ``starts``; float where none keeps the limits."""
        found = [(y, cost) for y, cost, fits in (self._improved(y, limits) for y in starts) if fits]
        return min(found, key=lambda item: item[1])[0] if found else np.zeros_like(starts[0])

    def _improved(self, labels: np.ndarray, limits: Sequence[Limit]) -> tuple[np.ndarray, float, bool]:
        ledger = LocalSearch(self._problem, limits, labels)
        ledger.improve()
        return ledger.labels, ledger.cost, ledger.fits()

    def _lower(self, unit_prices: np.ndarray, up_prices: np.ndarray, start: np.ndarray | None) -> np.ndarray:
        """The labelling of least cost and prices, found from ``start``; else as if all negative terms were paid."""
        weights = self._problem.weights.copy()
        weights[0] += up_prices
        labels = start
        for _ in range(_MAJORIZE):
            before = labels
            labels = self._network.cut(self._dearer + unit_prices + self._majorant(weights, labels), weights)
            if not self._negative or (before is not None and (labels == before).all()):
                break
        assert labels is not None
        return labels

    def _majorant(self, weights: np.ndarray, labels: np.ndarray | None) -> np.ndarray:
        """Unit costs that are nowhere below the negative terms (less a constant), and equal to them at ``labels``."""
        units = np.zeros(len(self._dearer))
        for k in self._negative:
            term, (up, down, touched) = self._problem.terms[k], weights[:, k]
            made = term.producer >= 0 and (labels is None or bool(labels[term.producer]))
            lows = [c for c in term.consumers if labels is None or labels[c]]
            floats = [c for c in term.consumers if labels is None or not labels[c]]
            if up < 0.0 and lows and (labels is None or not made):  # (1 - p) max(u) >= u - p
                units[lows[0]] += up
                if term.producer >= 0:
                    units[term.producer] -= up
            if down < 0.0 and made and (term.float_reader or floats):  # p (1 - min(u)) >= p - u
                units[term.producer] += down
                if not term.float_reader:
                    units[floats[0]] -= down
            if touched < 0.0 and (made or lows):  # max >= any
                units[term.producer if made else lows[0]] += touched
        return units


def _used(problem: Problem, limits: Sequence[Limit], labels: np.ndarray) -> np.ndarray:
    return np.array([limit.used(problem, labels) for limit in limits], np.float64)
