"""Nonzero weight zero points: the same values, undone to zero points of 0."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from inlay.quant.extract import extract
from inlay.quant.qparams import QParamsTable
from inlay.targets.onnxruntime.rewrites import NonzeroZeroPoint
from inlay.testing import Builder
from tests.support.onnx_queries import constants
from tests.support.workspace import Workspace


def conv_model(low: int = -127, high: int = 127) -> onnx.ModelProto:
    b = Builder()
    x = b.input("x", (1, 3, 8, 8))
    integers = b.rng.integers(low, high + 1, (4, 3, 3, 3))
    integers.flat[:2] = low, high
    weight = b.constant("w", integers.astype(np.float32))
    b.output(b.node("conv", "Conv", [x, weight], pads=[1] * 4))
    return b.model()


def with_unit_scale(space: Workspace) -> QParamsTable:
    """A table in which the weight's integers are its values."""
    data = space.table.as_json() | {"fixed": [["w", "int8", [1.0], [0], None]]}
    return QParamsTable.from_json(space.graph, space.prepared.rules, data)


@pytest.mark.parametrize(("low", "high", "step"), [(-127, 127, -1), (-128, 126, 1), (-128, 127, 0)])
def test_every_integer_moves_by_one_where_there_is_room(low: int, high: int, step: int, tmp_path: Path) -> None:
    space = Workspace(conv_model(low, high), tmp_path)
    table = with_unit_scale(space)
    plain = space.full()
    rewritten = plain.with_rewrites(space.prepared.selectable_rewrites)
    assert {r.name for r in rewritten.rewrites} == {NonzeroZeroPoint.name}
    before, after = (constants(space.emit(p, table)) for p in (plain, rewritten))
    assert [int(c["w_zero_point"]) for c in (before, after)] == [0, step]
    np.testing.assert_array_equal(
        before["w_quantized"].astype(int), after["w_quantized"].astype(int) - int(after["w_zero_point"])
    )


def test_extract_undoes_it_and_names_its_ports(tmp_path: Path) -> None:
    space = Workspace(conv_model(), tmp_path)
    rewritten = space.full().with_rewrites(space.prepared.selectable_rewrites)
    model = ir.from_proto(space.emit(rewritten))
    found = extract(model)
    assert found.placement == rewritten
    assert all(not any(p.zero_point) for (value, _), p in found.qparams.items() if value == "w")
