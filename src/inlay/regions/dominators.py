"""Immediate dominators of a directed acyclic graph, in O(edges · log nodes).

In topological order, the immediate dominator of a vertex is the lowest common ancestor of its predecessors in the
dominator tree built so far. One extra "jump" pointer per vertex (skew-binary jump pointers: Myers, *An applicative
random-access stack*, 1983) makes the search for that ancestor logarithmic. Post-dominators are the dominators of the
reversed graph.
"""

from __future__ import annotations

from collections.abc import Sequence


def immediate_dominators(predecessors: Sequence[Sequence[int]]) -> list[int]:
    """Immediate dominator of each vertex.

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
