"""AveragePool over whole windows becomes a depthwise convolution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inlay.targets.onnxruntime.passes.respelled import averagepool_to_conv
from inlay.testing import Builder
from tests.support.fixtures import RewriteModel

POOL = {"kernel_shape": [2, 3], "strides": [2, 1]}


@pytest.mark.parametrize(
    ("attributes", "rewrites"),
    [
        (POOL, True),
        ({**POOL, "pads": [1, 1, 1, 1], "count_include_pad": 1}, True),
        ({**POOL, "auto_pad": "VALID"}, True),
        ({**POOL, "pads": [1, 1, 1, 1]}, False),
        ({**POOL, "auto_pad": "SAME_UPPER"}, False),
        ({**POOL, "ceil_mode": 1}, False),
        ({"kernel_shape": [5, 5]}, False),
        ({"kernel_shape": [1, 1]}, False),
    ],
)
def test_averagepool_with_whole_windows_becomes_a_convolution(
    attributes: dict[str, Any], rewrites: bool, rewritten: RewriteModel
) -> None:
    b = Builder()
    b.output(b.node("pool", "AveragePool", [b.input("x", (2, 5, 7, 8))], channels=5, **attributes))
    model = b.model()
    feed = {"x": np.random.default_rng(0).normal(0, 3, (2, 5, 7, 8)).astype(np.float32)}
    done = rewritten(model, averagepool_to_conv, feed)
    assert done.operators == ["Conv" if rewrites else "AveragePool"]
    done.assert_close(rtol=2e-6, atol=2e-6)
