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
    assert found == {
        FLOAT: {},
        FULL_INT8: {"conv": STATIC, "add": STATIC},
        CONV_MATMUL: {"conv": STATIC},
    }
