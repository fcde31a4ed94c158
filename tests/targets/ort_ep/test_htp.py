"""Qualcomm's HTP in the emulator: each row of the table by the provider's own partitioning."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import inlay
from inlay.cli import render
from inlay.errors import RunFailed
from inlay.model.graph import build_graph
from inlay.model.load import file_sha256
from inlay.targets.base import Artifact, Capabilities
from inlay.targets.ort_ep.htp import QnnHtpExecutable, QnnHtpTarget
from inlay.targets.ort_ep.htp_rules import RULES
from inlay.testing import Builder, random_feed, run_reference, small_model, sqnr
from tests.support.float_rewrite_models import gelu, normalization
from tests.support.runtime import run_plain
from tests.support.workspace import Workspace

pytest.importorskip("onnxruntime_qnn", reason="the extra qnn is not installed")

X = (1, 8, 8, 8)
_I64 = np.int64
FORMS: Mapping[str, tuple[dict[str, Any], list[np.ndarray]]] = {
    "Conv": ({"kernel_shape": [1, 1]}, [np.ones((4, 8, 1, 1), np.float32)]),
    "ConvTranspose": ({"kernel_shape": [1, 1]}, [np.ones((8, 4, 1, 1), np.float32)]),
    "Gemm": ({}, [np.ones((8, 4), np.float32)]),
    "MatMul": ({}, [np.ones((8, 4), np.float32)]),
    "Clip": ({}, [np.array(0, np.float32), np.array(6, np.float32)]),
    "Softmax": ({"axis": -1}, []),
    "LogSoftmax": ({"axis": -1}, []),
    "LayerNormalization": ({"axis": -1}, [np.linspace(0.5, 1.5, 8, dtype=np.float32), np.ones(8, np.float32)]),
    "BatchNormalization": ({}, [np.full(8, a, np.float32) for a in (0.5, 0.2, 0.1, 2.0)]),
    "InstanceNormalization": ({}, [np.linspace(0.5, 1.5, 8, dtype=np.float32), np.full(8, 0.3, np.float32)]),
    "LpNormalization": ({"axis": -1}, []),
    "PRelu": ({}, [np.linspace(0.1, 0.8, 8, dtype=np.float32).reshape(8, 1, 1)]),
    "Pow": ({}, [np.array(2, np.float32)]),
    "Concat": ({"axis": 1}, []),
    "AveragePool": ({"kernel_shape": [2, 2]}, []),
    "MaxPool": ({"kernel_shape": [2, 2]}, []),
    "ReduceMean": ({"axes": [1]}, []),
    "ReduceMax": ({"axes": [1]}, []),
    "ReduceMin": ({"axes": [1]}, []),
    "ReduceL2": ({"axes": [1]}, []),
    "ReduceSum": ({}, [np.array([1], _I64)]),
    "Pad": ({"mode": "edge"}, [np.array([0, 0, 1, 0, 0, 0, 1, 2], _I64)]),
    "GatherElements": ({"axis": 1}, [np.arange(128, dtype=_I64).reshape(1, 2, 8, 8) % 8]),
    "Reshape": ({}, [np.array([1, 64, 8], _I64)]),
    "Squeeze": ({}, [np.array([0], _I64)]),
    "Unsqueeze": ({}, [np.array([0], _I64)]),
    "Slice": ({}, [np.array([0], _I64), np.array([4], _I64), np.array([1], _I64)]),
    "Split": ({"axis": 1}, [np.array([4, 4], _I64)]),
    "Tile": ({}, [np.array([1, 1, 2, 1], _I64)]),
    "Expand": ({}, [np.array([1, 8, 8, 8], _I64)]),
    "Transpose": ({"perm": [0, 2, 3, 1]}, []),
    "Gather": ({"axis": 1}, [np.array([0, 3], _I64)]),
    "DepthToSpace": ({"blocksize": 2}, []),
    "SpaceToDepth": ({"blocksize": 2}, []),
    "Resize": ({"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
               [np.array([], np.float32), np.array([1, 1, 2, 2], np.float32)]),
}  # fmt: skip
TWO = {"Add", "Sub", "Mul", "Div", "Min", "Max", "Concat"}


def one_operator(op_type: str, bits: int = 8) -> onnx.ModelProto:
    """The operator with a DQ on each activation and weight, and a Q/DQ pair behind each output."""
    attributes, others = FORMS.get(op_type, ({}, []))
    if bits == 16 and "axes" in attributes:  # an input in the opset that these need
        attributes, others = {}, [np.array(attributes["axes"], _I64)]
    shape = (8, 8) if op_type == "Gemm" else X
    tensors = [
        numpy_helper.from_array(np.array(0.05, np.float32), "s"),
        numpy_helper.from_array(np.array(20, f"uint{bits}"), "z"),
    ]
    nodes: list[onnx.NodeProto] = []

    def pair(value: str, name: str) -> str:
        nodes.append(helper.make_node("QuantizeLinear", [value, "s", "z"], [f"{name}_q"], f"{name}_Q"))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", "s", "z"], [f"{name}_d"], f"{name}_DQ"))
        return f"{name}_d"

    given = ["x", "x2"] if op_type in TWO else ["x"]
    inputs = [pair(name, name) for name in given]
    for i, array in enumerate(others):
        if RULES.ops[op_type].weight == 1 and i == 0:
            tensors.append(numpy_helper.from_array((array * 20).astype(np.int8), "w_q"))
            tensors.append(numpy_helper.from_array(np.array(0, np.int8), "w_z"))
            nodes.append(helper.make_node("DequantizeLinear", ["w_q", "s", "w_z"], ["w"], "w_DQ"))
            inputs.append("w")
        else:
            tensors.append(numpy_helper.from_array(np.asarray(array), f"c{i}"))
            inputs.append(f"c{i}")
    outputs = ["a", "b"] if op_type == "Split" else ["a"]
    nodes.append(helper.make_node(op_type, inputs, outputs, "op", **attributes))
    ends = [pair(value, value) for value in outputs]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, 1, shape) for n in given],
        [helper.make_tensor_value_info(e, 1, None) for e in ends], tensors,
    )  # fmt: skip
    opset = 21 if bits == 16 else 20 if op_type == "Gelu" else 17
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def build(model: onnx.ModelProto, folder: Path) -> QnnHtpExecutable:
    onnx.save(model, folder / "model.onnx")
    return QnnHtpTarget().compile(Artifact(folder / "model.onnx", file_sha256(folder / "model.onnx")))


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("op_type", sorted(RULES.ops))
def test_each_row_runs_on_the_npu(op_type: str, bits: int, tmp_path: Path) -> None:
    found = build(one_operator(op_type, bits), tmp_path)
    assert found.offload.host == {}
    assert (found.offload.partitions, found.offload.floats) == (1, 0)
    found.close()


def steps_off(op_type: str, zero_point: int, folder: Path) -> float:
    """How far the emulator is from the reference at most, in steps of the output, which has qparams of its own."""
    model, step, rule = one_operator(op_type), 0.4, RULES.ops[op_type]
    tensors = [("z", np.uint8(60)), ("end_s", np.float32(step)), ("end_z", np.uint8(zero_point))]
    kept = [t for t in model.graph.initializer if t.name != "z"]
    del model.graph.initializer[:]
    model.graph.initializer.extend([*kept, *(numpy_helper.from_array(np.array(a), name) for name, a in tensors)])
    for node in model.graph.node:
        if not rule.moves_data and node.name in ("a_Q", "a_DQ"):
            node.input[1:] = ["end_s", "end_z"]
    rng, positive = np.random.default_rng(0), op_type in ("Sqrt", "Div", "Log", "Reciprocal")
    feed = {}
    for given in model.graph.input:
        array = rng.uniform(0.5 if positive else -2.9, 2.9, [d.dim_value for d in given.type.tensor_type.shape.dim])
        feed[given.name] = array.astype(np.float32)
    want, got = run_reference(model, feed), build(model, folder).run(feed)
    return max(float(np.abs(got[name] - array).max()) for name, array in want.items()) / step


@pytest.mark.parametrize("op_type", sorted(RULES.ops))
def test_each_row_computes_what_the_reference_computes(op_type: str, tmp_path: Path) -> None:
    at_zero = RULES.ops[op_type].result.begins_at_zero
    assert steps_off(op_type, 0 if at_zero else 100, tmp_path) < 2.5
    if at_zero:  # negative control: once it takes other zero points, the rule has served
        assert steps_off(op_type, 100, tmp_path) > 50


def test_twice_the_bits_are_twice_the_bytes(tmp_path: Path) -> None:
    narrow, wide = (build(one_operator("Sigmoid", bits), tmp_path).offload for bits in (8, 16))
    of_each = [next(k.ns for k in found.kernels if k.op_type == "Sigmoid") for found in (narrow, wide)]
    assert of_each == [1024.0, 2048.0], "512 elements in, 512 out"


def test_an_operator_that_it_does_not_take_is_on_the_host(tmp_path: Path) -> None:
    """Negative control: Det has no form there."""
    model = one_operator("Sigmoid")
    next(n for n in model.graph.node if n.op_type == "Sigmoid").op_type = "Det"
    for end in model.graph.output:
        del end.type.tensor_type.shape.dim[2:]
    found = build(model, tmp_path)
    assert found.offload.host["op"] == "Det"
    assert found.offload.host_bytes > 0


def test_a_lookup_in_float_does_not_cost_the_whole_model(tmp_path: Path) -> None:
    """As of an embedding: the emulator takes it, and finalizes it where it stands for a product with half precision."""
    model = one_operator("MatMul")
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("ids", 7, X[:-1]))
    model.graph.initializer.append(numpy_helper.from_array(np.ones((10, 8), np.float32), "table"))
    model.graph.node.insert(0, helper.make_node("Gather", ["table", "ids"], ["x"], "lookup"))
    found = build(model, tmp_path)
    assert found.offload.host == {}
    assert found.offload.partitions == 1
    found.close()
    for options, fails in (("htp_arch=73", False), ("soc_model=0", True)):  # the last one is the negative control
        lines = [
            "from pathlib import Path; from inlay.targets.base import Artifact",
            "from inlay.targets.ort_ep.htp import QnnHtpTarget",
            f"QnnHtpTarget({options!r}).compile(Artifact(Path({str(tmp_path / 'model.onnx')!r}), ''))",
        ]
        command = [sys.executable, "-c", "; ".join(lines)]  # the provider remembers the product of a process
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode != 0, "finalize" in done.stderr) == (fails, fails), options


def test_dynamic_shapes_are_built_for_the_inputs_that_come(tmp_path: Path) -> None:
    fixed = small_model()
    feed = dict(random_feed(fixed, 0))
    want = build(fixed, tmp_path).run(feed)
    fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    found = build(fixed, tmp_path)
    with pytest.raises(RunFailed, match="has not run"):
        _ = found.offload
    got = found.run(feed)
    assert all(np.allclose(got[name], array) for name, array in want.items())
    assert "stem" in found.offload.host, "a model without Q/DQ nodes is the host's"
    assert found.offload.partitions == 0
    found.close()
    with pytest.raises(RunFailed, match="closed"):
        found.run(feed)


def test_tuning_keeps_all_on_the_npu_and_says_that_speed_was_not_measured(tmp_path: Path) -> None:
    model = small_model()
    onnx.save(model, tmp_path / "model.onnx")
    feeds = [dict(random_feed(model, seed)) for seed in range(4)]
    out = tmp_path / "out"
    result = inlay.tune(
        tmp_path / "model.onnx", target="qnn-htp", data=feeds, out=out, budget=None, max_measurements=3, min_sqnr=15.0
    )
    assert "not measured" in result.notes[0].lower()
    data = json.loads((out / "result.json").read_text())
    assert data["notes"][0].startswith("SPEED WAS NOT MEASURED")
    assert str(next(render.verdict(result))).startswith("SPEED WAS NOT MEASURED"), "the first line"
    found = build(onnx.load(result.model_path), tmp_path)
    assert found.offload.host == {}
    assert found.offload.floats == 0
    assert result.best.latency_ms * 1e6 == pytest.approx(found.offload.points)
    reference = run_reference(model, feeds[0])
    assert all(sqnr(reference[n], y) > 15.0 for n, y in found.run(feeds[0]).items())


@pytest.mark.parametrize(
    ("op_type", "attributes", "others"),
    [
        ("Pow", {}, [np.array(0.5, np.float32)]),
        ("Pow", {}, [np.linspace(-1, 2, 8, dtype=np.float32)]),
        ("LpNormalization", {"axis": -1, "p": 1}, []),
        ("Pad", {"mode": "wrap"}, [np.zeros(8, _I64)]),
        ("Pad", {}, [np.zeros(8, _I64)]),
        ("LayerNormalization", {"axis": 1}, [np.ones((8, 8, 8), np.float32)]),
    ],
)
def test_what_was_not_verified_stays_in_float(
    op_type: str, attributes: dict[str, Any], others: list[np.ndarray]
) -> None:
    """The controls are the attributes and constants by which each row was verified."""

    def refused(attributes: dict[str, Any], others: list[np.ndarray]) -> bool:
        b = Builder(opset=19)
        constants = [b.constant(f"c{i}", array) for i, array in enumerate(others)]
        b.output(b.node("op", op_type, [b.input("x", X), *constants], **attributes))
        graph = build_graph(ir.from_proto(b.model()))
        node = graph.node("op")
        return any(condition(graph, node) for condition in RULES.ops[op_type].conditions)

    assert refused(attributes, others)
    assert not refused(*FORMS[op_type])


def test_it_pads_with_the_integer_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it pads with the zero point, the rule that leaves such operators in float has served."""
    assert steps_off("Pad", 100, tmp_path) < 2.5, "the control: with what is at the edge"
    _, pads = FORMS["Pad"]
    monkeypatch.setitem(FORMS, "Pad", ({}, [*pads, np.array(0, np.float32)]))
    assert steps_off("Pad", 100, tmp_path) > 5


