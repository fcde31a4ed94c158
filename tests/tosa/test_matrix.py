"""Convolutions of every kind before every activation, with zero points at and inside the limits: not one step off.

The scales are such that no sum lies on a rounding edge, where float sums decide by their last bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inlay.tosa.lowering import lower
from tests.tosa.comparison import three_ways
from tests.tosa.nets import Net, normal_feed, random_weights

ACTIVATIONS = (
    "Relu", "Clip", "LeakyRelu", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh", "Elu", "Selu", "Celu", "Softplus",
    "Softsign", "Erf", "Abs", "Neg", "ThresholdedRelu",
)  # fmt: skip
CONVS: dict[str, dict[str, Any]] = {
    "dense": {}, "groups": {"group": 2}, "depthwise": {"group": 4}, "dilated": {"dilations": [2, 2]},
    "strided": {"strides": [2, 1], "pads": [1, 0, 0, 1]}, "transposed": {"strides": [2, 2]},
    "transposed groups": {"group": 2, "strides": [1, 2]},
}  # fmt: skip


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("zero_points", [(-128, -128), (127, 3), (-5, -111)])
def test_activation(activation: str, zero_points: tuple[int, int]) -> None:
    check("dense", activation, zero_points)


@pytest.mark.parametrize("conv", [name for name in CONVS if name != "dense"])
@pytest.mark.parametrize("zero_points", [(-128, 3), (17, -111)])
def test_convolution(conv: str, zero_points: tuple[int, int]) -> None:
    check(conv, "Relu", zero_points)


def check(conv: str, activation: str, zero_points: tuple[int, int]) -> None:
    rng, n, attributes = np.random.default_rng(0), Net(), CONVS[conv]
    x = n.qdq(n.input([1, 4, 7, 7]), 0.0507, zero_points[0])
    group, kind = attributes.get("group", 1), "ConvTranspose" if "transposed" in conv else "Conv"
    w = random_weights(rng, 4, 4 // group, 3, 3)
    y = n.op(kind, [x, n.weight(w, 0.003013), n.bias(rng.normal(size=4), 0.0507 * np.float32(0.003013))], **attributes)
    if activation != "Relu":
        y = n.qdq(y, 0.0613, zero_points[1])
    y = n.op(activation, [y, n.f32(-1), n.f32(2)] if activation == "Clip" else [y])
    n.output(n.qdq(y, 0.04391, zero_points[1]))
    model = n.model()
    assert not lower(model).not_lowered
    three_ways(model, normal_feed(model, 3, deviation=3), lsb=0.04391, limit=0)
