"""PRelu is written out with operators that run faster."""

from __future__ import annotations

import numpy as np
import pytest

from inlay.targets.onnxruntime.passes.respelled import spell_out_prelu
from inlay.testing import Builder
from tests.support.fixtures import RewriteModel


@pytest.mark.parametrize(
    ("slope", "operators"),
    [
        (np.array([0.25]), ["LeakyRelu"]),
        (np.full((4, 1, 1), -0.5), ["LeakyRelu"]),
        (np.array(3.0), ["LeakyRelu"]),
        (np.array([0.25, 0.0, -2.0, 1.0]).reshape(4, 1, 1), ["Mul", "Max"]),
        (np.linspace(-1, 1, 20).reshape(4, 5), ["Mul", "Max"]),
        (np.array([0.25, 1.5, 0.0, 0.1]).reshape(4, 1, 1), ["Min", "Mul", "Add"]),
        (np.array([0.25, np.nan, 0.0, 0.1]).reshape(4, 1, 1), ["PRelu"]),
    ],
    ids=["one", "equal", "steep", "channels", "every number", "some steep", "not a number"],
)
def test_prelu_spelled_out_computes_the_same(slope: np.ndarray, operators: list[str], rewritten: RewriteModel) -> None:
    b = Builder()
    if slope.shape == (4, 5):
        x, shape = b.input("x", (2, 3, 4, 5)), (2, 3, 4, 5)
    else:
        x, shape = b.input("x", (2, 4, 3, "width")), (2, 4, 3, 5)
    b.output(b.node("act", "PRelu", [x, b.constant("slope", slope.astype(np.float32))]))
    model = b.model()
    feed = {"x": np.random.default_rng(0).normal(0, 3, shape).astype(np.float32)}
    feed["x"].flat[:2] = [0.0, -0.0]
    done = rewritten(model, spell_out_prelu, feed)
    assert done.operators == operators
    if "Add" in operators:
        done.assert_close(rtol=1e-5, atol=1e-6)
    else:
        done.assert_close(rtol=0.0)
    kept = rewritten(model, None, feed)
    assert kept.operators == ["PRelu"], "it is for targets that ask for it"
