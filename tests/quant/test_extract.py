"""Q/DQ models of other origin: the runtime's own quantizer, hand-made files, and what has to stay in place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType

from inlay.model.graph import build_graph
from inlay.model.load import load
from inlay.prepare.strip_qdq import strip_qdq
from inlay.quant.extract import extract
from inlay.quant.plain.form import is_quantized
from inlay.quant.transfer import transfer
from inlay.testing import Builder, concat_model, random_feed, residual_model, run_reference, small_model, sqnr
from inlay.types import GRAPH_OUTPUT, Placement, Port, QType
from tests.support.fixtures import MakeWorkspace
from tests.support.hand_written_qdq import insert_qdq_everywhere
from tests.support.runtime import CAN_MOVE_8_BITS, check_and_load
from tests.support.runtime_quantizer import quantize_by_runtime


@pytest.mark.matrix(every=4)
@CAN_MOVE_8_BITS
@pytest.mark.filterwarnings("ignore")  # the runtime's quantizer warns about this and that
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("activation", [QuantType.QUInt8, QuantType.QInt8])
@pytest.mark.parametrize("keep", [True, False], ids=["relu kept", "relu dropped"])
def test_models_of_the_runtimes_own_quantizer(
    tmp_path: Path, workspace: MakeWorkspace, per_channel: bool, activation: QuantType, keep: bool
) -> None:
    model = small_model()
    feeds = [random_feed(model, seed) for seed in range(3)]
    path = quantize_by_runtime(
        model, tmp_path, feeds, activation=activation, per_channel=per_channel, keep_activations=keep
    )
    found = strip_qdq(load(path), feeds, tmp_path)
    assert found is not None
    assert found.leftovers == ()
    left = ir.to_proto(found.model)
    check_and_load(left)
    clips = {s.node for s in found.saturations if s.form == "Clip"}
    kinds = sorted(n.op_type for n in left.graph.node if n.name not in clips)
    assert kinds == sorted(n.op_type for n in model.graph.node)
    want, got = run_reference(model, feeds[0]), run_reference(left, feeds[0])
    assert list(got) == list(want)
    assert sqnr(want["head_out"], got["head_out"]) > 25.0
    kind = QType.UINT8 if activation is QuantType.QUInt8 else QType.INT8
    assert found.placement.qtype(Port("left", 0)) is kind
    # carried over to our own form of the float model, it can be emitted again with its own qparams
    space = workspace(model)
    moved = transfer(found, build_graph(found.model), space.graph)
    assert moved.placement.qtype(Port("left", 1)) is QType.INT8
    assert moved.placement.qtype(Port("left", 2)) is QType.INT32
    space.calibrate(moved.placement)
    proto = space.emit(moved.placement)
    check_and_load(proto)
    assert space.extract(proto).placement == moved.placement


def test_a_hand_made_sandwich_is_read_back() -> None:
    found = extract(ir.from_proto(insert_qdq_everywhere(residual_model()))).settled({})
    assert found.leftovers == ()
    assert {n.op_type for n in found.model.graph} == {n.op_type for n in residual_model().graph.node}
    assert Port(GRAPH_OUTPUT, 0) in found.placement
    assert {q for _, q in found.placement} == {QType.UINT8}
    params = found.qparams["x", QType.UINT8]
    assert (params.scale, params.zero_point, params.axis) == ((float(np.float32(0.05)),), (128,), None)


def _model(nodes: list[onnx.NodeProto], **tensors: object) -> ir.Model:
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4])]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    initializers = [numpy_helper.from_array(np.asarray(v), k) for k, v in tensors.items()]
    return ir.from_proto(
        helper.make_model(
            helper.make_graph(nodes, "g", inputs, outputs, initializers), opset_imports=[helper.make_opsetid("", 17)]
        )
    )


def test_an_output_may_be_listed_twice() -> None:
    """The runtime runs such a model, and hands the value out twice."""
    model = insert_qdq_everywhere(residual_model())
    name = model.graph.output[0].name
    model.graph.output.append(model.graph.output[0])
    check_and_load(model)
    found = extract(ir.from_proto(model))
    (first, second) = found.model.graph.outputs
    assert first is second
    assert first.name == name
    assert {Port(GRAPH_OUTPUT, 0), Port(GRAPH_OUTPUT, 1)} <= {port for port, _ in found.placement}


def test_a_pair_with_different_numbers_stays() -> None:
    """Q and DQ that disagree rescale the value: taking them out would change the model."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "Q"),
        helper.make_node("DequantizeLinear", ["q", "t", "z"], ["y"], "DQ"),
    ]
    found = extract(_model(nodes, s=np.float32(0.1), t=np.float32(0.2), z=np.uint8(0)))
    assert len(found.placement) == 0
    assert [n.op_type for n in found.model.graph] == ["QuantizeLinear", "DequantizeLinear"]
    assert "differs" in found.leftovers[0].reason


def test_scales_of_run_time_stay() -> None:
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["s"], "range", keepdims=0),
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "Q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], "DQ"),
    ]
    found = extract(_model(nodes, z=np.uint8(0)))
    assert len(found.placement) == 0
    assert any("run time" in left.reason for left in found.leftovers)


