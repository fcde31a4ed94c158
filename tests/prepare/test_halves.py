"""Which units stay in float32 beside half precision: planted faults are found, by what the samples show of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import inlay
from inlay import TuneOptions
from inlay.errors import UsageError
from inlay.model.passes.half import rounded_halves
from inlay.prepare.halves import find_wide, keep_wide, measure
from inlay.targets.base import Capabilities, TargetSpec
from inlay.targets.tensorrt.rules import RULES
from inlay.testing import Builder, run_reference, sqnr
from inlay.types import QType
from tests.support.workspace import Workspace


def prepared_on(model: onnx.ModelProto, folder: Path, base: str, *arrays: np.ndarray) -> Workspace:
    feeds = tuple({"x": a} for a in arrays)
    return Workspace(model, folder, Capabilities(RULES.on_base(base)), feeds=feeds)


def planted(scale: float) -> onnx.ModelProto:
    """A LayerNorm as exporters write it, behind a product whose size ``scale`` decides, and a Softmax."""
    b = Builder(seed=1)
    x = b.input("x", (1, 16, 64))
    rng = np.random.default_rng(0)
    h = b.node("product", "MatMul", [x, b.constant("w", (rng.normal(size=(64, 64)) * scale).astype(np.float32))])
    mean = b.node("mean", "ReduceMean", [h], axes=[-1])
    centered = b.node("centered", "Sub", [h, mean])
    square = b.node("square", "Mul", [centered, centered])
    variance = b.node("variance", "ReduceMean", [square], axes=[-1])
    shifted = b.node("shifted", "Add", [variance, b.constant("eps", np.array(1e-5, np.float32))])
    normal = b.node("normal", "Div", [centered, b.node("root", "Sqrt", [shifted])])
    b.output(b.node("softmax", "Softmax", [normal], axis=-1))
    return b.model()


def some(count: int = 4) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.normal(size=(1, 16, 64)).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize(
    ("scale", "overflows"),
    [
        (0.1, set()),  # the control: the same operators where their numbers are small
        (2.5, {"variance"}),  # the squares fit, and their mean; the sum that it is made of does not
        (60.0, {"square", "variance", "shifted", "root"}),
    ],
)
def test_a_planted_overflow_is_found_by_its_numbers(scale: float, overflows: set[str], tmp_path: Path) -> None:
    space = prepared_on(planted(scale), tmp_path, "fp16", *some())
    found = find_wide(space.prepared, space.feeds, 20.0)
    assert found.keys() == overflows
    assert all("its numbers reach" in reason and "fp16 ends at 65504" in reason for reason in found.values())
    assert not find_wide(prepared_on(planted(scale), tmp_path / "b", "bf16", *some()).prepared, space.feeds, 20.0)
    kept = keep_wide(space.prepared, found)
    assert kept.kept_wide == found
    placement = kept.label({u.name: "fp16" for u in kept.units if "fp16" in u.forms})
    assert {p.node for p, _ in placement}.isdisjoint(found)
    written = rounded_halves(space.emit(placement))
    for feed in space.feeds:
        want, got = (run_reference(m, feed)["softmax_out"] for m in (planted(scale), written))
        assert sqnr(want, got) > 40.0
    everything = space.emit(space.prepared.label({u.name: "fp16" for u in space.prepared.units}))
    spoiled = run_reference(rounded_halves(everything), feed)["softmax_out"]
    assert bool(overflows - {"variance"}) == (not sqnr(want, spoiled) > 40.0)  # a sum's overflow no result shows


def test_what_only_the_outputs_show_is_found_there(tmp_path: Path) -> None:
    """Numbers that halves do not tell from 0 are nothing beside the others, until somebody takes their logarithm."""
    b = Builder(seed=1)
    x = b.input("x", (1, 256))
    small = b.node("small", "Mul", [x, x])
    sure = b.node("sure", "Add", [small, b.constant("least", np.array(1e-9, np.float32))])
    b.output(b.node("log", "Log", [sure]))
    x = np.concatenate([np.full(250, 1e-4), np.ones(6)]).astype(np.float32)[None]
    space = prepared_on(b.model(), tmp_path, "fp16", x)
    losses = measure(space.prepared, space.prepared.units, space.feeds, QType.FP16)
    assert losses["small"].reason(QType.FP16) == ""
    found = find_wide(space.prepared, space.feeds, 20.0)
    assert set(found) == {"small", "sure", "log"}
    assert found["small"].startswith("with it in fp16 the outputs keep")


def digits(folder: Path) -> tuple[Path, Path]:
    """A small classifier, and samples."""
    b = Builder(seed=4)
    x = b.conv("first", b.input("x", (1, 3, 8, 8)), 8, 3, relu=True)
    x = b.conv("second", x, 8, 3, relu=True)
    b.output(b.node("gate", "Cos", [b.conv("third", x, 4, 1)]))
    folder.mkdir(exist_ok=True)
    (folder / "m.onnx").write_bytes(b.model().SerializeToString())
    data = np.random.default_rng(0).normal(size=(24, 3, 8, 8)).astype(np.float32)
    np.savez(folder / "x.npz", x=data)
    return folder / "m.onnx", folder / "x.npz"


@pytest.mark.exhaustive
def test_a_search_over_half_precision_from_end_to_end(tmp_path: Path) -> None:
    model, data = digits(tmp_path)
    target = TargetSpec("null", {"half": True})
    common = TuneOptions(data=data, max_measurements=9, min_sqnr=20.0)
    found = inlay.tune(model, common, target=target, out=tmp_path / "run")
    usual = {"full-int8, minmax ranges", "full-int8, entropy ranges"}  # as NVIDIA's tool would calibrate
    assert {"float", "full-int8", "fp16"} | usual <= {a.name for a in found.anchors}
    plain = inlay.tune(model, common, target=target, out=tmp_path / "plain", base="fp32")
    assert "fp16" not in {a.name for a in plain.anchors}
    delivered = onnx.load(found.model_path)
    assert onnx.TensorProto.FLOAT16 in {t.data_type for t in delivered.graph.initializer}


def test_a_base_that_the_target_lacks_is_refused_in_one_line(tmp_path: Path) -> None:
    model, data = digits(tmp_path)
    with pytest.raises(UsageError, match="--base fp16: this target has no kernels in it; give auto or fp32"):
        inlay.quantize(model, tmp_path / "q.onnx", data=data, base="fp16")
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.exhaustive
def test_quantize_on_a_base(tmp_path: Path) -> None:
    """What is not quantized computes in halves; a recipe may keep it in float32."""
    model, data = digits(tmp_path)
    target = TargetSpec("null", {"half": True})
    inlay.quantize(model, tmp_path / "q.onnx", data=data, recipe="full-int8", target=target)
    written = onnx.load(tmp_path / "q.onnx")
    gate = next(n for n in written.graph.node if n.op_type == "Cos")
    assert gate.output[0].endswith("_fp16")
    inlay.quantize(model, tmp_path / "w.onnx", data=data, recipe="full-int8", target=target, base="fp32")
    assert "Cast" not in {n.op_type for n in onnx.load(tmp_path / "w.onnx").graph.node}


@pytest.mark.exhaustive
def test_what_stays_in_float32_is_told(tmp_path: Path) -> None:
    """By the result of a search and by an explanation, with the numbers that decided."""
    (tmp_path / "m.onnx").write_bytes(planted(60.0).SerializeToString())
    np.savez(tmp_path / "x.npz", x=np.concatenate(some(24)))
    target = TargetSpec("null", {"half": True})
    asked = TuneOptions(data=tmp_path / "x.npz", max_measurements=5, strategy="anchors")
    result = inlay.tune(tmp_path / "m.onnx", asked, target=target, out=tmp_path / "run")
    (note,) = [n for n in result.notes if "stay in fp32 beside fp16" in n]
    assert "square (Mul): its numbers reach" in note
    assert "fp16 ends at 65504" in note
    found = inlay.explain(tmp_path / "m.onnx", target=target, data=tmp_path / "x.npz")
    assert [n for n in found.notes if "square (Mul): its numbers reach" in n]
