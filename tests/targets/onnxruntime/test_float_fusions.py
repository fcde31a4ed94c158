"""Chains that ONNX Runtime makes one float kernel of: each is read back from the graph that the runtime makes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from inlay.model.graph import build_graph
from inlay.targets.onnxruntime.float_fusions import in_float_fusion
from inlay.testing import Builder
from tests.support.runtime import optimized

SHAPE = (1, 6, 16)
Chain = Callable[[Builder, str], str]


def number(b: Builder, name: str, value: float) -> str:
    return b.constant(name, np.array(value, np.float32))


def gated(b: Builder, x: str, core: str, order: str, half: float = 0.5) -> str:
    """``x (1 + core) / 2``, the products in one of three orders."""
    more = b.node("more", "Add", [core, number(b, "one", 1.0)])
    of = number(b, "half", half)
    if order == "last":
        return b.node("halved", "Mul", [b.node("gate", "Mul", [x, more]), of])
    if order == "first":
        return b.node("gate", "Mul", [b.node("halved", "Mul", [x, of]), more])
    return b.node("gate", "Mul", [x, b.node("halved", "Mul", [more, of])])


def erf(order: str, divided: bool = True, half: float = 0.5) -> Chain:
    def build(b: Builder, x: str) -> str:
        by = ("Div", 2.0**0.5) if divided else ("Mul", 0.5**0.5)
        scaled = b.node("scaled", by[0], [x, number(b, "r", by[1])])
        return gated(b, x, b.node("erf", "Erf", [scaled]), order, half)

    return build


def tanh(order: str) -> Chain:
    def build(b: Builder, x: str) -> str:
        cube = b.node("cube", "Pow", [x, number(b, "three", 3.0)])
        inner = b.node("inner", "Add", [x, b.node("little", "Mul", [cube, number(b, "k", 0.044715)])])
        scaled = b.node("scaled", "Mul", [inner, number(b, "r", (2.0 / np.pi) ** 0.5)])
        return gated(b, x, b.node("tanh", "Tanh", [scaled]), order)

    return build


def normalized(centered: bool) -> Chain:
    def build(b: Builder, x: str) -> str:
        if centered:
            x = b.node("centered", "Sub", [x, b.node("mean", "ReduceMean", [x], axes=[-1])])
        square = b.node("square", "Pow", [x, number(b, "two", 2.0)])
        mean = b.node("variance", "ReduceMean", [square], axes=[-1])
        root = b.node("root", "Sqrt", [b.node("more", "Add", [mean, number(b, "small", 1e-5)])])
        weight = b.constant("w", b.rng.uniform(0.5, 2.0, 16))
        scaled = b.node("weighted", "Mul", [b.node("divided", "Div", [x, root]), weight])
        return b.node("moved", "Add", [scaled, b.constant("beta", b.rng.uniform(0.5, 2.0, 16))]) if centered else scaled

    return build


def model_of(chain: Chain) -> onnx.ModelProto:
    b = Builder(opset=17)
    before = b.node("before", "Add", [b.input("x", SHAPE), b.input("other", SHAPE)])
    after = chain(b, b.node("sine", "Sin", [before]))
    b.output(b.node("after", "Mul", [after, b.node("cosine", "Cos", [before])]))
    return b.model()


def held(model: onnx.ModelProto) -> set[str]:
    graph = build_graph(ir.from_proto(model))
    return {n.name for n in graph.nodes if n.op_type in ("Add", "Mul") and in_float_fusion(graph, n)}


FUSED = {
    "erf, halved last": (erf("last"), "Gelu"),
    "erf, halved first": (erf("first"), "Gelu"),
    "tanh, halved first": (tanh("first"), "FastGelu"),
    "root mean square": (normalized(False), "SimplifiedLayerNormalization"),
    "layer": (normalized(True), "LayerNormalization"),
}
APART = {
    "erf, halved inside": erf("inside"),
    "erf, multiplied": erf("last", divided=False),
    "erf, another factor": erf("last", half=0.25),
    "tanh, halved last": tanh("last"),
    "tanh, halved inside": tanh("inside"),
}


def sums_and_products(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    return {n.name for n in nodes if n.op_type in ("Add", "Mul")}


@pytest.mark.parametrize(("chain", "kernel"), FUSED.values(), ids=FUSED.keys())
def test_a_chain_that_the_runtime_fuses_is_held_together_and_nothing_else(
    chain: Chain, kernel: str, tmp_path: Path
) -> None:
    model = model_of(chain)
    ran = optimized(model, tmp_path).graph.node
    assert kernel in {n.op_type for n in ran}
    gone = sums_and_products(model.graph.node) - sums_and_products(ran)
    assert held(model) == gone
    assert {"before", "after"}.isdisjoint(gone), "what is around a chain counts as part of it"


@pytest.mark.parametrize("chain", APART.values(), ids=APART.keys())
def test_what_the_runtime_leaves_apart_is_not_held(chain: Chain, tmp_path: Path) -> None:
    model = model_of(chain)
    ran = optimized(model, tmp_path).graph.node
    assert sums_and_products(model.graph.node) == sums_and_products(ran)
    assert not held(model)


def test_all_chains_of_a_kind_have_one_reason() -> None:
    """A spindle detector has 24: as many lines told of one thing."""
    first, second = (build_graph(ir.from_proto(onnx.compose.add_prefix(model_of(erf("last")), p))) for p in "ab")
    reasons = Counter(in_float_fusion(graph, n) for graph in (first, second) for n in graph.nodes)
    del reasons[None]
    assert set(reasons) == {"it belongs to a GELU, which runs as one float kernel"}
