"""Patterns: what regions have in common, and the canonical order that makes a slot mean the same in all of them.

A pattern holds operators, their attributes, shapes and types, the edges between them, which inputs may be exchanged,
which values come from outside and which leave, how nodes are dealt out to child regions, and which ports are offered.
Names and the order of nodes in the file play no part. Two regions have the same signature iff an isomorphism maps one
to the other; equal signatures mean equal serializations of the whole structure in canonical order
(:mod:`inlay.regions.canonical`), so unequal regions never share one.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import onnx_ir as ir

from inlay.model.graph import Graph, Node
from inlay.regions.boundaries import LiveRange, leaves_region
from inlay.regions.canonical import LabelledDag, canonical_order, mix
from inlay.regions.point_filters import Rejections
from inlay.regions.tree import Region, RegionType
from inlay.types import Port

COMMUTATIVE = frozenset({"Add", "Mul", "Sum", "Mean", "Max", "Min", "And", "Or", "Xor", "Equal", "BitwiseAnd"})
"""Operators whose inputs may be exchanged."""

_SMALL = 64
_WORDS = 12
_IN_CHILD = 0xC411D
_CAPTURED = -1  # in place of a slot


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
        reads: ports in a child (by canonical index) that read a value.
    """

    region: Region
    signature: str
    nodes: tuple[str, ...] = field(repr=False)
    slots: tuple[tuple[int, ...], ...] = field(repr=False)
    children: tuple[int, ...] = ()
    child_inputs: tuple[tuple[str, ...], ...] = field(default=(), repr=False)
    child_outputs: tuple[tuple[str, ...], ...] = field(default=(), repr=False)
    reads: Mapping[tuple[int, str], tuple[Port, ...]] = field(default_factory=dict, repr=False)


class _Read(NamedTuple):
    """One present input slot of a node.

    ``label`` tells it from the node's other slots, unless they may be exchanged; ``text`` describes a constant.
    """

    slot: int
    value: str
    constant: bool
    producer: str
    output: int
    offered: bool
    label: int
    text: str


class _Facts(NamedTuple):
    """What all regions that hold a node need to know of it, names aside.

    ``captured`` are the values that its subgraphs read, which have no slot and therefore no point.
    """

    digest: bytes
    exchangeable: bool
    reads: tuple[_Read, ...]
    captured: tuple[_Read, ...] = ()


