"""Convolutions of blocks of pixels become those of pixels where their weights are copies, and only there."""

from __future__ import annotations

import numpy as np
import pytest

from inlay.targets.passes.few_outputs import _shifted
from inlay.tosa import ir
from inlay.tosa.lowering import lower
from tests.tosa.comparison import three_ways
from tests.tosa.nets import Net, normal_feed, random_weights

STEP = 0.2


def blocked(changed: str = "", per_channel: bool = True) -> Net:
    """A convolution of 3 outputs over 2x2 pixels at once, DepthToSpace behind it, and what is no copy in it."""
    rng = np.random.default_rng(5)
    n, size = Net(), 2
    weight = _shifted(random_weights(rng, 3, 4, 3, 3).astype(np.int32), size)
    scales = np.tile(rng.uniform(0.005, 0.02, 3).astype(np.float32), size**2) if per_channel else np.float32(0.01)
    bias = np.tile(rng.normal(size=3), size**2)
    if changed == "weight":
        weight[3, 0, 0, 1] ^= 1
    elif changed == "zeros":
        weight[0, 0, 3, 3] += 1
    elif changed == "scale":
        scales = scales * np.where(np.arange(12) == 5, 1.5, 1).astype(np.float32)
    elif changed == "bias":
        bias[7] += STEP
    x = n.qdq(n.input([1, 4, 8, 10]), 0.05, 3)
    y = n.op("Conv", [x, n.weight(weight.astype(np.int8), scales), n.bias(bias, np.float32(0.05) * scales)],
             strides=[2, 2], pads=[1, 1, 1, 1], kernel_shape=[4, 4])  # fmt: skip
    y = n.qdq(n.op("Relu", [y]), STEP, -128)
    n.output(n.qdq(n.op("DepthToSpace", [y], blocksize=size), STEP, -128))
    return n


def outputs_of_conv(n: Net) -> int:
    graph = lower(n.model()).graph
    (conv,) = [op for op in graph.ops if isinstance(op, ir.Conv2d)]
    return (graph.tensors[conv.inputs[1]].shape or (0,))[0]


@pytest.mark.parametrize("per_channel", [True, False])
def test_copies_are_one_convolution_with_the_same_integers(per_channel: bool) -> None:
    n = blocked(per_channel=per_channel)
    assert outputs_of_conv(n) == 3
    three_ways(n.model(), normal_feed(n.model(), 1, deviation=3), lsb=STEP)


@pytest.mark.parametrize("changed", ["weight", "zeros", "scale", "bias"])
def test_what_is_no_copy_stays(changed: str) -> None:
    n = blocked(changed)
    assert outputs_of_conv(n) == 12
    three_ways(n.model(), normal_feed(n.model(), 1, deviation=3), lsb=STEP)
