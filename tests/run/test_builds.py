"""``max_builds`` counts every model that is built during the search, and the result says how many there were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from benchmarks import honesty
from benchmarks.simulated import Clock, InProcessWorker, simulated

from inlay.data import Samples
from inlay.model.load import load
from inlay.prepare.config import TuneConfig
from inlay.run import session
from inlay.run.inputs import TuneRequest
from inlay.run.tune import tune
from inlay.targets.base import Artifact, TargetSpec
from inlay.targets.null import NullExecutable, NullTarget
from inlay.testing import concat_model, random_feed


class Counting(NullTarget):
    built = 0

    def compile(self, model: Artifact) -> NullExecutable:
        self.built += 1
        return super().compile(model)


@pytest.mark.parametrize("most", [10, 14])  # with more the search is done before
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_a_search_builds_no_more_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    onnx.save(honesty.network(), tmp_path / "model.onnx")
    target, clock = Counting(noise=0.01, scale=50.0), Clock()
    profiled = 0
    original = NullExecutable.profile

    def counted(executable: NullExecutable, *arguments: Any) -> Any:
        nonlocal profiled
        profiled += 1
        return original(executable, *arguments)

    monkeypatch.setattr(NullExecutable, "profile", counted)
    config = TuneConfig(target=TargetSpec("null"), budget_s=None, max_builds=most, cost_db=False)
    result = tune(
        TuneRequest(
            file=load(tmp_path / "model.onnx"),
            out=tmp_path / "out",
            samples=honesty.samples(),
            config=config,
            lab=simulated(target, clock),
        )
    )
    assert most - 3 < result.search["builds"] <= most
    assert str(most) in result.search["stopped_because"]
    assert result.search["builds"] > result.search["measurements"], "the given model, probes and profiles count, too"
    assert profiled > 0
    assert target.built + profiled >= result.search["builds"], "what was counted was built"


@pytest.mark.parametrize("is_profiled", [False, True])
@pytest.mark.exhaustive
def test_a_profile_counts_where_it_is_built(is_profiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulator that knows its kernels from the first build has twice as many candidates for as many builds."""
    onnx.save(honesty.network(), tmp_path / "model.onnx")
    monkeypatch.setattr(NullExecutable, "is_profiled", is_profiled, raising=False)
    target = Counting(noise=0.0, scale=50.0)
    config = TuneConfig(target=TargetSpec("null"), budget_s=None, max_builds=12, cost_db=False)
    asked = TuneRequest(
        file=load(tmp_path / "model.onnx"),
        out=tmp_path / "out",
        samples=honesty.samples(),
        config=config,
        lab=simulated(target, Clock()),
    )
    search = tune(asked).search
    if is_profiled:
        assert search["measurements"] >= 6
        assert search["builds"] <= target.built
    else:
        assert search["measurements"] <= 4


@pytest.mark.parametrize("noise", [0.0, 0.01])  # without noise, decisions about scales are measured, too
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_calibration_leaves_the_builds_to_the_search(tmp_path: Path, noise: float) -> None:
    model = concat_model()
    onnx.save(model, tmp_path / "model.onnx")
    samples = Samples(tuple(dict(random_feed(model, seed)) for seed in range(6)), "feeds", "test")

    def builds(most: int | None) -> int:
        target, clock = NullTarget(noise=noise, scale=50.0), Clock()
        config = TuneConfig(
            target=TargetSpec("null"), budget_s=None, max_builds=most, max_measurements=1, cost_db=False
        )
        lab = simulated(target, clock)
        request = TuneRequest(
            file=load(tmp_path / "model.onnx"), out=tmp_path / f"out{most}", samples=samples, config=config, lab=lab
        )
        return int(tune(request).search["builds"])

    assert builds(1) <= 8, "the given model, anchors and their profiles"
    assert builds(None) > builds(1) + 2, "negative control: tables are tried on the target"


@pytest.mark.parametrize("least", [0, 1 << 40])
def test_while_others_hold_large_models_a_run_holds_none(
    least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is freed is built again where it is needed, and the result is the same."""
    monkeypatch.setattr(session, "_LARGE", least)
    freed, model = list[bool](), concat_model()
    free = InProcessWorker.free

    def noted(worker: InProcessWorker) -> None:
        freed.append(True)
        free(worker)

    monkeypatch.setattr(InProcessWorker, "free", noted)
    onnx.save(model, tmp_path / "model.onnx")
    samples = Samples(tuple(dict(random_feed(model, seed)) for seed in range(6)), "feeds", "test")
    config = TuneConfig(target=TargetSpec("null"), budget_s=None, max_measurements=3, cost_db=False)
    lab = simulated(NullTarget(noise=0.01, scale=50.0), Clock())
    file, out = load(tmp_path / "model.onnx"), tmp_path / "out"
    found = tune(TuneRequest(file=file, out=out, samples=samples, config=config, lab=lab))
    assert bool(freed) == (not least)
    assert (out / "model.onnx").exists()
    assert found.best.speedup.value > 1.0
