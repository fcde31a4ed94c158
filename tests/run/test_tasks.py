"""Runs tell accuracy in the terms of the task, and deliver nothing that loses too much of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from scipy.stats import binomtest

import inlay
from inlay.cli.render import verdict
from inlay.data import Samples, load_feed
from inlay.errors import RunFailed, UsageError
from inlay.prepare.config import TuneConfig
from inlay.quant.accuracy import Bound, Judge
from inlay.quant.metrics import Agreement
from inlay.quant.tasks.task import Figure, Task, embedding, masks
from inlay.report.page import accuracy_words
from inlay.run.robustness import beside_noise
from inlay.testing.models import Builder
from inlay.trial import Accuracy, TaskFigure
from tests.support.detectors import detector, finder, images

pytestmark = pytest.mark.usefixtures("null_in_process")

LIMITS: dict[str, Any] = {"target": "null", "budget": None, "max_measurements": 8}


def feeds(count: int) -> list[dict[str, np.ndarray]]:
    return [{"images": image[None]} for image in images(count, 1)]


def lines(result: inlay.TuneResult) -> str:
    return "\n".join(line for line in verdict(result) if isinstance(line, str))


@pytest.mark.exhaustive
def test_the_task_is_told_wherever_accuracy_is(tmp_path: Path) -> None:
    onnx.save(detector("joined"), tmp_path / "m.onnx")
    result = inlay.tune(tmp_path / "m.onnx", data=feeds(24), out=tmp_path / "out", **LIMITS)
    found = json.loads((tmp_path / "out/result.json").read_text())
    told = found["best"]["task"]
    assert told["looks_like"] == "a detector"
    kept, shared = told["figures"]
    assert (kept["name"], shared["name"]) == ("detections kept", "detections shared")
    assert kept["right"] == round(kept["value"] * kept["of"]) <= kept["of"]
    assert kept["most"] == 0.05
    assert f"Task: this looks like a detector: {kept['said']}, {shared['said']}, over 6 unseen samples" in lines(result)
    assert kept["said"] in result.summary()
    assert f"This looks like a detector: {kept['said']}" in accuracy_words(found)
    assert ["task" in anchor for anchor in found["anchors"] if anchor["name"] == "full-int8"] == [True]
    assert str(result.bound) == "SQNR at least 20 dB"


@pytest.mark.exhaustive
def test_rows_of_what_is_found_are_judged_and_delivered(tmp_path: Path) -> None:
    """In low precision their number changes; before, none of it could be delivered."""
    onnx.save(finder(), tmp_path / "m.onnx")
    result = inlay.tune(tmp_path / "m.onnx", data=feeds(24), out=tmp_path / "out", **LIMITS)
    assert result.best.verification is not None
    assert result.best.qdq_pairs > 0
    assert [figure.broken for figure in result.best.verification.figures] == [False, False]
    assert np.isfinite(result.best.verification.sqnr_db)
    anchors = json.loads((tmp_path / "out/result.json").read_text())["anchors"]
    (full,) = [anchor for anchor in anchors if anchor["name"] == "full-int8"]
    assert full["task"]["figures"][0]["right"] < full["task"]["figures"][0]["of"]
    assert "has another shape than float's in" in full["reshaped"]
    assert full["sqnr_db"] > 0.0


@pytest.mark.parametrize("task", ["auto", "none"])
@pytest.mark.exhaustive
def test_what_loses_the_task_is_not_delivered(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its SQNR; negative control: where nobody asks for the task, it is."""
    onnx.save(detector("separate"), tmp_path / "m.onnx")

    def half(self: Task, outputs: Any, reference: Any) -> tuple[TaskFigure, ...]:
        same = all(np.array_equal(a["scores"], b["scores"]) for a, b in zip(outputs, reference, strict=True))
        lost = 0.0 if same else 0.5
        return (TaskFigure("detections kept", 1.0 - lost, lost, 0.05, round(20 * (1.0 - lost)), 20, "half are kept"),)

    monkeypatch.setattr(Task, "told", half)
    result = inlay.tune(tmp_path / "m.onnx", data=feeds(24), out=tmp_path / "out", task=task, **LIMITS)
    if task == "none":
        assert result.best.qdq_pairs > 0
        return
    accuracy = result.best.verification
    assert result.best.is_float or (accuracy is not None and accuracy.figures[0].lost == 0.0), "its scores are float's"
    assert any("on unseen samples more than 5 % of detections kept is lost: half are kept" in n for n in result.notes)


