"""Tables of embeddings are stored in 8 bits, and their rows gathered as integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from inlay.model.reference import run_once
from inlay.model.store import embed_weights
from inlay.quant.emit import Emitter
from inlay.search.baselines import FLOAT, FULL_INT8, anchor_placements
from inlay.space.recipe_file import find_recipe
from inlay.space.resolve import resolve
from inlay.testing import Builder, sqnr
from inlay.types import Port, QType
from tests.support.workspace import Workspace


@pytest.mark.parametrize("indices", [(), (5,), (2, 3)])
def test_rows_of_a_quantized_table_are_those_of_the_plain_form(indices: tuple[int, ...], tmp_path: Path) -> None:
    """Bit for bit, and each column by its own scale: the control has one for all, and a column that is a hundred
    times larger."""
    b = Builder(opset=17)
    table = b.rng.standard_normal((512, 64)).astype(np.float32) * np.where(np.arange(64) == 7, 100, 1)
    b.output(b.node("op", "Gather", [b.constant("table", table), b.input("x", indices, onnx.TensorProto.INT64)]))
    feed = {"x": np.random.default_rng(0).integers(0, 512, indices)}
    space = Workspace(b.model(), tmp_path, feeds=(feed,))
    placement = space.prepared.label({"op": "dynamic"})
    written = Emitter(space.prepared.normalized.model, space.graph, space.prepared.store).emit(placement, space.table)
    plain, emitted = embed_weights(written, space.prepared.store), space.emit(placement)
    (exact,), (want,), (got,) = (run_once(m, feed).values() for m in (b.model(), plain, emitted))
    np.testing.assert_array_equal(want, got)
    others = np.arange(64) != 7
    assert sqnr(exact[..., others], got[..., others]) > 35.0
    assert sqnr(exact[..., others], np.round(exact[..., others] / (table.max() / 127)) * (table.max() / 127)) < 10.0
    assert space.extract(emitted).placement == placement


def tied() -> onnx.ModelProto:
    """A matrix whose rows are embeddings and, transposed, the weights of the last product."""
    b = Builder(opset=17)
    table = b.constant("table", b.rng.standard_normal((512, 64)))
    x = b.node("rows", "Gather", [table, b.input("x", (1, 6), onnx.TensorProto.INT64)])
    x = b.node("act", "Tanh", [b.node("dense", "MatMul", [x, b.constant("weight", b.rng.standard_normal((64, 64)))])])
    turned = b.node("turned", "Transpose", [table], perm=[1, 0])
    b.output(b.node("logits", "MatMul", [x, turned]))
    return b.model()


def test_every_anchor_but_float_stores_tables_in_8_bits(tmp_path: Path) -> None:
    feeds = tuple({"x": np.random.default_rng(seed).integers(0, 512, (1, 6))} for seed in range(4))
    space = Workspace(tied(), tmp_path, feeds=feeds)
    prepared, rows = space.prepared, Port("rows", 0)
    anchors = dict(anchor_placements(space.graph, prepared.units, prepared.rules))
    assert {FLOAT, FULL_INT8, "dynamic"} <= anchors.keys()
    assert all((p.qtype(rows) is QType.INT8) == (name != FLOAT) for name, p in anchors.items())
    resolved = resolve(find_recipe(FULL_INT8), space.graph, prepared.units, prepared.rules).placement
    assert resolved == anchors[FULL_INT8]
    kept = find_recipe(FULL_INT8).set_name("rows", None)
    assert rows not in resolve(kept, space.graph, prepared.units, prepared.rules).placement, "unless a rule says so"
    emitted = space.emit(anchors[FULL_INT8])
    given = tied().ByteSize()
    assert emitted.ByteSize() < 0.7 * given, "two copies of a quarter each, where float and 8 bits were more than one"
    (want,), (got,) = (run_once(m, feeds[0]).values() for m in (tied(), emitted))
    assert sqnr(want, got) > 20.0


def test_small_tables_and_other_gathers_have_no_such_form(tmp_path: Path) -> None:
    b = Builder(opset=17)
    x = b.input("x", (1, 6), onnx.TensorProto.INT64)
    small = b.node("small", "Gather", [b.constant("few", b.rng.standard_normal((8, 64))), x])
    columns = b.node("columns", "Gather", [b.constant("wide", b.rng.standard_normal((64, 512))), x], axis=1)
    for name, value in (("small", small), ("columns", columns)):
        b.output(b.node(f"{name}_end", "Tanh", [value]))
    units = Workspace(b.model(), tmp_path, feeds=({"x": np.zeros((1, 6), np.int64)},)).prepared.units
    assert not any(u.table for u in units)
