"""How often a model runs until it is prepared, and with which weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from inlay.model import pieces
from inlay.model.load import load
from inlay.model.normalize import FloatRewrite
from inlay.model.reference import Session
from inlay.prepare.model import PreparedModel, prepare
from inlay.targets.base import Capabilities, TargetSpec
from inlay.targets.registry import create
from inlay.testing import Builder, random_feed


def prepared(folder: Path, *rewrites: FloatRewrite) -> PreparedModel:
    b = Builder()
    b.output(b.node("neg", "Neg", [b.conv("conv", b.input("x", (1, 3, 6, 6)), 4)]))
    model = b.model()
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    target = Capabilities(create(TargetSpec("null")).rules(), rewrites)
    return prepare(load(path), target, random_feed(model), folder)


def rewrite(name: str, factor: float) -> FloatRewrite:
    """One that multiplies the weight, which keeps its name, and is large enough to be stored in a file."""

    def apply(model: ir.Model) -> tuple[ir.Model, int]:
        (weight,) = [v for v in model.graph.initializers.values() if v.shape is not None and len(v.shape) == 4]
        assert weight.const_value is not None
        weight.const_value = ir.tensor(weight.const_value.numpy() * np.float32(factor), name=weight.name)
        return model, 1

    return FloatRewrite(name, apply, "a test", "a test")


def test_each_model_is_built_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built: list[int] = []

    class Recorded(Session):
        def __init__(self, *given: Any, **options: Any) -> None:
            built.append(len(given[0].graph.output))
            super().__init__(*given, **options)

    monkeypatch.setattr(pieces, "Session", Recorded)
    found = prepared(tmp_path, rewrite("nothing", 1.0))
    assert built == [1, 2], "the given model for its outputs, and the normalized one for them and for all shapes"
    assert found.graph.shapes["conv_out"] == (1, 4, 6, 6)


def test_a_weight_that_keeps_its_name_is_compared_as_it_is_now(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("inlay.model.store.INLINE_BYTES", 16)
    found = prepared(tmp_path, rewrite("double", 2.0))
    assert [r.rolled_back[:6] for r in found.normalized.reports if r.name == "double"] == ["output"]
