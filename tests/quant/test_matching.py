"""Nodes of two graphs of one network are matched whatever they are called; nodes that differ are not."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from inlay.model.graph import Graph, build_graph
from inlay.model.passes.names import fix_names
from inlay.quant.matching import match_nodes
from inlay.testing import Builder, concat_model, residual_model, small_model
from tests.support.examples import examples

MODELS = {"small": small_model, "residual": residual_model, "concat": concat_model}


def _graph(model: onnx.ModelProto) -> Graph:
    named, _ = fix_names(ir.from_proto(model))
    return build_graph(named)


def _anonymous(model: onnx.ModelProto, rng: np.random.Generator) -> tuple[onnx.ModelProto, list[int]]:
    """``model`` without its names, its nodes in another topological order, weights rounded; and the order."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    keep = {v.name for v in (*copy.graph.input, *copy.graph.output)}
    names: dict[str, str] = {}

    def hide(value: str) -> str:
        return value if not value or value in keep else names.setdefault(value, f"t{len(names)}")

    written: set[str] = keep - {v.name for v in copy.graph.output} | {t.name for t in copy.graph.initializer}
    order: list[int] = []
    while len(order) < len(model.graph.node):
        ready = [
            i for i, n in enumerate(model.graph.node) if i not in order and all(not v or v in written for v in n.input)
        ]
        order.append(int(rng.choice(ready)))
        written |= set(model.graph.node[order[-1]].output)
    del copy.graph.node[:]
    for i in order:
        node = copy.graph.node.add()
        node.CopyFrom(model.graph.node[i])
        node.name = ""
        node.input[:], node.output[:] = map(hide, node.input), map(hide, node.output)
    for tensor in copy.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.size:
            step = max(float(np.abs(array).max()) / 127, 1e-6)
            array = (np.rint(array / step) * step).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(array, hide(tensor.name)))
    del copy.graph.value_info[:]
    return copy, order


@settings(max_examples=examples(30), deadline=None)
@given(st.sampled_from(sorted(MODELS)), st.integers(0, 2**32 - 1))
def test_every_node_is_found_again_without_names(name: str, seed: int) -> None:
    model = MODELS[name]()
    hidden, order = _anonymous(model, np.random.default_rng(seed))
    source, target = _graph(hidden), _graph(model)
    found = match_nodes(source, target)
    want = {source.nodes[place].name: target.nodes[i].name for place, i in enumerate(order)}
    assert {s: t for s, t in found.items() if _same_twin(target, want[s], t)} == found
    assert len(found) == len(target.nodes)
    assert len(set(found.values())) == len(found)


def _same_twin(graph: Graph, wanted: str, got: str) -> bool:
    """Whether ``got`` is ``wanted``, or computes the same of the same without weights to tell them apart."""
    a, b = graph.node(wanted), graph.node(got)
    return a is b or (a.op_type == b.op_type and a.inputs == b.inputs)


def _tower(weights: list[np.ndarray], relu: bool) -> onnx.ModelProto:
    b = Builder()
    value = b.input("x", (1, 8))
    for i, w in enumerate(weights):
        value = b.node(f"fc{i}", "MatMul", [value, b.constant(f"w{i}", w)])
        if relu or i % 2:
            value = b.node(f"act{i}", "Relu", [value])
    b.output(value)
    return b.model()


@pytest.mark.parametrize("swap", [False, True])
def test_a_clamp_that_only_one_graph_has_is_walked_over(swap: bool) -> None:
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(8, 8)).astype(np.float32) for _ in range(5)]
    first, second = _graph(_tower(weights, True)), _graph(_tower(weights, False))
    if swap:
        first, second = second, first
    found = match_nodes(first, second)
    assert {s: t for s, t in found.items() if s.startswith("fc")} == {f"fc{i}": f"fc{i}" for i in range(5)}


def test_other_weights_are_another_network() -> None:
    rng = np.random.default_rng(0)
    first, second = ([rng.normal(size=(8, 8)).astype(np.float32) for _ in range(3)] for _ in range(2))
    found = match_nodes(_graph(_tower(first, True)), _graph(_tower(second, True)))
    assert not any(name.startswith("fc") for name in found)


def test_twins_are_told_apart_by_their_weights() -> None:
    """Two branches that differ in nothing but their numbers, written down in the other order."""
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(8, 8)).astype(np.float32) for _ in range(2)]

    def model(order: tuple[int, int]) -> onnx.ModelProto:
        b = Builder()
        x = b.input("x", (1, 8))
        sides = {i: b.node(f"side{i}", "MatMul", [x, b.constant(f"w{i}", weights[i])]) for i in order}
        b.output(b.node("sub", "Sub", [sides[0], sides[1]]))
        return b.model()

    found = match_nodes(_graph(model((1, 0))), _graph(model((0, 1))))
    assert found == {"side0": "side0", "side1": "side1", "sub": "sub"}