@pytest.mark.exhaustive
def test_a_task_that_is_named_is_the_bound(tmp_path: Path) -> None:
    onnx.save(detector("separate"), tmp_path / "m.onnx")
    result = inlay.tune(tmp_path / "m.onnx", data=feeds(24), out=tmp_path / "out", task="detector", **LIMITS)
    assert result.bound == "detector at most 0.05 below float"
    assert result.best.metric_statement is not None
    assert result.best.metric_statement.name == "detector"
    accuracy = result.best.verification
    assert accuracy is not None
    assert accuracy.metric == pytest.approx(accuracy.figures[0].value)
    for options, why in (
        ({"task": "segmenter"}, "--task segmenter: give auto, none, detector"),
        ({"task": "masks", "metric": "cosine"}, "--task names a bound, and so does --metric"),
        ({"task": "detector", "data": None}, "--task needs --data"),
        ({"task": "sound", "max_drop": -1}, "max-drop|share"),
    ):
        with pytest.raises(UsageError, match=why):
            inlay.tune(tmp_path / "m.onnx", out=tmp_path / "no", **{**LIMITS, "data": feeds(6), **options})


@pytest.mark.exhaustive
def test_few_samples_tell_the_task_as_well(tmp_path: Path) -> None:
    """There are none to hold back: what the search sees decides."""
    onnx.save(detector("separate"), tmp_path / "m.onnx")
    result = inlay.tune(tmp_path / "m.onnx", data=feeds(2), out=tmp_path / "out", **LIMITS)
    assert result.best.verification is None
    assert not result.best.is_float
    assert result.best.selection.figures
    assert "this looks like a detector" in lines(result)


def encoder() -> onnx.ModelProto:
    """An image's vector of 24 numbers, by name an embedding."""
    b = Builder()
    x = b.conv("second", b.conv("first", b.input("images", (1, 3, 96, 96)), 16, relu=True), 24)
    pooled = b.node("pool", "GlobalAveragePool", [x])
    b.output(b.node("flat", "Flatten", [pooled], outputs=["embedding"], axis=1))
    return b.model()


@pytest.mark.exhaustive
def test_an_embedding_is_bound_as_one_unless_an_sqnr_is_asked_for(tmp_path: Path) -> None:
    onnx.save(encoder(), tmp_path / "m.onnx")
    usual = "SQNR at least 14 dB and at most 0.02 of cosine and 0.05 of rank correlation lost (an embedding)"
    asked: list[dict[str, Any]] = [{}, {"min_sqnr": 20.0}, {"task": "none"}]
    for number, options in enumerate(asked):
        out = tmp_path / f"out{number}"
        again = [inlay.tune(tmp_path / "m.onnx", data=feeds(16), out=out, **LIMITS, **options) for _ in range(2)]
        bound = "SQNR at least 20 dB" if options else usual
        assert [result.bound for result in again] == [bound] * 2, "in a run that goes on, too"
    picked = inlay.select(tmp_path / "out0", to=tmp_path / "picked.onnx", max_drop=0.02)
    assert picked.task.startswith("this looks like an embedding: mean cosine"), "its cosine is what may drop"
    with pytest.raises(UsageError, match="no metric, task or --evaluate judged any of them"):
        inlay.select(tmp_path / "out2", to=tmp_path / "no.onnx", max_drop=0.02)


@pytest.mark.parametrize(("asked", "least_db"), [(None, 14.0), (20.0, 20.0), (25.0, 25.0)])
@pytest.mark.exhaustive
def test_quantize_bounds_an_embedding_as_tune_does(asked: float | None, least_db: float, tmp_path: Path) -> None:
    onnx.save(encoder(), tmp_path / "m.onnx")
    done = inlay.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data=feeds(16), min_sqnr=asked)
    assert done.asked_db == least_db
    assert done.by_costs is not None
    assert done.by_costs.bound_db == least_db


def test_what_an_embedding_may_lose_without_being_asked() -> None:
    """Noise of 17 dB is well within it; a cosine that falls too far is not, nor are ranks that are lost."""
    rng = np.random.default_rng(0)
    task = embedding("embedding").bound(True)
    usual = task.usual(TuneConfig().bound)

    def judged(vectors: np.ndarray, db: float, bound: Bound) -> Accuracy:
        noise = rng.standard_normal(vectors.shape) * np.linalg.norm(vectors, axis=1, keepdims=True)
        noise *= 10.0 ** (-db / 20.0) / np.sqrt(vectors.shape[1])
        want, got = ([{"embedding": row[None]} for row in each] for each in (vectors, vectors + noise))
        samples = Samples(tuple({} for _ in vectors), "feeds", "test")
        return Judge(want, samples, bound, confidence=None, task=task).judge(got)

    spread = rng.standard_normal((24, 64))
    assert judged(spread, 17.0, usual).feasible
    assert not judged(spread, 17.0, Bound(20.0)).feasible, "negative control: 20 dB were asked for"
    assert "more than 2 % of cosine is lost" in judged(spread, 11.0, replace(usual, min_sqnr_db=None)).reason
    assert not judged(spread, 13.0, usual).feasible
    alike = judged(1.0 + 0.03 * spread, 17.0, usual)
    assert "more than 5 % of rank correlation is lost" in alike.reason
    few = judged(1.0 + 0.03 * spread[:8], 17.0, usual)
    assert few.feasible, "of few vectors, near ties decide"


