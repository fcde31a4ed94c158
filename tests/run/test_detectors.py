"""Detectors keep what they find, on images of other sources; one that loses a part of its output is refused."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import inlay
from inlay.cli.quantized import quantized, quantized_json
from inlay.data import Samples
from inlay.model.joins import joined
from inlay.model.load import load
from inlay.prepare import model as prepare_model
from inlay.quant.accuracy import Bound, Judge
from inlay.targets.base import Capabilities
from inlay.targets.null import NullTarget
from inlay.testing import full_int8, run_reference
from inlay.trial import Infeasible, Measured
from tests.support.detectors import MAKES, Make, detections, detector, images, kept

pytestmark = pytest.mark.usefixtures("null_in_process")

KEPT = 0.95
LIMITS: dict[str, Any] = {"target": "null", "budget": None, "max_measurements": 8}


def outputs_of(path: Path, some: np.ndarray) -> list[dict[str, np.ndarray]]:
    return [run_reference(path, {"images": image[None]}) for image in some]


def arrays(outputs: Sequence[dict[str, np.ndarray]]) -> list[list[np.ndarray]]:
    return [list(each.values()) for each in outputs]


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_the_delivered_detector_keeps_its_detections(make: Make, tmp_path: Path) -> None:
    onnx.save(detector(make), tmp_path / "m.onnx")
    feeds = [{"images": image[None]} for image in images(24, 1)]
    found = inlay.tune(tmp_path / "m.onnx", data=feeds, out=tmp_path / "out", **LIMITS)
    others = np.concatenate([images(8, 2, 4), images(8, 3, 16), images(8, 4)])
    want, got = (arrays(outputs_of(path, others)) for path in (tmp_path / "m.onnx", found.model_path))
    there, all_of_them = kept(make, want, got)
    assert all_of_them >= 20, "the fixture finds something"
    assert there >= KEPT * all_of_them
    (full,) = [anchor.outcome for anchor in found.anchors if anchor.name == "full-int8"]
    assert isinstance(full, (Measured, Infeasible))
    assert full.accuracy.sqnr_db > 18.0, "no part shares a scale with what is far larger"
    if make in ("joined", "objectness", "scales", "scaled"):
        assert full.accuracy.worst.startswith("out[:, 4:" if make in ("joined", "scaled") else "out[:, :, ")
        assert min(o.sqnr_db for o in full.accuracy.outputs) == full.accuracy.sqnr_db


def in_one_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be known of what differs in size."""
    monkeypatch.setattr(prepare_model, "find_uneven", lambda *_: {})


def test_a_detector_that_lost_its_scores_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the whole output it has far more than the bound, and there is none: the scores are zero all the same."""
    in_one_scale(monkeypatch)
    onnx.save(detector("joined", pixels=1280), tmp_path / "m.onnx")
    some = images(6, 1)
    feeds = tuple({"images": image[None]} for image in some)
    planted = full_int8(tmp_path / "m.onnx", Capabilities.of(NullTarget()), feeds[0], tmp_path)
    want, got = (outputs_of(path, some) for path in (tmp_path / "m.onnx", planted))
    assert max(float(detections("joined", [*y.values()])[1].max()) for y in got) == 0.0, "the fixture is as planted"
    whole = Judge(want, Samples(feeds, "feeds", "test", joins={"out": (None, (0,) * 9, None)}), Bound(25.0)).judge(got)
    assert whole.feasible, "negative control: over the whole output nothing is seen of it"
    judge = Judge(want, joined(Samples(feeds, "feeds", "test"), load(tmp_path / "m.onnx").model), Bound())
    found = judge.judge(got)
    assert not found.feasible
    assert found.reason.startswith("output out[:, 4:9] is lost: it is 0 everywhere")
    assert judge.judge(want).feasible


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("case", ["one scale", "aware", "separate"])
def test_quantizing_by_a_recipe_warns_of_a_part_that_is_lost(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case == "one scale":
        in_one_scale(monkeypatch)
    onnx.save(detector("separate" if case == "separate" else "joined", pixels=1280), tmp_path / "m.onnx")
    feeds = [{"images": image[None]} for image in images(6, 1)]
    done = inlay.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data=feeds, recipe="full-int8", target="null")
    said = "\n".join(quantized(done))
    assert ("WARNING: output out[:, 4:9] is lost: it is 0 everywhere" in said) == (case == "one scale")
    assert ("1 x float: out holds values that differ in size by " in said) == (case == "aware")
    assert quantized_json(done)["worst_output"] == ("scores" if case == "separate" else "out[:, 4:9]")


@pytest.mark.real_model
@pytest.mark.exhaustive
def test_a_trained_detector_loses_no_part(real_models: Path, tmp_path: Path) -> None:
    """Its one output joins boxes, objectness and classes of three scales: accuracy it may lack, which is said then."""
    feeds = importlib.import_module("feeds")  # comes with the models
    given, (some, others) = real_models / "yolox_nano.onnx", feeds.feeds("yolox_nano")
    done = inlay.quantize(given, tmp_path / "q.onnx", data=some[:4], recipe="full-int8")
    reasons = {d.op_type for d in done.decisions if "differ in size by" in d.reason}
    assert {"Concat", "Transpose"} <= reasons
    samples = joined(Samples(tuple(others[:4]), "feeds", "test"), load(given).model)
    want, got = ([run_reference(path, feed) for feed in samples.feeds] for path in (given, tmp_path / "q.onnx"))
    found = Judge(want, samples, Bound()).judge(got)
    assert len(found.outputs) >= 3, "the fixture has parts"
    assert found.feasible, found.reason
    assert found.sqnr_db > 20.0 or "WARNING: this is below 20 dB" in "\n".join(quantized(done))
