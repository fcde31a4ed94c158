"""The cost of what leaves an NPU: the order of placements that it states, on models whose answer is plain."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from inlay.targets.ort_ep.offload import CROSSING, HOST_BYTE, HOST_NODE, Offload, offload

SIZE = 8 * 16 * 16


def chain(quantized: frozenset[int], length: int = 3) -> onnx.ModelProto:
    """Sigmoids in a row; those in ``quantized`` stand between Q/DQ pairs of their own."""
    nodes: list[onnx.NodeProto] = []
    scale, zero = (
        numpy_helper.from_array(np.array(0.1, np.float32), "s"),
        numpy_helper.from_array(np.array(3, np.uint8), "z"),
    )
    value = "x"
    for i in range(length):
        if i in quantized and i - 1 not in quantized:
            value = _pair(nodes, value)
        nodes.append(helper.make_node("Sigmoid", [value], [f"y{i}"], f"n{i}"))
        value = _pair(nodes, f"y{i}") if i in quantized else f"y{i}"
    shape = [1, 8, 16, 16]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", 1, shape)], [helper.make_tensor_value_info(value, 1, shape)], [scale, zero],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def _pair(nodes: list[onnx.NodeProto], value: str) -> str:
    nodes.append(helper.make_node("QuantizeLinear", [value, "s", "z"], [f"{value}_q"], f"{value}_Q"))
    nodes.append(helper.make_node("DequantizeLinear", [f"{value}_q", "s", "z"], [f"{value}_d"], f"{value}_DQ"))
    return f"{value}_d"


def cost(quantized: set[int], host: set[str] | None = None, partitions: int = 1) -> Offload:
    return offload(chain(frozenset(quantized)), host or set(), partitions)


def test_an_integer_operator_costs_its_bytes_and_a_float_one_what_the_host_costs() -> None:
    kernels = {k.name: k for k in cost({0, 1, 2}).kernels}
    assert kernels["n1"].ns == 2 * SIZE
    on_host = {k.name: k for k in cost(set(), {"n1"}).kernels}["n1"].ns
    assert {k.name: k for k in cost(set()).kernels}["n1"].ns == on_host == HOST_NODE + HOST_BYTE * 8 * SIZE
    assert (kernels["n1"].precision, cost({0, 1, 2}).floats, cost(set()).floats) == ("int8", 0, 3)


def test_the_order_of_placements() -> None:
    """All integer, then partly, then float; what an operator on the host leaves integer is no better than that."""
    points = [cost(q).points for q in ({0, 1, 2}, {0, 1}, {0}, set())]
    assert points == sorted(points)
    for some in itertools.chain.from_iterable(itertools.combinations(range(3), n) for n in (1, 2, 3)):
        assert cost({0, 1, 2}, {f"n{i}" for i in some}).points > points[0]
    assert cost({0}, partitions=2).points - cost({0}, partitions=1).points == CROSSING


def test_what_is_on_the_host_is_counted() -> None:
    found = cost({0, 1, 2}, {"n1", "y0_DQ"})
    assert dict(found.host) == {"n1": "Sigmoid", "y0_DQ": "DequantizeLinear"}
    assert found.host_bytes == 8 * SIZE + 5 * SIZE
    assert sum(k.ns for k in found.kernels) == pytest.approx(found.points)


def test_an_absorbed_activation_keeps_its_operator_integer() -> None:
    model = chain(frozenset({0, 1, 2}))
    for node in model.graph.node:
        if node.name == "n1":
            node.output[0] = "before"
    at = [n.name for n in model.graph.node].index("n1") + 1
    nodes = list(model.graph.node)
    nodes.insert(at, helper.make_node("Relu", ["before"], ["y1"], "relu"))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    assert offload(model, set(), 1).floats == 0
