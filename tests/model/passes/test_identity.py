"""What does nothing is removed."""

from __future__ import annotations

import onnx
from onnx import helper

from inlay.testing import Builder
from tests.support.fixtures import NormalizeModel
from tests.support.onnx_queries import ops


def test_dropout_identity_and_casts_go(normalized: NormalizeModel) -> None:
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 6, 6)), 4)
    x = b.node("cast", "Cast", [b.node("same", "Identity", [b.node("drop", "Dropout", [x])])], to=1)
    b.output(b.node("relu", "Relu", [x]))
    assert ops(normalized(b.model())[0]) == ["Conv", "Relu"]


def test_a_cast_of_what_has_no_type_stated_goes(normalized: NormalizeModel) -> None:
    """Runtimes remove it, and take the Q/DQ pairs around it for one."""
    b = Builder()
    x = b.node("same", "Cast", [b.conv("conv", b.input("x", (1, 3, 6, 6)), 4)], to=1)
    b.output(b.node("other", "Cast", [b.node("less", "Less", [x, b.constant("zero", 0.0)])], to=1))
    model = b.model()
    del model.graph.value_info[:]
    assert ops(normalized(model)[0]) == ["Conv", "Less", "Cast"]


def test_dropout_whose_mask_is_read_stays(normalized: NormalizeModel) -> None:
    b = Builder()
    b.node("drop", "Dropout", [b.input("x", (1, 3))], ["y", "mask"])
    b.output("y")
    b.output("mask", onnx.TensorProto.BOOL)
    assert ops(normalized(b.model())[0]) == ["Dropout"]


def test_identities_go_around_an_if_and_stay_inside_it(normalized: NormalizeModel) -> None:
    """A branch that hands an outer value on cannot do without its Identity."""
    b = Builder()
    x = b.node("before", "Identity", [b.conv("conv", b.input("x", (1, 3, 8, 8)), 4)])
    flag = b.node("flag", "Greater", [b.node("sum", "ReduceSum", [x], keepdims=0), b.constant("zero", 0.0)])
    out = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 4, 8, 8]) for n in ("t", "e")]
    then = helper.make_graph([helper.make_node("Identity", [x], ["t"])], "then", [], out[:1])
    other = helper.make_graph([helper.make_node("Neg", [x], ["e"])], "else", [], out[1:])
    b.output(b.node("after", "Identity", [b.node("choose", "If", [flag], then_branch=then, else_branch=other)]))
    proto, done = normalized(b.model())
    assert "Identity" not in ops(proto)
    assert not [r for r in done.reports if r.rolled_back]
    assert [o.name for o in proto.graph.output] == ["after_out"]
    inner = next(a.g for n in proto.graph.node if n.op_type == "If" for a in n.attribute if a.name == "then_branch")
    assert [n.op_type for n in inner.node] == ["Identity"]
