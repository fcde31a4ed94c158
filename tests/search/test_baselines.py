"""The anchors: one list of names and labelings for all that use them."""

from __future__ import annotations

from inlay.search.baselines import CONV_MATMUL, FLOAT, FULL_INT8, anchor_units
from inlay.space.rules import OpRule
from inlay.space.units import STATIC, Unit


def test_anchors_label_units() -> None:
    rule = OpRule("Conv")
    units = [Unit("conv", ("conv",), "Conv", rule, ""), Unit("add", ("add",), "Add", rule, "")]
    refused = Unit("gemm", ("gemm",), "Gemm", rule, "its weight is not constant")
    found = anchor_units([*units, refused])
    products = [Unit(f"p{i}", (f"p{i}",), "MatMul", rule, "", forms={"dynamic": ()}) for i in range(2)]
    convs = [Unit(f"c{i}", (f"c{i}",), "Conv", rule, "") for i in range(9)]
    assert anchor_units([*units, *products])["dynamic"] == {"p0": "dynamic", "p1": "dynamic"}
    assert "dynamic" not in anchor_units([*convs, *products]), "a small part of the model is no anchor"
    assert found == {
        FLOAT: {},
        FULL_INT8: {"conv": STATIC, "add": STATIC},
        CONV_MATMUL: {"conv": STATIC},
    }
