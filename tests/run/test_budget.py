"""A search whose anchors took the whole time, and none keeps the bound, goes on until it has something that does."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from benchmarks import honesty

from inlay.measure.in_process import Clock, simulated
from inlay.model.load import load
from inlay.prepare.config import TuneConfig
from inlay.quant.accuracy import Bound
from inlay.run import budget
from inlay.run.result import TuneResult
from inlay.run.tune import tune
from inlay.targets.base import TargetSpec
from inlay.targets.null import NullTarget
from inlay.trial import Measured

SECONDS = 20.0  # of a model that takes a quarter of a second


def run(folder: Path, least_db: float, seconds: float = SECONDS) -> tuple[TuneResult, Clock]:
    onnx.save(honesty.network(), folder / "model.onnx")
    clock = Clock()
    target = NullTarget(noise=0.01, scale=3000.0, advance_clock=clock.sleep)
    config = TuneConfig(target=TargetSpec("null"), budget_s=seconds, cost_db=False, bound=Bound(min_sqnr_db=least_db))
    lab = simulated(target, clock)
    return tune(load(folder / "model.onnx"), folder / "out", honesty.samples(), config, lab=lab), clock


def feasible(result: TuneResult, name: str) -> bool:
    (outcome,) = (a.outcome for a in result.anchors if a.name == name)
    assert isinstance(outcome, Measured)
    return outcome.accuracy.feasible


@pytest.mark.parametrize("attempts", [0, 4])
def test_a_search_without_anything_in_low_precision_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    """Negative control: without the attempts past the budget, float is all that there is."""
    monkeypatch.setattr(budget, "_ATTEMPTS", attempts)
    result, _ = run(tmp_path, least_db=45.0)
    assert [feasible(result, name) for name in ("full-int8", "conv-matmul")] == [False, False]
    assert result.best.is_float == (attempts == 0)
    assert (result.best.speedup.low > 1.02) == (attempts > 0)
    assert not any(p["origin"] == "cut without a bound" for p in result.pareto), "what fails the bound can wait"
    assert result.search["stopped_because"] == "the budget of 20 s is spent"


def test_a_search_that_has_something_ends_in_time(tmp_path: Path) -> None:
    result, _ = run(tmp_path, least_db=30.0)
    assert feasible(result, "full-int8")
    assert result.search["measurements"] == 3, "the anchors"


def test_attempts_end_where_nothing_can_keep_the_bound(tmp_path: Path) -> None:
    result, clock = run(tmp_path, least_db=120.0)
    assert result.best.is_float
    assert clock.seconds < 12.0 * SECONDS


def test_a_run_whose_time_is_over_finds_again_what_it_found(tmp_path: Path) -> None:
    """Killed while it confirmed, or simply started again: all trials are in the journal, and cost no time."""
    first, _ = run(tmp_path, least_db=30.0, seconds=200.0)
    assert first.best.origin not in {a.name for a in first.anchors}
    second, _ = run(tmp_path, least_db=30.0, seconds=200.0)
    assert second.best.origin == first.best.origin
    assert second.best.placement_digest == first.best.placement_digest
    assert second.search["replayed"] == first.search["measurements"]
