"""Which labeling to try next: by expected improvement, or on the predicted front of latency and accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from inlay.search import policy
from inlay.search.lagrangian import LagrangianSolver
from inlay.search.neighborhood import chance_of_gain, expected_gain, neighbors
from inlay.search.prospect import Hopes, Prospect
from inlay.search.surrogate import Surrogate
from inlay.trial import decibels, noise_of


@dataclass(frozen=True, eq=False)
class Candidate:
    """A labeling that might be tried."""

    labels: np.ndarray  # a fixed point of propagation, shape (units,)
    paid: np.ndarray  # indices of the cost parameters that they pay
    origin: str  # where they come from, for people
    chance: float = 0.0  # of a clear gain, as it was hoped for when they were chosen


class Explorer:
    """Chooses the labeling of the largest expected improvement; ``rng`` draws Thompson samples and moves."""

    def __init__(self, surrogate: Surrogate, rng: np.random.Generator) -> None:
        # labelings that promised most behind the one that was chosen last, the best first; not all of them keep the
        # noise allowance
        self.runners_up: list[np.ndarray] = []
        self._surrogate = surrogate
        self._rng = rng
        self._center: np.ndarray | None = None  # the labeling that the neighbors below are neighbors of
        self._neighbors: list[Candidate] = []
        self._solved: list[Candidate] = []
        self.hopes = Hopes()  # how far hopes of clear gains came true
        self.prospect: Prospect | None = None  # what was left to find when a labeling was chosen last; None before

    def most_promising(self, solve: bool) -> Candidate | None:
        """The untried labeling of the largest expected improvement that keeps the noise allowance, by a probe.

        None where no improvement is worth a measurement. With ``solve``, the labeling problem is solved anew: its
        solutions are candidates too.
        """
        surrogate, solver = self._surrogate, self._surrogate.solver
        best_ns = surrogate.cost_model.predict(surrogate.best).mean  # the measured figure may be a lucky one
        if solve:
            self._solved = [*self._solutions()]
        candidates = [*self._solved, *self._moves(solve)]
        gains, chances = self._expected(np.array([c.paid for c in candidates]), best_ns)
        self.prospect = self._left(candidates, chances)
        probed, order = 0, np.argsort(-gains, kind="stable").tolist()
        for place, k in enumerate(order):
            candidate: Candidate = candidates[k]
            if gains[k] < policy.LEAST_GAIN * best_ns or probed == policy.PROBES_PER_STEP:
                break
            if surrogate.bars.forbid(candidate.labels):
                continue
            if solver.within_allowance(candidate.labels) and surrogate.trial(candidate.labels) is None:
                solver.probe(candidate.labels)
                probed += 1
                if solver.within_allowance(candidate.labels):
                    self.runners_up = [candidates[other].labels for other in order[place + 1 :]]
                    return replace(candidate, chance=float(chances[k]))
        return None

    def _expected(self, paid: np.ndarray, best_ns: float) -> tuple[np.ndarray, np.ndarray]:
        """Expected improvement of each labeling, nanoseconds, and its chance of a clear gain."""
        costs, center = self._surrogate.cost_model.costs(), self._surrogate.cost_model.paid(self._surrogate.best)
        mean, stddev = costs.predict(paid)
        spent = np.where(paid != center, costs.mean[center], 0.0).sum(axis=1)  # by the best, on what changes
        instead = mean - (best_ns - spent), stddev
        return expected_gain(spent, *instead), chance_of_gain(spent, *instead, policy.CLEAR_GAIN * best_ns)

    def _left(self, candidates: Sequence[Candidate], chances: np.ndarray) -> Prospect:
        """What is left to find among untried labelings that may keep the bound: each changes what no other one does."""
        surrogate, found = self._surrogate, list[float]()
        center = surrogate.cost_model.paid(surrogate.best)
        changed = np.zeros(center.shape, bool)
        for k in np.argsort(-chances, kind="stable").tolist():
            if chances[k] < policy.FAINT:
                break
            labels, others = candidates[k].labels, candidates[k].paid != center
            if (others & changed).any() or surrogate.bars.forbid(labels) or surrogate.trial(labels) is not None:
                continue
            if surrogate.solver.within_allowance(labels):
                changed |= others
                found.append(float(chances[k]))
        return self.hopes.prospect(found)

    def _solutions(self) -> Iterator[Candidate]:
        """Solutions under sampled costs (Thompson sampling), and under the expected ones."""
        surrogate, solver = self._surrogate, self._surrogate.solver
        for origin in (*["draw"] * policy.THOMPSON_DRAWS, "cut"):
            problem = surrogate.sampled_problem(self._rng) if origin == "draw" else surrogate.expected_problem()
            known = [surrogate.best]
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


def predicted_front(surrogate: Surrogate) -> list[np.ndarray]:
    """Labelings that no other is predicted to beat in both latency and noise, the fastest first.

    The allowed noise sweeps from that of the fastest labeling down to that of float.
    """
    solver = surrogate.solver
    relaxed = LagrangianSolver(surrogate.expected_problem(), [surrogate.best])
    fastest = relaxed.unconstrained
    solver.probe(fastest)
    found = [fastest]
    start, step = max(solver.sqnr_db(fastest), 0.0) + policy.FRONT_STEP_DB, policy.FRONT_STEP_DB
    for sqnr_db in np.arange(start, policy.FRONT_TOP_DB, step):
        labels = solver.solve_within(relaxed, noise_of(float(sqnr_db)))
        if not labels.any():
            break
        found.append(labels)
    front: list[np.ndarray] = []
    for labels in sorted(found, key=lambda y: surrogate.cost_model.predict(y).mean):
        if not front or solver.sqnr_db(labels) > solver.sqnr_db(front[-1]):
            front.append(labels)
    return front


def most_informative(front: Sequence[np.ndarray], surrogate: Surrogate) -> int:
    """Index of the labeling whose SQNR is farthest from that of any measured model.

    Of those far enough, it is the one closest to the accuracy bound.
    """
    bound = decibels(surrogate.allowance.maximum)

    def worth(k: int) -> tuple[float, float]:
        sqnr_db = surrogate.solver.sqnr_db(front[k])
        gap = min((abs(sqnr_db - point.sqnr_db) for point in surrogate.points), default=np.inf)
        return min(gap, policy.FRONT_GAP_DB), -abs(sqnr_db - bound)

    return max(range(len(front)), key=worth)


def is_dominated(labels: np.ndarray, surrogate: Surrogate) -> bool:
    """Whether some measured model is at least as fast and as accurate as a labeling is predicted to be."""
    sqnr_db, ns = surrogate.solver.sqnr_db(labels), surrogate.cost_model.predict(labels).mean
    return any(point.ns <= ns and point.sqnr_db >= sqnr_db for point in surrogate.points)
