"""ReduceMean over all pixels becomes GlobalAveragePool."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inlay.targets.onnxruntime.passes.spatial_mean import mean_to_pool
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
