"""Attention as exporters write it, in one way or another."""

from __future__ import annotations

import numpy as np
import onnx

from inlay.testing import Builder

BATCH, ROWS, HEADS, SIZE = 2, 6, 3, 8
WIDTH, PAST = HEADS * SIZE, 4
SCALE = np.array(SIZE**-0.5)


def attention(
    scaled: str = "products",
    mask: str = "",
    key: str = "at once",
    rows: int | str = ROWS,
    keys: int | str = ROWS,
    shown: bool = False,
    last: bool = False,
    cached: bool = False,
    gain: float = 1.0,
) -> onnx.ModelProto:
    """Queries, keys and values of three projections, with what exporters write in one way or another.

    Args:
        scaled: the products, ``queries`` or ``both`` are multiplied, or the products are ``divided``.
        mask: ``added``, put by ``where`` or by a Where on its ``other`` side, or none.
        key: how keys are transposed: ``at once`` or ``twice``.
        rows, keys: numbers or names of dimensions.
        shown: the weights of the positions are an output as well.
        last: nothing follows.
        cached: keys and values of earlier positions are inputs, and all of them outputs.
        gain: of the queries.
    """
    b = Builder()
    presents: list[str] = []
    x, y = b.input("x", (BATCH, rows, 16)), b.input("y", (BATCH, keys, 16))

    def heads(name: str, source: str, perm: list[int], factor: float = 1.0) -> str:
        weight = b.constant(f"{name}_weight", factor * b.rng.standard_normal((16, WIDTH)) / 4)
        sizes = b.constant(f"{name}_sizes", np.array([0, 0, HEADS, SIZE]))
        split = b.node(f"{name}_split", "Reshape", [b.node(f"{name}_rows", "MatMul", [source, weight]), sizes])
        transposed = b.node(name, "Transpose", [split], perm=perm)
        if not cached or name == "q":
            return transposed
        past = b.input(f"past_{name}", (BATCH, HEADS, PAST, SIZE))
        presents.append(b.node(f"present_{name}", "Concat", [past, transposed], axis=2))
        return presents[-1]

    q, v = heads("q", x, [0, 2, 1, 3], gain), heads("v", y, [0, 2, 1, 3])
    if key == "twice":
        k = b.node("kt", "Transpose", [heads("k", y, [0, 2, 1, 3])], perm=[0, 1, 3, 2])
    else:
        k = heads("k", y, [0, 2, 3, 1])
    if scaled in ("queries", "both"):
        number = SCALE if scaled == "queries" else np.sqrt(SCALE)
        q = b.node("q_scaled", "Mul", [q, b.constant("q_scale", number)])
        k = b.node("k_scaled", "Mul", [k, b.constant("k_scale", number)]) if scaled == "both" else k
    s = b.node("products", "MatMul", [q, k])
    if scaled == "products":
        s = b.node("scaled", "Mul", [b.constant("scale", SCALE), s])
    elif scaled == "divided":
        s = b.node("scaled", "Div", [s, b.constant("scale", 1.0 / SCALE)])
    if mask == "added":
        s = b.node("masked", "Add", [s, b.input("mask", (BATCH, 1, 1, keys))])
    elif mask:
        kept = b.node("kept", "Greater", [b.input("mask", (BATCH, 1, 1, keys)), b.constant("zero", np.array(-1.0))])
        lowest = b.constant("lowest", np.array(np.finfo(np.float32).min))
        if mask == "other":
            kept = b.node("out", "Not", [kept])
        s = b.node("masked", "Where", [kept, s, lowest] if mask == "where" else [kept, lowest, s])
    p = b.node("weights", "Softmax", [s], axis=-1)
    o = b.node("rows", "Transpose", [b.node("sum", "MatMul", [p, v])], perm=[0, 2, 1, 3])
    merged = b.constant("merged_sizes", np.array([0, 0, WIDTH]))
    rows_of_heads = b.node("merged", "Reshape", [o, merged])
    b.output(rows_of_heads if last else b.node("act", "Relu", [rows_of_heads]))
    for present in presents:
        b.output(present)
    if shown:
        b.output(p)
    return b.model()
