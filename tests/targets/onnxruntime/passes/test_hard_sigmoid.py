"""The parts of a hard sigmoid or hard swish become HardSigmoid."""

from __future__ import annotations

import numpy as np
import pytest

from inlay.targets.passes.gathered import gather_hardsigmoid, gather_hardswish
from inlay.testing import Builder
from tests.support.fixtures import RewriteModel


def hard(b: Builder, form: str, low: float = 0.0, high: float = 6.0, by: float = 6.0) -> str:
    """A hard sigmoid or swish in one of the forms that exporters write."""
    x = b.input("x", (2, 3, 5))
    three = b.constant("three", np.float32(3.0))
    limits = [b.constant("low", np.float32(low)), b.constant("high", np.float32(high))]
    whole, part = b.constant("by", np.array([by], np.float32)), b.constant("part", np.float32(1.0 / by))
    clipped = b.node("clip", "Clip", [b.node("shift", "Add", [three, x]), *limits])
    match form:
        case "sigmoid":
            return b.node("out", "Div", [clipped, whole])
        case "scaled sigmoid":
            return b.node("out", "Mul", [part, clipped])
        case "swish":
            return b.node("out", "Div", [b.node("mul", "Mul", [x, clipped]), whole])
        case "scaled swish":
            return b.node("out", "Mul", [b.node("mul", "Mul", [clipped, x]), part])
        case "swish of a sixth":
            return b.node("out", "Mul", [b.node("sixth", "Mul", [x, part]), clipped])
        case _:
            return b.node("out", "Add", [b.node("mul", "Div", [clipped, whole]), clipped])


@pytest.mark.parametrize("form", ["sigmoid", "scaled sigmoid", "swish", "scaled swish", "swish of a sixth"])
def test_hard_sigmoids_are_gathered(form: str, rewritten: RewriteModel) -> None:
    b = Builder()
    b.output(hard(b, form))
    model = b.model()
    feed = {"x": np.random.default_rng(0).normal(0, 4, (2, 3, 5)).astype(np.float32)}
    done = rewritten(model, gather_hardsigmoid, feed)
    assert done.operators == (["HardSigmoid"] if "sigmoid" in form else ["HardSigmoid", "Mul"])
    done.assert_close(rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", ["swish", "scaled swish", "swish of a sixth"])
def test_hard_swishes_are_gathered(form: str, rewritten: RewriteModel) -> None:
    b = Builder()
    b.output(hard(b, form))
    feed = {"x": np.random.default_rng(0).normal(0, 4, (2, 3, 5)).astype(np.float32)}
    done = rewritten(b.model(), gather_hardswish, feed)
    assert done.operators == ["HardSwish"]
    done.assert_close(rtol=1e-5, atol=1e-6)


def test_a_gate_of_another_value_is_no_hard_swish(rewritten: RewriteModel) -> None:
    b = Builder()
    x, y = b.input("x", (2, 3, 5)), b.input("y", (2, 3, 5))
    gate = b.node("gate", "HardSigmoid", [x], alpha=1 / 6, beta=0.5)
    b.output(b.node("out", "Mul", [y, gate]))
    assert rewritten(b.model(), gather_hardswish).operators == ["HardSigmoid", "Mul"]


@pytest.mark.parametrize(
    ("form", "limits"),
    [
        ("read twice", {}),
        ("swish", {"low": -1.0}),
        ("swish", {"high": 4.0}),
        ("sigmoid", {"by": 3.0}),
        ("swish of a sixth", {"by": 5.0}),
    ],
)
def test_what_is_no_hard_sigmoid_stays(form: str, limits: dict[str, float], rewritten: RewriteModel) -> None:
    b = Builder()
    b.output(hard(b, form, **limits))
    done = rewritten(b.model(), gather_hardsigmoid)
    assert "Clip" in done.operators
