"""Pad nodes of zeros become pads of the operators that read them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from inlay.testing import Builder
from tests.support.examples import examples
from tests.support.fixtures import NormalizeModel
from tests.support.normalizing import no_roll_backs, rewrite
from tests.support.onnx_queries import ops

AMOUNT = st.tuples(*[st.integers(0, 2)] * 4)


def padded(b: Builder, x: str, amounts: list[int], name: str = "pad", value: float | None = None, **more: Any) -> str:
    """``x`` behind a Pad, whose value is left to the default where none is given."""
    inputs = [x, b.constant(f"{name}_amounts", amounts)]
    if value is not None:
        inputs.append(b.constant(f"{name}_value", value))
    return b.node(name, "Pad", inputs, **more)


def conv(b: Builder, x: str, **more: Any) -> str:
    w = b.constant("w", b.rng.standard_normal((4, 3, 3, 3)))
    return b.node("conv", "Conv", [x, w], channels=4, strides=[2, 2], **more)


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(["Conv", "AveragePool"]), AMOUNT, AMOUNT, st.sampled_from([0, 1]), st.sampled_from([0, 1]))
def test_pads_add_up(op_type: str, outer: tuple[int, ...], own: tuple[int, ...], counted: int, ceil: int) -> None:
    """Against ONNX Runtime. An AveragePool takes a Pad only where that keeps what its windows are divided by."""
    pool = op_type == "AveragePool"
    fits = max(a + b for a, b in zip(outer, own, strict=True)) < 3
    assume(fits or not pool)  # the runtime folds these itself, and then refuses them
    b = Builder()
    x = padded(b, b.input("x", (1, 3, 9, 8)), [0, 0, *outer[:2], 0, 0, *outer[2:]], value=0.0)
    more: dict[str, Any] = {"count_include_pad": counted, "ceil_mode": ceil} if pool else {}
    if pool:
        y = b.node("op", op_type, [x], kernel_shape=[3, 3], pads=list(own), strides=[2, 1], **more)
    else:
        y = conv(b, x, pads=list(own))
    b.output(y)
    with tempfile.TemporaryDirectory() as folder:
        done = rewrite(b.model(), Path(folder), None)
    folds = not pool or (not ceil and (bool(counted) or not any(own)))
    assert done.operators == ([op_type] if folds else ["Pad", op_type])
    done.assert_close(rtol=1e-5, atol=1e-6)


def test_two_pads_in_a_row_with_axes(normalized: NormalizeModel) -> None:
    b = Builder(opset=18)
    x = padded(b, b.input("x", (1, 3, 8, 8)), [0, 0, 1, 0, 0, 0, 0, 2])
    amounts, axes = (b.constant(n, v) for n, v in (("more", [1, 0]), ("axes", [-1])))
    b.output(conv(b, b.node("second", "Pad", [x, amounts, "", axes]), pads=[0, 0, 1, 1]))
    proto, done = normalized(b.model())
    assert ops(proto) == ["Conv"]
    assert no_roll_backs(done)
    (pads,) = (list(a.ints) for a in proto.graph.node[0].attribute if a.name == "pads")
    assert pads == [1, 1, 1, 3]


def test_a_pad_that_several_operators_read(normalized: NormalizeModel) -> None:
    b = Builder()
    x = padded(b, b.input("x", (1, 3, 8, 8)), [0, 0, 0, 0, 0, 0, 1, 1])
    b.output(conv(b, x))
    b.output(b.node("pool", "AveragePool", [x], kernel_shape=[2, 2]))
    proto, done = normalized(b.model())
    assert ops(proto) == ["Conv", "AveragePool"]
    assert no_roll_backs(done)


def by_value(b: Builder, x: str) -> str:
    return conv(b, padded(b, x, [0, 0, 1, 1, 0, 0, 1, 1], value=0.5))


def by_reflection(b: Builder, x: str) -> str:
    return conv(b, padded(b, x, [0, 0, 1, 1, 0, 0, 1, 1], mode="reflect"))


def of_the_batch(b: Builder, x: str) -> str:
    return conv(b, padded(b, x, [1, 0, 0, 0, 0, 0, 1, 1]))


def that_crops(b: Builder, x: str) -> str:
    return conv(b, padded(b, x, [0, 0, -1, 0, 0, 0, 1, 1]))


def before_a_maximum(b: Builder, x: str) -> str:
    """Where all is negative, the zeros are the maximum."""
    return b.node("pool", "MaxPool", [padded(b, x, [0, 0, 1, 1, 0, 0, 1, 1])], kernel_shape=[2, 2])


@pytest.mark.parametrize(
    "build", [by_value, by_reflection, of_the_batch, that_crops, before_a_maximum], ids=lambda f: f.__name__
)
def test_pads_that_stay(build: Callable[[Builder, str], str], normalized: NormalizeModel) -> None:
    b = Builder()
    b.output(build(b, b.input("x", (1, 3, 8, 8))))
    assert ops(normalized(b.model())[0])[0] == "Pad"


def test_a_pad_that_is_read_elsewhere_stays(normalized: NormalizeModel) -> None:
    b = Builder()
    x = padded(b, b.input("x", (1, 3, 8, 8)), [0, 0, 0, 0, 0, 0, 1, 1])
    b.output(conv(b, x))
    b.output(x)
    assert ops(normalized(b.model())[0]) == ["Pad", "Conv"]
