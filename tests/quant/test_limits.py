"""What values cannot exceed, and ranges that keep to it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inlay.calibrate.tables import CalibrationChoice
from inlay.quant.limits import limits_of
from inlay.quant.observers import Histogram, Range
from inlay.testing import Builder
from tests.support.onnx_queries import ops
from tests.support.runtime import optimized
from tests.support.workspace import Workspace


def test_limits_hold_for_inputs_of_any_size(tmp_path: Path) -> None:
    b = Builder()
    x = b.input("x", (1, 4, 6, 6))
    clip = b.node("clip", "Clip", [b.conv("conv", x, 4), b.constant("low", -1.0), b.constant("high", 6.0)])
    high = b.node("high_only", "Clip", [clip, "", b.constant("three", 3.0)])
    gate = b.node("gate", "Sigmoid", [b.conv("squeeze", x, 4)])
    turn = b.node("turn", "Tanh", [b.conv("other", x, 4)])
    joined = b.concat("join", [b.node("pool", "MaxPool", [clip], kernel_shape=[1, 1]), gate, turn])
    free = b.concat("free", [joined, b.conv("unbounded", x, 4)])
    mean = b.node("mean", "AveragePool", [joined], kernel_shape=[3, 3], pads=[1] * 4)
    last = b.conv("last", b.concat("all", [free, mean, high]), 4)
    b.output(last)
    feeds = tuple(
        {"x": (np.random.default_rng(0).standard_normal((1, 4, 6, 6)) * s).astype(np.float32)} for s in (1, 99)
    )
    space = Workspace(b.model(), tmp_path, feeds=feeds)
    limits = limits_of(space.graph)
    found = {v: (h.low, h.high) for v, h in space.observed.histograms.items()}
    assert limits[clip] == limits["pool_out"] == limits["join_out"] == limits["mean_out"] == Range(-1.0, 6.0)
    assert limits[high] == Range(-1.0, 3.0)
    assert limits[gate] == Range(0.0, 1.0)
    assert not limits.keys() & {x, last, "free_out", "all_out"}
    assert limits.keys() & found.keys()
    for value in limits.keys() & found.keys():
        assert limits[value].low <= found[value][0] <= found[value][1] <= limits[value].high


def test_no_range_reaches_beyond_a_clip(tmp_path: Path) -> None:
    """The runtime computes a Clip in float, and the Conv before it with it, where an integer exceeds its bounds."""
    b = Builder()
    y = b.input("x", (1, 8, 8, 8))
    for i in range(2):
        y = b.node(f"clip_{i}", "Clip", [b.conv(f"conv_{i}", y, 8), b.constant(f"l{i}", 0.0), b.constant(f"h{i}", 6.0)])
    b.output(y)
    feeds = tuple(
        {"x": (np.random.default_rng(s).standard_normal((1, 8, 8, 8)) * s).astype(np.float32)} for s in (1, 9)
    )
    space = Workspace(b.model(), tmp_path, feeds=feeds)
    differing = space.observed.histograms["clip_0_out"]
    assert np.std(differing.highs) > 0, "otherwise there is no headroom"
    assert differing.range("headroom") == differing.range("minmax") == Range(0.0, 6.0)
    table = CalibrationChoice("headroom").table(space.prepared, space.observed)
    assert "QLinearConv" in (found := ops(optimized(space.emit(space.full(), table), tmp_path)))
    assert not {"Conv", "FusedConv", "Clip"} & set(found)


@pytest.mark.parametrize("bound", [6.0, 6.5, 100.0])
def test_headroom_ends_at_the_limit(bound: float) -> None:
    made, free = Histogram(Range(0.0, bound)), Histogram()
    for high in (3.0, 6.0, 5.0):
        for each in (made, free):
            each.update(np.array([0.0, high], np.float32))
    assert made.range("headroom").high == pytest.approx(min(bound, free.range("headroom").high))
    assert made.headroom == pytest.approx(min(bound / 6.0 - 1.0, free.headroom))
    assert (made | Histogram(Range(0.0, bound))).range("headroom") == made.range("headroom")
