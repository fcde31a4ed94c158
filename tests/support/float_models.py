"""Hypothesis strategies: small random float graphs that ONNX Runtime can run, and placements in them."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import strategies as st

from inlay.testing import Builder
from inlay.types import Placement, QType
from tests.support.workspace import Workspace

SIDE = 6
KINDS = (
    *("conv", "conv", "conv", "depthwise", "shared", "add", "mul", "square", "concat"),
    *("maxpool", "average", "sigmoid", "relu", "tanh", "constant", "flip"),
)


@st.composite
def graphs(draw: st.DrawFn, most_nodes: int = 9) -> onnx.ModelProto:
    """Convolutions (plain, depthwise, with shared weights), Add, Mul(x, x), Concat, pools, forks, several outputs."""
    b = Builder(seed=draw(st.integers(0, 2**16)))
    pool = [b.input("x", (1, draw(st.sampled_from([1, 3, 4])), SIDE, SIDE))]
    if draw(st.booleans()):
        pool.append(b.input("other", (1, 3, SIDE, SIDE)))
    weights: list[tuple[str, int, int, int]] = []  # name, inputs, outputs, kernel
    for number in range(draw(st.integers(1, most_nodes))):
        x = draw(st.sampled_from(pool))
        pool.append(_grow(draw, b, f"n{number}", x, pool, weights))
    computed = pool[1:] if "other" not in pool else pool[2:]
    chosen = draw(st.lists(st.sampled_from(computed), unique=True, max_size=3))
    for value in dict.fromkeys([*chosen, computed[-1]]):
        b.output(value)
    return b.model()


def _grow(
    draw: st.DrawFn, b: Builder, name: str, x: str, pool: list[str], weights: list[tuple[str, int, int, int]]
) -> str:
    kind = draw(st.sampled_from(KINDS))
    width = b.channels(x)
    same = [v for v in pool if b.channels(v) == width]
    if kind == "shared":
        fitting = [w for w in weights if w[1] == width]
        if fitting:
            weight, _, outputs, kernel = draw(st.sampled_from(fitting))
            return b.node(name, "Conv", [x, weight], channels=outputs, pads=[kernel // 2] * 4)
        kind = "conv"
    if kind in ("conv", "depthwise"):
        outputs = width if kind == "depthwise" else draw(st.integers(1, 6))
        kernel = draw(st.sampled_from([1, 3]))
        group = width if kind == "depthwise" else 1
        if kind == "conv":
            weights.append((f"{name}_weight", width, outputs, kernel))
        return b.conv(name, x, outputs, kernel, group, bias=draw(st.booleans()), relu=draw(st.booleans()))
    if kind in ("add", "mul"):
        return b.node(name, kind.capitalize(), [x, draw(st.sampled_from(same))])
    if kind == "square":
        return b.node(name, "Mul", [x, x])
    if kind == "concat":
        return b.concat(name, [x, *draw(st.lists(st.sampled_from(pool), min_size=1, max_size=2))])
    if kind == "maxpool":
        return b.node(name, "MaxPool", [x], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    if kind == "average":
        return b.node(name, "AveragePool", [x], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    if kind == "constant":
        values = b.rng.normal(0.0, 1.0, (1, width, 1, 1)).astype(np.float32)
        return b.node(name, "Add", [x, b.constant(f"{name}_constant", values)])
    if kind == "flip":
        return b.node(name, "Transpose", [x], perm=[0, 1, 3, 2])
    return b.node(name, {"sigmoid": "Sigmoid", "relu": "Relu", "tanh": "Tanh"}[kind], [x])


@st.composite
def unit_placements(draw: st.DrawFn, space: Workspace) -> Placement:
    """What the search proposes: some units in low precision."""
    names = [u.name for u in space.prepared.selectable]
    chosen = draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    return space.label(*chosen)


@st.composite
def port_placements(draw: st.DrawFn, space: Workspace) -> Placement:
    """Any set of activation ports, of either 8-bit type, with no regard to what would be fast."""
    ports = space.activation_ports()
    chosen = draw(st.lists(st.sampled_from(ports), unique=True)) if ports else []
    types = draw(st.lists(st.sampled_from([QType.UINT8, QType.INT8]), min_size=len(chosen), max_size=len(chosen)))
    return Placement(zip(chosen, types, strict=True))


def placements(space: Workspace) -> st.SearchStrategy[Placement]:
    """Either."""
    return st.one_of(unit_placements(space), port_placements(space))
