"""Attention of decoders becomes operators that compute the same: rotated by positions, with heads that are shared."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
import pytest

from inlay.targets.onnxruntime.passes.attention import gather_attention
from inlay.testing import Builder
from tests.support.fixtures import RewriteModel
from tests.support.normalizing import Rewritten
from tests.support.runtime import check_and_load

BATCH, ROWS, PAST, WIDTH = 2, 5, 3, 24
POSITIONS = 16


@dataclass(frozen=True)
class Form:
    """How a decoder is written."""

    heads: int = 6
    shared: int = 2  # heads of keys and values
    size: int = 4
    layers: int = 2
    angles: str = "table"  # rows of a table, gathered by positions, or computed from positions
    halves: str = "slices"  # or "split"
    scaled: str = "products"  # or "queries", behind the rotation
    cached: bool = True
    batch: int = BATCH
    # what is not as it should be
    odd: str = ""


def decoder(form: Form) -> Builder:
    """A model of blocks of attention, each added to what it reads."""
    b = Builder()
    x = b.input("x", (form.batch, "rows", WIDTH))
    angles = _angles(b, form)
    mask = b.input("mask", ("rows", "all"))
    for layer in range(form.layers):
        x = b.node(f"add{layer}", "Add", [x, _attention(b, form, f"l{layer}", x, mask, angles)])
    b.output(x)
    return b


def _angles(b: Builder, form: Form) -> list[str]:
    frequencies = 10.0 ** -np.arange(form.size // 2)
    places = np.arange(POSITIONS)[:, None] * frequencies
    both = np.concatenate([places, places * (1.5 if form.odd == "other angles" else 1.0)], axis=1)
    if form.angles == "computed":
        positions = b.input("positions", (form.batch, "rows", 1))
        each = b.node("places", "Mul", [positions, b.constant("frequencies", frequencies)])
        joined = b.node("both", "Concat", [each, each], axis=-1)
        return [
            b.node(f"{op}_heads", "Unsqueeze", [b.node(f"{op}_all", op, [joined]), _ints(b, f"{op}_axis", 1)])
            for op in ("Cos", "Sin")
        ]
    tables = [b.constant(f"table{i}", f(both)) for i, f in enumerate((np.cos, np.sin))]
    if form.angles == "table":
        begin = _ints(b, "begin", PAST if form.cached else 0)
        rows = b.node("count", "Slice", [b.node("shape", "Shape", ["x"]), _ints(b, "one", 1), _ints(b, "two", 2)])
        ends = [begin, b.node("end", "Add", [begin, rows]), _ints(b, "first", 0)]
        return [b.node(f"angles{i}", "Slice", [table, *ends]) for i, table in enumerate(tables)]
    ids = b.input("ids", (form.batch, "rows"), int(ir.DataType.INT64))
    return [
        b.node(f"angles{i}", "Unsqueeze", [b.node(f"taken{i}", "Gather", [t, ids]), _ints(b, f"axis{i}", 1)])
        for i, t in enumerate(tables)
    ]


def _ints(b: Builder, name: str, *numbers: int) -> str:
    return b.constant(name, np.array(numbers, np.int64))


def _attention(b: Builder, form: Form, name: str, x: str, mask: str, angles: list[str]) -> str:
    def heads(what: str, count: int) -> str:
        weight = b.constant(f"{name}_{what}_w", b.rng.standard_normal((WIDTH, count * form.size)) / np.sqrt(WIDTH))
        rows = b.node(f"{name}_{what}", "MatMul", [x, weight])
        split = b.node(f"{name}_{what}_s", "Reshape", [rows, _ints(b, f"{name}_{what}_n", 0, 0, count, form.size)])
        return b.node(f"{name}_{what}_t", "Transpose", [split], perm=[0, 2, 1, 3])

    q = _rotated(b, form, f"{name}_q_r", heads("q", form.heads), angles)
    k = _rotated(b, form, f"{name}_k_r", heads("k", form.shared), angles)
    v = heads("v", form.shared)
    if form.cached:
        k, v = (_behind(b, form, f"{name}_{what}_past", value) for what, value in (("k", k), ("v", v)))
    k, v = (_repeated(b, form, f"{name}_{what}_rep", value) for what, value in (("k", k), ("v", v)))
    factor = b.constant(f"{name}_factor", np.array(form.size**-0.5, np.float32))
    if form.odd == "clipped":
        q = b.node(f"{name}_clip", "Clip", [q, b.constant(f"{name}_low", np.float32(-0.5))])
    q = b.node(f"{name}_scaled", "Mul", [q, factor]) if form.scaled == "queries" else q
    products = b.node(f"{name}_qk", "MatMul", [q, b.node(f"{name}_kt", "Transpose", [k], perm=[0, 1, 3, 2])])
    products = b.node(f"{name}_scaled", "Mul", [products, factor]) if form.scaled == "products" else products
    weights = b.node(f"{name}_soft", "Softmax", [b.node(f"{name}_masked", "Add", [products, mask])], axis=-1)
    joined = b.node(f"{name}_out", "Transpose", [b.node(f"{name}_v_p", "MatMul", [weights, v])], perm=[0, 2, 1, 3])
    width = form.heads * form.size
    merged = b.node(f"{name}_merged", "Reshape", [joined, _ints(b, f"{name}_width", 0, 0, width)])
    weight = b.constant(f"{name}_o_w", b.rng.standard_normal((width, WIDTH)) / np.sqrt(width))
    return b.node(f"{name}_o", "MatMul", [merged, weight])


def _rotated(b: Builder, form: Form, name: str, x: str, angles: list[str]) -> str:
    half = form.size // 2
    if form.halves == "split":
        parts = [f"{name}_first", f"{name}_second"]
        b.node(f"{name}_halves", "Split", [x, _ints(b, f"{name}_sizes", half, half)], parts, axis=3)
    else:
        places = ((0, half), (half, 2**31))
        parts = [
            b.node(f"{name}_{i}", "Slice", [x, *(_ints(b, f"{name}_{i}{j}", n) for j, n in enumerate((*ends, 3)))])
            for i, ends in enumerate(places)
        ]
    first, second = parts[::-1] if form.odd == "the other way" else parts
    other = b.node(f"{name}_turned", "Concat", [b.node(f"{name}_negated", "Neg", [second]), first], axis=-1)
    terms = [b.node(f"{name}_x{i}", "Mul", [each, angles[i]]) for i, each in enumerate((x, other))]
    return b.node(f"{name}_sum", "Add", terms)


def _behind(b: Builder, form: Form, name: str, value: str) -> str:
    past = b.input(name, (form.batch, form.shared, "past", form.size))
    present = b.node(f"{name}_joined", "Concat", [past, value], axis=2)
    b.output(present)
    return present


def _repeated(b: Builder, form: Form, name: str, value: str) -> str:
    times, axis = form.heads // form.shared, 1 if form.odd == "heads by turns" else 2
    if times == 1:
        return value
    sizes = [1, 1, 1, 1, 1]
    sizes[axis] = times
    wide = b.node(f"{name}_wide", "Unsqueeze", [value, _ints(b, f"{name}_axis", axis)])
    many = b.node(f"{name}_many", "Expand", [wide, _ints(b, f"{name}_sizes", *sizes)])
    return b.node(f"{name}_flat", "Reshape", [many, _ints(b, f"{name}_heads", form.batch, form.heads, -1, form.size)])


def gathered(form: Form, rewritten: RewriteModel) -> Rewritten:
    """After the rewrite, with the outputs of both compared."""
    model, rng = decoder(form).model(), np.random.default_rng(2)
    past = PAST if form.cached else 0
    sizes = {"rows": ROWS, "all": ROWS + past, "past": PAST}
    feed = {
        i.name: rng.standard_normal([sizes.get(d.dim_param, d.dim_value) for d in i.type.tensor_type.shape.dim])
        for i in model.graph.input
    }
    feed = {name: array.astype(np.float32) for name, array in feed.items()}
    feed["mask"] = np.triu(np.full((ROWS, ROWS + past), -1e9, np.float32), 1 + past)
    places = past + np.arange(ROWS)
    if "ids" in feed:
        feed["ids"] = np.stack([places, places[::-1]][: form.batch])
    if "positions" in feed:
        feed["positions"] = np.stack([places, places[::-1]][: form.batch]).astype(np.float32)[..., None]
    done = rewritten(model, gather_attention, feed)
    done.assert_close(rtol=2e-4, atol=2e-5)
    assert [v.name for v in done.model.graph.outputs] == [o.name for o in model.graph.output]
    check_and_load(ir.to_proto(done.model))
    return done


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    "form",
    [
        Form(),
        Form(angles="gathered", halves="split"),
        Form(angles="computed", scaled="queries"),
        Form(shared=6, batch=1),
        Form(shared=1, size=8, halves="split", angles="gathered", scaled="queries"),
    ],
    ids=["slices of a table", "gathered", "computed", "a head each", "one for all"],
)
def test_rotations_and_shared_heads_are_gathered(form: Form, cached: bool, rewritten: RewriteModel) -> None:
    done = gathered(replace(form, cached=cached), rewritten)
    assert done.operators.count("Attention") == form.layers
    assert done.operators.count("RotaryEmbedding") == 2 * form.layers
    assert not {"Softmax", "Transpose", "Neg"} & {*done.operators}


def test_blocks_have_masks_and_angles_in_common(rewritten: RewriteModel) -> None:
    """Rows of later blocks are sums of what earlier ones read and give: as many, although no shape says so."""
    counts = [gathered(Form(layers=layers), rewritten).operators.count("Expand") for layers in (1, 3)]
    assert counts == [3, 3], "one mask, cosines and sines"


@pytest.mark.parametrize("odd", ["other angles", "the other way", "heads by turns", "clipped"])
def test_what_looks_similar_stays(odd: str, rewritten: RewriteModel) -> None:
    done = gathered(Form(odd=odd), rewritten)
    assert not {"Attention", "RotaryEmbedding"} & {*done.operators}
