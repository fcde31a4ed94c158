"""A decoder with a cache, whose past is empty at the first step."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from inlay.data import Feed
from inlay.testing import Builder

VOCABULARY, WIDTH = 100, 32


def decoder() -> onnx.ModelProto:
    """Ids and what was kept of earlier ones in; scores, and what is to be kept, out."""
    b = Builder()
    ids = b.input("input_ids", ("batch", "length"), TensorProto.INT64)
    past = {n: b.input(f"past_key_values.{n}", ("batch", "past", WIDTH)) for n in "kv"}
    table = b.constant("table", b.rng.normal(0, 1, (VOCABULARY, WIDTH)))
    x = b.node("embedded", "Gather", [table, ids])

    def product(name: str, value: str, columns: int = WIDTH) -> str:
        return b.node(name, "MatMul", [value, b.constant(f"w{name}", b.rng.normal(0, WIDTH**-0.5, (WIDTH, columns)))])

    q, k, v = (product(n, x) for n in "qkv")
    keys, values = (
        b.node(f"joined_{n}", "Concat", [past[n], each], [f"present.{n}"], axis=1) for n, each in (("k", k), ("v", v))
    )
    scores = b.node("scores", "MatMul", [q, b.node("turned", "Transpose", [keys], perm=[0, 2, 1])])
    mixed = b.node("mixed", "MatMul", [b.node("shares", "Softmax", [scores]), values])
    b.output(product("head", mixed, VOCABULARY))
    for name in (keys, values):
        b.output(name)
    model = b.model()
    for output, last in zip(model.graph.output, (VOCABULARY, WIDTH, WIDTH), strict=True):
        shape = ["batch", "length" if last == VOCABULARY else "whole", last]
        output.CopyFrom(helper.make_tensor_value_info(output.name, TensorProto.FLOAT, shape))
    return model


def steps(count: int, empty: bool = False, seed: int = 0) -> list[Feed]:
    """Every fourth the first step of a text, with an empty past; all of them where they are to be ``empty``."""
    rng, feeds = np.random.default_rng(seed), list[Feed]()
    for number in range(count):
        first = empty or number % 4 == 0
        length, kept = (9, 0) if first else (1, 5 + number)
        past = {f"past_key_values.{n}": rng.normal(0, 1, (1, kept, WIDTH)).astype(np.float32) for n in "kv"}
        feeds.append({"input_ids": rng.integers(0, VOCABULARY, (1, length)), **past})
    return feeds
