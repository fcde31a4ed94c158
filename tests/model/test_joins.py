"""Which elements of outputs come from which joined value: by moving marked numbers through the model itself."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from inlay.errors import RunFailed
from inlay.model import joins
from inlay.model.joins import joins_of
from inlay.testing import run_reference
from tests.support.detectors import MAKES, Make, detector

SHAPES = {"a": [1, 4, 6, 6], "b": [1, 2, 6, 6], "c": [1, 3, 6, 6]}


def _model(tail: Callable[[Callable[..., str]], str], constants: dict[str, np.ndarray]) -> onnx.ModelProto:
    nodes: list[onnx.NodeProto] = []

    def add(op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        names = [f"v{len(nodes)}_{i}" for i in range(outputs)]
        nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[-1]

    last = tail(add)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in SHAPES.items()],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


TAILS: dict[str, Callable[[Callable[..., str]], str]] = {
    "joined": lambda add: add("Concat", "a", "b", "c", axis=1),
    "reshaped": lambda add: add("Reshape", add("Concat", "a", "b", axis=1), "flat"),
    "transposed": lambda add: add("Transpose", add("Concat", "a", "b", axis=-3), perm=[0, 2, 3, 1]),
    "nested": lambda add: add("Concat", add("Concat", "a", "b", axis=1), "c", axis=1),
    "split": lambda add: add("Concat", add("Split", add("Concat", "a", "b", axis=1), outputs=2, axis=1), "c", axis=1),
    "sliced": lambda add: add("Slice", add("Concat", "a", "b", axis=1), "two", "far", "one"),
    "backwards": lambda add: add("Slice", add("Concat", "a", "b", axis=1), "last", "before", "one", "back"),
    "gathered": lambda add: add("Gather", add("Concat", "a", "b", axis=1), "mixed", axis=1),
    "squeezed": lambda add: add("Squeeze", add("Concat", "a", "b", axis=1), "zero"),
    "elementwise": lambda add: add("Max", add("Add", add("Concat", "a", "b", axis=1), "row"), "low"),
}
CONSTANTS = {
    "flat": np.array([1, 6, -1]),
    "two": np.array([2]),
    "far": np.array([2**62]),
    "one": np.array([1]),
    "last": np.array([-1]),
    "before": np.array([-(2**62)]),
    "back": np.array([-2]),
    "mixed": np.array([5, 0, 1, 4]),
    "zero": np.array([0]),
    "row": np.zeros((1, 6, 1, 1), np.float32),
    "low": np.array(-1e9, np.float32),
}


@pytest.mark.parametrize("name", TAILS)
def test_elements_are_followed_to_where_the_model_moves_them(name: str) -> None:
    """Each input holds one number: the axis along which the output's numbers differ is the one that is found."""
    model = _model(TAILS[name], CONSTANTS)
    feed = {k: np.full(shape, i, np.float32) for i, (k, shape) in enumerate(SHAPES.items())}
    out = run_reference(model, feed)[model.graph.output[0].name]
    (axes,) = joins_of(ir.from_proto(model), feed).values()
    assert len(axes) == out.ndim
    (axis,) = [i for i, numbers in enumerate(axes) if numbers is not None]
    rows = np.moveaxis(out, axis, 0).reshape(out.shape[axis], -1)
    assert (rows == rows[:, :1]).all(), "the fixture: along this axis alone"
    numbers = axes[axis]
    assert numbers is not None
    assert len(numbers) == len(rows)
    same = np.equal.outer(rows[:, 0], rows[:, 0])
    assert (np.equal.outer(numbers, numbers) == same).all()


VECTOR = np.array([640.0, 640, 1, 1, 1, 640], np.float32).reshape(6, 1, 1)
WEIGHT = np.random.default_rng(0).standard_normal((6, 6, 1, 1)).astype("f")
SCALED: dict[str, Callable[[Callable[..., str]], str]] = {
    "multiplied": lambda add: add("Mul", "x", "vector"),
    "divided": lambda add: add("Div", "x", "inverse"),
    "shifted": lambda add: add("Add", "x", "shift"),
    "a convolution": lambda add: add("Conv", "x", "weight"),
    "a bias": lambda add: add("Conv", "x", "even", "bias"),
    "heads of two sizes": lambda add: add("Concat", add("Mul", "x", "vector"), add("Mul", "x", "vector"), axis=3),
    "scaled when joined": lambda add: add("Mul", add("Concat", "x", "x", axis=3), "vector"),
    "in other places": lambda add: add("Sigmoid", add("Reshape", add("Mul", "x", "vector"), "flat")),
    "chosen": lambda add: add("Gather", add("Mul", "x", "vector"), "indices", axis=3),
}
SCALES = {
    "vector": VECTOR,
    "inverse": 1 / VECTOR,
    "shift": VECTOR * (VECTOR > 1),
    "weight": WEIGHT * VECTOR[..., None],
    "even": WEIGHT,
    "bias": VECTOR.ravel() * (VECTOR.ravel() > 1) + 1,
    "flat": np.array([1, 6, -1]),
}