def test_integers_read_by_another_operator_stay() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "Q"),
        helper.make_node("Cast", ["q"], ["y"], "cast", to=1),
    ]
    found = extract(_model(nodes, s=np.float32(0.1), z=np.uint8(0)))
    assert [n.op_type for n in found.model.graph] == ["QuantizeLinear", "Cast"]
    assert [left.node for left in found.leftovers] == ["Q"]


def test_no_zero_point_means_uint8_zero() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s"], ["q"], "Q"),
        helper.make_node("DequantizeLinear", ["q", "s"], ["d"], "DQ"),
        helper.make_node("Relu", ["d"], ["y"], "relu"),
    ]
    found = extract(_model(nodes, s=np.float32(0.1))).settled({})
    assert found.placement == Placement([(Port("relu", 0), QType.UINT8)])
    assert found.qparams["x", QType.UINT8].zero_point == (0,)


def test_a_quantized_constant_becomes_float_again() -> None:
    stored = np.array([[-127, 5], [3, 100]], np.int8)
    nodes = [
        helper.make_node("DequantizeLinear", ["w_quantized", "s", "z"], ["w"], "DQ", axis=1),
        helper.make_node("Gather", ["w", "i"], ["g"], "gather"),
        helper.make_node("Add", ["g", "x"], ["y"], "add"),
    ]
    scale, zero = np.array([0.5, 0.25], np.float32), np.zeros(2, np.int8)
    found = extract(_model(nodes, w_quantized=stored, s=scale, z=zero, i=np.array([0], np.int64)))
    assert found.placement == Placement([(Port("gather", 0), QType.INT8)])
    params = found.qparams["w", QType.INT8]
    assert (params.scale, params.axis) == ((0.5, 0.25), 1)
    tensor = found.model.graph.initializers["w"].const_value
    assert tensor is not None
    assert np.array_equal(tensor.numpy(), stored * scale)


@pytest.mark.parametrize(("axis", "count"), [(8, 2), (-3, 2), (0, 3), (1, 3)])
def test_scales_that_do_not_fit_their_constant_stay(axis: int, count: int) -> None:
    stored = np.array([[-127, 5], [3, 100]], np.int8)
    nodes = [
        helper.make_node("DequantizeLinear", ["w_quantized", "s", "z"], ["w"], "DQ", axis=axis),
        helper.make_node("Add", ["w", "x"], ["y"], "add"),
    ]
    scale, zero = np.full(count, 0.5, np.float32), np.zeros(count, np.int8)
    found = extract(_model(nodes, w_quantized=stored, s=scale, z=zero))
    assert found.placement == Placement([])
    assert [node.op_type for node in found.model.graph] == ["DequantizeLinear", "Add"]


def test_a_pair_with_too_many_zero_points_stays() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "Q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "DQ"),
        helper.make_node("Add", ["d", "x"], ["y"], "add"),
    ]
    assert extract(_model(nodes, s=np.float32(0.5), z=np.zeros(4, np.uint8))).placement == Placement([])


def test_a_pair_that_reads_nothing_stays() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["", "s", "z"], ["q"], "Q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "DQ"),
        helper.make_node("Add", ["d", "x"], ["y"], "add"),
    ]
    found = extract(_model(nodes, s=np.float32(0.5), z=np.uint8(0)))
    assert found.placement == Placement([])


def test_who_reads_only_the_shape_of_a_pair_is_no_site() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s"], ["q"], "Q"),
        helper.make_node("DequantizeLinear", ["q", "s"], ["d"], "DQ"),
        helper.make_node("Shape", ["d"], ["sizes"], "shape"),
        helper.make_node("Reshape", ["d", "sizes"], ["y"], "reshape"),
    ]
    found = extract(_model(nodes, s=np.float32(0.1))).settled({})
    assert found.placement == Placement([(Port("reshape", 0), QType.UINT8)])
    assert [n.op_type for n in found.model.graph] == ["Shape", "Reshape"]


def test_extract_does_not_touch_its_argument() -> None:
    model = ir.from_proto(insert_qdq_everywhere(concat_model()))
    before = ir.to_proto(model).SerializeToString()
    extract(model)
    assert ir.to_proto(model).SerializeToString() == before


def test_float_models_have_nothing_to_extract() -> None:
    model = ir.from_proto(concat_model())
    assert not is_quantized(model)
    found = extract(model)
    assert len(found.placement) == 0
    assert found.leftovers == ()


def test_transfer_names_what_it_cannot_place(workspace: MakeWorkspace) -> None:
    """A Q/DQ model of another network: every site is listed with its reason, none is lost silently."""
    b = Builder()
    b.output(b.node("only", "Tanh", [b.input("x", (1, 3, 4, 4))]))
    space = workspace(b.model())
    found = extract(ir.from_proto(insert_qdq_everywhere(residual_model())))
    moved = transfer(found, build_graph(found.model), space.graph)
    assert len(moved.placement) == 0
    assert len(moved.missing) == len(found.placement)
    assert all(m.reason for m in moved.missing)
