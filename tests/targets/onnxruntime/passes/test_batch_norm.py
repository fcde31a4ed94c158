"""A BatchNormalization that no convolution can take becomes a depthwise convolution."""

from __future__ import annotations

import numpy as np
import pytest

from inlay.targets.onnxruntime.passes.respelled import batchnorm_to_conv
from inlay.testing import Builder
from tests.support.fixtures import RewriteModel


def alone(shape: tuple[int | str, ...], seed: int = 0) -> Builder:
    """A BatchNormalization behind a Concat, and a Mul and an Add behind it."""
    b = Builder(seed=seed)
    x = b.input("x", shape)
    both = b.node("cat", "Concat", [x, x], axis=1)
    factors = [("gamma", 0.5, 2.0), ("beta", -1.0, 1.0), ("mean", -1.0, 1.0), ("var", 0.1, 2.0)]
    params = [b.constant(n, b.rng.uniform(low, high, 6).astype(np.float32)) for n, low, high in factors]
    y = b.node("norm", "BatchNormalization", [both, *params], epsilon=1e-3)
    along = (6, *[1] * (len(shape) - 2))
    y = b.node("mul", "Mul", [y, b.constant("k", b.rng.uniform(0.5, 2.0, along).astype(np.float32))])
    b.output(b.node("add", "Add", [y, b.constant("d", b.rng.uniform(-1.0, 1.0, along).astype(np.float32))]))
    return b


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 5, 4), (1, 3, 4, 3, 2), ("n", 3, 5, 4)])
def test_batch_norm_that_stands_alone_becomes_one_convolution(
    shape: tuple[int | str, ...], rewritten: RewriteModel
) -> None:
    model = alone(shape).model()
    real = tuple(2 if isinstance(d, str) else d for d in shape)
    feed = {"x": np.random.default_rng(0).normal(0, 3, real).astype(np.float32)}
    done = rewritten(model, batchnorm_to_conv, feed)
    assert done.operators == ["Concat", "Conv"]
    done.assert_close(rtol=2e-6, atol=2e-6)
    kept = rewritten(model, None, feed)
    assert kept.operators[1] == "BatchNormalization", "it is for targets that ask for it"


def test_batch_norm_of_plain_vectors_stays(rewritten: RewriteModel) -> None:
    done = rewritten(alone((2, 3)).model(), batchnorm_to_conv)
    assert "BatchNormalization" in done.operators
