"""Patterns: what isomorphic regions share, and the canonical order in which a slot means the same in all of them.

A pattern holds the facts of its nodes (:mod:`inlay.regions.node_facts`), the edges between them, which values come
from outside and which leave, and how nodes are distributed over child regions. Two regions have the same signature
iff an isomorphism maps one to the other: equal signatures mean equal serializations of the whole structure in
canonical order (:mod:`inlay.regions.canonical`), so that unequal regions never share one.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inlay.model.graph import Graph, Node
from inlay.regions.canonical import canonical_order
from inlay.regions.node_facts import NodeDescriber, NodeFacts, Read, hash_bytes, hash_text
from inlay.regions.tree import LiveRange, Region, RegionType, leaves_region
from inlay.types import Port

_IN_CHILD = 0xC411D
"""Label of the edge from a node to its child region; part of every cached signature."""

_SUMMARY_NODES, _SUMMARY_WORDS = 64, 12
"""Most nodes that a summary looks at, and most operators that it names."""


@dataclass(frozen=True, eq=False)
class Instance:
    """A region as an instance of its pattern: what the canonical indices stand for in this region.

    Attributes:
        region: the region.
        signature: of its pattern.
        nodes: node names in canonical order.
        slots: for each node (same order), its input slots in canonical order.
        children: ids of its child regions in canonical order.
        child_inputs: for each child (same order), its input values in canonical order.
        child_outputs: likewise, its output values.
        reads: the ports that read a value in a child, by canonical index of the child and value name.
    """

    region: Region
    signature: str
    nodes: tuple[str, ...] = field(repr=False)
    slots: tuple[tuple[int, ...], ...] = field(repr=False)
    children: tuple[int, ...] = ()
    child_inputs: tuple[tuple[str, ...], ...] = field(default=(), repr=False)
    child_outputs: tuple[tuple[str, ...], ...] = field(default=(), repr=False)
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
        described = [_Described(n, self._describer.facts(n), self._output_marks(n, region)) for n in nodes]
        dag = _RegionDag(region, described, [signatures[c.id] for c in region.children], self._describer)
        text = "\n".join((region.type.value, *dag.serialize()))
        signature = hashlib.sha256(text.encode()).hexdigest()[:20]
        ordered = [described[i] for i in dag.order]
        names = tuple(d.node.name for d in ordered)
        slots = tuple(tuple(r.slot for r in dag.canonical_reads(d.facts)) for d in ordered)
        if not region.children:
            return Instance(region, signature, names, slots)

        reads: defaultdict[tuple[int, str], list[Port]] = defaultdict(list)
        for d in described:
            for read in d.facts.reads:
                if not read.constant:
                    reads[dag.child_of[d.node.name], read.value].append(Port(d.node.name, read.slot))
        children = [region.children[c] for c in dag.child_order]

        def key(value: str) -> tuple[int, int]:
            producer = self._graph.producer(value)
            if producer is not None and producer.name in dag.vertex:
                return dag.rank[dag.vertex[producer.name]], producer.outputs.index(value)
            return dag.rank[dag.outside[value]], 0

        return Instance(
            region,
            signature,
            names,
            slots,
            tuple(c.id for c in children),
            tuple(tuple(sorted(c.inputs, key=key)) for c in children),
            tuple(tuple(sorted(c.outputs, key=key)) for c in children),
            {pair: tuple(ports) for pair, ports in reads.items()},
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
class _Described:
    node: Node
    facts: NodeFacts
    marks: str


class _RegionDag:
    """A region as a labelled DAG in canonical order: values from outside and shared constants, nodes, child regions.

    Attributes:
        outside: vertex of each value from outside and of each shared constant.
        vertex: vertex of each node, by name.
        rank: position of each vertex in canonical order.
        order: indices of the nodes in canonical order.
        child_order: indices of the child regions in canonical order.
        child_of: canonical index of the child region that holds a node; empty for leaves.
    """

    def __init__(
        self, region: Region, nodes: Sequence[_Described], child_signatures: Sequence[str], describer: NodeDescriber
    ) -> None:
        self._nodes = nodes
        self._child_signatures = child_signatures
        self._describer = describer
        self.outside: dict[str, int] = {}
        self.vertex = {d.node.name: 0 for d in nodes}
        labels: list[int] = []
        read_once: set[str] = set()
        for d in nodes:
            for read in (*d.facts.reads, *d.facts.captured):
                # a constant with one reader is part of its port; a shared one ties its readers together
                if read.constant and read.value not in read_once:
                    read_once.add(read.value)
                elif (read.constant or read.producer not in self.vertex) and read.value not in self.outside:
                    self.outside[read.value] = len(labels)
                    labels.append(hash_text(describer.describe(read.value)))
        edges: list[tuple[int, int, int]] = []
        for d in nodes:
            here = self.vertex[d.node.name] = len(labels)
            labels.append(hash_bytes(d.facts.digest + d.marks.encode()))
            for read in (*d.facts.reads, *d.facts.captured):
                start = self._source(read)
                if start is not None:
                    edges.append((start, here, read.label))
        first_child = len(labels)
        labels.extend(map(hash_text, child_signatures))
        child_of = {name: i for i, child in enumerate(region.children) for name in child.nodes}
        edges.extend((self.vertex[name], first_child + child, _IN_CHILD) for name, child in child_of.items())

        self.rank = [0] * len(labels)
        for position, vertex in enumerate(canonical_order(labels, edges)):
            self.rank[vertex] = position
        self.order = sorted(range(len(nodes)), key=lambda i: self.rank[self.vertex[nodes[i].node.name]])
        self.child_order = sorted(range(len(child_signatures)), key=lambda c: self.rank[first_child + c])
        position_of = {child: position for position, child in enumerate(self.child_order)}
        self.child_of = {name: position_of[child] for name, child in child_of.items()}

    def canonical_reads(self, facts: NodeFacts) -> Sequence[Read]:
        """A node's reads in canonical order: as written, unless they may be exchanged."""
        if not facts.commutative:
            return facts.reads

        def key(read: Read) -> tuple[bool, str, int, int, bool, int]:
            vertex = self._source(read)
            if vertex is None:
                return True, read.text, 0, 0, False, read.slot
            return False, "", self.rank[vertex], read.output, read.legal, read.slot

        return sorted(facts.reads, key=key)

    def serialize(self) -> list[str]:
        """The whole structure in canonical order, without names."""
        ordered = [self._nodes[i] for i in self.order]
        number = {d.node.name: i for i, d in enumerate(ordered)}
        outside = sorted(self.outside, key=lambda v: self.rank[self.outside[v]])
        place = {v: i for i, v in enumerate(outside)}
        lines = [f"x {self._describer.describe(v)}" for v in outside]
        for d in ordered:
            refs = []
            for read in self.canonical_reads(d.facts):
                flag = "!" if read.legal else ""
                if read.producer in number:
                    refs.append(f"{number[read.producer]}.{read.output}{flag}")
                else:
                    refs.append(f"x{place[read.value]}{flag}" if read.value in place else "c")
            refs.extend(sorted(f"~{place.get(r.value, number.get(r.producer, '-'))}" for r in d.facts.captured))
            child = self.child_of.get(d.node.name, "-")
            lines.append(f"{d.facts.digest.hex()} {d.marks} {child} {' '.join(refs)}")
        lines.extend(f"child {self._child_signatures[c]}" for c in self.child_order)
        return lines

    def _source(self, read: Read) -> int | None:
        """The vertex that a value comes from; None for a constant with one reader."""
        return self.vertex.get(read.producer, self.outside.get(read.value))


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
