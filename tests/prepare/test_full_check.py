"""Every written model passes ONNX's full checker where the given one does, bodies of operators included."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from inlay.model.nesting import nested
from inlay.model.serialize import to_proto
from inlay.testing import run_reference, sqnr
from tests.support.fixtures import MakeWorkspace
from tests.support.random_models import random_model
from tests.support.runtime import check_and_load

FLOAT, BOOL, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64


def _scalar(name: str, dtype: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, [])


def _info(name: str, stated: bool) -> onnx.ValueInfoProto:
    """A value of a body: with its type, or with an empty one, as the tracing exporter writes it."""
    if stated:
        return helper.make_tensor_value_info(name, FLOAT, None)
    empty = onnx.ValueInfoProto(name=name)
    empty.type.SetInParent()
    return empty


def _operator(kind: str, value: str, stated: bool) -> list[onnx.NodeProto]:
    """An operator with bodies that computes ``with_bodies`` from ``value``."""
    if kind == "If":
        computed = [  # a constant would decide which branch is taken
            helper.make_node("ReduceMax", [value], ["most"], keepdims=0),
            helper.make_node("IsNaN", ["most"], ["false"]),
            helper.make_node("Not", ["false"], ["true"]),
        ]
        inner = [
            helper.make_node("If", ["true"], ["inner"], "inner", **_branches("Relu", "Neg", value, stated)),
            helper.make_node("Identity", ["inner"], ["twice"]),
        ]
        then = helper.make_graph(inner, "then", [], [_info("twice", stated)])
        other = _branches("Abs", "Neg", value, stated)["else_branch"]
        outer = helper.make_node("If", ["true"], ["with_bodies"], "outer", then_branch=then, else_branch=other)
        return [*computed, outer]
    if kind == "Loop":
        body = helper.make_graph(
            [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Tanh", ["state"], ["next"])],
            "body",
            [_scalar("turn", INT64), _scalar("go", BOOL), _info("state", True)],
            [_scalar("on", BOOL), _info("next", stated)],
        )
        times = helper.make_node("Constant", [], ["times"], value=helper.make_tensor("n", INT64, [], [2]))
        return [times, helper.make_node("Loop", ["times", "", value], ["with_bodies"], "loop", body=body)]
    tanh = helper.make_node("Tanh", ["row"], ["out"])
    body = helper.make_graph([tanh], "body", [_info("row", True)], [_info("out", stated)])
    return [helper.make_node("Scan", [value], ["with_bodies"], "scan", body=body, num_scan_inputs=1)]


def _branches(first: str, second: str, value: str, stated: bool) -> dict[str, Any]:
    names = {"then_branch": (first, f"{first}_a"), "else_branch": (second, f"{second}_b")}
    return {
        key: helper.make_graph([helper.make_node(op, [value], [out])], key, [], [_info(out, stated)])
        for key, (op, out) in names.items()
    }


def _with_bodies(model: onnx.ModelProto, kind: str, stated: bool) -> onnx.ModelProto:
    """``model`` with an operator with bodies before its first output; computed values say nothing of their types."""
    del model.graph.value_info[:]
    out = model.graph.output[0]
    last, out.name = out.name, "final"
    model.graph.node.extend([*_operator(kind, last, stated), helper.make_node("Identity", ["with_bodies"], ["final"])])
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("stated", [True, False], ids=["stated", "empty types"])
@pytest.mark.parametrize("kind", ["If", "Loop", "Scan"])
def test_bodies(kind: str, stated: bool, workspace: MakeWorkspace) -> None:
    for seed in range(4):
        given, feeds = random_model(np.random.default_rng([seed, stated]))
        model = _with_bodies(given, kind, stated)
        space = workspace(model, feeds=feeds)
        normalized = nested(to_proto(space.prepared.normalized.model))  # branches stand in the main graph meanwhile
        assert kind in {n.op_type for n in normalized.graph.node}
        assert "Identity" not in {n.op_type for n in normalized.graph.node}, "it was to be rewritten"
        want, got = (run_reference(m, feeds[0]) for m in (model, _checked(normalized)))
        assert all(sqnr(want[k], got[k]) > 60.0 for k in want)
        _checked(space.emit(space.full()))


def _checked(model: onnx.ModelProto) -> onnx.ModelProto:
    check_and_load(model)
    return model
