"""Canonical labeling: an order of the vertices of a labelled DAG that is the same for every isomorphic copy of it.

Three steps, each invariant under renumbering (the scheme of McKay's *nauty*, without its search tree):

1. *Colour refinement*: a vertex's colour is hashed from its label, its depth and its neighbours' colours, in passes
   along and against the edges, until a pass splits no colour class any more.
2. *Individualization*: vertices that still share a colour form a cell. Where the tied vertices fall into components
   with at most one vertex of each cell, exchanging two such components is an automorphism, and any order of them will
   do. Where one component holds several vertices of a cell, one of them is individualized (gets a colour of its own)
   and its component is refined again.
3. Sort by depth and colour.

If the vertices of a cell are not exchangeable although refinement cannot tell them apart (which takes regular
structures that neural networks do not have), the candidate whose individualization leads to the smallest trace is
taken. This one-step look-ahead may miss a match in contrived graphs. It never makes a wrong one, since patterns are
compared by their whole serialized structure.

Hashes have 64 bits and use fixed arithmetic, so that the order is the same in every Python and every run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

_MASK = (1 << 64) - 1

_GOLDEN, _OFFSET = 0x9E3779B97F4A7C15, 0x7F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Multipliers of SplitMix64 and of its finalizer (Steele, Lea, Flood 2014)."""

_LOOKAHEAD = 4096
"""Work limit of the look-ahead: with more candidates times vertices in the component, the first candidate is taken."""


# Salts that keep hashes of different meaning apart; their values are part of every cached signature.
_INDIVIDUALIZED = 0x5851F42D4C957F2D
_ALONG, _AGAINST, _TRACE = 1, 2, 3

Neighbours = list[list[tuple[int, int]]]  # for each vertex its neighbours with the labels of the edges to them
Cells = dict[int, list[int]]  # the vertices of each colour that more than one vertex has


def hash_combine(seed: int, number: int) -> int:
    """Hash ``number`` into ``seed`` with the finalizer of SplitMix64 (Steele, Lea, Flood 2014); 64 bits."""
    x = (seed * _GOLDEN + number + _OFFSET) & _MASK
    x = ((x ^ (x >> 30)) * _FIRST) & _MASK
    x = ((x ^ (x >> 27)) * _SECOND) & _MASK
    return x ^ (x >> 31)


def canonical_order(labels: Sequence[int], edges: Iterable[tuple[int, int, int]]) -> Sequence[int]:
    """The vertices in canonical order. About O(edges) on graphs without large cells of symmetric vertices.

    ``labels`` have 64 bits, of vertices in topological order; edges, ``(from, to, label)`` with ``from < to``, may be
    parallel.
    """
    count = len(labels)
    before: Neighbours = [[] for _ in range(count)]
    after: Neighbours = [[] for _ in range(count)]
    for start, end, label in edges:
        before[end].append((start, label))
        after[start].append((end, label))
    depth = [0] * count
    for vertex in range(count):
        for earlier, _ in before[vertex]:
            depth[vertex] = max(depth[vertex], depth[earlier] + 1)
    colour = [hash_combine(labels[v], depth[v]) for v in range(count)]
    _refine_all(colour, before, after)
    cells = _cells(colour, range(count))
    if cells:
        around = [
            [(u, hash_combine(lab, _ALONG)) for u, lab in b] + [(w, hash_combine(lab, _AGAINST)) for w, lab in a]
            for b, a in zip(before, after, strict=True)
        ]
        _refine_cells(colour, cells, around, set(cells))
        while cells:
            _individualize(colour, cells, around)
    return tuple(sorted(range(count), key=lambda v: (depth[v], colour[v])))


def _refine_all(colour: list[int], before: Neighbours, after: Neighbours) -> None:
    """Refine all colours along and against the edges until the number of colours no longer grows."""
    count = len(colour)
    distinct = len(set(colour))
    while distinct < count:
        for vertices, neighbours in ((range(count), before), (range(count - 1, -1, -1), after)):
            for vertex in vertices:
                colour[vertex] = hash_combine(colour[vertex], _hash_neighbours(colour, neighbours[vertex]))
        now = len(set(colour))
        if now == distinct:
            return
        distinct = now


def _hash_neighbours(colour: list[int], neighbours: list[tuple[int, int]]) -> int:
    """A hash of the multiset of neighbours' colours and edge labels: the sum of :func:`hash_combine` of each.

    Written out: of a large graph, calls would take most of the time.
    """
    total = 0
    for vertex, label in neighbours:
        x = (label * _GOLDEN + colour[vertex] + _OFFSET) & _MASK
        x = ((x ^ (x >> 30)) * _FIRST) & _MASK
        x = ((x ^ (x >> 27)) * _SECOND) & _MASK
        total += x ^ (x >> 31)
    return total & _MASK


