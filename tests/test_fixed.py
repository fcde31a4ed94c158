"""Inputs that are fixed to a value: how they are given, what samples hold of them, and what the written file says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import inlay
from inlay.data import FIXED, fixed_values, input_specs, random_samples, read_samples
from inlay.data.fixing import FixedValues, parse_fixed
from inlay.data.samples import InputSpec
from inlay.errors import DataError, UsageError
from inlay.model.load import load
from inlay.run.call import Given
from inlay.run.inputs import fixable_notes, limit_notes
from inlay.testing import Builder
from tests.support.control_flow import controlled, feed_for
from tests.support.fixtures import SaveModel

SPECS = (
    InputSpec("rate", np.dtype(np.int64), ()),
    InputSpec("on", np.dtype(np.bool_), (1,)),
    InputSpec("scale", np.dtype(np.float32), (2, 2)),
    InputSpec("small", np.dtype(np.uint8), ()),
    InputSpec("x", np.dtype(np.float32), ("batch", 3)),
    InputSpec("large", np.dtype(np.float32), (100, 100)),
)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["rate=16000"], {"rate": 16000}),
        (["rate=-3", "on=true"], {"rate": -3, "on": [True]}),
        (["on=0"], {"on": [False]}),
        (["scale=0.5"], {"scale": [[0.5, 0.5], [0.5, 0.5]]}),
        (["scale=1,2,3,4"], {"scale": [[1.0, 2.0], [3.0, 4.0]]}),
        ({"rate": np.array(8), "scale": np.eye(2)}, {"rate": 8, "scale": [[1.0, 0.0], [0.0, 1.0]]}),
        ([f"rate={2**53 + 1}"], {"rate": 2**53 + 1}),
    ],
)
def test_values(given: FixedValues, found: object) -> None:
    assert parse_fixed(given, SPECS) == found


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (["rate"], "INPUT=VALUE"),
        (["rate=fast"], "INPUT=VALUE"),
        (["rate="], "INPUT=VALUE"),
        (["speed=3"], "no input speed"),
        (["rate=1.5"], "cannot hold"),
        (["small=256"], "cannot hold"),
        (["scale=nan"], "cannot hold"),
        (["rate=1,2"], "takes one number"),
        (["scale=1,2"], "takes 4 numbers"),
        (["x=1"], "--bind batch=N"),
        (["large=0"], "more than"),
        (["rate=1", "rate=2"], "already"),
        ({"rate": "16000"}, "takes one number"),
    ],
)
def test_values_that_an_input_does_not_take(given: FixedValues, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        parse_fixed(given, SPECS)


@pytest.mark.parametrize("entry", ["not JSON", "[1]", '{"mode0": "text"}', '{"mode0": [1, 2]}', '{"other": 1}'])
def test_metadata_of_other_tools_fixes_nothing(entry: str, save: SaveModel) -> None:
    model = controlled(0, ("if",), ("mode",))
    onnx.helper.set_model_props(model, {FIXED: entry})
    assert all(s.fixed is None for s in input_specs(load(save(model)).model))


def test_samples_need_not_hold_it_and_must_not_contradict_it(save: SaveModel, tmp_path: Path) -> None:
    path, feeds = save(controlled(0, ("if",), ("mode",))), [feed_for(seed, mode0=1) for seed in range(3)]
    given = Given.read(path, [{k: v for k, v in f.items() if k != "mode0"} for f in feeds], (), fix=["mode0=1"])
    assert given.samples is not None
    assert [int(f["mode0"]) for f in given.samples.feeds] == [1, 1, 1]
    assert int(random_samples(given.specs, np.random.default_rng(0), 1).feeds[0]["mode0"]) == 1
    stacked = {"x": np.stack([f["x"] for f in feeds]), "mode1": np.ones(3, np.int64)}
    np.savez(tmp_path / "s.npz", **stacked)
    assert len(read_samples(tmp_path / "s.npz", given.specs)) == 3
    with pytest.raises(DataError, match="sample 0: input mode0 is 1, but the model is for 0 only"):
        Given.read(path, feeds, (), fix={"mode0": 0})
    with pytest.raises(DataError, match="mode1"):
        Given.read(path, [{"x": feeds[0]["x"]}], (), fix=["mode0=1"])


def test_the_written_file_keeps_the_input_and_says_what_it_is(save: SaveModel, tmp_path: Path) -> None:
    """It runs whatever is fed, as the given model does with the value; another run on it refuses other values."""
    path, feeds = save(controlled(0, ("if",), ("mode",))), [feed_for(seed) for seed in range(4)]
    out = tmp_path / "q.onnx"
    done = inlay.quantize(path, out, data=feeds, fix=["mode0=0", "mode1=1"], recipe="full-int8", min_sqnr=5.0)
    assert any("mode0=0, mode1=1 only" in note for note in done.inputs)
    model = onnx.load(out)
    assert json.loads({p.key: p.value for p in model.metadata_props}[FIXED]) == {"mode0": 0, "mode1": 1}
    assert "If" not in {n.op_type for n in model.graph.node}
    session = ort.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    assert [i.name for i in session.get_inputs()] == ["x", "mode0", "mode1"]
    same, other = session.run(None, feeds[0]), session.run(None, feed_for(0, 1, 0))
    for a, b in zip(same, other, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(DataError, match="for 0 only"):
        Given.read(out, [feed_for(0, mode0=1)], ())
    with pytest.raises(UsageError, match="was written for mode0=0"):
        Given.read(out, None, (), fix=["mode0=1"])


def test_an_input_that_never_varies_is_suggested(save: SaveModel) -> None:
    path = save(controlled(0, ("if",), ("mode",)))
    same = Given.read(path, [feed_for(0), feed_for(1)], ())
    assert same.samples is not None
    notes = fixable_notes(same.file, same.samples)
    assert notes
    assert all("--fix mode" in note for note in notes)
    name = notes[0].partition("--fix ")[2].partition("=")[0]
    varied = Given.read(path, [feed_for(0), {**feed_for(1), name: np.array(7, np.int64)}], ())
    assert varied.samples is not None
    assert not [n for n in fixable_notes(varied.file, varied.samples) if f"--fix {name}=" in n]
    fixed = Given.read(path, [feed_for(0)], (), fix=["mode0=0", "mode1=1"])
    assert fixed.samples is not None
    assert not fixable_notes(fixed.file, fixed.samples)
    assert not [*limit_notes(same.file, "")]
    assert fixed_values(fixed.file.model) == {"mode0": 0, "mode1": 1}


def asks_for_its_size() -> onnx.ModelProto:
    """A convolution, and an If that asks how many rows its results have, as exporters write what squeezes one axis."""
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, "rows", 8)), 8)
    rows = b.node("rows", "Gather", [b.node("shape", "Shape", [x]), b.constant("second", np.array(2))])
    flag = b.node("one", "Equal", [rows, b.constant("single", np.array(1))])
    bodies = [
        helper.make_graph(
            [helper.make_node(op, [x], [op])], op, [], [helper.make_tensor_value_info(op, onnx.TensorProto.FLOAT, None)]
        )
        for op in ("Sigmoid", "Relu")
    ]
    b.output(b.node("choice", "If", [flag], then_branch=bodies[0], else_branch=bodies[1]))
    return b.model()


def test_sizes_that_alone_decide_branches_are_suggested(save: SaveModel, tmp_path: Path) -> None:
    path, rng = save(asks_for_its_size()), np.random.default_rng(0)

    def quantized(rows: tuple[int, ...], freeze: bool) -> tuple[list[str], set[str]]:
        data = [{"x": rng.standard_normal((1, 3, n, 8)).astype(np.float32)} for n in rows]
        done = inlay.quantize(
            path, tmp_path / "q.onnx", data=data, freeze_shapes=freeze, recipe="full-int8", min_sqnr=5.0
        )
        kinds = {n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node}
        return [n for n in done.inputs if "--freeze-shapes" in n], kinds

    (note,), kinds = quantized((6, 6), freeze=False)
    assert note.startswith("1 If is decided in each inference, by sizes alone, and rows=6 is the same in all samples")
    assert "If" in kinds
    assert not quantized((6, 7), freeze=False)[0], "the size varies"
    notes, kinds = quantized((6, 6), freeze=True)
    assert not notes
    assert "If" not in kinds
