"""Operators that stay in float between a DQ and a Q, whatever the DQ's qparams are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from inlay.model.passes.names import free_name
from inlay.quant.keep_float import keep_float
from inlay.testing import run_reference

OPSET = 17


def _conv_between(scale: str, size: int = 1) -> onnx.ModelProto:
    """``DQ -> Conv -> Q``; the scale of the DQ is called ``scale``: a constant of ``size`` elements, or an input."""
    nodes = [
        helper.make_node("DequantizeLinear", ["x", scale], ["float"], "dq"),
        helper.make_node("Conv", ["float", "w"], ["conv_out"], "conv"),
        helper.make_node("QuantizeLinear", ["conv_out", "one"], ["y"], "q"),
    ]
    weight = np.arange(8, dtype=np.float32).reshape(4, 2, 1, 1) / 8
    constants = [("w", weight), ("one", np.float32(0.5)), ("given", np.full((size,) if size > 1 else (), 0.5, "f4"))]
    inputs = [helper.make_tensor_value_info("x", TensorProto.UINT8, [1, 2, 3, 3])]
    inputs += [helper.make_tensor_value_info("s", TensorProto.FLOAT, [])] if scale == "s" else []
    outputs = [helper.make_tensor_value_info("y", TensorProto.UINT8, [1, 4, 3, 3])]
    graph = helper.make_graph(
        nodes, "g", inputs, outputs, [numpy_helper.from_array(np.asarray(a), n) for n, a in constants]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


@pytest.mark.parametrize(("scale", "size"), [("given", 1), ("given", 2), ("s", 1)])
def test_the_numbers_stay_whatever_the_scale_is(scale: str, size: int) -> None:
    """A scale may be computed or given, or be one of each channel: only one that is known can be repeated."""
    model = _conv_between(scale, size)
    feed = {"x": np.arange(18, dtype=np.uint8).reshape(1, 2, 3, 3)}
    feed |= {"s": np.array(0.25, np.float32)} if scale == "s" else {}
    want = run_reference(model, feed)
    names = {v for n in model.graph.node for v in (n.name, *n.input, *n.output)}
    keep_float(model.graph, lambda wish: free_name(wish, names), OPSET)
    assert ("Size" in [n.op_type for n in model.graph.node]) == ((scale, size) != ("given", 1))
    np.testing.assert_array_equal(run_reference(model, feed)["y"], want["y"])


@pytest.mark.parametrize("dims", [(), (8,), (2, 4)])
def test_a_weight_of_no_convolution_is_left_alone(dims: tuple[int, ...]) -> None:
    model = _conv_between("given")
    (weight,) = (t for t in model.graph.initializer if t.name == "w")
    weight.CopyFrom(numpy_helper.from_array(np.ones(dims, np.float32), "w"))
    before = model.SerializeToString()
    keep_float(model.graph, lambda wish: wish, OPSET)
    assert model.SerializeToString() == before


@pytest.mark.parametrize("group", [2**62, 5, 0, -1])
def test_no_array_is_as_long_as_groups_that_cannot_be(group: int) -> None:
    model = _conv_between("given")
    next(n for n in model.graph.node if n.op_type == "Conv").attribute.append(helper.make_attribute("group", group))
    keep_float(model.graph, lambda wish: wish, OPSET)
    assert [n.op_type for n in model.graph.node] == ["DequantizeLinear", "Conv", "QuantizeLinear", "Size"]
