"""A maximum in float that is quantized at once, which the runtime's kernel begins at 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from inlay.targets.base import Capabilities
from inlay.targets.openvino.rules import rules_for
from inlay.targets.openvino.wrong_kernels import no_maximum
from inlay.testing import Builder, random_feed
from tests.support.workspace import Workspace
from tests.targets.openvino.conftest import InRuntime, unaware


def behind(maximum: str, between: str = "", **attributes: Any) -> onnx.ModelProto:
    """A product, or a convolution, that reads a maximum of values below and above zero."""
    b = Builder()
    x = b.node("maximum", maximum, [b.input("x", (1, 4, 12, 12))], **attributes)
    if between:
        x = b.node("between", between, [x])
    weight = b.rng.standard_normal((8, 1 if "axes" in attributes else 4, 1, 1)).astype(np.float32)
    b.output(b.node("conv", "Conv", [x, b.constant("w", weight)]))
    return b.model()


def joined() -> onnx.ModelProto:
    """A convolution that reads means and maxima of channels, as attention to places does."""
    b = Builder()
    x = b.input("x", (1, 4, 12, 12))
    parts = [b.node(op, op, [x], axes=[1]) for op in ("ReduceMean", "ReduceMax")]
    weight = b.constant("w", b.rng.standard_normal((8, 2, 1, 1)).astype(np.float32))
    b.output(b.node("conv", "Conv", [b.node("both", "Concat", parts, axis=1), weight]))
    return b.model()


WRONG = {
    "joined with others": joined(),
    "of channels": behind("ReduceMax", axes=[1]),
    "least of channels": behind("ReduceMin", axes=[1]),
    "fused behind it": behind("ReduceMax", "Tanh", axes=[1]),
}
RIGHT = {
    "not fused": behind("ReduceMax", "Erf", axes=[1]),
    "of windows": behind("MaxPool", kernel_shape=[3, 3]),
}
MAYBE = {"of pixels": behind("GlobalMaxPool")}
"""As wrong as data are below zero, which no maximum of many pixels is."""


@pytest.mark.parametrize("case", [*WRONG, *RIGHT, *MAYBE])
def test_what_reads_it_stays_in_float_where_it_would_be_wrong(case: str, tmp_path: Path, in_runtime: InRuntime) -> None:
    model, rules, found = (WRONG | RIGHT | MAYBE)[case], rules_for(), {}
    feed = random_feed(model)
    for name, known in (("by the rules", rules), ("unaware", unaware(rules, "Conv", no_maximum))):
        space = Workspace(model, tmp_path / name, Capabilities(known))
        (conv,) = [u for u in space.prepared.units if u.name == "conv"]
        assert conv.selectable == (name == "unaware" or case in RIGHT), conv.rejection
        path = tmp_path / f"{name}.onnx"
        onnx.save(space.emit(space.label("conv") if conv.selectable else space.label()), path)
        found[name] = in_runtime(path, feed, "f32")
    assert found["by the rules"] > 30.0
    assert (found["unaware"] < 25.0) == (case in WRONG) or case in MAYBE, found
