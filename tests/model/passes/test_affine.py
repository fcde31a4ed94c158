"""Scales and shifts of channels are folded into the weights before them."""

from __future__ import annotations

import pytest

from inlay.testing import Builder
from tests.support.fixtures import NormalizeModel
from tests.support.normalizing import no_roll_backs
from tests.support.onnx_queries import ops


def batch_norm(b: Builder, x: str, channels: int) -> str:
    params = [b.rng.uniform(0.5, 2, channels), *b.rng.normal(0, 1, (2, channels)), b.rng.uniform(0.5, 2, channels)]
    names = [b.constant(f"bn_{i}", v) for i, v in enumerate(params)]
    return b.node("bn", "BatchNormalization", [x, *names], channels=channels, epsilon=1e-3)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_batch_normalization_into_conv(bias: bool, group: int, normalized: NormalizeModel) -> None:
    b = Builder()
    b.output(batch_norm(b, b.conv("conv", b.input("x", (2, 4, 6, 6)), 8, group=group, bias=bias), 8))
    proto, done = normalized(b.model())
    assert ops(proto) == ["Conv"]
    assert no_roll_backs(done)


@pytest.mark.parametrize("group", [1, 2])
def test_batch_normalization_into_conv_transpose(group: int, normalized: NormalizeModel) -> None:
    b = Builder()
    w = b.constant("w", b.rng.standard_normal((4, 3, 2, 2)))
    y = b.node("up", "ConvTranspose", [b.input("x", (1, 4, 5, 5)), w], channels=3 * group, group=group, strides=[2, 2])
    b.output(batch_norm(b, y, 3 * group))
    proto, done = normalized(b.model())
    assert ops(proto) == ["ConvTranspose"]
    assert no_roll_backs(done)


@pytest.mark.parametrize("transposed", [0, 1])
def test_batch_normalization_into_gemm(transposed: int, normalized: NormalizeModel) -> None:
    b = Builder()
    w = b.constant("w", b.rng.standard_normal((5, 7) if transposed else (7, 5)))
    c = b.constant("c", b.rng.standard_normal(5))
    b.output(batch_norm(b, b.node("fc", "Gemm", [b.input("x", (3, 7)), w, c], channels=5, transB=transposed), 5))
    proto, done = normalized(b.model())
    assert ops(proto) == ["Gemm"]
    assert no_roll_backs(done)


def test_batch_normalization_that_must_stay(normalized: NormalizeModel) -> None:
    """The convolution's own output is read elsewhere: folding would change it."""
    b = Builder()
    conv = b.conv("conv", b.input("x", (1, 3, 6, 6)), 4)
    b.output(batch_norm(b, conv, 4))
    b.output(conv)
    assert ops(normalized(b.model())[0]) == ["Conv", "BatchNormalization"]


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("shape", [(), (1,), (8, 1, 1), (1, 8, 1, 1)], ids=str)
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "Gemm"])
def test_arithmetic_on_channels_goes_into_the_weights(
    op: str, slot: int, shape: tuple[int, ...], kind: str, normalized: NormalizeModel
) -> None:
    b = Builder()
    if kind == "Conv":
        y = b.conv("conv", b.input("x", (2, 4, 6, 6)), 8, group=2)
    elif kind == "ConvTranspose":
        w = b.constant("w", b.rng.standard_normal((4, 4, 2, 2)))
        y = b.node("up", "ConvTranspose", [b.input("x", (1, 4, 5, 5)), w], channels=8, group=2, strides=[2, 2])
    else:
        w = b.constant("w", b.rng.standard_normal((8, 4)))
        y = b.node("dense", "Gemm", [b.input("x", (3, 4)), w], channels=8, transB=1)
        shape = shape if shape in ((), (1,)) else (1, 8) if len(shape) == 4 else (8,)
    operands = [y, b.constant("c", b.rng.uniform(0.5, 2.0, shape))]
    b.output(b.node("relu", "Relu", [b.node("c1", op, operands if slot == 0 else operands[::-1], channels=8)]))
    proto, done = normalized(b.model())
    kept = op == "Div" and slot == 1  # a constant over what is computed is no scale
    assert ops(proto) == [kind, "Div", "Relu"] if kept else [kind, "Relu"]
    assert no_roll_backs(done)


