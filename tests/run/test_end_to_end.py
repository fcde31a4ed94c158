"""The main job from end to end: on ``null``, where the truth is known, and on trained models."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import inlay
from inlay.prepare.smoothquant import Smoothed
from inlay.run.confirm.contenders import Entry
from inlay.run.confirm.verification import Verifier
from inlay.targets.base import TargetSpec
from inlay.targets.null import price
from inlay.testing import Builder, random_feed, run_reference, small_model, sqnr
from inlay.trial import Accuracy
from tests.support.fixtures import SaveModel
from tests.support.runtime import check_and_load

pytestmark = pytest.mark.usefixtures("null_in_process")

SAMPLES = 8


def samples(model: onnx.ModelProto, count: int = SAMPLES) -> list[dict[str, np.ndarray]]:
    return [dict(random_feed(model, seed)) for seed in range(count)]


def tune(path: Path, out: Path, **options: Any) -> tuple[inlay.TuneResult, dict[str, Any]]:
    options = {"target": "null", "min_sqnr": 10.0, "max_measurements": 12, "budget": None, **options}
    result = inlay.tune(path, out=out, **options)
    return result, json.loads((out / "result.json").read_text())


def cost(path: Path) -> float:
    """The planted truth: what the null target charges for a file."""
    return sum(k.ns for k in price(onnx.load(path)))


@pytest.mark.exhaustive
def test_result_json_has_its_stable_keys(save: SaveModel, tmp_path: Path) -> None:
    model = small_model()
    path = save(model)
    result, data = tune(path, tmp_path / "out", data=samples(model))
    assert {
        "version",
        "model",
        "target",
        "data",
        "baseline",
        "best",
        "anchors",
        "pareto",
        "search",
        "seed",
    } <= data.keys()
    assert data["version"] == inlay.__version__
    assert data["model"] == {"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    assert {"name", "fingerprint"} <= data["target"].keys()
    assert {"kind", "samples", "calibration_samples", "validation_samples"} <= data["data"].keys()
    assert data["data"]["samples"] == SAMPLES
    assert data["baseline"].keys() == {"latency_ms", "size_bytes", "memory_bytes"}
    assert {
        "placement_digest", "latency_ms", "speedup", "speedup_low", "speedup_high", "sqnr_db", "metric", "qdq_pairs",
        "is_float", "output_sha256",
    } <= data["best"].keys()  # fmt: skip
    for anchor in data["anchors"]:
        assert {"name", "latency_ms", "speedup", "sqnr_db", "feasible"} <= anchor.keys()
    assert {"float", "full-int8", "conv-matmul"} <= {a["name"] for a in data["anchors"]}
    assert {"measurements", "compiles", "failed", "wall_s", "stopped_because"} <= data["search"].keys()
    assert data["seed"] == 0
    assert result.best.output_sha256 == data["best"]["output_sha256"]


@pytest.mark.parametrize("necessary_db", [42.0, 1000.0])
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_where_fast_models_fail_on_unseen_samples_another_one_is_delivered(
    necessary_db: float, save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By samples on which only models of so much accuracy keep the bound. The control: where none does, none is."""

    def judge(self: Verifier, entry: Entry, *_: object) -> Accuracy:
        searched = entry.candidate.trial.accuracy
        assert searched is not None
        feasible = entry.is_float or searched.sqnr_db >= necessary_db
        return Accuracy(feasible, searched.sqnr_db if feasible else 9.0, reason="" if feasible else "too loud")

    monkeypatch.setattr(Verifier, "_judge", judge)
    monkeypatch.setattr("inlay.run.tune._RETREATS", 0)  # no time for another search
    model = small_model(4)
    options = {"min_sqnr": 10.0, "max_measurements": 30, "data": samples(model)}
    result, data = tune(save(model), tmp_path / "out", **options)
    found = [t for t in data["pareto"] if t["sqnr_db"] >= necessary_db and t["speedup"] > 1.0]
    assert bool(found) == (necessary_db < 1000.0)
    assert result.best.is_float == (not found)
    assert "too loud" in json.dumps(data["notes"])


@pytest.mark.exhaustive
def test_the_delivered_bytes_are_the_measured_ones(save: SaveModel, tmp_path: Path) -> None:
    model = small_model()
    result, data = tune(save(model), tmp_path / "out", data=samples(model))
    delivered = result.model_path.read_bytes()
    assert hashlib.sha256(delivered).hexdigest() == data["best"]["output_sha256"]
    assert data["best"]["latency_ms"] * 1e6 == pytest.approx(cost(result.model_path), rel=1e-4)
    assert data["baseline"]["latency_ms"] * 1e6 == pytest.approx(cost(save(model)), rel=1e-4)
    proto = onnx.load(result.model_path)
    check_and_load(proto)
    pairs = sum(n.op_type == "QuantizeLinear" for n in proto.graph.node)
    assert (data["best"]["qdq_pairs"], data["best"]["is_float"]) == (pairs, pairs == 0)


