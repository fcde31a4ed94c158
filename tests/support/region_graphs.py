"""Hypothesis strategies for graphs, and transformations that must not change what is found in them."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import onnx_ir as ir
from benchmarks.generated_graphs import GraphBuilder
from hypothesis import strategies as st

from inlay.model.graph import Graph, Node
from inlay.patterns.node_facts import COMMUTATIVE
from inlay.patterns.schemes import InsertionScheme
from inlay.patterns.search_space import SearchSpace
from inlay.types import Port

SHAPE = (1, 8, 4, 4)


@st.composite
def graphs(draw: st.DrawFn, max_steps: int = 24) -> Graph:
    """Random DAGs with forks, joins, splits, shared weights, ``Mul(x, x)``, shape arithmetic and dead ends."""
    b = GraphBuilder()
    values = [b.input(SHAPE) for _ in range(draw(st.integers(1, 2)))]
    shared = b.const((8, 8, 1, 1))
    four = b.const((4,), ir.DataType.INT64)
    recent = st.integers(0, 3)  # mostly a late value, so that graphs are deep

    def pick() -> str:
        return values[max(0, len(values) - 1 - draw(recent))]

    for _ in range(draw(st.integers(1, max_steps))):
        kind = draw(st.sampled_from(_KINDS))
        x = pick()
        if kind == "conv":
            values.append(b.conv(x, 8, draw(st.sampled_from([1, 3]))))
        elif kind == "shared-conv":
            values.append(b.conv(x, 8, weight=shared))
        elif kind == "relu":
            values.append(b.relu(x))
        elif kind == "tanh":
            values.append(b.node("Tanh", [x]))
        elif kind in ("Add", "Mul"):
            values.append(b.node(kind, [x, pick()]))
        elif kind == "square":
            values.append(b.node("Mul", [x, x]))
        elif kind == "scale":
            values.append(b.node("Mul", [x, b.const(())]))
        elif kind == "concat":
            wide = b.node("Concat", [x, pick()], (1, 16, 4, 4), axis=1)
            values.append(b.conv(wide, 8))
        elif kind == "split":
            first = b.node("Split", [x, b.const((2,), ir.DataType.INT64)], (1, 4, 4, 4), outputs=2, axis=1)
            second = first.removesuffix(":0") + ":1"
            values.append(b.node("Concat", [second, first], SHAPE, axis=1))
        elif kind == "residual":
            y = b.conv(b.relu(b.conv(x, 8, 3)), 8)
            values.append(b.relu(b.node("Add", draw(st.permutations([x, y])))))
        elif kind == "twins":
            values.append(b.node("Add", [b.relu(b.conv(x, 8)), b.relu(b.conv(x, 8))]))
        elif kind == "shape":
            size = b.node("Shape", [x], (4,), dtype=ir.DataType.INT64)
            values.append(b.node("Reshape", [pick(), size], SHAPE))
        else:
            values.append(b.node("Reshape", [x, four], SHAPE))
    read = {v for n in b.nodes for v in n.inputs}
    ends = [v for n in b.nodes for v in n.outputs if v not in read]
    extra = draw(st.lists(st.sampled_from(values), max_size=2, unique=True))
    outputs = list(dict.fromkeys([*ends, *(v for v in extra if v not in b.inputs)])) or [values[-1]]
    return b.graph(outputs)


_KINDS = (
    "conv", "conv", "shared-conv", "relu", "relu", "tanh", "Add", "Mul", "square", "scale", "concat", "split",
    "residual", "twins", "shape", "reshape",
)  # fmt: skip


def disguised(graph: Graph, rng: np.random.Generator) -> tuple[Graph, dict[str, str]]:
    """The same graph with other names, another topological order, and exchangeable inputs exchanged.

    Returns:
        The graph, and its node names by the original's.
    """
    nodes = _reordered(graph, rng)
    names = {name: f"k{i}" for i, name in enumerate(rng.permutation([n.name for n in nodes]).tolist())}
    values = sorted({v for n in nodes for v in (*n.inputs, *n.outputs) if v} | set(graph.inputs) | set(graph.outputs))
    fresh = {v: f"t{i}" for v, i in zip(values, rng.permutation(len(values)).tolist(), strict=True)} | {"": ""}
    made = []
    for index, node in enumerate(nodes):
        inputs = [fresh[v] for v in node.inputs]
        if node.op_type in COMMUTATIVE:
            inputs = [inputs[i] for i in rng.permutation(len(inputs))]
        made.append(
            replace(
                node,
                name=names[node.name],
                inputs=tuple(inputs),
                outputs=tuple(fresh[v] for v in node.outputs),
                index=index,
            )
        )
    frozen = MappingProxyType
    other = Graph(
        nodes=tuple(made),
        inputs=tuple(fresh[v] for v in graph.inputs),
        outputs=tuple(fresh[v] for v in graph.outputs),
        initializers=frozen({fresh[v]: t for v, t in graph.initializers.items() if v in fresh}),
        dtypes=frozen({fresh[v]: t for v, t in graph.dtypes.items() if v in fresh}),
        shapes=frozen({fresh[v]: s for v, s in graph.shapes.items() if v in fresh}),
        opset=graph.opset,
    )
    return other, names


def _reordered(graph: Graph, rng: np.random.Generator) -> list[Node]:
    waiting = {n.name: len({p.name for p in graph.predecessors(n)}) for n in graph.nodes}
    ready = [n for n in graph.nodes if not waiting[n.name]]
    order = []
    while ready:
        node = ready.pop(int(rng.integers(len(ready))))
        order.append(node)
        for after in {s.name: s for s in graph.successors(node)}.values():
            waiting[after.name] -= 1
            if not waiting[after.name]:
                ready.append(after)
    return order


def ports_of(space: SearchSpace, scheme: InsertionScheme, region_id: int) -> frozenset[Port]:
    """The ports that ``scheme`` selects in one region of its pattern."""
    return frozenset(port for point in scheme.points for port in space.tables[region_id][point])
