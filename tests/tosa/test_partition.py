"""Partitions: acyclic, never without work of their own, and together the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from inlay.errors import ModelError, UsageError
from inlay.tosa.command import lower_file
from inlay.tosa.emitter import TosaTensor
from inlay.tosa.ir import Array, Executor
from inlay.tosa.lowering import lower
from inlay.tosa.partition import split
from inlay.tosa.reference import LoweredRunner, run_tosa
from inlay.tosa.serialize import TosaBinary
from tests.support.examples import examples
from tests.support.runtime import optimized
from tests.tosa.comparison import run_ort
from tests.tosa.nets import Net, random_weights


def mixed(seed: int, size: int, qtype: str = "int8") -> tuple[onnx.ModelProto, str]:
    """A random graph of quantized convolutions, host-only operators and joins."""
    rng = np.random.default_rng(seed)
    n = Net(qtype=qtype)
    x = n.input([1, 4, 6, 6])
    zp = 5 if qtype == "int8" else 133
    values = [n.qdq(x, 0.05, zp)]
    for _ in range(size):
        a = values[rng.integers(len(values))]
        match rng.integers(5):
            case 0:
                w = random_weights(rng, 4, 4, 3, 3)
                y = n.qdq(n.op("Relu", [n.op("Conv", [a, n.weight(w, 0.004)], pads=[1] * 4)]), 0.05, zp)
            case 1:
                y = n.op("CumSum", [n.op("Mul", [a, n.f32(0.2)]), n.const(np.int64(1))])
                y = n.qdq(y, 0.05, zp) if rng.integers(2) else y
            case 2:
                y = n.qdq(n.op("Add", [a, values[rng.integers(len(values))]]), 0.05, zp)
            case 3:
                y = n.op("Transpose", [a], perm=[0, 1, 3, 2])
            case _:
                y = n.op("Concat", [a, values[rng.integers(len(values))]], axis=1)
                y = n.op("Slice", [y, *(n.i64(v) for v in (2, 6, 1))])
        values.append(y)
    for value in dict.fromkeys(values[-2:]):
        n.output(value)
    return n.model(), x


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 10_000),
    size=st.integers(1, 9),
    profile=st.sampled_from(["INT", "INT+FP"]),
    qtype=st.sampled_from(["int8", "uint8"]),
)
def test_random_graphs(seed: int, size: int, profile: str, qtype: str) -> None:
    model, x = mixed(seed, size, qtype)
    lowered = lower(model, profile)
    subgraphs = split(lowered.graph)
    made = {n for i in lowered.graph.inputs for n in [i.tensor]}
    made |= {op.out for op in lowered.graph.ops if op.executor is Executor.CALLER and op.inputs[0] in made}
    for subgraph in subgraphs:
        assert set(subgraph.inputs) <= made  # runs after everything that it reads: no cycles
        made |= set(subgraph.outputs)
        if len(subgraphs) > 1 and subgraph.executor is Executor.TOSA:
            assert subgraph.computes
    for part in lowered.partitions:
        if part.host is not None:
            onnx.checker.check_model(part.host)
    feed = {x: np.random.default_rng(seed).normal(size=(1, 4, 6, 6)).astype(np.float32)}
    for a, b in zip(LoweredRunner(lowered).run(feed), run_ort(model, feed), strict=True):
        # A tie that rounds the other way grows by the factor of what follows; here sums over a few values.
        assert np.abs(a - b).max() <= 0.05 * 8
        assert np.abs(a - b).mean() <= 0.05


def test_a_movement_waits_for_who_needs_it() -> None:
    """A reshaped input joins the result of a host operator: one call of the accelerator, not two."""
    n = Net()
    x = n.input([1, 4, 6, 6])
    host = n.qdq(n.op("CumSum", [x, n.const(np.int64(1))]), 0.05, 3)
    turned = n.op("Transpose", [n.qdq(x, 0.05, 3)], perm=[0, 1, 3, 2])
    n.output(n.qdq(n.op("Add", [host, turned]), 0.1, 3))
    model = n.model()
    assert [p.kind for p in lower(model).partitions] == ["host", "tosa"]
    feed = {x: np.random.default_rng(0).normal(size=(1, 4, 6, 6)).astype(np.float32)}
    (ours,), (theirs,) = LoweredRunner(lower(model)).run(feed), run_ort(model, feed)
    np.testing.assert_allclose(ours, theirs, atol=0.101)


def test_reasons_are_given() -> None:
    n = Net()
    x = n.qdq(n.input([1, 4, 6, 6]), 0.05, 3)
    n.output(n.op("CumSum", [n.op("Sigmoid", [x]), n.const(np.int64(1))]))
    reasons = {r.op_type: r.reason for r in lower(n.model(), "INT+FP").not_lowered}
    assert "no rule" in reasons["CumSum"]
    assert "reads its output in float" in reasons["Sigmoid"]


def tosa_tensors(ports: list[dict[str, Any]]) -> tuple[TosaTensor, ...]:
    return tuple(TosaTensor(p["tensor"], p["dtype"], tuple(p["shape"]), tuple(p["permutation"])) for p in ports)


def run_from_files(side: dict[str, Any], folder: Path, feed: dict[str, Array]) -> list[Array]:
    """Runs a lowered model from what is on disk alone, as a deployer would."""
    values: dict[str, Array] = {}
    for entry in side["model_inputs"]:
        values[entry["tensor"]] = feed[entry["name"]]

    def fetch(port: dict[str, Any]) -> Array:
        if port["tensor"] not in values:  # a model input that the flatbuffer takes quantized
            real = feed[port["name"]]
            q = np.rint(real / np.float32(port["scale"])) + port["zero_point"]
            values[port["tensor"]] = np.clip(q, -128, 127).astype(port["dtype"])
        return values[port["tensor"]]

    outputs = {}
    for part in side["partitions"]:
        args = [fetch(p) for p in part["inputs"]]
        file = folder / part["file"]
        if part["kind"] == "tosa":
            binary = TosaBinary(file.read_bytes(), tosa_tensors(part["inputs"]), tosa_tensors(part["outputs"]), {})
            results = run_tosa(binary, args)
        else:
            session = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
            results = session.run(
                [p["tensor"] for p in part["outputs"]],
                {p["tensor"]: a for p, a in zip(part["inputs"], args, strict=True)},
            )
        for port, value in zip(part["outputs"], results, strict=True):
            values[port["tensor"]] = value
            if port["scale"] is not None:
                value = ((value.astype(np.int32) - port["zero_point"]) * np.float32(port["scale"])).astype(np.float32)
            outputs[port["name"]] = value
    return [outputs[o["name"]] for o in side["model_outputs"]]


@pytest.mark.parametrize("profile", ["INT", "INT+FP"])
@pytest.mark.parametrize("seed", range(6))
def test_files_are_enough(seed: int, profile: str, tmp_path: Path) -> None:
    model, x = mixed(seed, 7)
    onnx.save(model, tmp_path / "m.onnx")
    report = lower_file(tmp_path / "m.onnx", tmp_path / "m.tosa", profile)
    assert report.files[0] == tmp_path / "m.tosa"
    side = json.loads((tmp_path / "m.tosa.json").read_text())
    assert {"profile", "tosa_version", "inputs", "outputs", "partitions", "not_lowered"} <= set(side)
    assert side["profile"] == profile
    assert all({"node", "reason"} <= set(n) for n in side["not_lowered"])
    for port in (*side["inputs"], *side["outputs"]):
        assert {"name", "dtype", "shape", "permutation", "scale", "zero_point"} <= set(port)
    feed = {x: np.random.default_rng(seed).normal(size=(1, 4, 6, 6)).astype(np.float32)}
    expected = LoweredRunner(report.lowered).run(feed)
    for a, b in zip(run_from_files(side, tmp_path, feed), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_nothing_to_lower_is_an_error(tmp_path: Path) -> None:
    n = Net()
    n.output(n.op("CumSum", [n.input([2, 3]), n.const(np.int64(1))]))
    onnx.save(n.model(), tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="CumSum has no rule"):
        lower_file(tmp_path / "m.onnx", tmp_path / "m.tosa")
    assert not list(tmp_path.glob("*.tosa*"))


def test_an_operator_that_contradicts_its_inputs_is_named(tmp_path: Path) -> None:
    """ONNX's rules on types and shapes are asked, as no runtime is; what they overlook stays on the host."""

    def model_of(kind: str, weight: Array, **attributes: Any) -> Path:
        n = Net()
        x = n.qdq(n.input([1, 4, 6, 6]), 0.05, 3)
        y = n.op(kind, [x, n.weight(np.ones((4, 4, 3, 3), np.int8), 0.1)])
        n.output(n.qdq(n.op("Sigmoid", [n.qdq(y, 0.05, 3)]), 1 / 256, -128))
        model = n.model()
        model.graph.value_info[0].type.tensor_type.shape.dim.add(dim_value=7)  # a false statement is no fault
        initializer = next(t for t in model.graph.initializer if list(t.dims) == [4, 4, 3, 3])
        initializer.CopyFrom(numpy_helper.from_array(weight, initializer.name))
        node = next(n for n in model.graph.node if n.op_type == kind)
        node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
        onnx.save(model, tmp_path / "m.onnx")
        return tmp_path / "m.onnx"

    def left(path: Path) -> list[str]:
        return [n.reason for n in lower_file(path, tmp_path / "m.tosa").lowered.not_lowered if n.op_type == "Conv"]

    whole = np.ones((4, 4, 3, 3), np.int8)
    assert not left(model_of("Conv", whole))
    assert left(model_of("Conv", np.ones(4, np.int8))) == ["its window does not fit its 2 spatial dimensions"]
    with pytest.raises(ModelError, match=r"not a valid ONNX model.*Conv"):
        lower_file(model_of("Conv", whole, strides=[1, 1, 1]), tmp_path / "m.tosa")


