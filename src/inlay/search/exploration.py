"""Which labeling to try next: by expected improvement, among neighbors of the best one and solutions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from inlay.search import policy
from inlay.search.neighborhood import expected_improvement, neighbors
from inlay.search.surrogate import Surrogate


@dataclass(frozen=True, eq=False)
class Candidate:
    """A labeling that might be tried.

    Attributes:
        labels: a fixed point of propagation, shape (units,).
        paid: indices of the cost parameters that they pay.
        origin: where they come from, for people.
    """

    labels: np.ndarray
    paid: np.ndarray
    origin: str


class Explorer:
    """Chooses the labeling of the largest expected improvement.

    Args:
        surrogate: predicts cost and noise.
        rng: of Thompson samples and neighborhood moves.
    """

    def __init__(self, surrogate: Surrogate, rng: np.random.Generator) -> None:
        self._surrogate = surrogate
        self._rng = rng
        self._center: np.ndarray | None = None  # the labeling that the neighbors below are neighbors of
        self._neighbors: list[Candidate] = []

    def most_promising(self, solve: bool) -> Candidate | None:
        """The untried labeling of the largest expected improvement that keeps the noise allowance, by a probe.

        Args:
            solve: solutions of the labeling problem are candidates too.

        Returns:
            The candidate, or None where no improvement is worth a measurement.
        """
        surrogate, solver = self._surrogate, self._surrogate.solver
        best_ns = surrogate.cost_model.predict(surrogate.best).mean  # the measured figure may be a lucky one
        candidates = [*(self._solutions() if solve else ()), *self._moves(solve)]
        predicted = surrogate.cost_model.predict_paid(np.array([c.paid for c in candidates]))
        gains = expected_improvement(*predicted, best_ns)
        probed = 0
        for k in np.argsort(-gains, kind="stable").tolist():
            candidate: Candidate = candidates[k]
            if gains[k] < policy.LEAST_GAIN * best_ns or probed == policy.PROBES_PER_STEP:
                break
            if solver.within_allowance(candidate.labels) and surrogate.trial(candidate.labels) is None:
                solver.probe(candidate.labels)
                probed += 1
                if solver.within_allowance(candidate.labels):
                    return candidate
        return None

    def _solutions(self) -> Iterator[Candidate]:
        """Solutions under sampled costs (Thompson sampling), and under the expected ones."""
        model, solver = self._surrogate.cost_model, self._surrogate.solver
        for origin in (*["draw"] * policy.THOMPSON_DRAWS, "cut"):
            problem = model.sampled_problem(self._rng) if origin == "draw" else model.expected_problem()
            known = [self._surrogate.best]
            yield self._candidate(solver.solve(problem, corrections=policy.QUICK_CORRECTIONS, known=known), origin)

    def _moves(self, redraw: bool) -> list[Candidate]:
        """Neighbors of the best labeling, drawn anew on demand and whenever there is a new best one."""
        surrogate = self._surrogate
        if redraw or self._center is not surrogate.best:
            self._center = surrogate.best
            found = neighbors(surrogate.graph, surrogate.best, self._rng, policy.NEIGHBORS)
            candidates = (self._candidate(labels, move.describe(surrogate.graph)) for labels, move in found)
            self._neighbors = list({c.labels.tobytes(): c for c in candidates}.values())
        return self._neighbors

    def _candidate(self, labels: np.ndarray, origin: str) -> Candidate:
        labels = self._surrogate.graph.fixed_point(labels)
        return Candidate(labels, self._surrogate.cost_model.parameters.paid(labels), origin)