def _cells(colour: Sequence[int], vertices: Iterable[int]) -> Cells:
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for vertex in vertices:
        groups[colour[vertex]].append(vertex)
    return {c: members for c, members in groups.items() if len(members) > 1}


def _refine_cells(colour: list[int], cells: Cells, around: Neighbours, affected: set[int]) -> None:
    """Split the ``affected`` cells by their neighbours' colours, and then those beside them, until nothing changes."""
    while affected:
        splits = []
        for cell in affected:
            groups: defaultdict[int, list[int]] = defaultdict(list)
            for vertex in cells[cell]:
                groups[hash_combine(cell, _hash_neighbours(colour, around[vertex]))].append(vertex)
            if len(groups) > 1:
                splits.append((cell, groups))
        recoloured: list[int] = []
        for cell, groups in splits:  # only now: the result must not depend on the order of the cells
            del cells[cell]
            for fresh, members in groups.items():
                for vertex in members:
                    colour[vertex] = fresh
                if len(members) > 1:
                    cells[fresh] = members
                recoloured.extend(members)
        affected = _beside(colour, cells, around, recoloured)


def _beside(colour: list[int], cells: Cells, around: Neighbours, recoloured: Iterable[int]) -> set[int]:
    """The cells with neighbours of ``recoloured`` vertices."""
    return {colour[u] for v in recoloured for u, _ in around[v] if colour[u] in cells}


def _individualize(colour: list[int], cells: Cells, around: Neighbours) -> None:
    """Break ties once in every component of tied vertices, and refine what that affects."""
    recoloured: list[int] = []
    exchangeable: list[tuple[int, int, list[int]]] = []
    for component in _components(colour, cells, around):
        inner = _cells(colour, component)
        if not inner:
            lead = min(component, key=lambda v: (colour[v], v))
            exchangeable.append((colour[lead], lead, component))
            continue
        target = min(inner, key=lambda c: (len(inner[c]), c))
        chosen = _look_ahead(colour, component, inner[target], around)
        colour[chosen] = hash_combine(target, _INDIVIDUALIZED)
        recoloured.append(chosen)
    exchangeable.sort()
    rank: defaultdict[int, int] = defaultdict(int)
    for kind, _, component in exchangeable:  # in any order: here by the smallest vertex
        rank[kind] += 1
        for vertex in component:
            colour[vertex] = hash_combine(colour[vertex], rank[kind])
        recoloured.extend(component)
    tied = [v for members in cells.values() for v in members]
    cells.clear()
    cells.update(_cells(colour, tied))
    _refine_cells(colour, cells, around, _beside(colour, cells, around, recoloured))


def _components(colour: list[int], cells: Cells, around: Neighbours) -> list[list[int]]:
    """Connected components of the tied vertices."""
    seen: set[int] = set()
    found = []
    for cell in sorted(cells):
        for start in cells[cell]:
            if start in seen:
                continue
            seen.add(start)
            component, stack = [], [start]
            while stack:
                vertex = stack.pop()
                component.append(vertex)
                for other, _ in around[vertex]:
                    if other not in seen and colour[other] in cells:
                        seen.add(other)
                        stack.append(other)
            found.append(component)
    return found


def _look_ahead(colour: list[int], component: list[int], candidates: list[int], around: Neighbours) -> int:
    """The candidate whose individualization refines the component to the smallest trace (the sum of its colours)."""
    if len(candidates) * len(component) > _LOOKAHEAD:
        return candidates[0]
    local = {v: i for i, v in enumerate(component)}  # vertices outside the component follow, with fixed colours
    colours = [colour[v] for v in component]
    neighbours: Neighbours = []
    for vertex in component:
        for other, _ in around[vertex]:
            if other not in local:
                local[other] = len(colours)
                colours.append(colour[other])
        neighbours.append([(local[other], label) for other, label in around[vertex]])
    neighbours.extend([] for _ in range(len(colours) - len(component)))

    def trace(candidate: int) -> int:
        trial = list(colours)
        vertex = local[candidate]
        trial[vertex] = hash_combine(trial[vertex], _INDIVIDUALIZED)
        cells = _cells(trial, range(len(component)))
        _refine_cells(trial, cells, neighbours, _beside(trial, cells, neighbours, [vertex]))
        return sum(hash_combine(c, _TRACE) for c in trial[: len(component)]) & _MASK

    return min(candidates, key=trace)
