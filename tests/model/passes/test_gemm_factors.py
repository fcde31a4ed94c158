"""The factors of Gemm become part of its constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from inlay.testing import Builder, random_feed, run_reference
from tests.support.fixtures import NormalizeModel
from tests.support.normalizing import no_roll_backs


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("bias", ["none", "constant", "computed"])
@pytest.mark.parametrize("factors", [{"alpha": 0.5}, {"beta": 0.0}, {"beta": -2.0}, {"alpha": 3.0, "beta": 0.25}])
def test_factors_are_folded_where_constants_take_them(
    factors: dict[str, Any], bias: str, shared: bool, normalized: NormalizeModel
) -> None:
    rng, b = np.random.default_rng(0), Builder()
    x, other = b.input("x", (3, 4)), b.input("other", (3, 5))
    weight = b.constant("w", rng.normal(0, 1, (4, 5)).astype(np.float32))
    c = {"none": [], "computed": [other], "constant": [b.constant("c", rng.normal(0, 1, 5).astype(np.float32))]}[bias]
    b.output(b.node("gemm", "Gemm", [x, weight, *c], **factors))
    if shared:
        b.output(b.node("reader", "MatMul", [x, weight]))
    given = b.model()
    proto, done = normalized(given)
    assert no_roll_backs(done)
    (gemm,) = [n for n in proto.graph.node if n.op_type == "Gemm"]
    left = {a.name: helper.get_attribute_value(a) for a in gemm.attribute}
    kept = {
        "alpha": "alpha" in factors and shared,
        "beta": bias == "computed" and factors.get("beta", 1.0) not in (0.0, 1.0),
    }
    assert {name for name, value in left.items() if name in kept and value != 1.0} == {n for n in kept if kept[n]}
    feed = random_feed(given)
    for name, want in run_reference(given, feed).items():
        np.testing.assert_allclose(run_reference(proto, feed)[name], want, rtol=1e-5, atol=1e-6)
