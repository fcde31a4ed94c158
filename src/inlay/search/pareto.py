"""The predicted Pareto front of latency and accuracy, by a sweep of the noise allowance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inlay.search import policy
from inlay.search.lagrangian import LagrangianSolver
from inlay.search.surrogate import Surrogate
from inlay.trial import decibels, noise_of


def predicted_front(surrogate: Surrogate) -> list[np.ndarray]:
    """Labelings that no other is predicted to beat in both latency and noise, the fastest first.

    The allowed noise sweeps from that of the fastest labeling down to that of float.
    """
    solver = surrogate.solver
    relaxed = LagrangianSolver(surrogate.cost_model.expected_problem(), [surrogate.best])
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
