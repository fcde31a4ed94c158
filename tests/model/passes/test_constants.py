"""Constants become initializers; initializers are no inputs; what follows from constants is computed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from inlay.testing import Builder
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
