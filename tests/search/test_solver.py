"""Labelings within the noise allowance, where the target itself loses something in float."""

from __future__ import annotations

import numpy as np
import pytest

from inlay.quant.sensitivity import Powers, Sensitivity
from inlay.search.labeling import BoundaryCost, LabelingProblem
from inlay.search.noise_model import NoiseAllowance
from inlay.search.solver import Solver
from inlay.trial import Accuracy, Interval, Latency, Measured, OutputError, Proposal, Trial, decibels, noise_of
from inlay.types import Placement
from tests.search.unit_graphs import chain

N = 8
GRAPH = chain(N)
EACH = 1.1e-3  # noise of a unit in low precision
BOUND_DB = 20.0
PROBLEM = LabelingProblem(
    np.linspace(2.0, 3.0, N),
    np.ones(N),
    [BoundaryCost(e.producer, e.consumers, e.float_reader) for e in GRAPH.edges],
    np.ones(N, bool),
)


def solved(float_db: float) -> int:
    """How many units are in low precision where each adds the same noise, and the model in float has ``float_db``."""
    accuracy = Accuracy(True, float_db, (OutputError("out", float_db, 1.0),))
    anchor = Trial(Proposal(Placement(), "float"), Measured(Latency(1.0, Interval(1.0, 1.0, 1.0), 1), accuracy))
    alone = Sensitivity({f"v{i}": (EACH,) for i in range(N)} | {"x": (0.0,)}, {})

    def probe(labels: np.ndarray) -> Powers:
        return (EACH * float(labels.astype(bool).sum()),)

    allowance = NoiseAllowance(noise_of(BOUND_DB))
    solver = Solver(GRAPH, ["out"], allowance, lambda: alone, probe, {"float": anchor}, {"float": {}})
    labels = solver.solve(PROBLEM, allowance.maximum, exact=True)
    assert solver.noise(labels)[0] <= noise_of(BOUND_DB)
    return int(labels.astype(bool).sum())


@pytest.mark.parametrize("float_db", [300.0, 40.0, 27.0, 24.0])
def test_what_float_loses_is_left_out_of_what_may_be_lost(float_db: float) -> None:
    allowed = NoiseAllowance(noise_of(BOUND_DB)).maximum
    assert solved(float_db) == int((allowed - noise_of(float_db)) / EACH)


def test_a_target_that_loses_most_of_it_may_still_gain() -> None:
    """Operators in 8 bits do not lose what they would in fewer bits of a float."""
    assert decibels(EACH * solved(10.0)) == pytest.approx(BOUND_DB + 3.0, abs=1.0)