@pytest.mark.exhaustive
def test_it_is_never_slower_than_a_feasible_anchor_and_keeps_the_bound(save: SaveModel, tmp_path: Path) -> None:
    model = small_model()
    feeds = samples(model)
    result, data = tune(save(model), tmp_path / "out", data=feeds)
    fastest = min(a["latency_ms"] for a in data["anchors"] if a["feasible"])
    assert data["best"]["latency_ms"] <= fastest
    assert data["best"]["speedup"] > 1.0, "null plants a real gain"
    assert data["best"]["sqnr_db"] >= 10.0
    unseen = dict(random_feed(model, 1000))
    want, got = run_reference(model, unseen), run_reference(result.model_path, unseen)
    assert min(sqnr(want[k], got[k]) for k in want) >= 7.0


@pytest.mark.exhaustive
def test_it_is_deterministic_per_seed(save: SaveModel, tmp_path: Path) -> None:
    model = small_model()
    path, feeds = save(model), samples(model)
    runs = [tune(path, tmp_path / name, data=feeds, seed=3) for name in ("a", "b")]
    (first, one), (second, two) = runs
    assert first.model_path.read_bytes() == second.model_path.read_bytes()
    for data in (one, two):
        del data["search"]["wall_s"], data["command"]  # which names the folder
    assert one == two
    assert _trials(tmp_path / "a") == _trials(tmp_path / "b")


@pytest.mark.exhaustive
def test_an_unreachable_bound_gives_float(save: SaveModel, tmp_path: Path) -> None:
    model = small_model()
    result, data = tune(save(model), tmp_path / "out", data=samples(model), min_sqnr=150.0, max_measurements=4)
    assert result.best.is_float
    assert data["best"]["qdq_pairs"] == 0
    assert not next(a for a in data["anchors"] if a["name"] == "full-int8")["feasible"]
    assert any("outside the accuracy bound" in note for note in result.notes)


@pytest.mark.exhaustive
def test_where_nothing_differs_the_given_model_is_kept(save: SaveModel, tmp_path: Path) -> None:
    """Negative control of every claim of a gain: the same cost for every placement, but noisy readings."""
    model = small_model()
    path = save(model)
    spec = TargetSpec("null", {"noise": 0.03, "burst": 0.05, "effect": 0.0, "seed": 1})
    result, data = tune(path, tmp_path / "out", data=samples(model), target=spec, max_measurements=5)
    assert data["best"]["speedup"] < 1.1
    assert cost(result.model_path) >= 0
    low = data["best"]["speedup_low"]
    assert result.best.is_float or (low is not None and low > 1.0)


@pytest.mark.exhaustive
def test_a_resumed_run_replays_and_agrees(save: SaveModel, tmp_path: Path) -> None:
    model = small_model()
    path, feeds = save(model), samples(model)
    whole, data = tune(path, tmp_path / "out", data=feeds)
    before = _trials(tmp_path / "out")
    again, repeated = tune(path, tmp_path / "out", data=feeds)
    assert repeated["search"]["measurements"] == 0
    assert repeated["search"]["compiles"] == 0
    assert again.model_path.read_bytes() == whole.model_path.read_bytes()
    assert _trials(tmp_path / "out") == before
    assert repeated["best"] == data["best"]