def test_dynamic_sizes_are_asked_for(tmp_path: Path) -> None:
    model, _ = mixed(0, 3)
    dims = model.graph.input[0].type.tensor_type.shape.dim
    dims[0].dim_param, dims[2].dim_param = "batch", "rows"
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="dynamic dimension rows: give --bind rows=N"):
        lower_file(tmp_path / "m.onnx", tmp_path / "m.tosa")
    report = lower_file(tmp_path / "m.onnx", tmp_path / "m.tosa", bind={"rows": 6})
    (shape,) = {t.dims for t in report.lowered.graph.tensors.values() if t.name == model.graph.input[0].name}
    assert shape == (1, 4, 6, 6)


@pytest.mark.parametrize("kind", ["Reshape", "Transpose"])
def test_a_model_that_only_moves(kind: str, tmp_path: Path) -> None:
    """An alias of its input has no partition; a real movement has one of its own. Both run."""
    n = Net()
    x = n.qdq(n.input([2, 3]), 0.05, 3)
    y = n.op("Reshape", [x, n.i64(3, 2)]) if kind == "Reshape" else n.op("Transpose", [x])
    n.output(n.qdq(y, 0.05, 3))
    onnx.save(n.model(), tmp_path / "m.onnx")
    report = lower_file(tmp_path / "m.onnx", tmp_path / "m.tosa")
    feed = {"in1": np.arange(6, dtype=np.float32).reshape(2, 3) / 10}
    np.testing.assert_array_equal(LoweredRunner(report.lowered).run(feed)[0], run_ort(n.model(), feed)[0])


