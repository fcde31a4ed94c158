"""Fork/join blocks: parts of the graph that one node opens and one node closes.

A residual Add, a Concat of branches, a squeeze-excite Mul, an attention head: all are a fork ``f`` whose paths meet
again in a join ``j``, where ``f`` is the immediate dominator of ``j`` and ``j`` the immediate post-dominator of
``f``. The block is all that ``f`` strictly dominates and ``j`` does not, and so includes ``j`` but not ``f``. Blocks
are nested or disjoint.

Two kinds of nodes are left out, because they would tie together parts that have nothing to do with each other: those
that do not depend on a graph input, and those that compute no float tensor (shape arithmetic). They belong to no
block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from inlay.model.graph import Graph
from inlay.regions.dominators import immediate_dominators

MAX_NESTING = 8
"""Blocks that hold more levels of blocks than this are dissolved, so that a node is in a bounded number of regions."""

NO_BLOCK = -1


@dataclass(frozen=True)
class Block:
    """A fork/join block.

    Attributes:
        fork: node whose outputs the branches start from; ``""`` where they start from the graph's inputs.
        join: node where they meet, which is part of the block.
        parent: index of the block that holds this one, or ``NO_BLOCK``.
    """

    fork: str
    join: str
    parent: int


@dataclass(frozen=True)
class Blocks:
    """All fork/join blocks of a graph.

    Attributes:
        blocks: parents stand before their children.
        innermost: index of the innermost block that holds a node, or ``NO_BLOCK``, by node name.
        side: names of nodes that were left out (see the module's text).
    """

    blocks: tuple[Block, ...]
    innermost: Mapping[str, int]
    side: frozenset[str]


def find_fork_joins(graph: Graph) -> Blocks:
    """Find all fork/join blocks of ``graph``. O(edges · log nodes)."""
    names, before = _float_dag(graph)
    count = len(before)  # vertex 0 is the virtual source
    reverse: list[list[int]] = [[] for _ in range(count + 1)]  # 0 is the virtual sink, count the source
    for vertex in range(1, count):
        for earlier in before[vertex] or (0,):
            reverse[count - earlier].append(count - vertex)
    dominator = immediate_dominators(before)
    backward = immediate_dominators(reverse)
    closes = [count - backward[count - v] for v in range(count)]  # count: only the sink does

    raw: list[tuple[int, int, int]] = []  # (fork, join, parent)
    inner, outside, opened = [NO_BLOCK] * count, [NO_BLOCK] * count, [NO_BLOCK] * count
    joins: dict[int, int] = {}  # join -> its block
    for vertex in range(count):
        if vertex:
            fork = dominator[vertex]
            inner[vertex] = opened[fork] if opened[fork] != NO_BLOCK else outside[fork]
        block = joins.get(vertex, NO_BLOCK)
        outside[vertex] = raw[block][2] if block != NO_BLOCK else inner[vertex]
        join = closes[vertex]
        if join < count and dominator[join] == vertex and len(before[join]) > 1:
            opened[vertex] = joins[join] = len(raw)
            raw.append((vertex, join, outside[vertex]))
    return _shallow(graph, names, raw, inner)


def _shallow(graph: Graph, names: list[str], raw: list[tuple[int, int, int]], inner: list[int]) -> Blocks:
    """Dissolve blocks that hold too many levels, and number the rest anew."""
    height = [1] * len(raw)
    for index in range(len(raw) - 1, -1, -1):
        parent = raw[index][2]
        if parent != NO_BLOCK:
            height[parent] = max(height[parent], height[index] + 1)
    kept: dict[int, int] = {NO_BLOCK: NO_BLOCK}
    blocks: list[Block] = []
    for index, (fork, join, parent) in enumerate(raw):
        if height[index] <= MAX_NESTING:
            kept[index] = len(blocks)
            blocks.append(Block(names[fork], names[join], kept[parent]))
        else:
            kept[index] = NO_BLOCK  # its parents are higher still, so they are gone as well
    innermost = {name: kept[inner[i]] for i, name in enumerate(names) if name}
    side = frozenset(n.name for n in graph.nodes if n.name not in innermost)
    innermost.update(dict.fromkeys(side, NO_BLOCK))
    return Blocks(tuple(blocks), innermost, side)


def _may_be_float(graph: Graph, value: str) -> bool:
    dtype = graph.dtypes.get(value)
    return dtype is None or dtype in _FLOATS


_FLOATS = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE, ir.DataType.UNDEFINED}
)


def _float_dag(graph: Graph) -> tuple[list[str], list[list[int]]]:
    """Graph inputs and main nodes as a DAG in topological order: node names (``""`` for inputs) and predecessors.

    A *side input* (an attention mask) feeds many places but starts no weighted operator of its own. Its edges into
    the main path are left out, since otherwise it would hold together all the layers that read it.
    """
    names = [""]  # the virtual source
    before: list[list[int]] = [[]]
    vertex: dict[str, int] = {}  # value -> the vertex that hands it out
    for value in graph.inputs:
        vertex[value] = len(names)
        names.append("")
        before.append([])
    starts = _starting_values(graph)
    for node in graph.nodes:
        floats = dict.fromkeys(v for v in node.inputs if v in vertex and _may_be_float(graph, v))
        reads = floats or dict.fromkeys(v for v in (*node.inputs, *node.captured) if v in vertex)
        hands_out = [v for v in node.outputs if v and _may_be_float(graph, v)]
        deep = [v for v in reads if v not in starts or starts[v]]
        edges = dict.fromkeys(vertex[v] for v in (deep or reads) if vertex[v])
        if not edges or not hands_out:
            vertex.update(dict.fromkeys(node.outputs if reads else (), 0))  # shape arithmetic: no vertex of its own
            continue
        vertex.update(dict.fromkeys(hands_out, len(names)))
        names.append(node.name)
        before.append(list(edges))
    return names, before


def _starting_values(graph: Graph) -> dict[str, bool]:
    """Values with no weighted operator before them, and whether they come from an input that starts one."""
    origins: dict[str, frozenset[str]] = {v: frozenset((v,)) for v in graph.inputs}
    starting: set[str] = set()
    for node in graph.nodes:
        reads = [v for v in node.inputs if v and not graph.is_constant(v)]
        if not reads or any(v not in origins for v in reads):
            continue
        origin = frozenset().union(*(origins[v] for v in reads))
        weights = [v for v in node.inputs if v and graph.is_constant(v) and graph.is_float(v)]
        if any(len(graph.shape(v) or ()) > 1 for v in weights):
            starting |= origin
        else:
            origins.update(dict.fromkeys((v for v in node.outputs if v), origin))
    return {v: bool(origin & starting) for v, origin in origins.items()}
