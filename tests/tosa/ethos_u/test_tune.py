"""What tune returns for an Ethos-U never costs more, host included, than full INT8 or float on the host."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.tosa.float_models import SIDE, FloatNet, generated, samples, unseen

pytest.importorskip("ethosu")

import inlay
from inlay.errors import RunFailed
from inlay.targets import registry
from inlay.targets.base import Artifact, TargetSpec
from inlay.tosa import ir, oracle
from inlay.tosa.ethos_u.target import EthosUExecutable
from inlay.tosa.ir import Array
from inlay.tosa.reference import LoweredRunner

TARGET = "ethos-u55-128"


def net(kind: str) -> onnx.ModelProto:
    """A digits-sized net; ``host`` has an operator that only the host runs, ``shared`` a Concat of unlike branches."""
    n = FloatNet(7, (1, 1, 14, 14))
    y = n.op("MaxPool", [n.op("Relu", [n.conv("x", 1, 8)])], kernel_shape=[2, 2], strides=[2, 2])
    if kind == "host":
        y = n.op("CumSum", [y, n.const(np.array(1, np.int64))])
    if kind == "shared":
        y = n.op("Concat", [n.op("Relu", [n.conv(y, 8, 8)]), n.conv(y, 8, 8)], axis=1)
    y = n.op("Relu", [n.conv(y, 16 if kind == "shared" else 8, 8)])
    return n.model({n.linear(n.op("Flatten", [y]), 8 * 49, 10): [1, 10]})


def total_cost(path: Path) -> int:
    """Nanoseconds of NPU, host and crossings, as the target itself estimates them for a file."""
    return int(compiled(path).time({}, 1)[0])


def compiled(path: Path) -> EthosUExecutable:
    executable = registry.create(TargetSpec(TARGET)).compile(Artifact(path, path.name))
    assert isinstance(executable, EthosUExecutable)
    return executable


@pytest.mark.parametrize("kind", ["plain", "shared", "host"])
@pytest.mark.matrix
def test_tune_never_costs_more_than_full_int8_or_float_on_the_host(tmp_path: Path, kind: str) -> None:
    onnx.save(net(kind), tmp_path / "m.onnx")
    rng = np.random.default_rng(3)
    data = [{"x": rng.standard_normal((1, 1, 14, 14)).astype(np.float32)} for _ in range(6)]
    result = inlay.tune(
        tmp_path / "m.onnx", out=tmp_path / "out", target=TARGET, data=data, no_bound=True, max_measurements=10
    )
    inlay.quantize(tmp_path / "m.onnx", tmp_path / "full.onnx", target=TARGET, data=data)
    best = total_cost(result.model_path)
    full, on_host = total_cost(tmp_path / "full.onnx"), total_cost(tmp_path / "m.onnx")
    anchors = {a.name: a.as_json()["latency_ms"] for a in result.anchors}
    assert anchors["full-int8"] * 1e6 == pytest.approx(full, rel=0.01), "the stored weights differ in a few integers"
    assert best <= on_host
    assert full < on_host
    assert abs(best - result.best.latency_ms * 1e6) <= 1
    assert result.best.latency_ms <= min(anchors.values())
    if kind == "host":
        assert best > total_cost_without_host(tmp_path)


def total_cost_without_host(folder: Path) -> int:
    """The net without its host operator, in full INT8: the host and two crossings come on top of that."""
    onnx.save(net("plain"), folder / "plain.onnx")
    data = [{"x": np.random.default_rng(3).standard_normal((1, 1, 14, 14)).astype(np.float32)}]
    inlay.quantize(folder / "plain.onnx", folder / "plain_full.onnx", target=TARGET, data=data)
    return total_cost(folder / "plain_full.onnx")


def tuned(
    model: onnx.ModelProto, folder: Path, count: int = 6, **settings: Any
) -> tuple[inlay.TuneResult, dict[str, Any]]:
    """Tune a float model, check what every run promises, and return the result and its JSON."""
    onnx.save(model, folder / "m.onnx")
    data = samples(count)
    result = inlay.tune(folder / "m.onnx", out=folder / "out", target=TARGET, data=data, **settings)
    best = total_cost(result.model_path)
    inlay.quantize(folder / "m.onnx", folder / "full.onnx", target=TARGET, data=data, recipe="full-int8")
    report = json.loads((folder / "out" / "result.json").read_text())
    anchors = {a["name"]: a for a in report["anchors"]}
    allowed = [a["latency_ms"] for a in anchors.values() if a["feasible"]]
    if not any("its bound is not shown" in note for note in report["notes"]):  # else that is what was faster
        assert best <= min(allowed) * 1e6 + 1
    assert best <= total_cost(folder / "m.onnx")
    if anchors["full-int8"]["feasible"]:
        assert anchors["full-int8"]["latency_ms"] <= total_cost(folder / "full.onnx") / 1e6 * 1.001
    assert report["best"]["latency_ms"] == pytest.approx(best / 1e6, rel=1e-6)
    assert report["best"]["speedup"] == pytest.approx(report["baseline"]["latency_ms"] / report["best"]["latency_ms"])
    assert report["target"]["facts"]["kind"] == "estimate"
    return result, report


@pytest.mark.exhaustive
def test_an_unseen_model(tmp_path: Path) -> None:
    result, report = tuned(unseen(), tmp_path, count=24, max_measurements=12)
    assert not report["best"]["is_float"]
    assert report["best"]["sqnr_db"] >= 20
    assert report["best"]["speedup"] > 5
    executable = compiled(result.model_path)
    assert "tosa" in [p.kind for p in executable.lowered.partitions]  # the host may well be faster at the last softmax
    for feed in samples(3, seed=99):
        exact = LoweredRunner(executable.lowered).run(feed)
        for ours, theirs in zip(executable.run(feed).values(), exact, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_generated_models_never_cost_more(seed: int, tmp_path: Path) -> None:
    tuned(generated(seed), tmp_path, no_bound=seed % 2 == 0, max_measurements=8)


@pytest.mark.exhaustive
def test_a_result_that_the_reference_model_contradicts_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast arithmetic is checked while it is used: a wrong step becomes an error."""
    onnx.save(unseen(), tmp_path / "m.onnx")
    inlay.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", target=TARGET, data=samples(3))
    executable = compiled(tmp_path / "q.onnx")
    feed = {"x": np.zeros((1, 3, SIDE, SIDE), np.float32)}
    right = oracle.evaluate

    def wrong(op: ir.Op, args: Sequence[Array], tensors: Mapping[str, ir.Tensor]) -> Array:
        return np.asarray(right(op, args, tensors) + 1000 * isinstance(op, ir.Conv2d))

    monkeypatch.setattr(oracle, "evaluate", wrong)
    with pytest.raises(RunFailed, match="differs between numpy and the TOSA reference model"):
        executable.run(feed)