def test_a_chain_of_scales_and_shifts_folds_whole(normalized: NormalizeModel) -> None:
    b = Builder()
    y = batch_norm(b, b.conv("conv", b.input("x", (1, 3, 6, 6)), 4), 4)
    y = b.node("scale", "Mul", [b.constant("k", -1.5), y], channels=4)
    b.output(b.node("shift", "Add", [y, b.constant("d", 0.25)], channels=4))
    proto, done = normalized(b.model())
    assert ops(proto) == ["Conv"]
    assert no_roll_backs(done)


@pytest.mark.parametrize("shape", [(1, 1, 1, 6), (1, 4, 6, 6), (2, 1, 1, 1), (6,), (1, 1, 1, 1, 1)], ids=str)
def test_constants_that_vary_along_other_axes_stay(shape: tuple[int, ...], normalized: NormalizeModel) -> None:
    """Negative control: such a constant is no number per channel, or it enlarges the result."""
    b = Builder()
    y = b.conv("conv", b.input("x", (1, 3, 6, 6)), 4)
    b.output(b.node("add", "Add", [y, b.constant("c", b.rng.standard_normal(shape))]))
    assert ops(normalized(b.model())[0]) == ["Conv", "Add"]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rank", [2, 3])
def test_the_parts_of_a_batch_normalization_into_matmul(bias: bool, rank: int, normalized: NormalizeModel) -> None:
    b = Builder()
    x = b.input("x", (4, 3, 6)[-rank:])
    y = b.node("product", "MatMul", [x, b.constant("w", b.rng.normal(0, 1, (6, 5)))])
    if bias:
        y = b.node("bias", "Add", [b.constant("b", b.rng.normal(0, 1, 5)), y])
    y = b.node("centered", "Sub", [y, b.constant("mean", b.rng.normal(0, 1, (1, 5)))])
    y = b.node("scaled", "Div", [y, b.constant("deviation", b.rng.uniform(0.5, 2, 5))])
    b.output(b.node("shifted", "Sub", [b.constant("beta", b.rng.normal(0, 1, 5)), y]))
    proto, done = normalized(b.model())
    assert ops(proto) == ["MatMul", "Add"]
    assert no_roll_backs(done)


def test_a_scale_of_matmul_needs_no_bias(normalized: NormalizeModel) -> None:
    b = Builder()
    y = b.node("product", "MatMul", [b.input("x", (2, 3, 6)), b.constant("w", b.rng.normal(0, 1, (6, 5)))])
    b.output(b.node("scaled", "Mul", [y, b.constant("factor", 0.125)]))
    assert ops(normalized(b.model())[0]) == ["MatMul"]


def test_what_varies_along_rows_stays_behind_matmul(normalized: NormalizeModel) -> None:
    b = Builder()
    y = b.node("product", "MatMul", [b.input("x", (2, 5, 6)), b.constant("w", b.rng.normal(0, 1, (6, 5)))])
    b.output(b.node("scaled", "Mul", [y, b.constant("factors", b.rng.normal(0, 1, (5, 1)))]))
    assert ops(normalized(b.model())[0]) == ["MatMul", "Mul"]


def test_a_product_that_others_read_keeps_its_scale_apart(normalized: NormalizeModel) -> None:
    b = Builder()
    y = b.node("product", "MatMul", [b.input("x", (3, 6)), b.constant("w", b.rng.normal(0, 1, (6, 5)))])
    z = b.node("bias", "Add", [y, b.constant("b", b.rng.normal(0, 1, 5))])
    b.output(b.node("scaled", "Mul", [z, b.constant("factors", b.rng.normal(0, 1, 5))]))
    b.output(b.node("other", "Tanh", [y]))
    assert ops(normalized(b.model())[0]) == ["MatMul", "Add", "Mul", "Tanh"]
