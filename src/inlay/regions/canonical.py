"""A canonical order of the vertices of a labelled acyclic graph: the same for every isomorphic copy of it.

Three steps, each invariant under renumbering:

1. *Refine*: a vertex's colour is hashed from its label, its depth, and its neighbours' colours, in sweeps along
   and against the edges, until no sweep parts any more vertices.
2. *Set apart*: vertices that still share a colour form a cell. Where the tied vertices fall into components with
   at most one vertex of each cell, exchanging two such components is an automorphism, so any order of them is as
   good as another. Where one component holds several vertices of a cell, one of them is individualized (its colour
   is changed) and the change is carried on, along tied vertices only.
3. Sort by depth and colour.

When the members of a cell cannot be exchanged for one another although refinement does not tell them apart (which
takes regular structures that neural networks do not have), the candidate whose individualization leads to the
smallest trace is taken. This one-step look-ahead may miss a match in contrived graphs. It never makes a wrong one,
since patterns are compared by their whole serialized structure.

Hashes are 64-bit, and computed with fixed arithmetic, so that the order is the same in every Python and every run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

_MASK = (1 << 64) - 1
_LOOKAHEAD = 4096
"""Largest product of candidates and component size for which all candidates are tried."""

_MARK = 0x5851F42D4C957F2D

Neighbours = list[list[tuple[int, int]]]


@dataclass(frozen=True)
class LabelledDag:
    """Vertices 0..n-1 in topological order.

    Attributes:
        labels: 64-bit label of each vertex.
        edges: ``(from, to, label)`` with ``from < to``; parallel edges are allowed.
    """

    labels: Sequence[int]
    edges: Sequence[tuple[int, int, int]]


def mix(seed: int, number: int) -> int:
    """Hash ``number`` into ``seed``: the finalizer of SplitMix64, on 64 bits."""
    x = (seed * 0x9E3779B97F4A7C15 + number + 0x7F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def canonical_order(dag: LabelledDag) -> list[int]:
    """The vertices in canonical order. About O(edges) on graphs without large cells of symmetric vertices."""
    count = len(dag.labels)
    before: Neighbours = [[] for _ in range(count)]
    after: Neighbours = [[] for _ in range(count)]
    for start, end, label in dag.edges:
        before[end].append((start, label))
        after[start].append((end, label))
    depth = [0] * count
    for vertex in range(count):
        for earlier, _ in before[vertex]:
            depth[vertex] = max(depth[vertex], depth[earlier] + 1)
    colour = [mix(dag.labels[v], depth[v]) for v in range(count)]
    _sweep(colour, before, after)
    cells = _cells(colour, range(count))
    if cells:
        around = [
            [(u, mix(lab, 1)) for u, lab in b] + [(w, mix(lab, 2)) for w, lab in a]
            for b, a in zip(before, after, strict=True)
        ]
        _refine(colour, cells, around, [])
        while cells:
            _set_apart(colour, cells, around)
    return sorted(range(count), key=lambda v: (depth[v], colour[v]))


def _sweep(colour: list[int], before: Neighbours, after: Neighbours) -> None:
    """Hash colours along and against the edges until that parts no more vertices."""
    count = len(colour)
    distinct = len(set(colour))
    while distinct < count:
        for vertex in range(count):
            around = sum(mix(label, colour[u]) for u, label in before[vertex])
            colour[vertex] = mix(colour[vertex], around & _MASK)
        for vertex in range(count - 1, -1, -1):
            around = sum(mix(label, colour[u]) for u, label in after[vertex])
            colour[vertex] = mix(colour[vertex], around & _MASK)
        now = len(set(colour))
        if now == distinct:
            return
        distinct = now


def _cells(colour: Sequence[int], vertices: Sequence[int] | range) -> dict[int, list[int]]:
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for vertex in vertices:
        groups[colour[vertex]].append(vertex)
    return {c: members for c, members in groups.items() if len(members) > 1}


def _refine(colour: list[int], cells: dict[int, list[int]], around: Neighbours, changed: list[int]) -> None:
    """Part cells by their neighbours' colours until nothing changes; an empty ``changed`` looks at every cell."""
    touched = set(cells) if not changed else _touched(colour, cells, around, changed)
    while touched:
        parted = []
        for cell in touched:
            groups: defaultdict[int, list[int]] = defaultdict(list)
            for vertex in cells[cell]:
                sight = sum(mix(label, colour[u]) for u, label in around[vertex])
                groups[mix(cell, sight & _MASK)].append(vertex)
            if len(groups) > 1:
                parted.append((cell, groups))
        moved: list[int] = []
        for cell, groups in parted:  # after all were looked at: the outcome must not depend on the order of cells
            del cells[cell]
            for fresh, members in groups.items():
                for vertex in members:
                    colour[vertex] = fresh
                if len(members) > 1:
                    cells[fresh] = members
                moved.extend(members)
        touched = _touched(colour, cells, around, moved)


def _touched(colour: list[int], cells: dict[int, list[int]], around: Neighbours, changed: list[int]) -> set[int]:
    return {colour[u] for v in changed for u, _ in around[v] if colour[u] in cells}


def _set_apart(colour: list[int], cells: dict[int, list[int]], around: Neighbours) -> None:
    """Break ties once in every component of tied vertices, and carry the change on."""
    changed: list[int] = []
    twins: list[tuple[int, int, list[int]]] = []
    for component in _components(colour, cells, around):
        inner = _cells(colour, component)
        if not inner:
            lead = min(component, key=lambda v: (colour[v], v))
            twins.append((colour[lead], lead, component))
            continue
        target = min(inner, key=lambda c: (len(inner[c]), c))
        chosen = _pick(colour, component, inner[target], around)
        colour[chosen] = mix(target, _MARK)
        changed.append(chosen)
    twins.sort()
    rank: defaultdict[int, int] = defaultdict(int)
    for kind, _, component in twins:
        # interchangeable, so the order at hand will do
        rank[kind] += 1
        for vertex in component:
            colour[vertex] = mix(colour[vertex], rank[kind])
        changed.extend(component)
    tied = [v for members in cells.values() for v in members]
    cells.clear()
    cells.update(_cells(colour, tied))
    if cells:
        _refine(colour, cells, around, changed)


def _components(colour: list[int], cells: dict[int, list[int]], around: Neighbours) -> list[list[int]]:
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


def _pick(colour: list[int], component: list[int], candidates: list[int], around: Neighbours) -> int:
    """The candidate whose individualization parts the component with the smallest trace."""
    if len(candidates) * len(component) > _LOOKAHEAD:
        return candidates[0]
    local = {v: i for i, v in enumerate(component)}
    outside: dict[int, int] = {}
    colours = [colour[v] for v in component]
    near: Neighbours = []
    for vertex in component:
        row = []
        for other, label in around[vertex]:
            if other not in local and other not in outside:
                outside[other] = len(colours)
                colours.append(colour[other])
            row.append((local[other] if other in local else outside[other], label))
        near.append(row)
    near.extend([] for _ in outside)
    best: tuple[int, int] | None = None
    for candidate in candidates:
        trial = list(colours)
        mark = local[candidate]
        trial[mark] = mix(trial[mark], _MARK)
        cells = _cells(trial, range(len(component)))
        if cells:
            _refine(trial, cells, near, [mark])
        trace = sum(mix(c, 3) for c in trial[: len(component)]) & _MASK
        if best is None or trace < best[0]:
            best = (trace, candidate)
    assert best is not None
    return best[1]
