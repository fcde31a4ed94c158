"""A text encoder for any batch and length, and texts of different lengths."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from inlay.data import Feed
from inlay.testing import Builder

VOCABULARY, WIDTH, HEADS, LONGEST = 50, 32, 4, 64


def encoder(batch: int | str = "batch", length: int | str = "length", layers: int = 1) -> onnx.ModelProto:
    """Tokens and a mask in; a row for each position, and one vector for the whole text out.

    Shapes are computed as exporters write it: a Reshape's target from Shape, Gather, Unsqueeze and Concat, the places
    by a Slice as long as the text.
    """
    b = Builder()
    ids = b.input("input_ids", (batch, length), TensorProto.INT64)
    mask = b.input("attention_mask", (batch, length), TensorProto.INT64)

    def weight(name: str, rows: int, columns: int) -> str:
        return b.constant(name, b.rng.standard_normal((rows, columns)) / np.sqrt(rows))

    def ints(name: str, *numbers: int) -> str:
        return b.constant(name, np.array(numbers, np.int64))

    shape, first = b.node("shape", "Shape", [ids]), ints("first", 0)

    def size(name: str, axis: int) -> str:
        one = b.node(f"{name}_size", "Gather", [shape, b.constant(f"{name}_axis", np.array(axis))])
        return b.node(name, "Unsqueeze", [one, first])

    rows, columns = size("rows", 0), size("columns", 1)
    heads = b.node("heads", "Concat", [rows, columns, ints("split", HEADS, WIDTH // HEADS)], axis=0)
    joined = b.node("joined", "Concat", [rows, columns, ints("width", WIDTH)], axis=0)
    table = b.constant("places", b.rng.standard_normal((1, LONGEST, WIDTH)) / 4)
    places = b.node("place", "Slice", [table, first, columns, ints("second", 1)])
    x = b.node("words", "Gather", [b.constant("table", b.rng.standard_normal((VOCABULARY, WIDTH))), ids])
    x = b.node("embedded", "Add", [x, places])
    wide = b.node("mask_wide", "Unsqueeze", [b.node("mask_float", "Cast", [mask], to=1), ints("axes", 1, 2)])
    hidden = b.node("hidden", "Sub", [wide, b.constant("one", np.array(1.0))])
    bias = b.node("bias", "Mul", [hidden, b.constant("much", np.array(10000.0))])

    def heads_of(name: str, source: str, perm: list[int]) -> str:
        product = b.node(f"{name}_product", "MatMul", [source, weight(f"w{name}", WIDTH, WIDTH)])
        return b.node(name, "Transpose", [b.node(f"{name}_split", "Reshape", [product, heads])], perm=perm)

    for i in range(layers):
        q, k, v = (heads_of(f"{n}{i}", x, [0, 2, 3, 1] if n == "k" else [0, 2, 1, 3]) for n in "qkv")
        scores = b.node(f"scores{i}", "Mul", [b.node(f"qk{i}", "MatMul", [q, k]), b.constant(f"s{i}", np.array(0.35))])
        shares = b.node(f"shares{i}", "Softmax", [b.node(f"masked{i}", "Add", [scores, bias])], axis=-1)
        back = b.node(f"back{i}", "Transpose", [b.node(f"av{i}", "MatMul", [shares, v])], perm=[0, 2, 1, 3])
        merged = b.node(f"merged{i}", "Reshape", [back, joined])
        out = b.node(f"out{i}", "MatMul", [merged, weight(f"wo{i}", WIDTH, WIDTH)])
        x = b.node(f"sum{i}", "Add", [x, out])
        wide_x = b.node(f"relu{i}", "Relu", [b.node(f"up{i}", "MatMul", [x, weight(f"wu{i}", WIDTH, 4 * WIDTH)])])
        x = b.node(f"rows{i}", "Add", [x, b.node(f"down{i}", "MatMul", [wide_x, weight(f"wd{i}", 4 * WIDTH, WIDTH)])])
    pooled = b.node("first_row", "Gather", [x, b.constant("zero", np.array(0))], axis=1)
    b.output(x)
    b.output(pooled)
    return b.model()


def text(rng: np.random.Generator, length: int, whole: int | None = None) -> Feed:
    """Tokens of one text with its mask, filled up to ``whole`` positions with a token that appears nowhere else."""
    whole = whole or length
    ids = np.full((1, whole), VOCABULARY - 1)
    ids[:, :length] = rng.integers(1, VOCABULARY - 1, length)
    return {"input_ids": ids, "attention_mask": (np.arange(whole) < length).astype(np.int64)[None]}


def texts(lengths: list[int], seed: int = 0, whole: int | None = None) -> list[Feed]:
    """One text of each length."""
    rng = np.random.default_rng(seed)
    return [text(rng, n, whole) for n in lengths]
