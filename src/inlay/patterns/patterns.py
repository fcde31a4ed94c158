"""Patterns: what isomorphic regions share, and the canonical order in which a slot means the same in all of them.

A pattern holds the facts of its nodes (:mod:`inlay.patterns.node_facts`), the edges between them, which values come
from outside and which leave, and how nodes are distributed over child regions. Two regions have the same signature
iff an isomorphism maps one to the other: equal signatures mean equal serializations of the whole structure in
canonical order (:mod:`inlay.patterns.canonical_form`), so that unequal regions never share one.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inlay.model.graph import Graph, Node
from inlay.patterns.canonical_form import NO_SOURCE, Described, Edge, RegionGraph, canonical_form
from inlay.patterns.node_facts import NodeDescriber, NodeFacts, Read
from inlay.patterns.tree import LiveRange, Region, RegionType, leaves_region
from inlay.types import Port

_SUMMARY_NODES, _SUMMARY_WORDS = 64, 12  # most nodes that a summary looks at, and most operators that it names


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Instance:
    """A region as an instance of its pattern: what the canonical indices stand for in this region."""

    region: Region  # the region
    signature: str  # of its pattern
    nodes: tuple[str, ...] = field(repr=False)  # node names in canonical order
    # for each node (same order), its input slots in canonical order
    slots: tuple[tuple[int, ...], ...] = field(repr=False)
    children: tuple[int, ...] = ()  # ids of its child regions in canonical order
    # for each child (same order), its input values in canonical order
    child_inputs: tuple[tuple[str, ...], ...] = field(default=(), repr=False)
    child_outputs: tuple[tuple[str, ...], ...] = field(default=(), repr=False)  # likewise, its output values
    # the ports that read a value in a child, by canonical index of the child and value name
    reads: Mapping[tuple[int, str], tuple[Port, ...]] = field(default_factory=dict, repr=False)


class PatternFinder:
    """Finds the signature and the canonical order of regions, by what ``describer`` says of their nodes."""

    def __init__(self, graph: Graph, live_ranges: Mapping[str, LiveRange], describer: NodeDescriber) -> None:
        self._graph = graph
        self._live_ranges = live_ranges
        self._describer = describer

    def instance(self, region: Region, signatures: Mapping[int, str]) -> Instance:
        """``region`` as an instance of its pattern; ``signatures`` holds those of its children, by region id."""
        nodes = sorted((self._graph.node(name) for name in region.nodes), key=lambda n: n.index)
        facts = [self._describer.facts(n) for n in nodes]
        vertices = self._vertices(nodes, facts)
        child_of = {name: i for i, child in enumerate(region.children) for name in child.nodes}
        described = tuple(
            self._described(n, f, region, child_of.get(n.name, -1), vertices) for n, f in zip(nodes, facts, strict=True)
        )
        outside = tuple(self._describer.describe(v) for v in vertices.outside)
        children = tuple(signatures[c.id] for c in region.children)
        form = canonical_form(RegionGraph(region.type.value, outside, described, children))
        names = tuple(nodes[i].name for i in form.order)
        if not region.children:
            return Instance(region=region, signature=form.signature, nodes=names, slots=form.slots)

        place = {child: position for position, child in enumerate(form.child_order)}
        reads: defaultdict[tuple[int, str], list[Port]] = defaultdict(list)
        for node, of in zip(nodes, facts, strict=True):
            for read in of.reads:
                if not read.constant:
                    reads[place[child_of[node.name]], read.value].append(Port(node.name, read.slot))
        inner = [region.children[c] for c in form.child_order]

        def key(value: str) -> tuple[int, int]:
            producer = self._graph.producer(value)
            if producer is not None and producer.name in vertices.nodes:
                return form.rank[vertices.nodes[producer.name]], producer.outputs.index(value)
            return form.rank[vertices.outside[value]], 0

        return Instance(
            region=region,
            signature=form.signature,
            nodes=names,
            slots=form.slots,
            children=tuple(c.id for c in inner),
            child_inputs=tuple(tuple(sorted(c.inputs, key=key)) for c in inner),
            child_outputs=tuple(tuple(sorted(c.outputs, key=key)) for c in inner),
            reads={pair: tuple(ports) for pair, ports in reads.items()},
        )

    def _vertices(self, nodes: Sequence[Node], facts: Sequence[NodeFacts]) -> _Vertices:
        own = {n.name for n in nodes}
        outside: dict[str, int] = {}
        read_once: set[str] = set()
        for of in facts:
            for read in (*of.reads, *of.captured):
                # a constant with one reader is part of its port; a shared one ties its readers together
                if read.constant and read.value not in read_once:
                    read_once.add(read.value)
                elif (read.constant or read.producer not in own) and read.value not in outside:
                    outside[read.value] = len(outside)
        return _Vertices(outside, {n.name: i for i, n in enumerate(nodes, len(outside))})

    def _described(self, node: Node, facts: NodeFacts, region: Region, child: int, vertices: _Vertices) -> Described:
        def edge(read: Read) -> Edge:
            source = vertices.nodes.get(read.producer, vertices.outside.get(read.value, NO_SOURCE))
            text = read.text if source == NO_SOURCE and facts.commutative else ""
            return Edge(source, read.output, read.legal, read.label, read.slot, text)

        return Described(
            facts.digest,
            self._output_marks(node, region),
            facts.commutative,
            child,
            tuple(map(edge, facts.reads)),
            tuple(map(edge, facts.captured)),
        )

    def _output_marks(self, node: Node, region: Region) -> str:
        """For each output: ``.`` where it stays inside, otherwise what the describer notes of it."""
        marks = ""
        for value in node.outputs:
            if not value or not leaves_region(self._live_ranges[value], region.leaf_range):
                marks += "."
            else:
                marks += self._describer.marks_output(value)
        return marks


@dataclass(frozen=True, eq=False, slots=True)
class _Vertices:
    """Numbers of the values from outside and the shared constants of a region, and of its nodes, by name."""

    outside: Mapping[str, int]
    nodes: Mapping[str, int]


def summarize(graph: Graph, instance: Instance) -> str:
    """A pattern in a few words, for people: its operators in topological order."""
    region = instance.region
    operators = [graph.node(n).op_type for n in (region.direct_nodes or region.nodes[:_SUMMARY_NODES])]
    words = []
    for operator, run in itertools.groupby(operators):
        count = len(list(run))
        words.append(operator if count == 1 else f"{count}*{operator}")
    complete = len(words) <= _SUMMARY_WORDS and len(operators) == region.size
    rest = "" if complete else f" … ({region.size} nodes)"
    return ("→" if region.type is RegionType.LEAF else " ").join(words[:_SUMMARY_WORDS]) + rest
