"""Patterns: what regions have in common, and the canonical order that makes a slot mean the same in all of them.

A pattern holds operators, their attributes, shapes and types, the edges between them, which inputs may be exchanged,
which values come from outside and which leave, how nodes are dealt out to child regions, and which ports are offered.
Names and the order of nodes in the file play no part. Two regions have the same signature iff an isomorphism maps one
to the other; equal signatures mean equal serializations of the whole structure in canonical order
(:mod:`inlay.space.canon`), so unequal regions never share one.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from inlay.model.graph import Graph, Node
from inlay.space.boundaries import Extent, leaves_region
from inlay.space.canon import LabelledDag, canonical_order, mix
from inlay.space.regions import Region, RegionType
from inlay.space.skips import Offers
from inlay.types import Port

COMMUTATIVE = frozenset({"Add", "Mul", "Sum", "Mean", "Max", "Min", "And", "Or", "Xor", "Equal", "BitwiseAnd"})
"""Operators whose inputs may be exchanged."""

_SMALL = 64
_WORDS = 12
_IN_CHILD = 0xC411D


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


class PatternMaker:
    """Finds the signature and the canonical order of regions; descriptions of nodes are made once and kept.

    Args:
        graph: the model.
        offers: which ports are offered; this is part of a pattern, so that a scheme fits every instance.
        extents: where each value is computed and read, by leaf.
    """

    def __init__(self, graph: Graph, offers: Offers, extents: Mapping[str, Extent]) -> None:
        self._graph = graph
        self._offers = offers
        self._extents = extents
        self._nodes: dict[str, bytes] = {}
        self._values: dict[str, str] = {}
        self._known: dict[str, str] = {}

    def instance(self, region: Region, signatures: Mapping[int, str]) -> Instance:
        """``region`` as an instance of its pattern; ``signatures`` has those of its children, by id."""
        graph = self._graph
        nodes = sorted((graph.node(name) for name in region.nodes), key=lambda n: n.index)
        child_of = _child_of(region)
        place = {n: child_of[leaf.id] for leaf in region.leaves() for n in leaf.direct_nodes} if child_of else {}
        drawing = _Drawing(self, region, nodes)
        edges = drawing.edges
        labels = drawing.labels
        first_child = len(labels)
        labels.extend(_number(signatures[c.id].encode()) for c in region.children)
        edges.extend((drawing.vertex[name], first_child + child, _IN_CHILD) for name, child in place.items())

        order = canonical_order(LabelledDag(labels, edges))
        rank = [0] * len(order)
        for position, vertex in enumerate(order):
            rank[vertex] = position
        nodes.sort(key=lambda n: rank[drawing.vertex[n.name]])
        number = {node.name: i for i, node in enumerate(nodes)}
        children = sorted(range(len(region.children)), key=lambda c: rank[first_child + c])

        def value_key(value: str) -> tuple[int, int]:
            producer = graph.producer(value)
            if producer is not None and producer.name in number:
                return rank[drawing.vertex[producer.name]], producer.outputs.index(value)
            return rank[drawing.outside[value]], 0

        slots = []
        for node in nodes:
            present = [i for i, v in enumerate(node.inputs) if v]
            if node.op_type in COMMUTATIVE:
                present.sort(key=lambda i, n=node: self._slot_key(n, i, drawing, value_key))  # type: ignore[misc]
            slots.append(tuple(present))
        text = self._serialize(region, nodes, slots, drawing, rank, number, place, children, signatures)
        signature = hashlib.sha256(text.encode()).hexdigest()[:20]
        if not region.children:
            return Instance(region, signature, tuple(number), tuple(slots))
        ordinal = {c: i for i, c in enumerate(children)}
        reads: defaultdict[tuple[int, str], list[Port]] = defaultdict(list)
        for node in nodes:
            for port, value in node.input_ports():
                reads[ordinal[place[node.name]], value].append(port)
        kids = [region.children[c] for c in children]
        return Instance(
            region,
            signature,
            tuple(number),
            tuple(slots),
            tuple(k.id for k in kids),
            tuple(tuple(sorted(k.inputs, key=value_key)) for k in kids),
            tuple(tuple(sorted(k.outputs, key=value_key)) for k in kids),
            {key: tuple(ports) for key, ports in reads.items()},
        )

    def _slot_key(
        self, node: Node, slot: int, drawing: _Drawing, value_key: object
    ) -> tuple[int, str, int, int, bool, int]:
        value = node.inputs[slot]
        if self._graph.is_constant(value) and value not in drawing.outside:
            return (1, self.describe_input(node, slot), 0, 0, False, slot)
        assert callable(value_key)
        return (0, "", *value_key(value), self._offers.offered(Port(node.name, slot)), slot)

    def _serialize(
        self,
        region: Region,
        nodes: Sequence[Node],
        slots: Sequence[tuple[int, ...]],
        drawing: _Drawing,
        rank: Sequence[int],
        number: Mapping[str, int],
        place: Mapping[str, int],
        children: Sequence[int],
        signatures: Mapping[int, str],
    ) -> str:
        graph = self._graph
        outside = {v: i for i, v in enumerate(sorted(drawing.outside, key=lambda v: rank[drawing.outside[v]]))}
        position = {c: i for i, c in enumerate(children)}
        lines = [region.type.value, *(f"x {self.describe_value(v)}" for v in outside)]
        for node, order in zip(nodes, slots, strict=True):
            refs = []
            for slot in order:
                value = node.inputs[slot]
                flag = "!" if self._offers.offered(Port(node.name, slot)) else ""
                producer = graph.producer(value)
                if producer is not None and producer.name in number:
                    refs.append(f"{number[producer.name]}.{producer.outputs.index(value)}{flag}")
                elif value in outside:
                    refs.append(f"x{outside[value]}{flag}")
                else:
                    refs.append("c")
            child = position[place[node.name]] if place else "-"
            own = self.describe_node(node).hex()
            lines.append(f"{own} {self.describe_outputs(node, region)} {child} {' '.join(refs)}")
        lines.extend(f"child {signatures[region.children[c].id]}" for c in children)
        return "\n".join(lines)

    def describe_node(self, node: Node) -> bytes:
        """Digest of a node's operator, attributes, and the shapes and types around it, names left out."""
        found = self._nodes.get(node.name)
        if found is None:
            inputs = [self.describe_input(node, i) for i in range(len(node.inputs))]
            if node.op_type in COMMUTATIVE:
                inputs.sort()
            outputs = [self.describe_value(v) if v else "-" for v in node.outputs]
            text = f"{node.domain}|{node.op_type}|{sorted(node.attributes.items())!r}|{inputs}|{outputs}"
            found = self._nodes[node.name] = hashlib.blake2b(text.encode(), digest_size=16).digest()
        return found

    def describe_input(self, node: Node, slot: int) -> str:
        """Shape and type of an input; whether it is constant; and its numbers where they are part of the operator."""
        value = node.inputs[slot]
        if not value:
            return "-"
        if not self._graph.is_constant(value):
            return self.describe_value(value)
        return f"const {self.describe_value(value)} {self._numbers(node, value)}"

    def _numbers(self, node: Node, value: str) -> str:
        """Numbers of small integer constants (shapes, axes) and of an activation's bounds."""
        dtype = self._graph.dtypes.get(value)
        size = self._graph.size(value)
        if size is None or size > _SMALL or not (dtype in _INTEGERS or node.op_type == "Clip"):
            return ""
        if value not in self._known:
            array = self._graph.constant(value)
            self._known[value] = "" if array is None else repr(array.ravel().tolist())
        return self._known[value]

    def describe_value(self, value: str) -> str:
        """Type and shape of a value."""
        found = self._values.get(value)
        if found is None:
            dtype = self._graph.dtypes.get(value)
            shape = self._graph.shape(value)
            known = "?" if shape is None else ",".join("?" if d is None else str(d) for d in shape)
            found = self._values[value] = f"{'?' if dtype is None else dtype.name}[{known}]"
        return found

    def describe_outputs(self, node: Node, region: Region) -> str:
        """For each output: stays inside (``.``), leaves the region (``o``), leaves and is offered (``O``)."""
        marks = ""
        for value in node.outputs:
            if not value or not leaves_region(self._extents[value], region.extent):
                marks += "."
            else:
                marks += "O" if self._offers.outputs.get(value) is None else "o"
        return marks

    def offered(self, port: Port) -> bool:
        """Whether ``port`` is offered."""
        return self._offers.offered(port)

    @property
    def graph(self) -> Graph:
        """The model."""
        return self._graph


