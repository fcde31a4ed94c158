"""Every kernel of ONNX Runtime is traced to a node, or to the value whose boundary causes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from inlay.search.surrogate import disagreements
from inlay.search.unit_graph import build_unit_graph
from inlay.targets.base import Artifact
from inlay.targets.onnxruntime.profile import read_events
from inlay.targets.onnxruntime.target import OrtCpuTarget
from inlay.testing import Builder
from tests.support.workspace import Workspace


def _conv(name: str, x: str, y: str, weights: list[onnx.TensorProto], channels: int) -> onnx.NodeProto:
    rng = np.random.default_rng(len(weights))
    weights.append(
        numpy_helper.from_array(rng.normal(0, 0.1, (channels, channels, 3, 3)).astype(np.float32), f"{name}.w")
    )
    return helper.make_node("Conv", [x, f"{name}.w"], [y], name, pads=[1, 1, 1, 1], kernel_shape=[3, 3])


def _model(path: Path, quantized: bool) -> onnx.ModelProto:
    """Conv, Relu, LRN, Conv; between them layouts change. Quantized: the first convolution between Q and DQ nodes."""
    weights: list[onnx.TensorProto] = []
    first = _conv("first", "x_dq" if quantized else "x", "a", weights, 16)
    nodes = [first, helper.make_node("Relu", ["a"], ["b"], "relu")]
    scale = [
        numpy_helper.from_array(np.array(0.05, np.float32), "s"),
        numpy_helper.from_array(np.array(0, np.uint8), "z"),
    ]
    if quantized:
        q = [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["x_q"], "x_QuantizeLinear"),
            helper.make_node("DequantizeLinear", ["x_q", "s", "z"], ["x_dq"], "x_DequantizeLinear"),
        ]
        weight = numpy_helper.to_array(weights[0])
        weights[0] = numpy_helper.from_array(np.rint(weight / 0.01).clip(-127, 127).astype(np.int8), "first.wq")
        scale += [
            numpy_helper.from_array(np.array(0.01, np.float32), "ws"),
            numpy_helper.from_array(np.array(0, np.int8), "wz"),
        ]
        q.append(
            helper.make_node("DequantizeLinear", ["first.wq", "ws", "wz"], ["first.w"], "first.w_DequantizeLinear")
        )
        after = [
            helper.make_node("QuantizeLinear", ["b", "s", "z"], ["b_q"], "b_QuantizeLinear"),
            helper.make_node("DequantizeLinear", ["b_q", "s", "z"], ["b_dq"], "b_DequantizeLinear"),
        ]
        nodes = [*q, *nodes, *after]
    nodes.append(helper.make_node("LRN", ["b_dq" if quantized else "b"], ["c"], "lrn", size=3))
    nodes.append(_conv("second", "c", "y", weights, 16))
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 16, 12, 12]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", value[:1], value[1:], [*weights, *(scale if quantized else [])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return model


@pytest.mark.parametrize("quantized", [False, True])
def test_every_kernel_has_a_cause(tmp_path: Path, quantized: bool) -> None:
    model = _model(tmp_path / "m.onnx", quantized)
    executable = OrtCpuTarget().compile(Artifact(tmp_path / "m.onnx", "m"))
    feed = {"x": np.random.default_rng(0).random((1, 16, 12, 12), np.float32)}
    kernels = executable.profile(feed, 5)
    assert all(k.attributed for k in kernels)
    names = {n.name for n in model.graph.node}
    values = {v for n in model.graph.node for v in (*n.input, *n.output)}
    assert all(n in names for k in kernels for n in k.nodes)
    assert all(v in values for k in kernels for v in k.values)
    causes = {v for k in kernels if k.kind != "compute" for v in k.values}
    if quantized:
        assert {"x", "b"} <= causes  # the Q before the convolution, the DQ behind it
        assert any(k.nodes == ("first",) and k.precision == "uint8" for k in kernels)
    else:
        assert {k.op_type for k in kernels if k.kind == "layout"} <= {"ReorderInput", "ReorderOutput"}
    assert any("lrn" in k.nodes for k in kernels)


def test_a_constants_dequantization_belongs_to_its_reader(tmp_path: Path) -> None:
    """Beside a float activation it is not fused, and no value of the model is what it dequantizes."""
    rng = np.random.default_rng(0)
    constants = [
        numpy_helper.from_array(rng.integers(-9, 9, (64, 64)).astype(np.int8), "w_quantized"),
        numpy_helper.from_array(np.array(0.1, np.float32), "s"),
        numpy_helper.from_array(np.array(0, np.int8), "z"),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["w_quantized", "s", "z"], ["w_dq"], "w_DequantizeLinear"),
        helper.make_node("MatMul", ["x", "w_dq"], ["y"], "product"),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 64]) for n in ("x", "y"))
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    executable = OrtCpuTarget().compile(Artifact(tmp_path / "m.onnx", "m"))
    kernels = executable.profile({"x": rng.random((4, 64), np.float32)}, 5)
    assert kernels
    assert all(k.nodes == ("product",) for k in kernels)


@pytest.mark.parametrize(
    ("op_type", "precision"), [("MatMulIntegerToFloat", "uint8"), ("QLinearConv", "uint8"), ("Gemm", "float")]
)
def test_an_integer_kernel_computes_in_bytes_however_many_scales_it_has(op_type: str, precision: str) -> None:
    """The runtime packs a constant weight beforehand and does not list it: scales of columns outnumber the data."""
    shapes = [{"uint8": [1, 32]}, {"float": [400]}, {"int64": [999]}]
    event = {
        "cat": "Node",
        "name": "n_kernel_time",
        "dur": 5,
        "args": {"op_name": op_type, "input_type_shape": shapes},
    }
    (found,) = read_events([event, event], 2)
    assert found.precision == precision
    assert found.ns.tolist() == [5000.0, 5000.0]


@pytest.mark.parametrize("form", ["dynamic", "weight-only int8/128"])
def test_kernels_of_a_further_precision_belong_to_the_products(form: str, tmp_path: Path) -> None:
    """Two products read one value, which is quantized for both; one has a bias, and a transposed weight."""
    b = Builder(opset=17)
    x = b.input("x", (16, 128))
    weights = [b.constant(f"w{i}", b.rng.standard_normal((128, 128)).astype(np.float32)) for i in range(2)]
    bias = b.constant("b", b.rng.standard_normal(128).astype(np.float32))
    first = b.node("first", "Sigmoid", [b.node("plain", "MatMul", [x, weights[0]])])
    second = b.node("second", "Tanh", [b.node("biased", "Gemm", [x, weights[1], bias], transB=1)])
    b.output(first)
    b.output(second)
    space = Workspace(b.model(), tmp_path)
    graph = build_unit_graph(space.graph, space.prepared.units)
    onnx.save(space.emit(space.prepared.label({"plain": form, "biased": form})), tmp_path / "written.onnx")
    kernels = OrtCpuTarget().compile(Artifact(tmp_path / "written.onnx", "written")).profile(space.feeds[0], 3)
    owners = {graph.units[i].name for k in kernels if (i := graph.owner(k.nodes)) is not None}
    assert owners == {"plain", "biased", "first", "second"}
    assert all(graph.owner(k.nodes) is not None for k in kernels), [k for k in kernels if graph.owner(k.nodes) is None]
    labels = graph.labels({"plain": form, "biased": form})
    assert not disagreements(graph, labels, kernels)
    assert len(disagreements(graph, graph.labels({}), kernels)) == 2, "the control"