@pytest.mark.parametrize("correction", [0.0, 5.0])
def test_biases_rank_twins_and_a_corrected_one_is_the_same_layer(correction: float) -> None:
    """Two layers of one weight, two of others: quantizers move a bias by the error of its layer."""
    rng = np.random.default_rng(0)
    twin, *others = (rng.normal(size=(8, 8)).astype(np.float32) for _ in range(3))
    weights = [twin, twin, *others]

    def model(order: tuple[int, ...], correction: float) -> onnx.ModelProto:
        b = Builder()
        x, sides = b.input("x", (1, 8)), {}
        for i in order:
            bias = np.full(8, 0.01 + 0.02 * i + correction * (i > 1), np.float32)
            sides[i] = b.node(f"side{i}", "Gemm", [x, b.constant(f"w{i}", weights[i]), b.constant(f"b{i}", bias)])
        b.output(b.node("concat", "Concat", [sides[i] for i in range(4)], axis=1))
        return b.model()

    found = match_nodes(_graph(model((1, 3, 0, 2), correction)), _graph(model((0, 1, 2, 3), 0.0)))
    assert found == {name: name for name in ("side0", "side1", "side2", "side3", "concat")}


@pytest.mark.parametrize("swap", [False, True])
def test_a_product_with_its_bias_is_a_product_and_a_sum(swap: bool) -> None:
    """Optimizers make one Gemm of MatMul and Add; behind it, the walk by connection goes on."""
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(8, 8)).astype(np.float32) for _ in range(2)]

    def model(fused: bool) -> onnx.ModelProto:
        b = Builder()
        value = b.input("x", (1, 8))
        for i, weight in enumerate(weights):
            w, bias = b.constant(f"w{i}", weight), b.constant(f"b{i}", np.full(8, i, np.float32))
            if fused:
                value = b.node(f"fc{i}", "Gemm", [value, w, bias])
            else:
                value = b.node(f"plus{i}", "Add", [b.node(f"fc{i}", "MatMul", [value, w]), bias])
            value = b.node(f"act{i}", "Tanh", [value])  # without constants, which could tell it from others
        b.output(value)
        return b.model()

    first, second = _graph(model(swap)), _graph(model(not swap))
    found = match_nodes(first, second)
    assert {"fc0": "fc0", "act0": "act0", "fc1": "fc1", "act1": "act1"}.items() <= found.items()


def test_a_size_that_one_graph_computes_is_a_constant_in_the_other() -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(8, 8)).astype(np.float32)

    def model(computed: bool) -> onnx.ModelProto:
        b = Builder()
        x = b.input("x", (1, 8))
        shape = b.node("shape", "Shape", [x]) if computed else b.constant("shape_out", np.array([1, 8], np.int64))
        b.output(b.node("fc", "MatMul", [b.node("flat", "Reshape", [x, shape]), b.constant("w", weight)]))
        return b.model()

    found = match_nodes(_graph(model(False)), _graph(model(True)))
    assert found == {"flat": "flat", "fc": "fc"}


def test_a_saturation_before_a_clamp_does_not_take_its_counterpart() -> None:
    """A pair between a product and its Relu leaves a Clip there, which the float model does not have."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(8, 8)).astype(np.float32)

    def model(saturated: bool) -> onnx.ModelProto:
        b = Builder()
        value = b.node("fc", "MatMul", [b.input("x", (1, 8)), b.constant("w", weight)])
        if saturated:
            limits = (b.constant(n, np.array(v, np.float32)) for n, v in (("low", -1), ("high", 9)))
            value = b.node("saturated", "Clip", [value, *limits])
        b.output(b.node("act", "Relu", [value]))
        return b.model()

    assert match_nodes(_graph(model(True)), _graph(model(False))) == {"fc": "fc", "act": "act"}


def test_twins_without_weights_are_told_apart_by_their_attributes() -> None:
    """A value is turned in two ways, of which the other graph has only the second."""

    def model(both: bool) -> onnx.ModelProto:
        b = Builder()
        x = b.input("x", (2, 3, 4))
        if both:
            b.output(b.node("first", "Transpose", [x], perm=[0, 2, 1]))
        b.output(b.node("second", "Transpose", [x], perm=[2, 0, 1]))
        return b.model()

    source = _graph(model(False))
    renamed = model(True)
    renamed.graph.output[1].name = renamed.graph.node[1].output[0] = "other"  # its name must not help
    renamed.graph.output.reverse()
    assert match_nodes(source, _graph(renamed))["second"] == "second"