def thin(channels: int, kernel: int, stride: int) -> onnx.ModelProto:
    b = Builder()
    weight = b.constant("w", b.rng.standard_normal((channels, 1, kernel, kernel)).astype(np.float32))
    x = b.input("x", (1, channels, 8, 8))
    b.output(b.node("op", "Conv", [x, weight], group=channels, strides=[stride, stride]))
    return b.model()


def mean(size: int, rounded_up: int = 1) -> onnx.ModelProto:
    b = Builder()
    window: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": rounded_up}
    b.output(b.node("op", "AveragePool", [b.input("x", (1, 4, size, size))], **window))
    return b.model()


@pytest.mark.parametrize(
    ("model", "wrong"),
    [
        (thin(3, 2, 2), True),
        (thin(4, 1, 2), True),
        (thin(3, 3, 2), False),
        (thin(8, 2, 2), False),
        (mean(8), True),
        (mean(9), False),
        (mean(8, 0), False),
    ],
    ids=["thin", "thinner", "wider", "many channels", "with a rest", "without", "cut off"],
)
def test_what_comes_out_wrong_has_no_row(model: onnx.ModelProto, wrong: bool, tmp_path: Path) -> None:
    rules, op_type = QnnHtpTarget().rules(), model.graph.node[0].op_type
    unaware = replace(rules, ops={**rules.ops, op_type: replace(rules.ops[op_type], conditions=())})
    feed = random_feed(model)
    (unit,) = Workspace(model, tmp_path / "aware", Capabilities(rules)).prepared.units
    assert unit.selectable != wrong
    space = Workspace(model, tmp_path / "unaware", Capabilities(unaware))
    written = space.emit(space.full())
    executable = build(written, tmp_path)
    (got,), (want,) = executable.run(feed).values(), run_plain(written, feed).values()
    executable.close()
    assert (sqnr(want, got) < 20.0) == wrong


def test_the_operators_of_transformers_stay_there_as_a_whole(tmp_path: Path) -> None:
    """Written out as exporters do; the control is that Erf alone is for the host."""
    b = Builder()
    weights = [b.constant(f"w{i}", b.rng.standard_normal((16, 16)) / 4) for i in (0, 1)]
    rows = b.node("first", "MatMul", [b.input("x", (1, 6, 16)), weights[0]])
    b.output(b.node("last", "MatMul", [gelu(b, normalization(b, rows)), weights[1]]))
    onnx.save(b.model(), tmp_path / "m.onnx")
    data = [random_feed(b.model(), seed) for seed in range(4)]
    inlay.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", target="qnn-htp", data=data, recipe="full-int8")
    found = build(onnx.load(tmp_path / "q.onnx"), tmp_path)
    assert (found.offload.host, found.offload.partitions, found.offload.floats) == ({}, 1, 0)
    found.close()
    alone = build(one_operator("Erf"), tmp_path)
    assert "Erf" in alone.offload.host.values()
    alone.close()
