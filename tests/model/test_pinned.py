"""Random operators draw the same numbers wherever outputs are compared, and theirs wherever a model is delivered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from inlay.data import Feed, save_feed
from inlay.measure.client import Worker
from inlay.model.native import NativeSession
from inlay.model.pinned import pinned, random_operators
from inlay.targets.base import Artifact, TargetSpec
from inlay.testing import Builder, run_reference
from tests.support.speech import sentences, voice


def drawing(op_type: str, opset: int, **attributes: Any) -> onnx.ModelProto:
    """One random operator on, or in the shape of, an input of 40 x 50 numbers of 0.25."""
    b = Builder(opset=opset)
    x = b.input("x", (40, "columns"))
    inputs = [x] if op_type.endswith("Like") or op_type == "Bernoulli" else []
    for name in ("y", "z"):
        b.output(b.node(name, op_type, inputs, [name], **attributes), int(attributes.get("dtype", TensorProto.FLOAT)))
    return b.model()


def twice(model: onnx.ModelProto, feed: Feed) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Outputs of two runs of one session: in a new one the runtime draws what it drew first in the last."""
    session = NativeSession(model.SerializeToString(), None, True, 1)
    return session.run(feed), session.run(feed)


@pytest.mark.parametrize("opset", [11, 15, 17])
@pytest.mark.parametrize(
    ("op_type", "attributes", "mean", "deviation"),
    [
        ("RandomNormalLike", {}, 0.0, 1.0),
        ("RandomNormalLike", {"mean": 3.0, "scale": 0.5, "dtype": TensorProto.DOUBLE}, 3.0, 0.5),
        ("RandomNormal", {"shape": [40, 50], "mean": -1.0}, -1.0, 1.0),
        ("RandomUniformLike", {"low": 2.0, "high": 4.0}, 3.0, 2 / 12**0.5),
        ("RandomUniform", {"shape": [2000]}, 0.5, 1 / 12**0.5),
        ("Bernoulli", {}, 0.25, (0.25 * 0.75) ** 0.5),
    ],
)
def test_what_is_drawn_is_distributed_as_asked_for_and_the_same_each_time(
    opset: int, op_type: str, attributes: dict[str, Any], mean: float, deviation: float
) -> None:
    """In the type and shape that the runtime gives; negative control: the model itself draws others each time."""
    if op_type == "Bernoulli" and opset < 15:
        pytest.skip("there is none")
    model = drawing(op_type, opset, **attributes)
    feed = {"x": np.full((40, 50), 0.25, np.float32)}
    own, again = twice(model, feed)
    assert not np.array_equal(own["y"], again["y"])
    fixed = pinned(model)
    onnx.shape_inference.infer_shapes(fixed, check_type=True, strict_mode=True)
    found, same = twice(fixed, feed)
    for name, array in found.items():
        assert np.array_equal(array, same[name])
        assert (array.shape, array.dtype) == (own[name].shape, own[name].dtype)
        assert array.mean() == pytest.approx(mean, abs=5 * deviation / array.size**0.5)
        assert array.std() == pytest.approx(deviation, rel=0.1)
    assert np.corrcoef(found["y"].ravel(), found["z"].ravel())[0, 1] == pytest.approx(0.0, abs=0.12)
    assert random_operators(model.graph) == {op_type: 2}
    assert not random_operators(fixed.graph)


@pytest.mark.parametrize("opset", [11, 13, 17])
@pytest.mark.parametrize("dtype", [TensorProto.INT32, TensorProto.INT64])
def test_classes_are_drawn_by_their_scores(opset: int, dtype: int) -> None:
    """As the runtime draws them, by their frequencies, and the same each time."""
    b = Builder(opset=opset)
    scores = np.log(np.array([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]], np.float32))
    x = b.input("x", ("batch", 4))
    b.output(b.node("y", "Multinomial", [x], ["y"], sample_size=4000, dtype=dtype), dtype)
    fixed = pinned(b.model())
    assert not random_operators(fixed.graph)
    found, same = twice(fixed, {"x": scores})
    own, _ = twice(b.model(), {"x": scores})
    assert np.array_equal(found["y"], same["y"])
    assert (found["y"].shape, found["y"].dtype) == (own["y"].shape, own["y"].dtype)
    for y in (found["y"], own["y"]):
        shares = np.stack([np.bincount(row, minlength=4) / 4000 for row in y])
        assert np.abs(shares - np.exp(scores)).max() < 0.03


@pytest.mark.parametrize("training", [True, False, None])
def test_a_dropout_in_training_drops_the_same_elements(training: bool | None) -> None:
    """None: by an input. One that is told not to train draws nothing; negative control: one that trains does."""
    b = Builder(opset=17)
    x, ratio = b.input("x", (60, 50)), b.constant("ratio", np.float32(0.25))
    b.output(b.node("y", "Dropout", [x, ratio, b.input("on", (), TensorProto.BOOL)], ["y"]))
    model = b.model()
    if training is not None:
        model.graph.initializer.append(numpy_helper.from_array(np.array(training), "on"))
        del model.graph.input[1]
    feed: Feed = {"x": np.ones((60, 50), np.float32)}
    feed |= {"on": np.array(True)} if training is None else {}
    fixed = pinned(model)
    if training is False:
        assert fixed is model
        return
    own, again = twice(model, feed)
    assert not np.array_equal(own["y"], again["y"])
    found, same = twice(fixed, feed)
    assert np.array_equal(found["y"], same["y"])
    assert set(np.unique(found["y"]).tolist()) == set(np.unique(own["y"]).tolist())
    assert (found["y"] == 0).mean() == pytest.approx(0.25, abs=0.04)
    if training is None:
        assert np.array_equal(twice(fixed, feed | {"on": np.array(False)})[0]["y"], feed["x"])