class _Drawing:
    """A region as a labelled DAG: values from outside and shared constants first, then its nodes."""

    def __init__(self, maker: PatternMaker, region: Region, nodes: Sequence[Node]) -> None:
        graph = maker.graph
        own = {n.name for n in nodes}
        constants = Counter(v for n in nodes for v in n.inputs if v and graph.is_constant(v))
        self.outside: dict[str, int] = {}
        self.labels: list[int] = []
        for node in nodes:
            for value in node.inputs:
                if not value or value in self.outside:
                    continue
                constant = graph.is_constant(value)
                producer = graph.producer(value)
                # a constant that one port reads is part of that port; a shared one ties its readers together
                if constants[value] > 1 if constant else producer is None or producer.name not in own:
                    self.outside[value] = len(self.labels)
                    self.labels.append(_number(f"{constant}{maker.describe_value(value)}".encode()))
        self.vertex: dict[str, int] = {}
        self.edges: list[tuple[int, int, int]] = []
        for node in nodes:
            here = self.vertex[node.name] = len(self.labels)
            self.labels.append(_number(maker.describe_node(node) + maker.describe_outputs(node, region).encode()))
            for slot, value in enumerate(node.inputs):
                if not value:
                    continue
                kind = 0 if node.op_type in COMMUTATIVE else slot + 1
                label = mix(kind, maker.offered(Port(node.name, slot)))
                producer = graph.producer(value)
                if producer is not None and producer.name in own:
                    start, label = self.vertex[producer.name], mix(label, producer.outputs.index(value))
                elif value in self.outside:
                    start = self.outside[value]
                else:
                    continue
                self.edges.append((start, here, label))


def _child_of(region: Region) -> dict[int, int]:
    """Index of the child that holds a leaf, by the leaf's id."""
    return {leaf.id: index for index, child in enumerate(region.children) for leaf in child.leaves()}


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
