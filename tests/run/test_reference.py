"""Accuracy is against float32, also where a target computes the given model itself in fewer bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from benchmarks.simulated import Clock, simulated

from inlay.data import Samples
from inlay.model.load import load
from inlay.prepare.config import TuneConfig
from inlay.quant.accuracy import Bound
from inlay.run import given
from inlay.run.inputs import TuneRequest
from inlay.run.result import TuneResult
from inlay.run.tune import tune
from inlay.targets.base import TargetSpec
from inlay.testing import random_feed, small_model
from inlay.trial import Infeasible, Measured
from tests.support.rounding import rounding

BOUND_DB = 20.0


def run(folder: Path, own_db: float, monkeypatch: pytest.MonkeyPatch, measurements: int = 8) -> TuneResult:
    target, model = rounding(own_db)(), folder / "model.onnx"
    monkeypatch.setattr(given, "create", lambda spec: target)
    onnx.save(small_model(), model)
    samples = Samples(tuple(dict(random_feed(small_model(), n)) for n in range(12)), "npz", "seeds")
    config = TuneConfig(target=TargetSpec("null"), bound=Bound(BOUND_DB), budget_s=None, cost_db=False)
    config = replace(config, max_measurements=measurements)
    return tune(
        TuneRequest(
            file=load(model), out=folder / "out", samples=samples, config=config, lab=simulated(target, Clock())
        )
    )


def anchors_db(result: TuneResult) -> dict[str, float]:
    judged = {a.name: a.outcome for a in result.anchors}
    return {name: o.accuracy.sqnr_db for name, o in judged.items() if isinstance(o, (Measured, Infeasible))}


@pytest.mark.exhaustive
def test_what_is_judged_has_the_noise_of_the_target_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(tmp_path, 30.0, monkeypatch)
    found = anchors_db(result)
    assert found["original"] == pytest.approx(30.0, abs=0.1)
    assert found["float"] == pytest.approx(30.0, abs=0.1)
    assert max(found.values()) < 31.0
    assert not result.best.is_float, "the control of the next test: there is something to gain"
    assert result.best.verification is not None
    assert BOUND_DB <= result.best.verification.sqnr_db < 30.1
    (note,) = [n for n in result.notes if n.startswith("null itself")]
    how = "in halves; --target-option effect=0.9 computes in float32"
    assert note == f"null itself computes the given model at 30.0 dB against float32 ({how})"


@pytest.mark.exhaustive
def test_where_the_target_itself_is_outside_the_bound_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(tmp_path, 8.0, monkeypatch)
    assert result.best.origin == "original"
    assert max(anchors_db(result).values()) < 9.0
    assert "at 8.0 dB against float32, below 20 dB with nothing in 8 bits (in halves" in result.notes[0]
    assert not any("samples say nothing" in note for note in result.notes)
    assert result.best.statement is not None, "what new samples keep is told of the given model as of any other"
    assert result.best.statement.limit_db == pytest.approx(8.0, abs=3.0)
    assert result.best.statement.samples >= 9, "of the 12, the unseen ones where they were asked for"
    assert result.best.bound_shown is None, "nothing is lost by staying with it"


@pytest.mark.exhaustive
def test_a_target_as_good_as_float32_is_its_own_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(tmp_path, 80.0, monkeypatch)
    assert anchors_db(result)["original"] > 200.0
    assert not any("itself computes" in note for note in result.notes)


@pytest.mark.parametrize("own_db", [30.0, 80.0])
@pytest.mark.exhaustive
def test_a_run_that_goes_on_keeps_its_reference(own_db: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's noise is another one by then, as after an update of its libraries: trials stay comparable."""
    before = anchors_db(run(tmp_path, own_db, monkeypatch, measurements=4))
    after = anchors_db(run(tmp_path, 110.0 - own_db, monkeypatch, measurements=8))
    assert before.items() - {"original"} <= after.items() | {("original", before["original"])}
    assert (after["original"] < 200.0) == (own_db < 60.0)
