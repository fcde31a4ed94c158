"""What models lose on variations of their samples is judged and told, and costs nothing where it is not wanted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest
from benchmarks import honesty
from benchmarks.simulated import Clock, simulated

import inlay
from inlay.calibrate import observe as observing
from inlay.calibrate.choose import choose_calibration
from inlay.calibrate.observe import Observed
from inlay.calibrate.table_search import CalibrationTask
from inlay.calibrate.tables import CalibrationChoice
from inlay.data import Feed, Samples, StressSet, Variation, load_feed
from inlay.errors import Ended, RunFailed, TargetError, TimedOut, UsageError
from inlay.model.load import load
from inlay.prepare.config import TuneConfig
from inlay.prepare.model import PreparedModel
from inlay.quant.observers import STRESS, Histogram
from inlay.run import preparation
from inlay.run.inputs import TuneRequest
from inlay.run.robustness import Robustness, StressTest
from inlay.run.tune import tune
from inlay.targets.base import Artifact, TargetSpec
from inlay.targets.null import NullTarget
from inlay.testing import Builder

pytestmark = pytest.mark.usefixtures("null_in_process")


def images(count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.random((1, 3, 12, 12)).astype(np.float32)} for _ in range(count)]


def model(folder: Path) -> Path:
    b = Builder()
    y = b.conv("a", b.input("x", (1, 3, 12, 12)), 8, relu=True)
    b.output(b.conv("b", y, 4))
    onnx.save(b.model(), path := folder / "m.onnx")
    return path


@pytest.mark.exhaustive
def test_quantize_tells_what_variations_lose(tmp_path: Path) -> None:
    path, data = model(tmp_path), images(4)
    found = inlay.quantize(path, tmp_path / "q.onnx", data=data, recipe="full-int8")
    assert found.robustness is not None
    assert found.accuracy is not None
    assert found.robustness.samples_db == found.accuracy.sqnr_db
    assert "0.8x brightness" in found.robustness.varied_db
    worst = list(found.robustness.varied_db.values())
    assert worst == sorted(worst)
    assert max(worst) < 300.0, "the quantized model is judged, not the float one"
    assert inlay.quantize(path, tmp_path / "q.onnx", data=data, augment="none").robustness is None
    assert inlay.quantize(path, tmp_path / "q.onnx").robustness is None
    with pytest.raises(UsageError, match="--augment"):
        inlay.quantize(path, tmp_path / "q.onnx", data=data, augment="no_such_module:function")


@pytest.mark.parametrize("augment", ["auto", "none"])
def test_a_run_leaves_what_its_models_lose(tmp_path: Path, augment: str) -> None:
    options: dict[str, Any] = {"target": "null", "data": images(8), "augment": augment, "out": tmp_path / "out"}
    inlay.tune(model(tmp_path), max_measurements=4, min_sqnr=10.0, **options)
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    anchors = {a["name"]: a["stress"] for a in result["anchors"]}
    assert anchors["float"] is None
    delivered = result["best"]["stress"]
    if augment == "none":
        assert delivered is None
        assert not any(anchors.values())
        return
    assert anchors["full-int8"]["variations"]
    assert not result["best"]["is_float"]
    assert delivered["samples_sqnr_db"] == result["best"]["sqnr_db"]
    assert len(delivered["variations"]) >= 9
    assert any("var" in note for note in result["notes"])


@pytest.mark.parametrize(("scale", "widens"), [(10.0, True), (3000.0, False)])
def test_how_far_variations_reach_is_asked_where_there_is_time_to_use_it(
    scale: float, widens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reach, asked = observing.reach_of, list[Feed]()

    def counted(*args: Any) -> Mapping[str, Histogram]:
        asked.append(args[-1])
        return reach(*args)

    monkeypatch.setattr(observing, "reach_of", counted)
    onnx.save(honesty.network(), tmp_path / "m.onnx")
    clock = Clock()
    file, lab = load(tmp_path / "m.onnx"), simulated(NullTarget(scale=scale, advance_clock=clock.sleep), clock)
    config = TuneConfig(target=TargetSpec("null"), budget_s=60.0, cost_db=False)
    tune(TuneRequest(file=file, out=tmp_path / "out", samples=honesty.samples(), config=config, lab=lab))
    assert bool(asked) == widens


@pytest.mark.parametrize("widens", [True, False])
def test_scales_are_flipped_on_the_ranges_that_were_chosen(
    widens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks, seen = list[CalibrationTask](), list[Observed]()

    def chosen(task: CalibrationTask, *args: Any, **more: Any) -> CalibrationChoice:
        tasks.append(task)
        found = choose_calibration(task, *args, **more)
        return replace(found, chosen={"x": STRESS} if widens else {})

    def flipped(choice: CalibrationChoice, _: PreparedModel, observed: Observed, __: object) -> CalibrationChoice:
        seen.append(observed)
        return choice

    monkeypatch.setattr(preparation, "choose_calibration", chosen)
    monkeypatch.setattr(preparation, "choose_flips", flipped)
    quiet: dict[str, Any] = {
        "target": "null",
        "target_options": {"noise": 0.0},
        "max_measurements": 4,
        "out": tmp_path / "out",
    }
    inlay.tune(model(tmp_path), data=images(8), **quiet)
    assert tasks[0].stretched.histograms["x"].range(STRESS) != tasks[0].observed.histograms["x"].range(STRESS)
    assert seen == [tasks[0].stretched if widens else tasks[0].observed]


class _Refusing:
    """Runs on arrays of some length only."""

    def run(self, _: Artifact, paths: Sequence[Path]) -> list[dict[str, np.ndarray]]:
        feeds = [load_feed(path) for path in paths]
        if any(f["x"].size != 4 for f in feeds):
            raise RunFailed("another length")
        return [{"y": 2.0 * f["x"]} for f in feeds]


class _Dying(_Refusing):
    """Its process dies of another length: every start of one takes seconds."""

    deaths = 0

    def run(self, given: Artifact, paths: Sequence[Path]) -> list[dict[str, np.ndarray]]:
        try:
            return super().run(given, paths)
        except RunFailed:
            self.deaths += 1
            assert self.deaths <= 2, "another one was tried"
            raise Ended("died") from None


def _raising(error: TargetError, _: Sequence[Path]) -> list[dict[str, np.ndarray]]:
    raise error


def test_variations_that_the_model_refuses_are_left_out(tmp_path: Path) -> None:
    arrays = [np.full(n, n, np.float32) for n in (4, 3, 4)]
    stress = StressSet(tuple(Variation(f"way {i}", {"x": a}, 0) for i, a in enumerate(arrays)))
    given = Samples(({"x": arrays[0]},), "npz", "test")
    run = partial(_Refusing().run, cast(Artifact, SimpleNamespace()))
    test = StressTest.of(stress, given, tmp_path / "varied", run)
    assert list(test.names) == ["way 0", "way 2"]
    outputs = [{"y": 2.0 * f["x"]} for f in test.samples.feeds]
    outputs[1] = {"y": outputs[1]["y"] * 1.1}  # 20 dB
    found = test.robustness(outputs, 30.0)
    assert found is not None
    assert list(found.varied_db) == ["way 2", "way 0"]
    assert found.varied_db["way 2"] == pytest.approx(20.0, abs=1e-3)
    assert str(found) == "30.0 dB over all samples, 20.0 dB with way 2, the worst of 2 variations"
    assert str(Robustness(30.0, {"way": 20.0})) == "30.0 dB over all samples, 20.0 dB with way"
    for number, error in enumerate((TimedOut("hangs"), TargetError("raises"))):
        test = StressTest.of(stress, given, tmp_path / f"failing {number}", partial(_raising, error))
        assert not test.names
    run = partial(_Dying().run, cast(Artifact, SimpleNamespace()))
    assert list(StressTest.of(stress, given, tmp_path / "dying", run).names) == ["way 0"]
    nothing = StressTest.of(StressSet(), given, tmp_path / "none", run)
    assert nothing.robustness([], 30.0) is None