def test_a_killed_run_is_continued(save: SaveModel, tmp_path: Path) -> None:
    """SIGKILL in the middle of the search; the same call replays what was finished and ends where it would have."""
    model = small_model()
    path = save(model)
    np.savez(tmp_path / "samples.npz", x=np.concatenate([f["x"] for f in samples(model)]))
    out = tmp_path / "out"
    options = ["--data", str(tmp_path / "samples.npz"), "--target", "null", "--min-sqnr", "10", "--budget", "none"]
    command = [sys.executable, "-m", "inlay", "tune", str(path), "-o", str(out), *options, "--max-measurements", "16"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    with process.stderr as lines:
        for line in lines:
            if "conv-matmul" in line:
                os.kill(process.pid, signal.SIGKILL)
                break
    assert process.wait() == -signal.SIGKILL
    finished = _trials(out)
    assert len(finished) >= 3
    assert not (out / "result.json").exists()
    assert not (out / "model.onnx").exists()
    result, data = tune(path, out, data=str(tmp_path / "samples.npz"), max_measurements=16)
    assert data["search"]["replayed"] >= 3
    assert _trials(out)[: len(finished)] == finished
    whole, _ = tune(path, tmp_path / "whole", data=str(tmp_path / "samples.npz"), max_measurements=16)
    assert result.model_path.read_bytes() == whole.model_path.read_bytes()
    written = ["model.onnx", "pattern_cache.yaml", "recipe.yaml", "report.html", "result.json", "run.sqlite"]
    assert sorted(p.name for p in out.iterdir()) == written
    assert sorted(p.name for p in (tmp_path / "whole").iterdir()) == written


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_a_baseline_keeps_outliers_from_being_moved_only_with_its_qparams(
    keep: bool, save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever gives a bad Q/DQ model to be beaten still gets what a run without it would find."""
    model = small_model()
    asked: list[int] = []
    path = save(model)
    inlay.quantize(path, tmp_path / "baseline.onnx", target="null", data=samples(model))

    def find(*_: object) -> Smoothed:
        asked.append(0)
        return Smoothed()

    monkeypatch.setattr("inlay.run.preparation.find_scales", find)
    options = {"qdq_baseline": tmp_path / "baseline.onnx", "keep_qparams": keep, "strategy": "anchors"}
    _, data = tune(path, tmp_path / "out", data=samples(model), **options)
    assert data["search"]["imported"]["sites"]["qdq-baseline"] > 0
    assert bool(asked) is not keep


@pytest.mark.exhaustive
def test_a_metric_with_labels(save: SaveModel, tmp_path: Path) -> None:
    model = small_model()
    feeds = samples(model, 12)
    labels = np.array([int(run_reference(model, f)["head_out"].argmax()) for f in feeds])
    _, data = tune(
        save(model), tmp_path / "out", data=feeds, labels=labels, metric="top1", max_drop="50%", min_sqnr=None
    )
    assert data["best"]["metric"] is not None
    assert data["best"]["metric"] >= 0.5
    assert "top1" in data["bound"]


@pytest.mark.exhaustive
def test_two_outputs_names_and_order(save: SaveModel, tmp_path: Path) -> None:
    b = Builder()
    x = b.conv("a", b.input("x", (1, 3, 8, 8)), 4, relu=True)
    b.output(b.conv("z_last", x, 4))
    b.output(x)
    b.output(b.conv("b_first", x, 4))
    model = b.model()
    result, _ = tune(save(model), tmp_path / "out", data=samples(model))
    done = onnx.load(result.model_path)
    assert [o.name for o in done.graph.output] == [o.name for o in model.graph.output]


@pytest.mark.real_model
@pytest.mark.parametrize("name", ["mnist", "ultraface_rfb320_simplified", "g2p_bert"])
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_trained_models(name: str, real_models: Path, tmp_path: Path) -> None:
    """A small budget on the real runtime: valid, inside the bound on unseen samples, no slower than the anchors."""
    source = importlib.import_module("feeds")  # comes with the models
    path = real_models / f"{name}.onnx"
    source.write(name, str(tmp_path / "calibration.npz"), str(tmp_path / "unseen.npz"), limit=12)
    result = inlay.tune(
        path,
        out=tmp_path / "out",
        data=tmp_path / "calibration.npz",
        min_sqnr=12.0,
        max_measurements=4,
        budget=60.0,
    )
    given, done = onnx.load(path), onnx.load(result.model_path)
    check_and_load(done)
    constants = {t.name for t in given.graph.initializer}
    assert [i.name for i in done.graph.input if i.name not in constants] == [
        i.name for i in given.graph.input if i.name not in constants
    ]
    assert [o.name for o in done.graph.output] == [o.name for o in given.graph.output]
    assert hashlib.sha256(result.model_path.read_bytes()).hexdigest() == result.best.output_sha256
    assert result.best.verification is not None
    assert result.best.verification.feasible
    assert result.best.speedup.value >= 0.98
    with np.load(tmp_path / "unseen.npz") as archive:
        rows = {k: archive[k] for k in archive.files}
    noise = signal_ = 0.0
    for i in range(min(len(v) for v in rows.values())):
        feed = {k: v[i] if v[i].ndim == _rank(given, k) else v[i : i + 1] for k, v in rows.items()}
        want, got = run_reference(path, feed), run_reference(result.model_path, feed)
        assert list(want) == list(got)
        worst = min(want, key=lambda k: sqnr(want[k], got[k]))
        noise += float(np.sum((want[worst].astype(np.float64) - got[worst]) ** 2))
        signal_ += float(np.sum(want[worst].astype(np.float64) ** 2))
    assert noise <= signal_ * 10 ** (-0.6), "6 dB below the bound, on samples of other scenes, would be a broken model"


def _rank(model: onnx.ModelProto, name: str) -> int:
    return len(next(i for i in model.graph.input if i.name == name).type.tensor_type.shape.dim)


def _trials(out: Path) -> list[tuple[Any, ...]]:
    db = sqlite3.connect(out / "run.sqlite")
    try:
        return db.execute(
            "SELECT candidate, origin, placement, outcome, accepted FROM trials ORDER BY number"
        ).fetchall()
    finally:
        db.close()


def test_specs_are_plain_data() -> None:
    spec = TargetSpec("null", {"noise": 0.1})
    assert json.loads(json.dumps(spec.options)) == replace(spec).options
