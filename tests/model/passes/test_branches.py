"""Branches that are known before the model runs become part of the graph, and outputs stay what they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from inlay.model.nesting import nested
from inlay.model.normalize import Normalized, normalize
from inlay.model.passes.branches import deciding_inputs
from inlay.model.reference import ConstantEvaluator
from inlay.testing import run_reference
from tests.support.control_flow import controlled, feed_for
from tests.support.runtime import CAN_TAKE_BODIES, check_and_load

FEW = range(12)
MANY = [pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(12, 200)]


def normalized(model: onnx.ModelProto, folder: Path, **values: int) -> Normalized:
    """Ungated: what is wrong must show."""
    fixed = {name: np.array(value, np.int64) for name, value in values.items()}
    done = normalize(ir.from_proto(model), ConstantEvaluator(folder), None, values=fixed)
    assert not [r for r in done.reports if r.rolled_back]
    return done


def operators(graph: onnx.GraphProto) -> Counter[str]:
    """Those of bodies included."""
    bodies = (a.g for n in graph.node for a in n.attribute if a.type == onnx.AttributeProto.GRAPH)
    return sum(map(operators, bodies), Counter(n.op_type for n in graph.node))


@CAN_TAKE_BODIES
@pytest.mark.parametrize("seed", [*FEW, *MANY])
def test_what_inputs_and_shapes_decide_is_decided(seed: int, tmp_path: Path) -> None:
    conditions = ("mode", "shape") if seed % 2 else ("mode", "shape", "data")
    kinds = ("if", "loop", "scan") if seed // 2 % 2 else ("if",)
    model = controlled(seed, kinds, conditions)
    modes = {"mode0": seed // 4 % 2, "mode1": seed // 8 % 2}
    feed = feed_for(seed, **modes)
    given = run_reference(model, feed)
    for values in ({}, modes):
        proto = nested(ir.to_proto(normalized(model, tmp_path, **values).model))
        check_and_load(proto)
        onnx.checker.check_model(proto, full_check=True)
        assert [i.name for i in proto.graph.input] == ["x", "mode0", "mode1"], "programs go on feeding them"
        done = run_reference(proto, feed)
        assert list(done) == list(given)
        for name, want in given.items():
            np.testing.assert_allclose(done[name], want, rtol=1e-4, atol=1e-5)
        left = operators(proto.graph)["If"]
        if values and kinds == ("if",) and "data" not in conditions:
            assert not left
        elif not values and "Equal" in operators(proto.graph) and "data" not in conditions:
            assert left, "the negative control: an input may still take another value"


def branching(bodies: Iterable[onnx.GraphProto], outputs: int = 1, **inputs: onnx.ValueInfoProto) -> onnx.ModelProto:
    """An If over whether ``mode`` is 1, beside a Relu ``r`` of the input ``x``."""
    then, otherwise = bodies
    names = [f"y{i}" for i in range(outputs)]
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("Equal", ["mode", "one"], ["is_one"], "equal"),
        helper.make_node("If", ["is_one"], names, "choice", then_branch=then, else_branch=otherwise),
    ]
    vector = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("x", *names, "r")]
    mode = helper.make_tensor_value_info("mode", TensorProto.INT64, [])
    one = numpy_helper.from_array(np.array(1, np.int64), "one")
    graph = helper.make_graph(nodes, "g", [vector[0], mode], vector[1:], [one])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def body(name: str, nodes: list[onnx.NodeProto], outputs: list[str], **weights: np.ndarray) -> onnx.GraphProto:
    infos = [helper.make_tensor_value_info(o, TensorProto.FLOAT, [4]) for o in outputs]
    return helper.make_graph(nodes, name, [], infos, [numpy_helper.from_array(w, n) for n, w in weights.items()])


@pytest.mark.parametrize("mode", [0, 1])
def test_values_from_outside_and_weights_from_inside(mode: int, tmp_path: Path) -> None:
    """One branch passes on what it captures, twice; the other calls its values like the first, and its weight."""
    then = body(
        "then",
        [helper.make_node("Identity", ["r"], ["a"], "i"), helper.make_node("Identity", ["x"], ["b"], "j")],
        ["a", "b"],
    )
    add = [helper.make_node("Add", ["x", "w"], ["a"], "i"), helper.make_node("Mul", ["a", "r"], ["b"], "j")]
    otherwise = body("else", add, ["a", "b"], w=np.arange(4, dtype=np.float32))
    model = branching((then, otherwise), 2)
    x: np.ndarray = np.array([-1, 0, 1, 2], np.float32)
    feed = {"x": x, "mode": np.array(mode, np.int64)}
    proto = nested(ir.to_proto(normalized(model, tmp_path, mode=mode).model))
    check_and_load(proto)
    assert operators(proto.graph)["If"] == 0
    given, done = run_reference(model, feed), run_reference(proto, feed)
    assert list(given) == list(done) == ["y0", "y1", "r"]
    for name in given:
        np.testing.assert_array_equal(given[name], done[name])


def test_the_input_says_what_it_is_fixed_to(tmp_path: Path) -> None:
    relu = body("b", [helper.make_node("Relu", ["x"], ["a"], "i")], ["a"])
    done = normalized(branching((relu, relu)), tmp_path, mode=1)
    assert "fixed to 1" in str(next(v.doc_string for v in done.model.graph.inputs if v.name == "mode"))


def test_the_input_that_decides_is_found(tmp_path: Path) -> None:
    relu = body("b", [helper.make_node("Relu", ["x"], ["a"], "i")], ["a"])
    model = ir.from_proto(branching((relu, relu)))
    assert deciding_inputs(model) == {"mode": ("choice",)}
    by_data = controlled(3, ("if",), ("data",))
    assert "mode0" not in deciding_inputs(ir.from_proto(by_data))