class PatternMaker:
    """Finds the signature and the canonical order of regions; facts about nodes are gathered once and kept.

    Args:
        graph: the model.
        offers: which ports are offered; this is part of a pattern, so that a scheme fits every instance.
        extents: where each value is computed and read, by leaf.
    """

    def __init__(self, graph: Graph, rejections: Rejections, live_ranges: Mapping[str, LiveRange]) -> None:
        self._graph = graph
        self._rejections = rejections
        self._extents = live_ranges
        self._values: dict[str, str] = {}
        self._numbers_of: dict[str, str] = {}
        self._facts = {node.name: self._gather(node) for node in graph.nodes}

    def instance(self, region: Region, signatures: Mapping[int, str]) -> Instance:
        """``region`` as an instance of its pattern; ``signatures`` has those of its children, by id."""
        nodes = sorted((self._graph.node(name) for name in region.nodes), key=lambda n: n.index)
        facts = [self._facts[n.name] for n in nodes]
        marks = [self._marks(n, region) for n in nodes]
        drawing = _Drawing(nodes, facts, marks, self._describe)
        first_child = len(drawing.labels)
        drawing.labels.extend(_number(signatures[c.id].encode()) for c in region.children)
        child_of = {n: i for i, c in enumerate(region.children) for n in c.nodes}
        drawing.edges.extend((drawing.vertex[n], first_child + child, _IN_CHILD) for n, child in child_of.items())

        rank = [0] * len(drawing.labels)
        for position, vertex in enumerate(canonical_order(LabelledDag(drawing.labels, drawing.edges))):
            rank[vertex] = position
        order = sorted(range(len(nodes)), key=lambda i: rank[drawing.vertex[nodes[i].name]])
        children = sorted(range(len(region.children)), key=lambda c: rank[first_child + c])
        slots = [tuple(r.slot for r in _in_order(facts[i], drawing, rank)) for i in order]
        ordinal = {c: i for i, c in enumerate(children)}
        lines = self._serialize(drawing, rank, [(nodes[i], facts[i], marks[i]) for i in order], child_of, ordinal)
        lines.extend(f"child {signatures[region.children[c].id]}" for c in children)
        text = "\n".join((region.type.value, *lines))
        signature = hashlib.sha256(text.encode()).hexdigest()[:20]
        names = tuple(nodes[i].name for i in order)
        if not region.children:
            return Instance(region, signature, names, tuple(slots))

        reads: defaultdict[tuple[int, str], list[Port]] = defaultdict(list)
        for node, known in zip(nodes, facts, strict=True):
            for read in known.reads:
                if not read.constant:
                    reads[ordinal[child_of[node.name]], read.value].append(Port(node.name, read.slot))
        kids = [region.children[c] for c in children]

        def key(value: str) -> tuple[int, int]:
            producer = self._graph.producer(value)
            if producer is not None and producer.name in drawing.vertex:
                return rank[drawing.vertex[producer.name]], producer.outputs.index(value)
            return rank[drawing.outside[value]], 0

        return Instance(
            region,
            signature,
            names,
            tuple(slots),
            tuple(k.id for k in kids),
            tuple(tuple(sorted(k.inputs, key=key)) for k in kids),
            tuple(tuple(sorted(k.outputs, key=key)) for k in kids),
            {pair: tuple(ports) for pair, ports in reads.items()},
        )

    def _serialize(
        self,
        drawing: _Drawing,
        rank: Sequence[int],
        nodes: Sequence[tuple[Node, _Facts, str]],
        child_of: Mapping[str, int],
        ordinal: Mapping[int, int],
    ) -> list[str]:
        """The whole structure in canonical order, names left out."""
        number = {node.name: i for i, (node, _, _) in enumerate(nodes)}
        outside = sorted(drawing.outside, key=lambda v: rank[drawing.outside[v]])
        place = {v: i for i, v in enumerate(outside)}
        lines = [f"x {self._describe(v)}" for v in outside]
        for node, facts, marks in nodes:
            refs = []
            for read in _in_order(facts, drawing, rank):
                flag = "!" if read.offered else ""
                if read.producer in number:
                    refs.append(f"{number[read.producer]}.{read.output}{flag}")
                else:
                    refs.append(f"x{place[read.value]}{flag}" if read.value in place else "c")
            child = ordinal[child_of[node.name]] if child_of else "-"
            refs.extend(sorted(f"~{place.get(r.value, number.get(r.producer, '-'))}" for r in facts.captured))
            lines.append(f"{facts.digest.hex()} {marks} {child} {' '.join(refs)}")
        return lines

    def _gather(self, node: Node) -> _Facts:
        graph = self._graph
        exchangeable = node.op_type in COMMUTATIVE
        inputs = [self._describe_input(node, i) for i in range(len(node.inputs))]
        reads = []
        for slot, value in enumerate(node.inputs):
            if not value:
                continue
            producer = graph.producer(value)
            output = 0 if producer is None else producer.outputs.index(value)
            offered = self._rejections.allows(Port(node.name, slot))
            label = mix(mix(0 if exchangeable else slot + 1, offered), output)
            name = "" if producer is None else producer.name
            reads.append(_Read(slot, value, graph.is_constant(value), name, output, offered, label, inputs[slot]))
        if exchangeable:
            inputs.sort()
        outputs = [self._describe(v) if v else "-" for v in node.outputs]
        text = f"{node.domain}|{node.op_type}|{sorted(node.attributes.items())!r}|{inputs}|{outputs}"
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        return _Facts(digest, exchangeable, tuple(reads), tuple(self._gather_captured(node)))

    def _gather_captured(self, node: Node) -> Iterator[_Read]:
        for value in sorted(node.captured):
            producer = self._graph.producer(value)
            output = 0 if producer is None else producer.outputs.index(value)
            name = "" if producer is None else producer.name
            label = mix(_number(self._describe(value).encode()), output)
            yield _Read(_CAPTURED, value, self._graph.is_constant(value), name, output, False, label, "")

    def _describe_input(self, node: Node, slot: int) -> str:
        """Shape and type of an input; whether it is constant; and its numbers where they are part of the operator."""
        value = node.inputs[slot]
        if not value:
            return "-"
        if not self._graph.is_constant(value):
            return self._describe(value)
        return f"const {self._describe(value)} {self._numbers(node, value)}"

    def _numbers(self, node: Node, value: str) -> str:
        """Numbers of small integer constants (shapes, axes) and of an activation's bounds."""
        if self._graph.dtypes.get(value) not in _INTEGERS and node.op_type != "Clip":
            return ""
        if value not in self._numbers_of:
            size = self._graph.size(value)
            array = self._graph.constant(value) if size is not None and size <= _SMALL else None
            self._numbers_of[value] = "" if array is None else repr(array.ravel().tolist())
        return self._numbers_of[value]

    def _describe(self, value: str) -> str:
        """Type and shape of a value, and whether it is constant."""
        found = self._values.get(value)
        if found is None:
            dtype = self._graph.dtypes.get(value)
            shape = self._graph.shape(value)
            known = "?" if shape is None else ",".join("?" if d is None else str(d) for d in shape)
            kind = "=" if self._graph.is_constant(value) else ""
            found = self._values[value] = f"{kind}{'?' if dtype is None else dtype.name}[{known}]"
        return found

    def _marks(self, node: Node, region: Region) -> str:
        """For each output: stays inside (``.``), leaves the region (``o``), leaves and is offered (``O``)."""
        marks = ""
        for value in node.outputs:
            if not value or not leaves_region(self._extents[value], region.extent):
                marks += "."
            else:
                marks += "O" if self._rejections.outputs.get(value) is None else "o"
        return marks


