"""Dimensions that the user fixes: shapes become constants, and the outputs stay what they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from benchmarks.simulated import Clock, simulated
from onnx import TensorProto

import inlay
from inlay.data import Samples
from inlay.model.load import load
from inlay.model.normalize import Normalized
from inlay.prepare.config import TuneConfig
from inlay.prepare.model import prepare
from inlay.run.inputs import TuneRequest
from inlay.run.select import Wish, select
from inlay.run.tune import tune
from inlay.targets.base import Capabilities, TargetSpec
from inlay.targets.null import NullTarget
from inlay.testing import Builder
from tests.support.fixtures import SaveModel
from tests.support.texts import encoder, texts

ARITHMETIC = {"Shape", "Slice", "Concat", "Unsqueeze", "ConstantOfShape", "Range", "Expand"}


def frozen(path: Path, feed: Mapping[str, np.ndarray], folder: Path, **sizes: int) -> Normalized:
    folder.mkdir()
    return prepare(load(path), Capabilities.of(NullTarget()), feed, folder, sizes=sizes).normalized


def outputs(model: ir.Model | Path, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    data = str(model) if isinstance(model, Path) else ir.to_proto(model).SerializeToString()
    session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    return [np.asarray(y) for y in session.run(None, dict(feed))]


def kinds(model: ir.Model) -> Counter[str]:
    return Counter(n.op_type for n in model.graph)


def dims(model: ir.Model) -> list[list[int | str | None]]:
    return [[d if isinstance(d, int) else d.value for d in i.shape or ()] for i in model.graph.inputs]


def test_nothing_that_computes_shapes_is_left(tmp_path: Path, save: SaveModel) -> None:
    path, (feed,) = save(encoder()), texts([9])
    before = frozen(path, feed, tmp_path / "a")
    after = frozen(path, feed, tmp_path / "b", batch=1, length=9)
    assert {"Shape", "Slice", "Concat"} < kinds(before.model).keys(), "the negative control"
    assert kinds(after.model).keys() & ARITHMETIC == {"Unsqueeze"}, "that of the mask, which is data"
    assert kinds(after.model)["Gather"] == 2, "the table of words, and the first row"
    assert dims(after.model) == [[1, 9], [1, 9]]
    assert after.model.metadata_props["inlay.frozen"] == "batch=1, length=9"
    assert all(
        np.allclose(a, b, atol=1e-5) for a, b in zip(outputs(path, feed), outputs(after.model, feed), strict=True)
    )


def test_one_dimension_is_fixed_and_the_other_stays_free(tmp_path: Path, save: SaveModel) -> None:
    path, feeds = save(encoder()), texts([9, 23])
    after = frozen(path, feeds[0], tmp_path / "a", batch=1)
    assert dims(after.model) == [[1, "length"], [1, "length"]]
    assert kinds(after.model)["Gather"] == 3, "of the two that read a shape one is left"
    for feed in feeds:
        assert all(
            np.allclose(a, b, atol=1e-5) for a, b in zip(outputs(path, feed), outputs(after.model, feed), strict=True)
        )


@pytest.mark.parametrize("form", ["range", "filled", "expanded", "part", "sliced"])
def test_what_follows_from_a_shape_is_computed_once(tmp_path: Path, save: SaveModel, form: str) -> None:
    b = Builder(opset=17)
    x = b.input("x", ("batch", "length", 4))
    length = b.node("length", "Gather", [b.node("shape", "Shape", [x]), b.constant("one", np.array(1))])
    row = b.constant("row", np.arange(4, dtype=np.float32))
    first = b.constant("first", np.array([0]))
    column = b.node("column", "Unsqueeze", [length, first])
    four = b.constant("four", np.array([4]))
    if form == "range":
        counted = b.node("counted", "Range", [b.constant("zero", np.array(0)), length, b.constant("step", np.array(1))])
        added = b.node(
            "wide", "Unsqueeze", [b.node("float", "Cast", [counted], to=1), b.constant("last", np.array([-1]))]
        )
    elif form == "filled":
        value = onnx.helper.make_tensor("v", TensorProto.FLOAT, [1], [3.0])
        added = b.node("filled", "ConstantOfShape", [b.node("target", "Concat", [column, four], axis=0)], value=value)
    elif form == "expanded":
        added = b.node("expanded", "Expand", [row, b.node("target", "Concat", [column, four], axis=0)])
    elif form == "part":
        part = b.node("part", "Shape", [x], start=1, end=2)
        added = b.node("expanded", "Expand", [row, b.node("target", "Concat", [part, four], axis=0)])
    else:
        ends = [b.constant("from", np.array([-2])), b.constant("to", np.array([2**62]))]
        added = b.node("expanded", "Expand", [row, b.node("target", "Slice", ["shape_out", *ends])])
    b.output(b.node("y", "Add", [x, added]))
    path = save(b.model())
    feed = {"x": np.random.default_rng(0).standard_normal((2, 5, 4)).astype(np.float32)}
    for number, sizes in enumerate(({"length": 5}, {"batch": 2, "length": 5})):
        after = frozen(path, feed, tmp_path / str(number), **sizes)
        assert kinds(after.model).keys() == {"Add"}, sizes
        assert np.array_equal(outputs(after.model, feed)[0], outputs(path, feed)[0])


def test_sizes_that_the_samples_do_not_have_are_rolled_back(tmp_path: Path, save: SaveModel) -> None:
    path, (feed,) = save(encoder()), texts([9])
    after = frozen(path, feed, tmp_path / "a", length=8)
    (report,) = [r for r in after.reports if r.name == "fix dynamic dimensions"]
    assert report.rolled_back
    assert dims(after.model) == [["batch", "length"]] * 2
    assert "inlay.frozen" not in after.model.metadata_props


@pytest.mark.exhaustive
def test_quantize_fixes_what_never_varies_or_is_bound(tmp_path: Path, save: SaveModel) -> None:
    path = save(encoder())
    for name, lengths, more, sizes, text in (
        ("same", [9] * 4, {"freeze_shapes": True}, [1, 9], "batch=1, length=9"),
        ("vary", [9, 12, 7, 9], {"freeze_shapes": True}, [1, "length"], "batch=1"),
        ("bound", [9] * 4, {"bind": {"length": 9}}, ["batch", 9], "length=9"),
        ("free", [9] * 4, {}, ["batch", "length"], ""),
    ):
        done = inlay.quantize(path, tmp_path / f"{name}.onnx", data=texts(lengths), recipe="dynamic", **more)
        written = ir.load(tmp_path / f"{name}.onnx")
        assert dims(written) == [sizes, sizes]
        assert (done.frozen, written.metadata_props.get("inlay.frozen", "")) == (text, text)


@pytest.mark.exhaustive
def test_a_run_says_it_and_another_model_of_it_is_fixed_as_well(tmp_path: Path, save: SaveModel) -> None:
    samples = Samples(tuple(texts([9] * 6)), "feeds", "test")
    config = TuneConfig(
        target=TargetSpec("null"), bind={"batch": 1}, freeze_shapes=True, budget_s=None, max_measurements=4
    )
    lab = simulated(NullTarget(), Clock())
    result = tune(
        TuneRequest(file=load(save(encoder())), out=tmp_path / "out", samples=samples, config=config, lab=lab)
    )
    assert any("no sizes other than batch=1, length=9" in note for note in result.notes)
    assert dims(ir.load(result.model_path)) == [[1, 9], [1, 9]]
    select(tmp_path / "out", tmp_path / "other.onnx", Wish(min_sqnr_db=10.0))
    assert dims(ir.load(tmp_path / "other.onnx")) == [[1, 9], [1, 9]]
