"""Gelu is gathered from the operators that exporters write for it, and from nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from inlay.targets.passes.gathered import gather_gelu
from inlay.testing import Builder
from tests.support.fixtures import RewriteModel

SHAPE = (2, 5, 16)
ORDERS = "half first", "half last", "half inside", "half of the input"


def gelu(
    order: str = ORDERS[0],
    *,
    divides: bool = False,
    swapped: bool = False,
    one: float = 1.0,
    half: float = 0.5,
    root: float = 2.0**0.5,
    read: str = "",
) -> Builder:
    """The chain, in one of the orders; something else reads the value within that ``read`` names."""
    b = Builder(opset=14)
    x = b.input("x", SHAPE)

    def scaled(name: str, value: str, factor: float) -> str:
        number = b.constant(f"{name}_number", np.float32(1.0 / factor if divides else factor))
        return b.node(name, "Div" if divides else "Mul", [value, number])

    def product(name: str, first: str, second: str, op_type: str = "Mul") -> str:
        return b.node(name, op_type, [second, first] if swapped else [first, second])

    small = scaled("small", x, 1.0 / root)
    erf = b.node("erf", "Erf", [small])
    plus = product("plus", erf, b.constant("one", np.float32(one)), "Add")
    values = {"small": small, "erf": erf, "plus": plus}
    if order == "half first":
        y = product("y", scaled("half", plus, half), x)
    elif order == "half last":
        y = scaled("y", product("product", plus, x), half)
    elif order == "half of the input":
        values["half"] = scaled("half", x, half)
        y = product("y", values["half"], plus)
    else:
        y = product("y", x, scaled("half", plus, half))
    b.output(y)
    if read:
        b.output(b.node("other", "Relu", [values[read]]))
    return b


def feed() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).normal(0, 2, SHAPE).astype(np.float32)}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("divides", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
def test_each_way_to_write_it_is_one_operator(
    order: str, divides: bool, swapped: bool, rewritten: RewriteModel
) -> None:
    done = rewritten(gelu(order, divides=divides, swapped=swapped).model(), gather_gelu, feed())
    assert done.operators == ["Gelu"]
    done.assert_close(rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("read", ["small", "erf", "plus", "half"])
def test_what_something_else_reads_stays(read: str, rewritten: RewriteModel) -> None:
    done = rewritten(gelu("half of the input", read=read).model(), gather_gelu, feed())
    assert "Gelu" not in done.operators


@pytest.mark.parametrize(("one", "half", "root"), [(1.1, 0.5, 2.0**0.5), (1.0, 0.4, 2.0**0.5), (1.0, 0.5, 1.5)])
@pytest.mark.parametrize("order", ORDERS)
def test_other_numbers_are_another_function(
    one: float, half: float, root: float, order: str, rewritten: RewriteModel
) -> None:
    done = rewritten(gelu(order, one=one, half=half, root=root).model(), gather_gelu, feed())
    assert "Gelu" not in done.operators


@pytest.mark.parametrize(("op_type", "operators"), [("Mul", ["Gelu"]), ("Div", ["Mul", "Erf", "Add", "Mul", "Div"])])
def test_a_division_by_it_is_another_function(op_type: str, operators: list[str], rewritten: RewriteModel) -> None:
    b = Builder(opset=14)
    x = b.input("x", SHAPE)
    erf = b.node("erf", "Erf", [b.node("small", "Mul", [x, b.constant("root", np.float32(0.5**0.5))])])
    plus = b.node("plus", "Add", [erf, b.constant("one", np.float32(1.0))])
    half = b.node("half", "Mul", [x, b.constant("half_number", np.float32(0.5))])
    b.output(b.node("y", op_type, [half, plus]))
    done = rewritten(b.model(), gather_gelu, {"x": np.abs(feed()["x"])})
    assert done.operators == operators
