"""A merged decoder, as exporters write it: one If over whether there is a cache, weights shared by both passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from inlay.prepare.model import where_taken
from inlay.quant.transfer import transfer
from inlay.targets.base import Feed
from inlay.testing import sqnr
from tests.quant.test_flow import bodies, run
from tests.support.runtime import CAN_TAKE_BODIES
from tests.support.workspace import Workspace

WIDTH, WORDS = 32, 50
WEIGHTS = {"q": 1, "k": 1, "v": 1, "o": 1, "up": 4}
"""By name, how many times as wide as what they read."""


def branch(name: str, cached: bool) -> onnx.GraphProto:
    """Attention, a product, and the head; with what the cache holds before the new keys and values, or without."""
    nodes: list[onnx.NodeProto] = []

    def add(op: str, inputs: list[str], what: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [f"{name}_{what}"], f"{name}_{what}_node", **attributes))
        return f"{name}_{what}"

    q, k, v = (add("MatMul", ["embedded", f"w_{what}"], what) for what in "qkv")
    if cached:
        k, v = (add("Concat", [f"past_{what}", new], f"all_{what}", axis=1) for what, new in (("k", k), ("v", v)))
    scores = add("MatMul", [q, add("Transpose", [k], "turned", perm=[0, 2, 1])], "scores")
    weights = add("Softmax", [add("Mul", [scores, "scale"], "scaled")], "weights", axis=-1)
    attended = add("MatMul", [add("MatMul", [weights, v], "mixed"), "w_o"], "attended")
    hidden = add("Add", ["embedded", attended], "hidden")
    up = add("Relu", [add("MatMul", [hidden, "w_up"], "up")], "rectified")
    results = [add("MatMul", [add("MatMul", [up, "w_down"], "down"), "w_head"], "logits"), k, v]
    outputs = [helper.make_tensor_value_info(result, TensorProto.FLOAT, None) for result in results]
    return helper.make_graph(nodes, name, [], outputs)


def decoder(seed: int) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)

    def weight(*shape: int) -> np.ndarray:
        return np.asarray(rng.standard_normal(shape) / np.sqrt(shape[0]), np.float32)

    weights = {f"w_{n}": weight(WIDTH, WIDTH * times) for n, times in WEIGHTS.items()}
    weights |= {"w_down": weight(4 * WIDTH, WIDTH), "w_head": weight(WIDTH, WORDS)}
    weights |= {"table": rng.standard_normal((WORDS, WIDTH)).astype(np.float32)}
    weights |= {"scale": np.array(WIDTH**-0.5, np.float32)}
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["embedded"], "embed"),
        helper.make_node(
            "If",
            ["use_cache"],
            ["logits", "present_k", "present_v"],
            "merged",
            then_branch=branch("with", True),
            else_branch=branch("without", False),
        ),
    ]
    past = [helper.make_tensor_value_info(f"past_{n}", TensorProto.FLOAT, [1, "past", WIDTH]) for n in "kv"]
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, [1, "words"]),
        helper.make_tensor_value_info("use_cache", TensorProto.BOOL, []),
        *past,
    ]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "words", WORDS])]
    outputs += [helper.make_tensor_value_info(f"present_{n}", TensorProto.FLOAT, [1, "seen", WIDTH]) for n in "kv"]
    tensors = [numpy_helper.from_array(w, n) for n, w in weights.items()]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def steps(model: onnx.ModelProto, seed: int) -> list[Feed]:
    """A prompt, and two words after it, each with the cache of what was before."""
    rng = np.random.default_rng(seed)
    none = np.zeros((1, 0, WIDTH), np.float32)
    found: list[Feed] = [
        {"ids": rng.integers(0, WORDS, (1, 6)), "use_cache": np.array(False), "past_k": none, "past_v": none}
    ]
    for _ in range(2):
        ((_, k, v),) = run(model, found[-1:], 0)
        found.append({"ids": rng.integers(0, WORDS, (1, 1)), "use_cache": np.array(True), "past_k": k, "past_v": v})
    return found


@CAN_TAKE_BODIES
def test_both_passes_are_quantized(tmp_path: Path) -> None:
    model = decoder(0)
    feeds = tuple(f for n in range(4) for f in steps(model, n))
    space = Workspace(model, tmp_path, feeds=feeds)
    prepared = where_taken(space.prepared, feeds)
    products = {f"{n}_{what}_node" for n in ("with", "without") for what in ("q", "k", "v", "up", "down", "logits")}
    assert products <= {u.name for u in prepared.selectable}
    assert prepared.request.shown == ((1, 8), (0, 4)), (
        "a step with the cache and one without, by how many are like them"
    )
    placement = space.prepared.label(products)
    emitted = space.emit(placement)
    for body in bodies(emitted.graph):
        read = {v for n in body.node if n.op_type == "DequantizeLinear" for v in n.output}
        assert sum(n.op_type == "MatMul" and set(n.input) <= read for n in body.node) == len(products) // 2
    held = [t for t in emitted.graph.initializer if len(t.dims) == 2 and t.data_type == TensorProto.INT8]
    assert len(held) == len(products) // 2, "one copy of each weight for both"
    assert transfer(space.extract(emitted), space.graph, space.graph).placement == placement
    for outputs in zip(run(model, feeds, 0), run(emitted, feeds, 99), strict=True):
        assert all(sqnr(want, got) > 20.0 for want, got in zip(*outputs, strict=True))