class _Drawing:
    """A region as a labelled DAG: values from outside and shared constants first, then its nodes."""

    def __init__(
        self, nodes: Sequence[Node], facts: Sequence[_Facts], marks: Sequence[str], describe: Callable[[str], str]
    ) -> None:
        self.outside: dict[str, int] = {}
        self.labels: list[int] = []
        self.vertex = {node.name: 0 for node in nodes}
        once: set[str] = set()
        for known in facts:
            for read in (*known.reads, *known.captured):
                # a constant that one port reads is part of that port; a shared one ties its readers together
                if read.constant and read.value not in once:
                    once.add(read.value)
                elif (read.constant or read.producer not in self.vertex) and read.value not in self.outside:
                    self.outside[read.value] = len(self.labels)
                    self.labels.append(_number(describe(read.value).encode()))
        self.edges: list[tuple[int, int, int]] = []
        for node, known, mark in zip(nodes, facts, marks, strict=True):
            here = self.vertex[node.name] = len(self.labels)
            self.labels.append(_number(known.digest + mark.encode()))
            for read in (*known.reads, *known.captured):
                start = self.vertex.get(read.producer, self.outside.get(read.value))
                if start is not None:
                    self.edges.append((start, here, read.label))


def _in_order(facts: _Facts, drawing: _Drawing, rank: Sequence[int]) -> Sequence[_Read]:
    """Inputs in canonical order: as written, unless they may be exchanged."""
    if not facts.exchangeable:
        return facts.reads

    def key(read: _Read) -> tuple[bool, str, int, int, bool, int]:
        vertex = drawing.vertex.get(read.producer, drawing.outside.get(read.value))
        if vertex is None:
            return True, read.text, 0, 0, False, read.slot
        return False, "", rank[vertex], read.output, read.offered, read.slot

    return sorted(facts.reads, key=key)


def summary(graph: Graph, instance: Instance) -> str:
    """A pattern in a few words, for people: its operators, in topological order."""
    region = instance.region
    names = [graph.node(n).op_type for n in (region.direct_nodes or region.nodes[:_SMALL])]
    words = []
    for name, run in itertools.groupby(names):
        count = len(list(run))
        words.append(name if count == 1 else f"{count}*{name}")
    more = "" if len(words) <= _WORDS and len(names) == region.size else f" … ({region.size} nodes)"
    return ("→" if region.type is RegionType.LEAF else " ").join(words[:_WORDS]) + more


def _number(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


_INTEGERS = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})
