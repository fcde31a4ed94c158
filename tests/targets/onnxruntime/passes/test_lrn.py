"""LRN is written out with operators that run faster."""

from __future__ import annotations

import math

import numpy as np
import pytest

from inlay.targets.onnxruntime.passes.respelled import spell_out_lrn, window
from inlay.testing import Builder
from tests.support.fixtures import RewriteModel


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("beta", [0.25, 0.5, 0.75, 1.0, 0.6])
@pytest.mark.parametrize("size", [1, 3, 5, 9])
@pytest.mark.parametrize("channels", [1, 4, 9])
def test_lrn_spelled_out_computes_the_same(beta: float, size: int, channels: int, rewritten: RewriteModel) -> None:
    """Against ONNX Runtime's own operator: every window, cut at both ends, and every way to take the power."""
    b = Builder()
    x = b.input("x", (2, channels, 3, 4))
    b.output(b.node("lrn", "LRN", [x], channels=channels, size=size, alpha=0.3, beta=beta, bias=1.5))
    model = b.model()
    feed = {"x": np.random.default_rng(0).normal(0, 3, (2, channels, 3, 4)).astype(np.float32)}
    done = rewritten(model, spell_out_lrn, feed)
    assert "LRN" not in done.operators
    done.assert_close(rtol=2e-6)
    kept = rewritten(model, None, feed)
    assert "LRN" in kept.operators, "it is for targets that ask for it"


def test_lrn_over_unknown_channels_stays(rewritten: RewriteModel) -> None:
    b = Builder()
    b.output(b.node("lrn", "LRN", [b.input("x", (1, "c", 3, 4))], size=3))
    done = rewritten(b.model(), spell_out_lrn, {"x": np.ones((1, 4, 3, 4), np.float32)})
    assert done.operators == ["LRN"]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_window_of_a_channel(size: int) -> None:
    """The operator's definition, channel by channel; an even window has its extra channel behind."""
    for i, row in enumerate(window(7, size)):
        low, high = max(0, i - math.floor((size - 1) / 2)), min(6, i + math.ceil((size - 1) / 2))
        assert np.flatnonzero(row).tolist() == list(range(low, high + 1))
