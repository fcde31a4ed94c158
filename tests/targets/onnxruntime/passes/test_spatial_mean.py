"""ReduceMean over all pixels becomes GlobalAveragePool."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inlay.targets.onnxruntime.passes.respelled import mean_to_pool
from inlay.testing import Builder
from tests.support.fixtures import RewriteModel


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("by", ["attribute", "input"])
@pytest.mark.parametrize(
    ("shape", "axes", "rewrites"),
    [
        ((2, 5, 7, 8), [2, 3], True),
        ((2, 5, 7, 8), [-1, -2], True),
        ((2, 5, 7), [2], True),
        ((2, 5, 3, 4, 6), [2, 3, 4], True),
        ((2, 5, 7, 8), [3], False),
        ((2, 5, 7, 8), [1, 2, 3], False),
        ((2, 5, 7, 8), [1, 2], False),
        ((2, 5), [1], False),
    ],
)
def test_the_mean_of_all_pixels_is_a_pool(
    shape: tuple[int, ...], axes: list[int], rewrites: bool, by: str, keepdims: int, rewritten: RewriteModel
) -> None:
    b = Builder(opset=17 if by == "attribute" else 18)
    x = b.input("x", shape)
    given: dict[str, Any] = {"axes": axes} if by == "attribute" else {}
    inputs = [x] if by == "attribute" else [x, b.constant("axes", np.array(axes, np.int64))]
    b.output(b.node("mean", "ReduceMean", inputs, keepdims=keepdims, **given))
    feed = {"x": np.random.default_rng(0).normal(0, 3, shape).astype(np.float32)}
    done = rewritten(b.model(), mean_to_pool, feed)
    assert done.operators == (
        ["ReduceMean"] if not rewrites else ["GlobalAveragePool"] if keepdims else ["GlobalAveragePool", "Flatten"]
    )
    done.assert_close(rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("square", ["Pow", "Mul"])
@pytest.mark.parametrize("centred", [True, False])
def test_a_normalization_that_was_written_out_stays_one_kernel(
    square: str, centred: bool, rewritten: RewriteModel
) -> None:
    """Of three-dimensional values, its means are those of all but the first two axes."""
    b = Builder(opset=14)
    x = data = b.input("x", (2, 5, 16))
    if centred:
        data = b.node("centred", "Sub", [x, b.node("mean", "ReduceMean", [x], axes=[-1], keepdims=1)])
    factors = [data, b.constant("two", np.float32(2.0))] if square == "Pow" else [data, data]
    power = b.node("power", "ReduceMean", [b.node("squares", square, factors)], axes=[-1], keepdims=1)
    spread = b.node("spread", "Sqrt", [b.node("plus", "Add", [power, b.constant("e", np.float32(1e-5))])])
    b.output(b.node("y", "Div", [data, spread]))
    feed = {"x": np.random.default_rng(0).normal(0, 3, (2, 5, 16)).astype(np.float32)}
    assert "GlobalAveragePool" not in rewritten(b.model(), mean_to_pool, feed).operators


def test_the_mean_behind_a_gate_is_a_pool(rewritten: RewriteModel) -> None:
    """A product of two values is no square."""
    b = Builder(opset=14)
    x = b.input("x", (2, 5, 16))
    gated = b.node("gated", "Mul", [x, b.node("gate", "Sigmoid", [x])])
    b.output(b.node("mean", "ReduceMean", [gated], axes=[-1], keepdims=1))
    feed = {"x": np.random.default_rng(0).normal(0, 3, (2, 5, 16)).astype(np.float32)}
    assert "GlobalAveragePool" in rewritten(b.model(), mean_to_pool, feed).operators
