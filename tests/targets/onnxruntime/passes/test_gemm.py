"""MatMul and Add become one Gemm."""

from __future__ import annotations

import numpy as np
import pytest

from inlay.targets.onnxruntime.passes.respelled import gather_gemm
from inlay.testing import Builder
from tests.support.fixtures import RewriteModel


def dense(rank: int = 2, bias: tuple[int, ...] = (5,), swapped: bool = False, twice: bool = False) -> Builder:
    b = Builder()
    x = b.input("x", (3, 4)[:rank] if rank < 3 else (2, 3, 4))
    product = b.node("dense", "MatMul", [x, b.constant("w", b.rng.standard_normal((4, 5)))])
    inputs = [product, b.constant("row", b.rng.standard_normal(bias))]
    b.output(b.node("sum", "Add", inputs[::-1] if swapped else inputs))
    if twice:
        b.output(b.node("again", "Relu", [product]))
    return b


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("bias", [(5,), (1, 5)])
def test_matmul_and_add_are_one_gemm(bias: tuple[int, ...], swapped: bool, rewritten: RewriteModel) -> None:
    done = rewritten(dense(bias=bias, swapped=swapped).model(), gather_gemm)
    assert done.operators == ["Gemm"]
    done.assert_close(rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bias", [(5,), (1, 5), (1, 1, 5)])
def test_data_of_three_dimensions_are_reshaped_to_a_matrix(bias: tuple[int, ...], rewritten: RewriteModel) -> None:
    done = rewritten(dense(rank=3, bias=bias).model(), gather_gemm)
    assert done.operators == ["Reshape", "Gemm", "Reshape"]
    done.assert_close(rtol=1e-5, atol=1e-6)


def test_two_unknown_dimensions_are_left_alone(rewritten: RewriteModel) -> None:
    model = dense(rank=3).model()
    for dim, name in zip(model.graph.input[0].type.tensor_type.shape.dim, ("batch", "length"), strict=False):
        dim.dim_param = name
    done = rewritten(model, gather_gemm, {"x": np.ones((2, 3, 4), np.float32)})
    assert "MatMul" in done.operators


@pytest.mark.parametrize(
    "other",
    [dense(bias=(3, 5)), dense(bias=(1,)), dense(bias=(1, 1, 5)), dense(twice=True)],
    ids=["a bias per row", "one bias", "a bias that adds a dimension", "read elsewhere"],
)
def test_other_sums_of_products_stay(other: Builder, rewritten: RewriteModel) -> None:
    done = rewritten(other.model(), gather_gemm)
    assert "MatMul" in done.operators


def test_a_name_that_the_model_uses_is_no_obstacle(rewritten: RewriteModel) -> None:
    """Exporters call a bias after its operator, as the pass would."""
    b = dense()
    b.output(b.node("other", "Mul", ["sum_out", b.constant("dense_bias", np.float32(2.0))]))
    done = rewritten(b.model(), gather_gemm)
    assert "Gemm" in done.operators
    done.assert_close(rtol=1e-5, atol=1e-6)
