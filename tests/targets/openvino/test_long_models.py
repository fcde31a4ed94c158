"""What rules and rewrites look for before an operator takes no longer than the model is large, however it is shaped."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from inlay.model.graph import build_graph
from inlay.targets.openvino.passes import leave_padding_out
from inlay.targets.openvino.rules import OPS

LENGTH = 3000
"""Beyond the calls that Python nests."""


def model(kind: str) -> onnx.ModelProto:
    """A pool behind a chain, or behind a ladder whose paths are too many to be walked one by one."""
    if kind == "ladder":
        nodes = [helper.make_node("Concat", [f"v{i}", f"v{i}"], [f"v{i + 1}"], f"n{i}", axis=1) for i in range(LENGTH)]
    else:
        nodes = [helper.make_node(kind, [f"v{i}"], [f"v{i + 1}"], f"n{i}") for i in range(LENGTH)]
    window: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}
    nodes.append(helper.make_node("AveragePool", [f"v{LENGTH}"], ["y"], "pool", **window))
    shape = [1, 0, 4, 4]  # of no channels, as many as twice that
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("v0", "y")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["ladder", "Transpose", "Tanh", "Relu"])
def test_the_way_back_is_walked_once(kind: str) -> None:
    graph = build_graph(ir.from_proto(model(kind)))
    reasons = [condition(graph, graph.node("pool")) for condition in OPS["AveragePool"].conditions]
    assert any(reasons) == (kind != "Relu"), "data from zero have no zero point"
    leave_padding_out(ir.from_proto(model(kind)))