def _one_input(
    tail: Callable[[Callable[..., str]], str], constants: dict[str, np.ndarray]
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    model = _model(tail, constants)
    del model.graph.input[:]
    model.graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 6, 5, 5]))
    model.graph.input.append(helper.make_tensor_value_info("indices", TensorProto.INT64, [3]))
    rng = np.random.default_rng(1)
    return model, {"x": rng.standard_normal((1, 6, 5, 5)).astype("f"), "indices": np.array([0, 4, 1])}


@pytest.mark.parametrize("name", SCALED)
def test_constants_tell_elements_apart(name: str) -> None:
    """Those of channels 0, 1 and 5 are 640 times as large, whatever follows; some are joined as well."""
    constants = {k: np.asarray(v, None if v.dtype.kind == "i" else "f") for k, v in SCALES.items()}
    model, feed = _one_input(SCALED[name], constants)
    axes = joins_of(ir.from_proto(model), feed)[model.graph.output[0].name]
    assert axes[1] is not None
    assert [n == axes[1][0] for n in axes[1]] == [True, True, False, False, False, True]
    if len(axes) == 4:
        assert (axes[3] is not None) == ("joined" in name or "heads" in name)


@pytest.mark.parametrize("axis", [0, -4, 1, 7])
def test_rows_of_a_quantized_weight_are_seen_where_its_scales_fit(axis: int) -> None:
    """Seven is no axis: a file that says so is for others to refuse."""
    constants: dict[str, np.ndarray] = {
        "q": np.full((6, 6, 1, 1), 100, np.int8),
        "scales": VECTOR.ravel(),
        "zeros": np.zeros(6, np.int8),
    }
    model, feed = _one_input(
        lambda add: add("Conv", "x", add("DequantizeLinear", "q", "scales", "zeros", axis=axis)), constants
    )
    found = joins_of(ir.from_proto(model), feed)
    assert (found != {}) == (axis in (0, -4)), "along the inputs all rows are of one size"


@pytest.mark.parametrize("what", ["even", "one small", "zeros", "a table"])
def test_constants_of_about_one_size_tell_nothing(what: str) -> None:
    """Nor does one channel of many that is scaled to nearly nothing, or any that are dead."""
    vector = np.linspace(1, 20, 6)
    if what == "one small":
        vector = np.array([1e-3] + [1.0] * 8)
    elif what == "zeros":
        vector = np.array([0.0] * 4 + [1.0] * 4)
    shape = (1, -1, 1, 1) if what != "a table" else (2, 3, 1, 1)
    model, feed = _one_input(lambda add: add("Mul", "x", "v"), {"v": vector.astype("f").reshape(shape)})
    if what == "a table":
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 3
        feed["x"] = feed["x"][:, :3]
    elif what != "even":
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = vector.size
        feed["x"] = np.zeros((1, vector.size, 5, 5), "f")
    assert joins_of(ir.from_proto(model), feed) == {}


def test_what_cannot_be_followed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boxes written into a tensor of zeros, as an exporter writes an assignment to a slice."""
    written, feed = _one_input(
        lambda add: add("ScatterND", "zeros", "places", add("Flatten", "x")), {"zeros": np.zeros(200, "f")}
    )
    written.graph.initializer.append(numpy_helper.from_array(np.arange(150).reshape(1, 150, 1), "places"))
    assert joins_of(ir.from_proto(written), feed) == {written.graph.output[0].name: ()}
    joined, feed = _one_input(lambda add: add("Concat", "x", "x", axis=1), {})

    def fails(*_: object) -> None:
        raise RunFailed("no shape can be inferred")

    monkeypatch.setattr(joins, "inferred_shapes", fails)
    assert joins_of(ir.from_proto(joined), feed) == {joined.graph.output[0].name: ()}
    plain, feed = _one_input(lambda add: add("Relu", "x"), {})
    assert joins_of(ir.from_proto(plain), feed) == {}


def test_nothing_is_said_behind_operators_that_mix() -> None:
    """A product sums over what was joined: what comes out is of no input alone."""
    model = _model(
        lambda add: add("MatMul", add("Concat", "a", "b", axis=1), "weight"), {"weight": np.eye(6, dtype="f")}
    )
    assert joins_of(ir.from_proto(model), {k: np.zeros(s, np.float32) for k, s in SHAPES.items()}) == {}


@pytest.mark.parametrize("make", MAKES)
def test_boxes_and_scores_of_detectors_are_told_apart(make: Make) -> None:
    model = detector(make)
    found = joins_of(ir.from_proto(model), {"images": np.zeros((1, 3, 96, 96), np.float32)})
    if make == "separate":
        assert found == {}
        return
    axes = found["out"]
    numbers = axes[2 if make in ("objectness", "scales") else 1]
    assert numbers is not None
    groups = (
        [numbers[:4], numbers[4:5], numbers[5:]] if make in ("objectness", "scales") else [numbers[:4], numbers[4:]]
    )
    assert [len(set(g)) for g in groups] == [1] * len(groups)
    assert len({g[0] for g in groups}) == len(groups)
    if make == "scales":
        assert axes[1] is not None
        assert [axes[1].count(n) for n in dict.fromkeys(axes[1])] == [144, 36, 9]
