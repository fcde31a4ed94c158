"""LayerNormalization is gathered from the operators that exporters write for it, and from nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inlay.targets.passes.gathered import gather_layer_normalization
from inlay.testing import Builder
from tests.support.fixtures import RewriteModel

SHAPE = (2, 5, 16)


def rows(seed: int, size: int = SHAPE[-1]) -> np.ndarray:
    return np.random.default_rng(seed).normal(1, 0.5, size).astype(np.float32)


def normalization(
    opset: int = 14,
    *,
    square: str = "Pow",
    twice: bool = False,
    factors: int = 2,
    axis: int = -1,
    scale: np.ndarray | None = None,
    read: str = "",
    swapped: bool = False,
) -> Builder:
    """The chain; something else reads the value within that ``read`` names."""
    b = Builder(opset=opset)
    x = b.input("x", SHAPE)
    axes: dict[str, Any] = {"axes": [axis], "keepdims": 1}
    mean = b.node("mean", "ReduceMean", [x], **axes)
    centred = b.node("centred", "Sub", [x, mean])
    again = b.node("again", "Sub", [x, mean]) if twice else centred
    squares = b.node("squares", square, [centred, b.constant("two", np.float32(2.0)) if square == "Pow" else centred])
    variance = b.node("variance", "ReduceMean", [squares], **axes)
    summands = [variance, b.constant("e", np.array([1e-5], np.float32))]
    spread = b.node("spread", "Sqrt", [b.node("plus", "Add", summands[::-1] if swapped else summands)])
    values = {"mean": mean, "centred": centred, "squares": squares, "variance": variance, "spread": spread}
    y = b.node("quotient", "Div", [again, spread])
    for name, op_type in (("scaled", "Mul"), ("shifted", "Add"))[:factors]:
        row = b.constant(f"{name}_row", rows(len(name)) if scale is None else scale)
        y = b.node(name, op_type, [row, y] if swapped else [y, row])
    b.output(y)
    if read:
        b.output(b.node("other", "Relu", [values[read]]))
    return b


def feed() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).normal(3, 2, SHAPE).astype(np.float32)}


@pytest.mark.parametrize("square", ["Pow", "Mul"])
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("factors", [0, 1, 2])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_chain_is_one_operator(
    square: str, twice: bool, factors: int, swapped: bool, rewritten: RewriteModel
) -> None:
    b = normalization(square=square, twice=twice, factors=factors, swapped=swapped)
    done = rewritten(b.model(), gather_layer_normalization, feed())
    assert done.operators == ["LayerNormalization"]
    done.assert_close(rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("opset", [11, 13, 17])
@pytest.mark.parametrize("factors", [0, 2])
def test_older_models_are_raised(opset: int, factors: int, rewritten: RewriteModel) -> None:
    done = rewritten(normalization(opset, factors=factors).model(), gather_layer_normalization, feed())
    assert done.operators == ["LayerNormalization"]
    done.assert_close(rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("read", ["mean", "centred", "squares", "variance", "spread"])
def test_what_something_else_reads_stays(read: str, rewritten: RewriteModel) -> None:
    done = rewritten(normalization(read=read).model(), gather_layer_normalization, feed())
    assert "LayerNormalization" not in done.operators


def test_means_over_other_axes_stay(rewritten: RewriteModel) -> None:
    done = rewritten(normalization(axis=1, factors=0).model(), gather_layer_normalization, feed())
    assert "LayerNormalization" not in done.operators


@pytest.mark.parametrize("shape", [(5, 1), (5, 16), (1,), (1, 1, 1, 16)])
def test_factors_that_are_no_row_stay_behind_it(shape: tuple[int, ...], rewritten: RewriteModel) -> None:
    scale = rows(1, int(np.prod(shape))).reshape(shape)
    done = rewritten(normalization(factors=1, scale=scale).model(), gather_layer_normalization, feed())
    assert done.operators == ["LayerNormalization", "Mul"]
    done.assert_close(rtol=1e-5, atol=1e-5)


def test_a_root_of_anything_else_stays(rewritten: RewriteModel) -> None:
    b = Builder(opset=14)
    x = b.input("x", SHAPE)
    squares = b.node("squares", "Mul", [x, x])
    power = b.node("power", "ReduceMean", [squares], axes=[-1], keepdims=1)
    spread = b.node("spread", "Sqrt", [b.node("plus", "Add", [power, b.constant("e", np.float32(1e-5))])])
    b.output(b.node("y", "Div", [x, spread]))
    done = rewritten(b.model(), gather_layer_normalization, feed())
    assert "LayerNormalization" not in done.operators, "nothing is subtracted: it is another normalization"
