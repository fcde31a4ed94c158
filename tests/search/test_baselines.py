"""The anchors: one list of names and labelings for all that use them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from inlay.model.graph import Graph, build_graph
from inlay.search.baselines import CONV_MATMUL, FLOAT, FULL_INT8, anchor_units
from inlay.space.rules import OpRule
from inlay.space.units import STATIC, Unit
from inlay.types import Port


def graph_of(sizes: Mapping[str, int]) -> Graph:
    """Operators in a row, each of which reads a weight of so many elements."""
    nodes, weights = [], []
    for k, (name, size) in enumerate(sizes.items()):
        nodes.append(helper.make_node("Add", [f"x{k}", f"w{k}"], [f"x{k + 1}"], name=name))
        weights.append(numpy_helper.from_array(np.zeros(size, np.float32), f"w{k}"))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("x0", f"x{len(nodes)}")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    return build_graph(ir.from_proto(helper.make_model(graph)))


def test_anchors_label_units() -> None:
    rule = OpRule("Conv")
    units = [Unit("conv", ("conv",), "Conv", rule, ""), Unit("add", ("add",), "Add", rule, "")]
    refused = Unit("gemm", ("gemm",), "Gemm", rule, "its weight is not constant")
    names = [u.name for u in (*units, refused)]
    assert anchor_units(graph_of(dict.fromkeys(names, 1)), [*units, refused]) == {
        FLOAT: {},
        FULL_INT8: {"conv": STATIC, "add": STATIC},
        CONV_MATMUL: {"conv": STATIC},
    }


@pytest.mark.parametrize(
    ("convs", "size", "anchor"),
    [
        (1, 10, True),  # two of three operators
        (9, 10, False),  # a small part of the model is no anchor
        (9, 100, True),  # few operators, but most of the weights
    ],
)
def test_a_form_that_much_of_the_model_has_is_an_anchor(convs: int, size: int, anchor: bool) -> None:
    rule = OpRule("Conv")
    products = [
        Unit(f"p{i}", (f"p{i}",), "MatMul", rule, "", weights=(Port(f"p{i}", 1),), forms={"dynamic": ()})
        for i in range(2)
    ]
    others = [Unit(f"c{i}", (f"c{i}",), "Conv", rule, "", weights=(Port(f"c{i}", 1),)) for i in range(convs)]
    sizes = {u.name: size if u in products else 50 for u in (*others, *products)}
    found = anchor_units(graph_of(sizes), [*others, *products])
    assert found.get("dynamic") == ({"p0": "dynamic", "p1": "dynamic"} if anchor else None)
