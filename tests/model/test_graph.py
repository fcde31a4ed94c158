"""What the indexed view of a model tells of values."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from inlay.model.graph import build_graph
from inlay.testing import Builder


def test_what_constants_and_shapes_alone_decide_is_fixed() -> None:
    b = Builder()
    x = b.input("x", (1, 4))
    size = b.node("size", "Shape", [x])
    fixed = b.node("fixed", "ConstantOfShape", [size])
    moving = b.node("moving", "Add", [fixed, x])
    noise = b.node("noise", "RandomNormal", [], shape=[1, 4])
    body = helper.make_graph(
        [helper.make_node("Neg", [x], ["minus"])], "body", [], [helper.make_empty_tensor_value_info("minus")]
    )
    truth = b.constant("truth", np.array(True))
    branch = b.node("branch", "If", [truth], then_branch=body, else_branch=body)
    for value in (moving, noise, branch):
        b.output(value)
    model = b.model()
    graph = build_graph(ir.from_proto(onnx.ModelProto.FromString(model.SerializeToString())))
    known = {v: graph.is_fixed(v) for v in (x, size, fixed, moving, noise, branch, truth)}
    assert known == {x: False, size: True, fixed: True, moving: False, noise: False, branch: False, truth: True}