def test_nothing_and_single_numbers_are_drawn_too() -> None:
    b = Builder()
    b.output(b.node("y", "RandomNormalLike", [b.input("x", ("rows", 3))], ["y"]))
    b.output(b.node("s", "RandomNormalLike", [b.constant("one", 1.0)], ["s"]))
    fixed = pinned(b.model())
    for rows in (0, 1, 4):
        found = run_reference(fixed, {"x": np.zeros((rows, 3), np.float32)})
        assert found["y"].shape == (rows, 3)
        assert found["s"].shape == ()


@pytest.mark.parametrize("opset", [11, 13, 14, 17])
@pytest.mark.parametrize("shape", [(2, 0, 3), (0,), (2, 3, 0), (0, 0), (2, 1, 3), ()])
def test_shapes_that_hold_nothing_are_drawn_in_every_opset(opset: int, shape: tuple[int, ...]) -> None:
    b = Builder(opset=opset)
    x = b.input("x", [f"d{axis}" for axis in range(len(shape))])
    b.output(b.node("y", "RandomUniformLike", [x], ["y"]))
    b.output(b.node("z", "RandomNormal", [], ["z"], shape=list(shape or (1,))))
    fixed = pinned(b.model())
    assert not random_operators(fixed.graph)
    found, _ = twice(fixed, {"x": np.zeros(shape, np.float32)})
    assert found["y"].shape == shape
    assert found["z"].shape == (shape or (1,))


def test_a_branch_is_pinned_and_a_model_that_draws_nothing_is_left_alone() -> None:
    def branch(name: str, op_type: str) -> onnx.GraphProto:
        node = helper.make_node(op_type, ["x"], [name])
        return helper.make_graph([node], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, [5])])

    b = Builder()
    b.input("x", (5,))
    on = b.input("on", (), TensorProto.BOOL)
    branches: dict[str, Any] = {
        "then_branch": branch("noise", "RandomNormalLike"),
        "else_branch": branch("plain", "Identity"),
    }
    b.output(b.node("y", "If", [on], ["y"], **branches))
    feed = {"x": np.zeros(5, np.float32), "on": np.array(True)}
    fixed = pinned(b.model())
    first, second = (outputs["y"] for outputs in twice(fixed, feed))
    assert np.array_equal(first, second)
    assert first.any()
    plain = voice()
    assert pinned(plain) is plain


def test_a_worker_draws_the_same_in_every_model_and_file(tmp_path: Path) -> None:
    """Also where weights lie beside the model, and after the first model was dropped."""
    model = voice(noise=0.5)
    onnx.save(model, tmp_path / "whole.onnx")
    (tmp_path / "apart").mkdir()
    onnx.save(model, tmp_path / "apart/m.onnx", save_as_external_data=True, location="m.data", size_threshold=256)
    (tmp_path / "work").mkdir()
    save_feed(tmp_path / "feed.npz", sentences(1)[0])
    files = [Artifact(tmp_path / "whole.onnx", "a" * 64), Artifact(tmp_path / "apart/m.onnx", "b" * 64)]
    found = []
    with Worker(TargetSpec("ort-cpu"), tmp_path / "work") as worker:
        for _ in range(2):
            for file in files:
                (outputs,) = worker.run(file, [tmp_path / "feed.npz"])
                found.append(next(iter(outputs.values())))
                worker.drop(file)
    assert all(np.array_equal(found[0], other) for other in found[1:])
    assert not list((tmp_path / "work").glob("pinned-*")), "twins go with their models"


def test_a_model_that_is_dropped_keeps_its_file(tmp_path: Path) -> None:
    """Under whatever object it is dropped: only what a worker made itself is removed."""
    for name, model in (("plain", voice()), ("noisy", voice(noise=0.5))):
        (tmp_path / name).mkdir()
        onnx.save(model, tmp_path / name / "m.onnx")
        (tmp_path / name / "work").mkdir()
        save_feed(tmp_path / name / "feed.npz", sentences(1)[0])
        with Worker(TargetSpec("null"), tmp_path / name / "work") as worker:
            for _ in range(2):
                worker.run(Artifact(tmp_path / name / "m.onnx", "a" * 64), [tmp_path / name / "feed.npz"])
                worker.drop(Artifact(tmp_path / name / "m.onnx", "a" * 64))
        assert {p.name for p in (tmp_path / name).iterdir()} == {"m.onnx", "feed.npz", "work"}
        assert not any((tmp_path / name / "work").glob("pinned-*"))
