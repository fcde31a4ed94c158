"""Models with a state that goes out and comes in again, quantized by recipe: integer end to end, exact step by step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("tosa_serializer", reason="the extra arm is not installed")


import inlay
from inlay.errors import UsageError
from inlay.space.recipe import OpConfig, Recipe
from inlay.tosa import ir
from inlay.tosa.ir import Array
from inlay.tosa.lowering import lower
from inlay.tosa.reference import LoweredRunner
from inlay.types import QType
from tests.tosa.comparison import assert_equal, output_steps, run_ort

FULL = Recipe().set_global(OpConfig())
BOUNDARIES = {
    "int8": FULL.set_io(OpConfig(QType.INT8)),
    "uint8": FULL.set_io(OpConfig(QType.UINT8)),
    "uint8 state only": FULL.set_io(OpConfig(QType.INT8)).set_io(OpConfig(QType.UINT8), "*state"),
}
STEPS = 5

Shapes = dict[str, list[int]]
Feed = dict[str, Array]


def build(
    nodes: list[onnx.NodeProto], inputs: Shapes, outputs: Shapes, weights: Mapping[str, Array]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "stateful",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model


def frames() -> onnx.ModelProto:
    """Three frames of the past and the present one are joined and convolved; the last three become the new state."""
    rng = np.random.default_rng(1)
    weights: dict[str, Array] = {
        "w": (rng.normal(size=(6, 4, 4, 3)) / 7).astype(np.float32),
        "b": (rng.normal(size=6) / 10).astype(np.float32),
        "from": np.array([1], np.int64),
        "to": np.array([4], np.int64),
        "axis": np.array([2], np.int64),
    }
    nodes = [
        helper.make_node("Concat", ["state", "x"], ["joined"], "join", axis=2),
        helper.make_node("Conv", ["joined", "w", "b"], ["c"], "conv", pads=[0, 1, 0, 1], kernel_shape=[4, 3]),
        helper.make_node("Relu", ["c"], ["y"], "relu"),
        helper.make_node("Slice", ["joined", "from", "to", "axis"], ["new_state"], "keep"),
    ]
    shapes = {"x": [1, 4, 1, 8], "state": [1, 4, 3, 8]}
    return build(nodes, shapes, {"y": [1, 6, 1, 8], "new_state": [1, 4, 3, 8]}, weights)


def buffer() -> onnx.ModelProto:
    """Only movement: a ring of frames that is cut, joined and reshaped. Nothing beside it is quantized."""
    weights = {"from": np.array([1], np.int64), "to": np.array([4], np.int64), "axis": np.array([1], np.int64)}
    weights["flat"] = np.array([1, 32], np.int64)
    nodes = [
        helper.make_node("Slice", ["state", "from", "to", "axis"], ["past"], "drop"),
        helper.make_node("Concat", ["past", "x"], ["new_state"], "join", axis=1),
        helper.make_node("Reshape", ["new_state", "flat"], ["y"], "flatten"),
    ]
    return build(nodes, {"x": [1, 1, 8], "state": [1, 4, 8]}, {"y": [1, 32], "new_state": [1, 4, 8]}, weights)


def gated() -> onnx.ModelProto:
    """A gated recurrent cell with a linear layer behind it: z = σ(·), n = tanh(·), state + z·(n − state)."""
    rng = np.random.default_rng(2)
    weights = {n: (rng.normal(size=s) / 3).astype(np.float32) for n, s in (
        ("wz", (6, 8)), ("uz", (8, 8)), ("wn", (6, 8)), ("un", (8, 8)), ("wy", (8, 4)),
    )}  # fmt: skip
    nodes = [
        helper.make_node("Gemm", ["x", "wz"], ["xz"], "xz"),
        helper.make_node("Gemm", ["state", "uz"], ["hz"], "hz"),
        helper.make_node("Add", ["xz", "hz"], ["sz"], "sz"),
        helper.make_node("Sigmoid", ["sz"], ["z"], "z"),
        helper.make_node("Gemm", ["x", "wn"], ["xn"], "xn"),
        helper.make_node("Gemm", ["state", "un"], ["hn"], "hn"),
        helper.make_node("Add", ["xn", "hn"], ["sn"], "sn"),
        helper.make_node("Tanh", ["sn"], ["n"], "n"),
        helper.make_node("Sub", ["n", "state"], ["d"], "d"),
        helper.make_node("Mul", ["z", "d"], ["zd"], "zd"),
        helper.make_node("Add", ["state", "zd"], ["new_state"], "new"),
        helper.make_node("Gemm", ["new_state", "wy"], ["y"], "out"),
    ]
    return build(nodes, {"x": [1, 6], "state": [1, 8]}, {"y": [1, 4], "new_state": [1, 8]}, weights)


MODELS = {"frames": frames, "buffer": buffer, "gated": gated}


def inputs_of(model: onnx.ModelProto) -> Shapes:
    return {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}


def sequence(model: onnx.ModelProto, steps: int, seed: int) -> list[Feed]:
    """Feeds of a float run, the state handed on from step to step."""
    rng, shapes = np.random.default_rng(seed), inputs_of(model)
    feeds: list[Feed] = []
    state = np.zeros(shapes["state"], np.float32)
    for _ in range(steps):
        feeds.append({"x": rng.normal(size=shapes["x"]).astype(np.float32), "state": state})
        state = run_ort(model, feeds[-1])[1]
    return feeds


def quantized(name: str, boundary: str, folder: Path) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    model = MODELS[name]()
    onnx.save(model, folder / "m.onnx")
    data = sequence(model, 24, 0)
    done = inlay.quantize(
        folder / "m.onnx", folder / "q.onnx", target="ethos-u55-128", data=data, recipe=BOUNDARIES[boundary]
    )
    assert {d.precision for d in done.decisions} <= {"int8", "uint8"}
    return model, onnx.load(folder / "q.onnx")


def types_at_boundary(model: onnx.ModelProto) -> dict[str, str]:
    """Type that each model input and output is quantized to."""
    made = {o: n for n in model.graph.node for o in n.output}
    zero = {t.name: numpy_helper.to_array(t).dtype.name for t in model.graph.initializer}
    inputs = {v.name for v in model.graph.input}
    found = {n.input[0]: zero[n.input[2]] for n in model.graph.node if n.input[0] in inputs}
    found |= {v.name: zero[made[v.name].input[2]] for v in model.graph.output}
    return found


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.matrix
def test_integer_end_to_end_and_exact_over_several_steps(name: str, boundary: str, tmp_path: Path) -> None:
    model, qdq = quantized(name, boundary, tmp_path)
    lowered = lower(qdq)
    assert not lowered.not_lowered
    assert [p.kind for p in lowered.partitions] == ["tosa"]  # no float partition
    for op in lowered.graph.ops:
        inner = [n for n in (*op.inputs, *op.outputs) if op.executor is ir.Executor.TOSA]
        assert all(lowered.graph.tensors[n].dtype in ("int8", "uint8", "int32") for n in inner)
    exact, fast = LoweredRunner(lowered), LoweredRunner(lowered, in_numpy=True)
    shape = inputs_of(model)["state"]
    state = theirs = np.zeros(shape, np.float32)
    steps = output_steps(lowered.graph)
    for feed in sequence(model, STEPS, 7):
        x = feed["x"]
        ours = exact.run({"x": x, "state": state})
        assert_equal(ours, fast.run({"x": x, "state": state}))  # in every step, though the state is fed back
        # one step of ONNX Runtime from the same state: within a rounding of every operator on the way
        for a, b, step in zip(ours, run_ort(qdq, {"x": x, "state": state}), steps, strict=True):
            assert np.abs(a - b).max() <= step * (2 if name == "gated" else 1) * 1.001
        state, theirs = ours[1], run_ort(qdq, {"x": x, "state": theirs})[1]
    assert np.abs(state - theirs).max() <= 0.1 * np.abs(theirs).max()


@pytest.mark.parametrize("io", [QType.INT8, QType.UINT8])
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_the_state_stays_integer_where_only_convs_are_named(io: QType, tmp_path: Path) -> None:
    onnx.save(frames(), tmp_path / "m.onnx")
    recipe = Recipe().set_global(None).set_op_type("Conv", OpConfig()).set_io(OpConfig(io))
    data = sequence(frames(), 4, 0)
    inlay.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", target="ethos-u55-128", data=data, recipe=recipe)
    qdq = onnx.load(tmp_path / "q.onnx")
    lowered = lower(qdq)
    assert not lowered.not_lowered
    assert [p.kind for p in lowered.partitions] == ["tosa"]
    assert set(types_at_boundary(qdq).values()) == {io.value}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_the_recipe_decides_the_type_at_the_boundary(name: str, tmp_path: Path) -> None:
    for boundary, inner, state in (
        ("int8", "int8", "int8"),
        ("uint8", "uint8", "uint8"),
        ("uint8 state only", "int8", "uint8"),
    ):
        _, qdq = quantized(name, boundary, tmp_path)
        assert types_at_boundary(qdq) == {"x": inner, "y": inner, "state": state, "new_state": state}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_the_type_at_the_boundary_changes_no_value(name: str, tmp_path: Path) -> None:
    """uint8 is the same grid, 128 higher: what comes out is the same bit for bit."""
    runs = []
    for boundary in BOUNDARIES:
        model, qdq = quantized(name, boundary, tmp_path)
        reference = LoweredRunner(lower(qdq))
        runs.append([reference.run(feed) for feed in sequence(model, 2, 5)])
    for other in runs[1:]:
        for a, b in zip(runs[0], other, strict=True):
            assert_equal(a, b)


@pytest.mark.exhaustive
def test_float_at_the_boundary_keeps_the_join_off_the_accelerator(tmp_path: Path) -> None:
    """Negative control: without a quantized input, nothing is left to be integer in a model that only moves."""
    onnx.save(buffer(), tmp_path / "m.onnx")
    data = sequence(buffer(), 4, 0)
    done = inlay.quantize(
        tmp_path / "m.onnx", tmp_path / "q.onnx", target="ethos-u55-128", data=data, recipe=FULL.set_io(None)
    )
    assert {d.precision for d in done.decisions} == {"float"}


def test_a_search_quantizes_inputs_and_outputs_as_operators_are(tmp_path: Path) -> None:
    onnx.save(frames(), tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="in the types of operators; x is to be uint8, operators are int8"):
        inlay.tune(
            tmp_path / "m.onnx", out=tmp_path / "out", target="ethos-u55-128", data=sequence(frames(), 4, 0),
            recipe=BOUNDARIES["uint8"],
        )  # fmt: skip
