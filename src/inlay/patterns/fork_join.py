"""Fork/join blocks: single-entry, single-exit parts of the graph in which parallel paths meet again.

A residual Add, a Concat of branches, a squeeze-excite Mul, an attention head: each is a fork ``f`` whose paths meet
again in a join ``j``, where ``f`` is the immediate dominator of ``j`` and ``j`` the immediate post-dominator of ``f``.
The block is everything that ``f`` strictly dominates and ``j`` does not, and so includes ``j`` but not ``f``. Blocks
are nested or disjoint.

*Auxiliary* nodes are in no block, since they would tie unrelated parts together: nodes that do not depend on a graph
input, and nodes that compute no float tensor (shape arithmetic).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from inlay.model.graph import Graph

MAX_NESTING = 8
"""Blocks with more levels of blocks inside are dissolved: this bounds the number of regions that a node is in."""

NO_BLOCK = -1  # in place of a block's index

_FLOATS = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE, ir.DataType.UNDEFINED}
)


@dataclass(frozen=True)
class ForkJoins:
    """All fork/join blocks of a graph."""

    # for each block, the index of the innermost block around it, or `NO_BLOCK`; smaller than its own
    parents: tuple[int, ...]
    innermost: Mapping[str, int]  # index of the innermost block that holds a node, or `NO_BLOCK`, by node name
    auxiliary: frozenset[str]  # names of auxiliary nodes (see the module's docstring)


def find_fork_joins(graph: Graph) -> ForkJoins:
    """Find all fork/join blocks of ``graph``. O(edges · log nodes)."""
    names, predecessors = _float_dag(graph)
    count = len(predecessors)  # vertex 0 is the virtual source
    # the reversed graph: vertex 0 is the virtual sink, and vertex v becomes count - v
    successors: list[list[int]] = [[] for _ in range(count + 1)]
    for vertex in range(1, count):
        for predecessor in predecessors[vertex] or (0,):
            successors[count - predecessor].append(count - vertex)
    dominator = immediate_dominators(predecessors)
    reversed_dominator = immediate_dominators(successors)
    post_dominator = [count - reversed_dominator[count - v] for v in range(count)]  # count stands for the sink

    parents: list[int] = []  # by block
    innermost, after, opened_by = [NO_BLOCK] * count, [NO_BLOCK] * count, [NO_BLOCK] * count
    block_of_join: dict[int, int] = {}
    for vertex in range(count):
        if vertex:
            fork = dominator[vertex]
            innermost[vertex] = opened_by[fork] if opened_by[fork] != NO_BLOCK else after[fork]
        closed = block_of_join.get(vertex, NO_BLOCK)
        after[vertex] = parents[closed] if closed != NO_BLOCK else innermost[vertex]
        join = post_dominator[vertex]
        if join < count and dominator[join] == vertex and len(predecessors[join]) > 1:
            opened_by[vertex] = block_of_join[join] = len(parents)
            parents.append(after[vertex])
    return _limit_nesting(graph, names, parents, innermost)


def _limit_nesting(graph: Graph, names: list[str], parents: list[int], innermost: list[int]) -> ForkJoins:
    """Dissolve blocks that hold too many levels of blocks, and number the others anew."""
    levels = [1] * len(parents)
    for index in range(len(parents) - 1, -1, -1):
        parent = parents[index]
        if parent != NO_BLOCK:
            levels[parent] = max(levels[parent], levels[index] + 1)
    renumbered: dict[int, int] = {NO_BLOCK: NO_BLOCK}
    kept: list[int] = []
    for index, parent in enumerate(parents):
        if levels[index] <= MAX_NESTING:
            renumbered[index] = len(kept)
            kept.append(renumbered[parent])
        else:
            renumbered[index] = NO_BLOCK  # all blocks around it have more levels still, and are dissolved as well
    block_of = {name: renumbered[innermost[i]] for i, name in enumerate(names) if name}
    auxiliary = frozenset(n.name for n in graph.nodes if n.name not in block_of)
    block_of.update(dict.fromkeys(auxiliary, NO_BLOCK))
    return ForkJoins(tuple(kept), block_of, auxiliary)


def _float_dag(graph: Graph) -> tuple[list[str], list[list[int]]]:
    """The float data path as a DAG in topological order: a name (``""`` for inputs) and predecessors per vertex.

    A *side input* (an attention mask) is read in many places but feeds no weighted operator of its own. Its edges into
    the main path are left out, since it would otherwise tie all the layers that read it together.
    """
    names = [""]  # the virtual source
    predecessors: list[list[int]] = [[]]
    vertex_of: dict[str, int] = {}  # by value
    for value in graph.inputs:
        vertex_of[value] = len(names)
        names.append("")
        predecessors.append([])
    feeds_weights = _values_before_weights(graph)
    for node in graph.nodes:
        floats = dict.fromkeys(v for v in node.inputs if v in vertex_of and _may_be_float(graph, v))
        reads = floats or dict.fromkeys(v for v in (*node.inputs, *node.captured) if v in vertex_of)
        outputs = [v for v in node.outputs if v and _may_be_float(graph, v)]
        main = [v for v in reads if feeds_weights.get(v, True)]
        edges = dict.fromkeys(vertex_of[v] for v in (main or reads) if vertex_of[v])
        if not edges or not outputs:
            vertex_of.update(dict.fromkeys(node.outputs if reads else (), 0))  # auxiliary: no vertex of its own
            continue
        vertex_of.update(dict.fromkeys(outputs, len(names)))
        names.append(node.name)
        predecessors.append(list(edges))
    return names, predecessors


def _may_be_float(graph: Graph, value: str) -> bool:
    dtype = graph.dtypes.get(value)
    return dtype is None or dtype in _FLOATS


def _values_before_weights(graph: Graph) -> dict[str, bool]:
    """For values before any weighted operator: whether a graph input behind them feeds one."""
    origins: dict[str, frozenset[str]] = {v: frozenset((v,)) for v in graph.inputs}
    feeding: set[str] = set()
    for node in graph.nodes:
        reads = [v for v in node.inputs if v and not graph.is_constant(v)]
        if not reads or any(v not in origins for v in reads):
            continue
        origin = frozenset().union(*(origins[v] for v in reads))
        weights = [v for v in node.inputs if v and graph.is_constant(v) and graph.is_float(v)]
        if any(len(graph.shape(v) or ()) > 1 for v in weights):
            feeding |= origin
        else:
            origins.update(dict.fromkeys((v for v in node.outputs if v), origin))
    return {v: bool(origin & feeding) for v, origin in origins.items()}


def immediate_dominators(predecessors: Sequence[Sequence[int]]) -> list[int]:
    """Immediate dominator of each vertex, in O(edges · log nodes). Those of the reversed graph are post-dominators.

    In topological order, the immediate dominator of a vertex is the lowest common ancestor of its predecessors in the
    dominator tree built so far. One extra "jump" pointer per vertex (skew-binary jump pointers: Myers, *An applicative
    random-access stack*, 1983) makes the search for that ancestor logarithmic.

    Args:
        predecessors: of each vertex, in topological order. Vertex 0 is the root; a vertex without predecessors counts
            as its direct successor.

    Returns:
        One vertex for each vertex; the root's entry is the root itself.
    """
    count = len(predecessors)
    parent, jump, depth = [0] * count, [0] * count, [0] * count
    for vertex in range(1, count):
        before = predecessors[vertex]
        dominator = before[0] if before else 0
        for other in before[1:]:
            dominator = _common_ancestor(dominator, other, parent, jump, depth)
        parent[vertex] = dominator
        depth[vertex] = depth[dominator] + 1
        far = jump[dominator]
        equal_jumps = depth[dominator] - depth[far] == depth[far] - depth[jump[far]]
        jump[vertex] = jump[far] if equal_jumps else dominator
    return parent


def _common_ancestor(one: int, two: int, parent: list[int], jump: list[int], depth: list[int]) -> int:
    if depth[one] < depth[two]:
        one, two = two, one
    while depth[one] > depth[two]:
        one = jump[one] if depth[jump[one]] >= depth[two] else parent[one]
    while one != two:
        if jump[one] != jump[two]:
            one, two = jump[one], jump[two]
        else:
            one, two = parent[one], parent[two]
    return one
