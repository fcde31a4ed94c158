"""A convolution with few outputs is computed in blocks of pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inlay.targets.passes.few_outputs import block_few_outputs
from inlay.testing import Builder
from tests.support.examples import examples
from tests.support.fixtures import RewriteModel
from tests.support.runtime import check_and_load


def few(
    channels: int = 8,
    outputs: int = 3,
    size: tuple[int, int] = (20, 24),
    kernel: tuple[int, int] = (3, 3),
    **attributes: Any,
) -> tuple[Builder, str]:
    """A convolution with few outputs, and its result."""
    b = Builder()
    x = b.input("x", (2, channels, *size))
    weight = b.constant(
        "w", b.rng.standard_normal((outputs, channels // attributes.get("group", 1), *kernel)).astype(np.float32)
    )
    bias = b.constant("b", b.rng.standard_normal(outputs).astype(np.float32))
    return b, b.node("conv", "Conv", [x, weight, bias], channels=outputs, **attributes)


def in_blocks(b: Builder, rewritten: RewriteModel) -> list[str]:
    """Operators after the rewrite, whose outputs are checked against the original's."""
    done = rewritten(b.model(), block_few_outputs)
    done.assert_close(rtol=1e-4, atol=1e-4)
    check_and_load(ir.to_proto(done.model))
    assert "conv" in {n.name for n in done.model.graph}  # recipes and imported models name it
    return done.operators


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_few_outputs_are_computed_in_blocks(data: st.DataObject, rewritten: RewriteModel) -> None:
    kernel = (data.draw(st.integers(3, 5)), data.draw(st.integers(3, 9)))
    auto = data.draw(st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    pads = [data.draw(st.integers(0, 3)) for _ in range(4)] if auto == "NOTSET" else [0, 0, 0, 0]
    if auto.startswith("SAME"):
        pads = [1, 1, kernel[0] - 2, kernel[1] - 2]  # as much in all
    results = [2 * data.draw(st.integers(9, 12)) for _ in range(2)]
    size = (results[0] + kernel[0] - 1 - pads[0] - pads[2], results[1] + kernel[1] - 1 - pads[1] - pads[3])
    window: dict[str, Any] = {"pads": pads} if auto == "NOTSET" else {"auto_pad": auto}
    b, y = few(data.draw(st.integers(8, 10)), data.draw(st.integers(1, 8)), size, kernel, **window)
    b.output(y)
    assert in_blocks(b, rewritten) == ["Conv", "DepthToSpace"]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"outputs": 9}, id="more outputs"),
        pytest.param({"size": (20, 25), "pads": [1, 1, 1, 1]}, id="odd results"),
        pytest.param({"channels": 7}, id="few products"),
        pytest.param({"size": (16, 16)}, id="few pixels"),
        pytest.param({"kernel": (2, 5), "channels": 16, "pads": [0, 0, 1, 0]}, id="small kernel"),
        pytest.param({"strides": [1, 2]}, id="strided"),
        pytest.param({"dilations": [2, 1]}, id="dilated"),
        pytest.param({"group": 2, "channels": 16, "outputs": 4}, id="grouped"),
    ],
)
def test_other_convolutions_are_not_computed_in_blocks(changes: dict[str, Any], rewritten: RewriteModel) -> None:
    b, y = few(**changes)
    b.output(y)
    assert in_blocks(b, rewritten) == ["Conv"]


def test_pixels_are_rearranged_behind_the_functions_that_follow(rewritten: RewriteModel) -> None:
    """Runtimes join a convolution with the function behind it: nothing may come between them."""
    b, y = few()
    limits = [b.constant("low", np.float32(-0.5)), b.constant("high", np.float32(0.5))]
    b.output(b.node("sigmoid", "Sigmoid", [b.node("clip", "Clip", [y, *limits], channels=3)], channels=3))
    assert in_blocks(b, rewritten) == ["Conv", "Clip", "Sigmoid", "DepthToSpace"]
    b, y = few()
    b.output(b.node("product", "Mul", [y, b.node("sigmoid", "Sigmoid", [y], channels=3)]))
    assert in_blocks(b, rewritten) == ["Conv", "DepthToSpace", "Sigmoid", "Mul"]
    b, y = few()
    b.output(y)
    b.output(b.node("relu", "Relu", [y]))
    assert in_blocks(b, rewritten) == ["Conv", "DepthToSpace", "Relu"]
