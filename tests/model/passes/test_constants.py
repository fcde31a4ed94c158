"""Constants become initializers; initializers are no inputs; what follows from constants is computed."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx_ir.passes.common import RemoveUnusedNodesPass

from inlay.model.passes.constants import drop_dead
from inlay.testing import Builder
from tests.support.examples import examples
from tests.support.fixtures import NormalizeModel
from tests.support.normalizing import no_roll_backs
from tests.support.onnx_queries import ops


def test_constants_and_initializers_among_the_inputs(normalized: NormalizeModel) -> None:
    b = Builder()
    w = numpy_helper.from_array(b.rng.standard_normal((4, 3, 1, 1)).astype(np.float32))
    weight = b.node("weight", "Constant", [], value=w)
    y = b.node("conv", "Conv", [b.input("x", (1, 3, 6, 6)), weight], channels=4)
    b.output(b.node("max", "Max", [y, b.constant("c", np.ones((1, 4, 1, 1)))]))
    model = b.model()
    model.graph.input.append(helper.make_tensor_value_info("c", onnx.TensorProto.FLOAT, [1, 4, 1, 1]))
    want = [i.name for i in model.graph.input if i.name != "c"]
    proto, done = normalized(model)
    assert [i.name for i in proto.graph.input] == want
    assert ops(proto) == ["Conv", "Max"]
    assert {t.name for t in proto.graph.initializer} >= {"c"}
    assert no_roll_backs(done)


def test_weights_behind_shape_operators_are_computed(normalized: NormalizeModel) -> None:
    b = Builder()
    flat = b.constant("flat", b.rng.standard_normal(12))
    weight = b.node("weight", "Reshape", [flat, b.constant("shape", np.array([4, 3, 1, 1]))])
    b.output(b.node("conv", "Conv", [b.input("x", (1, 3, 6, 6)), weight], channels=4))
    assert ops(normalized(b.model())[0]) == ["Conv"]


@pytest.mark.parametrize(("batch", "left"), [(1, ["Reshape"]), ("N", ["Shape", "Gather", "Concat", "Reshape"])])
def test_shapes_that_the_model_fixes_are_constants(
    normalized: NormalizeModel, batch: int | str, left: list[str]
) -> None:
    """As exporters write the target of a Reshape; with a dynamic batch it stays computed."""
    b = Builder()
    x = b.input("x", (batch, 4, 6))
    shape = b.node("shape", "Shape", [x])
    first = b.node("first", "Gather", [shape, b.constant("zero", np.array([0]))])
    target = b.node("target", "Concat", [first, b.constant("rest", np.array([-1]))], axis=0)
    b.output(b.node("flat", "Reshape", [x, target]))
    proto, done = normalized(b.model())
    assert ops(proto) == left
    assert no_roll_backs(done)


KINDS = ("Relu", "Add", "Dropout", "Clip", "BatchNormalization", "If", "constant")


def _with_some_dead(kinds: list[str], reads: list[int], outputs: int) -> onnx.ModelProto:
    """A graph of these operators, each of which reads an earlier value; the last ``outputs`` values are outputs."""
    nodes, values, initializers = [], ["x"], []
    for i, (kind, read) in enumerate(zip(kinds, reads, strict=True)):
        source, out = values[read % len(values)], f"v{i}"
        match kind:
            case "constant":
                initializers.append(numpy_helper.from_array(np.ones(4, np.float32), out))
            case "Add":
                nodes.append(helper.make_node("Add", [source, values[-1]], [out]))
            case "Dropout":  # with a mask that nothing reads
                nodes.append(helper.make_node("Dropout", [source], [out, f"mask{i}"]))
            case "Clip":  # with absent bounds
                nodes.append(helper.make_node("Clip", [source, "", ""], [out]))
            case "BatchNormalization":
                nodes.append(helper.make_node(kind, [source, *["s"] * 4], [out], training_mode=0))
            case "If":
                body = [helper.make_node("Relu", [source], [f"b{i}"]), helper.make_node("Neg", [source], [f"d{i}"])]
                branch = helper.make_graph(body, f"g{i}", [], [helper.make_empty_tensor_value_info(f"b{i}")])
                nodes.append(helper.make_node(kind, ["c"], [out], then_branch=branch, else_branch=branch))
            case _:
                nodes.append(helper.make_node(kind, [source], [out]))
        values.append(out)
    initializers.append(numpy_helper.from_array(np.ones(4, np.float32), "s"))
    initializers.append(numpy_helper.from_array(np.array(True), "c"))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4, 4])],
        [helper.make_tensor_value_info(v, onnx.TensorProto.FLOAT, None) for v in values[1:][-outputs:]],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data(), kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=8))
def test_the_quick_look_for_dead_nodes_misses_none(data: st.DataObject, kinds: list[str]) -> None:
    """What is left is what the library's own pass leaves, whether or not that is asked.

    It counts what bodies of removed nodes read: each look is at the model as read anew.
    """
    reads = [data.draw(st.integers(0, 8)) for _ in kinds]
    model = _with_some_dead(kinds, reads, data.draw(st.integers(1, len(kinds))))
    ours, theirs = ir.from_proto(model), ir.from_proto(model)
    _, dropped = drop_dead(ours)
    while RemoveUnusedNodesPass()(theirs).modified:
        theirs = ir.from_proto(ir.to_proto(theirs))
    assert ir.to_proto(ours) == ir.to_proto(theirs)
    initializers = len(model.graph.initializer) - len(ours.graph.initializers)
    assert dropped == len(model.graph.node) - ours.graph.num_nodes() + initializers