class Segmenter:
    """Scores of two classes by brightness: what lies near the threshold changes its class with any noise."""

    def __init__(self, near: float) -> None:
        rng = np.random.default_rng(5)
        sides = np.where(rng.random((6, 1, 3, 24, 24)) < 0.5, 0.1, 0.9)
        is_near = rng.random(sides.shape) < near
        images = np.where(is_near, 0.5 + 0.004 * np.sign(sides - 0.5), sides).astype(np.float32)
        self.samples = Samples(tuple({"x": x} for x in images), "npz", "test")
        self.runs = 0

    def outputs(self, feeds: Any) -> list[dict[str, np.ndarray]]:
        return [{"y": np.concatenate([f["x"][:, :1], 1.0 - f["x"][:, :1]], axis=1)} for f in feeds]

    def run(self, paths: Any) -> list[dict[str, np.ndarray]]:
        self.runs += 1
        return self.outputs([load_feed(path) for path in paths])

    def flipped(self, share: float) -> list[dict[str, np.ndarray]]:
        """Outputs of a model that gives such a share of pixels to the other class."""
        rng, found = np.random.default_rng(6), []
        for outputs in self.outputs(self.samples.feeds):
            wrong = rng.random(outputs["y"][:, :1].shape) < share
            found.append({"y": np.where(wrong, outputs["y"][:, ::-1], outputs["y"])})
        return found


@pytest.mark.parametrize(("near", "kept"), [(0.6, True), (0.0, False)])
def test_as_much_of_a_task_may_be_lost_as_float_itself_loses_by_noise(near: float, kept: bool, tmp_path: Path) -> None:
    """Where a little noise moves float's own masks as far; where it does not, the usual limit stays."""
    net = Segmenter(near)
    reference = net.outputs(net.samples.feeds)
    task = masks(lambda y: y.argmax(1), ["y"], 3).bound(binds=True)
    judge = Judge(
        reference,
        net.samples,
        Bound(),
        confidence=None,
        task=beside_noise(task, net.samples, reference, net.run, tmp_path),
    )
    assert judge.judge(net.flipped(0.005)).feasible
    assert net.runs == 0, "nobody had to know"
    found = judge.judge(net.flipped(0.05))
    assert found.feasible == kept, found.reason
    assert ("float itself with 1 % of noise" in found.figures[0].said) == kept
    assert not judge.judge(net.flipped(0.4)).feasible
    assert net.runs == 1, "it is found out once"
    plain = Judge(reference, net.samples, Bound(), confidence=None, task=task)
    assert not plain.judge(net.flipped(0.05)).feasible, "without it, nothing more may be lost"


def test_a_float_model_that_fails_on_noise_allows_for_nothing(tmp_path: Path) -> None:
    net = Segmenter(0.6)
    reference = net.outputs(net.samples.feeds)

    def fails(paths: Any) -> list[dict[str, np.ndarray]]:
        raise RunFailed("no")

    task = beside_noise(masks(lambda y: y.argmax(1), ["y"], 3), net.samples, reference, fails, tmp_path)
    assert task is not None
    assert task.told(net.flipped(0.05), reference)[0].broken


def test_a_few_detections_that_noise_costs_float_allow_for_little(tmp_path: Path) -> None:
    """Of 13, 3 that are lost show hardly more than the usual 5 %; of 500, as many in proportion show 20 %."""

    def limit(of: int) -> float:
        lost = 3 * of // 13
        told = lambda value, _: f"{value:.0%}"  # noqa: E731
        counts = Agreement(of=lambda *_: 0.0, counts=lambda outputs, reference: (of - lost, of))
        task = Task("detector", "a detector", (Figure("detections kept", counts, told, 0.05),))
        net = Segmenter(0.6)
        reference = net.outputs(net.samples.feeds)
        found = beside_noise(task, net.samples, reference, net.run, tmp_path)
        assert found is not None
        most = found.told(reference, reference)[0].most
        assert most is not None
        return most

    assert limit(13) == pytest.approx(binomtest(3, 13).proportion_ci(0.9, "exact").low)
    assert limit(13) < 0.07
    assert 0.19 < limit(500) < 0.22
