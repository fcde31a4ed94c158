"""The price of a needless Q/DQ pair is what the model saves without it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import inlay
from inlay.explanation.removal import without_pair
from inlay.targets.null import price
from inlay.testing import Builder


def _network(handed_out: bool = False, cast: bool = False) -> onnx.ModelProto:
    """A tanh with a pair behind it, which an exponential reads."""
    b = Builder()
    scale, zero = b.constant("scale", np.array(0.01, np.float32)), b.constant("zero", np.array(128, np.uint8))
    value = b.node("tanh", "Tanh", [b.input("x", (1, 3, 64, 64))])
    low = b.node("q", "QuantizeLinear", [value, scale, zero])
    high = b.node("dq", "DequantizeLinear", [low, scale, zero])
    b.output(b.node("exp", "Exp", [high]))
    if handed_out:
        b.output(high)
    if cast:
        b.output(b.node("cast", "Cast", [low], to=onnx.TensorProto.FLOAT))
    return b.model()


@pytest.mark.exhaustive
def test_the_price_is_the_difference_of_two_models(tmp_path: Path) -> None:
    path = tmp_path / "pair.onnx"
    onnx.save(_network(), path)
    (row,) = inlay.explain(path, target="null").waste
    bare = ir.load(path)
    assert without_pair(bare, "tanh_out")
    assert [n.op_type for n in bare.graph] == ["Tanh", "Exp"]
    saved = sum(k.ns for k in price(onnx.load(path))) - sum(k.ns for k in price(ir.to_proto(bare)))
    assert row.timed
    assert row.cost_ms == pytest.approx(saved / 1e6)
    (guessed,) = inlay.explain(path, target="null", budget=1e-9).waste
    assert not guessed.timed, "without time it is the price of the kernels"


@pytest.mark.parametrize("kind", ["handed_out", "cast", "elsewhere"])
def test_pairs_that_are_not_for_reading_alone_stay(kind: str) -> None:
    model = ir.from_proto(_network(handed_out=kind == "handed_out", cast=kind == "cast"))
    before = [str(n.name) for n in model.graph]
    assert not without_pair(model, "x" if kind == "elsewhere" else "tanh_out")
    assert [str(n.name) for n in model.graph] == before
