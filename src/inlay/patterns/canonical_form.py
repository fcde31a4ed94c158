"""The canonical form of a region: what its structure amounts to whatever its nodes and values are called.

A pure function of the structure, in the order in which the model lists it. Networks repeat their blocks, written in the
same order, so that forms of small regions are remembered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from inlay.patterns.canonical import canonical_order
from inlay.patterns.node_facts import hash_bytes, hash_text

NO_SOURCE = -1  # in place of a vertex: a constant with one reader, which is part of its port
_IN_CHILD = 0xC411D  # label of the edge from a node to its child region; part of every cached signature

_REMEMBERED_NODES, _REMEMBERED_FORMS = 256, 1024
"""Nodes up to which a form is remembered (larger regions hardly repeat), and how many forms are."""


class Edge(NamedTuple):
    """A read of a node, without names."""

    source: int  # vertex of what is read: outside values come first, then nodes; or `NO_SOURCE`
    output: int  # index among the outputs of the source
    legal: bool  # whether the port is a legal insertion point
    label: int  # edge label; slots of one node have different ones unless they may be exchanged
    slot: int  # the input slot
    text: str  # description of the value where nothing else tells exchangeable reads apart; otherwise empty


class Described(NamedTuple):
    """A node as part of a region, without names."""

    digest: bytes  # over all that is not an edge
    marks: str  # of its outputs: which leave the region
    commutative: bool  # whether its inputs may be exchanged
    child: int  # index of the child region that holds it; -1 in a leaf
    reads: tuple[Edge, ...]  # present input slots, as written
    captured: tuple[Edge, ...]  # values that its subgraphs read


class RegionGraph(NamedTuple):
    """A region without names, in the order of the model; equal structures have equal forms."""

    type: str  # of the region
    outside: tuple[str, ...]  # descriptions of the values from outside and of shared constants: vertices from 0 on
    nodes: tuple[Described, ...]  # the next vertices
    children: tuple[str, ...]  # signatures of the child regions: the last vertices


class Form(NamedTuple):
    """A structure in canonical order."""

    signature: str  # 20 hexadecimal digits; the same for two structures iff they are isomorphic
    rank: tuple[int, ...]  # position of each vertex in canonical order
    order: tuple[int, ...]  # indices of the nodes in canonical order
    slots: tuple[tuple[int, ...], ...]  # for each node in that order, its input slots in canonical order
    child_order: tuple[int, ...]  # indices of the child regions in canonical order


def canonical_form(graph: RegionGraph) -> Form:
    """The canonical form of ``graph``."""
    return (_remembered if len(graph.nodes) <= _REMEMBERED_NODES else _canonical_form)(graph)


def _canonical_form(graph: RegionGraph) -> Form:
    nodes, first_node = graph.nodes, len(graph.outside)
    first_child = first_node + len(nodes)
    labels = [hash_text(text) for text in graph.outside]
    labels.extend(hash_bytes(n.digest + n.marks.encode()) for n in nodes)
    labels.extend(map(hash_text, graph.children))
    edges = [
        (edge.source, vertex, edge.label)
        for vertex, node in enumerate(nodes, first_node)
        for edge in (*node.reads, *node.captured)
        if edge.source != NO_SOURCE
    ]
    edges += [(v, first_child + n.child, _IN_CHILD) for v, n in enumerate(nodes, first_node) if n.child >= 0]
    rank = [0] * len(labels)
    for position, vertex in enumerate(canonical_order(labels, edges)):
        rank[vertex] = position
    order = sorted(range(len(nodes)), key=lambda i: rank[first_node + i])
    child_order = sorted(range(len(graph.children)), key=lambda c: rank[first_child + c])
    reads = [_canonical_reads(nodes[i], rank) for i in order]
    text = "\n".join((graph.type, *_serialized(graph, rank, order, child_order, reads)))
    return Form(
        hashlib.sha256(text.encode()).hexdigest()[:20],
        tuple(rank),
        tuple(order),
        tuple(tuple(edge.slot for edge in of) for of in reads),
        tuple(child_order),
    )


_remembered = lru_cache(maxsize=_REMEMBERED_FORMS)(_canonical_form)


def _canonical_reads(node: Described, rank: Sequence[int]) -> Sequence[Edge]:
    """A node's reads in canonical order: as written, unless they may be exchanged."""
    if not node.commutative:
        return node.reads

    def key(edge: Edge) -> tuple[bool, str, int, int, bool, int]:
        if edge.source == NO_SOURCE:
            return True, edge.text, 0, 0, False, edge.slot
        return False, "", rank[edge.source], edge.output, edge.legal, edge.slot

    return sorted(node.reads, key=key)


def _serialized(
    graph: RegionGraph,
    rank: Sequence[int],
    order: Sequence[int],
    child_order: Sequence[int],
    reads: Sequence[Sequence[Edge]],
) -> list[str]:
    """The whole structure in canonical order."""
    outside = sorted(range(len(graph.outside)), key=lambda v: rank[v])
    first_node = len(outside)
    number = {first_node + i: position for position, i in enumerate(order)}  # of nodes, and
    place = {v: position for position, v in enumerate(outside)}  # of what comes from outside
    child_place = {c: str(position) for position, c in enumerate(child_order)}
    lines = [f"x {graph.outside[v]}" for v in outside]
    for i, of in zip(order, reads, strict=True):
        node, refs = graph.nodes[i], []
        for edge in of:
            flag = "!" if edge.legal else ""
            if edge.source in number:
                refs.append(f"{number[edge.source]}.{edge.output}{flag}")
            else:
                refs.append(f"x{place[edge.source]}{flag}" if edge.source in place else "c")
        refs.extend(sorted(f"~{place.get(e.source, number.get(e.source, '-'))}" for e in node.captured))
        lines.append(f"{node.digest.hex()} {node.marks} {child_place.get(node.child, '-')} {' '.join(refs)}")
    lines.extend(f"child {graph.children[c]}" for c in child_order)
    return lines
