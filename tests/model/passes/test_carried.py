"""What loops carry: values that no turn changes are read from outside, and shapes that turns do not keep are forgotten.

ONNX's reference evaluator says what the models compute.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from inlay.model.passes.carried import settle_carried
from inlay.testing.models import run_reference


def info(name: str, shape: list[int | str], dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


SHAPES: list[list[int | str]] = [[1, 4], [4, 4], [4], [2]]


def body(nodes: list[onnx.NodeProto], taken: list[str], resulting: list[str], at: int) -> onnx.GraphProto:
    """Of a loop that carries four values, all of which are told to keep their shapes."""
    inputs = [info(f"turn{at}", [], TensorProto.INT64), info(f"going{at}", [], TensorProto.BOOL)]
    nodes = [*nodes, helper.make_node("Identity", [f"going{at}"], [f"goes_on{at}"])]
    return helper.make_graph(
        nodes,
        f"body{at}",
        [*inputs, *map(info, taken, SHAPES)],
        [info(f"goes_on{at}", [], TensorProto.BOOL), *map(info, resulting, SHAPES)],
    )


def loop(depth: int = 1) -> onnx.ModelProto:
    """A loop of three turns over ``h = Tanh(h w + b)``, with ``w`` and ``b`` carried, though no turn changes them.

    What grows is told to be of two elements, as it is in the first turn. With ``depth`` 2 all is within another loop,
    which carries the same.
    """
    rng = np.random.default_rng(0)
    constants = {"W": rng.normal(0, 0.5, (4, 4)).astype("f4"), "B": rng.normal(0, 1, (4,)).astype("f4")}
    constants |= {"turns": np.array(3), "start": np.zeros(2, "f4"), "one": np.ones(1, "f4")}
    nodes = [
        helper.make_node("MatMul", ["h", "w"], ["hw"]),
        helper.make_node("Add", ["hw", "b"], ["hwb"]),
        helper.make_node("Tanh", ["hwb"], ["h_next"]),
        helper.make_node("Concat", ["g", "one"], ["g_next"], axis=0),
        helper.make_node("Identity", ["w"], ["w_same"]),
    ]
    inner = body(nodes, ["h", "w", "b", "g"], ["h_next", "w_same", "b", "g_next"], 0)
    given, left = ["x", "W", "B", "start"], ["last", "w_left", "b_left", "grown"]
    if depth == 2:
        taken, resulting = [f"{name}_taken" for name in given], [f"{name}_inner" for name in left]
        inner = body([helper.make_node("Loop", ["turns", "", *taken], resulting, body=inner)], taken, resulting, 1)
    node = helper.make_node("Loop", ["turns", "", *given], left, body=inner)
    outputs = [*map(info, left, SHAPES[:3]), info("grown", ["n"])]
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([node], "g", [info("x", [1, 4])], outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return model


@pytest.mark.parametrize("depth", [1, 2])
def test_what_no_turn_changes_is_read_from_outside(depth: int) -> None:
    model = loop(depth)
    feed = {"x": np.random.default_rng(1).normal(0, 1, (1, 4)).astype("f4")}
    edited, edits = settle_carried(ir.from_proto(model))
    proto = ir.to_proto(edited)
    onnx.checker.check_model(proto)
    expected, found = run_reference(model, feed), run_reference(proto, feed)
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0.0, atol=1e-6)
    loops = [n for n in edited.graph.all_nodes() if n.op_type == "Loop"]
    assert [len(n.outputs) for n in loops] == [2] * depth, "only what changes is carried"
    (matmul,) = (n for n in edited.graph.all_nodes() if n.op_type == "MatMul")
    assert matmul.inputs[1] is edited.graph.initializers["W"]
    assert edits == 2 * depth + 1, "two values in each loop, and a shape"


def test_shapes_that_turns_do_not_keep_are_forgotten_and_others_stay() -> None:
    edited, _ = settle_carried(ir.from_proto(loop()))
    (node,) = (n for n in edited.graph if n.op_type == "Loop")
    shapes = {v.name: v.shape for v in node.attributes["body"].as_graph().inputs}
    assert shapes["h"] == [1, 4]
    grows = shapes["g"]
    assert grows is not None
    assert [isinstance(d, int) for d in grows] == [False], "of the rank that it keeps"


def test_what_is_carried_and_changed_stays() -> None:
    """A control: two values that change places in each turn are not the same in each."""
    inside = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["goes_on"])],
        "body",
        [info("turn", [], TensorProto.INT64), info("going", [], TensorProto.BOOL), info("a", [4]), info("b", [4])],
        [info("goes_on", [], TensorProto.BOOL), info("b", [4]), info("a", [4])],
    )
    node = helper.make_node("Loop", ["turns", "", "x", "c"], ["p", "q"], body=inside)
    graph = helper.make_graph(
        [node],
        "g",
        [info("x", [4])],
        [info("p", [4]), info("q", [4])],
        [numpy_helper.from_array(np.array(3), "turns"), numpy_helper.from_array(np.ones(4, "f4"), "c")],
    )
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    edited, edits = settle_carried(model)
    assert edits == 0
    assert [len(n.outputs) for n in edited.graph] == [2]


def test_a_scan_too_and_what_it_hands_out_of_each_turn() -> None:
    """What is carried unchanged may be a result of each turn as well, which a body cannot take from outside itself."""
    inside = helper.make_graph(
        [
            helper.make_node("MatMul", ["h", "w"], ["hw"]),
            helper.make_node("Add", ["hw", "part"], ["h_next"]),
            helper.make_node("Identity", ["w"], ["w_same"]),
        ],
        "body",
        [info("h", [1, 4]), info("w", [4, 4]), info("part", [1, 4])],
        [info("h_next", [1, 4]), info("w_same", [4, 4]), info("w", [4, 4])],
    )
    node = helper.make_node("Scan", ["x", "W", "parts"], ["last", "w_left", "each"], body=inside, num_scan_inputs=1)
    weights = {
        "W": np.random.default_rng(0).normal(0, 0.5, (4, 4)).astype("f4"),
        "parts": np.random.default_rng(1).normal(0, 1, (3, 1, 4)).astype("f4"),
    }
    graph = helper.make_graph(
        [node],
        "g",
        [info("x", [1, 4])],
        [info("last", [1, 4]), info("w_left", [4, 4]), info("each", [3, 4, 4])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    edited, edits = settle_carried(ir.from_proto(model))
    proto, last = ir.to_proto(edited), np.ones((1, 4), "f4")
    onnx.checker.check_model(proto)
    found = run_reference(proto, {"x": last})
    for part in weights["parts"]:
        last = last @ weights["W"] + part
    for name, array in (("last", last), ("w_left", weights["W"]), ("each", np.stack([weights["W"]] * 3))):
        np.testing.assert_allclose(found[name], array, rtol=0.0, atol=1e-6)
    (scan,) = (n for n in edited.graph if n.op_type == "Scan")
    assert (edits, len(scan.inputs), len(scan.outputs)) == (1, 2, 2)
