"""Softmax over a few elements is written so that kernels take many rows at a time."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from inlay.targets.openvino.passes import spread_short_softmax
from inlay.testing import Builder
from tests.support.fixtures import RewriteModel

TURNED = ["Transpose", "Softmax", "Transpose"]


@pytest.mark.parametrize(
    ("shape", "axis", "operators"),
    [
        ((1, 300, 2), -1, ["Gather", "Sub", "Sigmoid"]),
        ((256, 2), 1, ["Gather", "Sub", "Sigmoid"]),
        ((2, 128, 1, 2), 3, ["Gather", "Sub", "Sigmoid"]),
        ((1, 300, 3), -1, TURNED),
        ((2, 2, 256, 8), 3, TURNED),
        ((1, 300, 9), -1, ["Softmax"]),
        ((1, 300, 1), -1, ["Softmax"]),
        ((1, 255, 2), -1, ["Softmax"]),
        ((16, 16, 4), -1, ["Softmax"]),
        ((300, 2, 4), 1, ["Softmax"]),
        (("n", 300, 2), -1, ["Softmax"]),
    ],
)
def test_short_rows_of_known_sizes_are_spread(
    shape: tuple[int | str, ...], axis: int, operators: list[str], rewritten: RewriteModel
) -> None:
    """Against ONNX Runtime's own operator, with scores that saturate."""
    b = Builder()
    b.output(b.node("softmax", "Softmax", [b.input("x", shape)], axis=axis))
    sizes = [d if isinstance(d, int) else 2 for d in shape]
    scores = np.random.default_rng(0).normal(0, 30, sizes).astype(np.float32)
    done = rewritten(b.model(), spread_short_softmax, {"x": scores})
    assert done.operators == operators
    assert "softmax" in {n.name for n in done.model.graph}, "recipes and imported models name it"
    done.assert_close(rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("opset", "edits"), [(12, 0), (13, 1)])
def test_the_axis_of_old_opsets_is_another(opset: int, edits: int) -> None:
    b = Builder(opset=opset)
    b.output(b.node("softmax", "Softmax", [b.input("x", (1, 300, 2))]))
    assert spread_short_softmax(ir.from_proto(b.model()))[1] == edits