def test_nothing_but_another_name_is_an_error(tmp_path: Path) -> None:
    n = Net()
    n.output(n.qdq(n.op("Identity", [n.qdq(n.input([2, 3]), 0.05, 3)]), 0.05, 3))
    onnx.save(n.model(), tmp_path / "m.onnx")
    assert not lower(n.model()).partitions
    with pytest.raises(UsageError, match="computes nothing"):
        lower_file(tmp_path / "m.onnx", tmp_path / "m.tosa")


def test_unknown_profile() -> None:
    with pytest.raises(UsageError, match="INT"):
        lower(mixed(0, 1)[0], "FP")


@pytest.mark.parametrize("opset", [11, 17])
def test_the_host_computes_in_float_what_is_not_quantized(opset: int, tmp_path: Path) -> None:
    """The runtime of a host partition, with default options, quantizes no weight of its own accord."""
    rng = np.random.default_rng(0)
    n = Net(opset=opset)
    y = n.qdq(n.input([1, 4, 6, 6]), 0.05, 5)
    y = n.qdq(n.op("Conv", [y, n.weight(random_weights(rng, 4, 4, 3, 3), 0.004)], pads=[1] * 4), 0.05, 5)
    weight = n.const(rng.standard_normal((4, 4, 3, 3)).astype(np.float32))
    y = n.qdq(n.op("Relu", [n.op("Conv", [y, weight], pads=[1] * 4)]), 0.05, -128)
    n.output(n.qdq(n.op("Conv", [y, n.weight(random_weights(rng, 4, 4, 3, 3), 0.004)]), 0.05, 5))
    model = n.model()
    (host,) = (p.host for p in lower(model).partitions if p.host is not None and "Conv" in str(p.host))
    onnx.checker.check_model(host)
    made = optimized(host, tmp_path)
    assert not [t.name for t in made.graph.initializer if len(t.dims) == 4 and t.data_type != onnx.TensorProto.FLOAT]
    assert [t for t in optimized(model, tmp_path).graph.initializer if t.data_type == onnx.TensorProto.INT8]


def test_what_has_no_static_shape_stays_on_the_host() -> None:
    """Also between Q and DQ: the number of elements that are not zero is known in a run only."""
    n = Net(qtype="uint8")
    y = n.op("Cast", [n.op("NonZero", [n.input([2, 3])])], to=onnx.TensorProto.FLOAT)
    n.output(n.op("Relu", [n.qdq(y, 0.05, 3)]))
    reasons = {r.op_type: r.reason for r in lower(n.model()).not_lowered}
    assert "shape" in reasons["QuantizeLinear"]
    assert "shape" in reasons["DequantizeLinear"]
