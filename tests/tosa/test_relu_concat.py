"""Conv → Relu → Concat where the shared zero point is not the type's minimum: the case that a known backend gets wrong.

Its activation cannot be folded into the convolution's saturation. Here it must be computed exactly, in every variant.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import onnx
import pytest

from inlay.tosa import ir
from inlay.tosa.lowering import lower
from inlay.tosa.reference import LoweredRunner
from tests.tosa.comparison import by_oracle, run_ort, three_ways
from tests.tosa.nets import Net, normal_feed, random_weights

SCALE = 0.003929885104298592  # the scale of the published defect
ZERO_POINTS = (-128, -111, -32, 0)
MATRIX = list(
    itertools.product(ZERO_POINTS, (True, False), (True, False), (True, False), (True, False), ("Relu", "Clip"), (1, 2))
)


def net(
    zp: int, per_channel: bool, bias: bool, shared: bool, narrow: bool, activation: str, branches: int
) -> onnx.ModelProto:
    """``branches`` × (Conv → activation), concatenated; without ``shared``, each branch has qparams of its own."""
    rng = np.random.default_rng(7)
    scale = SCALE * 8 if activation == "Clip" else SCALE  # so that 6 lies inside the range
    n = Net()
    x = n.input([1, 3, 8, 8])
    xq = n.qdq(x, 0.02, 3)
    parts = []
    for branch in range(branches):
        w = random_weights(rng, 4, 3, 3, 3, low=-127 if narrow else -128)
        ws = rng.uniform(0.0004, 0.004, 4) if per_channel else np.float64(0.002)
        inputs = [xq, n.weight(w, ws)]
        if bias:
            inputs.append(n.bias(rng.normal(size=4) / 4, np.float32(0.02) * np.asarray(ws, np.float32)))
        y = n.op("Conv", inputs, pads=[1] * 4)
        limits = [] if activation == "Relu" else [n.f32(0), n.f32(6 * scale / SCALE / 64)]
        y = n.op(activation, [y, *limits])
        own = 1.0 if shared else 1.0 + 0.37 * (branch + 1)
        parts.append(n.qdq(y, scale * own, zp))
    if branches == 1:
        parts.append(n.qdq(xq, scale, zp))
    n.output(n.qdq(n.op("Concat", parts, axis=1), scale, zp))
    return n.model()


@pytest.mark.parametrize("profile", ["INT", "INT+FP"])
@pytest.mark.parametrize("zp", ZERO_POINTS)
@pytest.mark.matrix
def test_exact(zp: int, profile: str) -> None:
    for case in MATRIX:
        if case[0] != zp:
            continue
        model = net(*case)
        lowered = lower(model, profile)
        assert not lowered.not_lowered, case
        assert [p.kind for p in lowered.partitions] == ["tosa"], case
        scale = SCALE * 8 if case[5] == "Clip" else SCALE
        # A tie that ONNX Runtime rounds to even and TOSA up differs by one step; a branch with wider steps of its own
        # hands that on as up to two steps of the join.
        three_ways(model, normal_feed(model, 3), profile, lsb=scale, limit=1 if case[3] else 2)


@pytest.mark.parametrize("zp", ZERO_POINTS)
def test_clamp_only_where_needed(zp: int) -> None:
    model = net(zp, True, True, True, False, "Relu", 2)
    clamps = [op for op in lower(model).graph.ops if isinstance(op, ir.Clamp)]
    assert len(clamps) == (0 if zp == -128 else 2)
    assert all(c.low == zp for c in clamps)


@pytest.mark.parametrize("zp", ZERO_POINTS)
def test_a_dropped_clamp_is_caught(zp: int) -> None:
    """The negative control: the same comparison notices a lowering that loses the activation."""
    model = net(zp, True, True, True, False, "Relu", 2)
    lowered = lower(model)
    kept: list[ir.Op] = []
    renamed: dict[str, str] = {}
    for op in lowered.graph.ops:
        inputs = tuple(renamed.get(n, n) for n in op.inputs)
        if isinstance(op, ir.Clamp):
            renamed[op.out] = inputs[0]
        else:
            kept.append(replace(op, inputs=inputs))
    broken = replace(lowered.graph, ops=tuple(kept))
    right = LoweredRunner(lowered).run(normal_feed(model, 3))[0]
    wrong = by_oracle(broken, normal_feed(model, 3))[0]
    steps = np.abs(wrong - run_ort(model, normal_feed(model, 3))[0]).max() / SCALE
    if zp == -128:
        np.testing.assert_array_equal(wrong, right)  # saturation does the activation's work
    else:
        assert steps > 1.5
        assert not np.array_equal(wrong, right)
