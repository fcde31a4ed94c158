"""Insertion points, schemes of them, and the completion of selected ports to a placement.

An insertion point is a slot of a pattern at which Q/DQ may be inserted; it stands for ports in every region of that
pattern. Indices are canonical: they count nodes, children, inputs and outputs in the order of
:mod:`inlay.patterns.patterns`, which is the same in every instance of the pattern. The inputs of a commutative operator
are counted in canonical order too, not as written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from types import MappingProxyType

from inlay.model.graph import Graph
from inlay.patterns.patterns import Instance
from inlay.patterns.point_filters import Rejections
from inlay.patterns.tree import LiveRange, RegionType, leaves_region
from inlay.space.rules import Rules
from inlay.space.units import Unit, static_sites
from inlay.types import GRAPH_OUTPUT, Placement, Port, PortRewrite, QType


@dataclass(frozen=True, order=True)
class NodeInputInsertionPoint:
    """Input ``input_index`` of node ``node_index`` of a leaf."""

    node_index: int
    input_index: int

    def __str__(self) -> str:
        return f"node {self.node_index} input {self.input_index}"


@dataclass(frozen=True, order=True)
class ChildRegionInputInsertionPoint:
    """Input ``input_index`` of child ``child_index``: every legal port in that child that reads the value."""

    child_index: int
    input_index: int

    def __str__(self) -> str:
        return f"child {self.child_index} input {self.input_index}"


@dataclass(frozen=True)
class RegionOutputInsertionPoint:
    """An output of the region: every port that reads the value, graph outputs included."""

    child_index: int | None  # the child region that it is an output of; None in a leaf
    node_index: int | None  # the node that computes it; None unless in a leaf
    output_index: int  # index among the outputs of that child or node

    def __str__(self) -> str:
        holder = f"child {self.child_index}" if self.node_index is None else f"node {self.node_index}"
        return f"output {self.output_index} of {holder}"


InsertionPoint = NodeInputInsertionPoint | ChildRegionInputInsertionPoint | RegionOutputInsertionPoint

PointTable = Mapping[InsertionPoint, tuple[Port, ...]]
"""The insertion points of one region, in order, with the ports that each stands for."""

_KINDS: Mapping[str, type[InsertionPoint]] = {
    "node_input": NodeInputInsertionPoint,
    "child_input": ChildRegionInputInsertionPoint,
    "output": RegionOutputInsertionPoint,
}
_KIND_OF = {point_type: kind for kind, point_type in _KINDS.items()}


def sort_key(point: InsertionPoint) -> tuple[int, ...]:
    """A total order over points of all kinds: node inputs, child inputs, outputs."""
    if isinstance(point, NodeInputInsertionPoint):
        return (0, point.node_index, point.input_index)
    if isinstance(point, ChildRegionInputInsertionPoint):
        return (1, point.child_index, point.input_index)
    holder = point.child_index if point.node_index is None else point.node_index
    return (2, -1 if holder is None else holder, point.output_index)


def to_data(point: InsertionPoint) -> list[str | int | None]:
    """A point as plain data: its kind, then its indices; inverse of :func:`from_data`."""
    return [_KIND_OF[type(point)], *astuple(point)]


def from_data(data: object) -> InsertionPoint:
    """Read what :func:`to_data` wrote.

    Raises:
        ValueError: it is not an insertion point.
    """
    if not isinstance(data, list) or not data or data[0] not in _KINDS:
        raise ValueError(f"{data!r} is not an insertion point")
    kind, *indices = data
    point_type = _KINDS[kind]
    if len(indices) != len(fields(point_type)):
        raise ValueError(f"{data!r} is not an insertion point: it has {len(indices)} indices")
    optional = 2 if kind == "output" else 0
    wrong = (n for i, n in enumerate(indices) if not (n is None and i < optional))
    if any(type(index) is not int or index < 0 for index in wrong):
        raise ValueError(f"{data!r} is not an insertion point: its indices must be integers from 0 on")
    if kind == "output" and (indices[0] is None) == (indices[1] is None):
        raise ValueError(f"{data!r} is not an insertion point: either the child or the node must be given")
    return point_type(*indices)


def legal_points(
    graph: Graph, instance: Instance, rejections: Rejections, live_ranges: Mapping[str, LiveRange]
) -> PointTable:
    """Every legal point of ``instance``'s region, in order, with its ports. Linear in the region's size."""
    inputs = _node_inputs(instance) if instance.region.type is RegionType.LEAF else _child_inputs(instance)
    found: dict[InsertionPoint, tuple[Port, ...]] = {}
    for point, candidates in inputs:
        ports = tuple(p for p in candidates if rejections.allows(p))
        if ports:
            found[point] = ports
    for output, value in _outputs(graph, instance):
        readers = graph.consumers(value)
        crosses = leaves_region(live_ranges[value], instance.region.leaf_range)
        if readers and crosses and rejections.outputs[value] is None:
            found[output] = readers
    return MappingProxyType(found)


_Candidates = Iterator[tuple[InsertionPoint, tuple[Port, ...]]]


def _node_inputs(leaf: Instance) -> _Candidates:
    for node_index, (name, slots) in enumerate(zip(leaf.nodes, leaf.slots, strict=True)):
        for input_index, slot in enumerate(slots):
            yield NodeInputInsertionPoint(node_index, input_index), (Port(name, slot),)


def _child_inputs(composite: Instance) -> _Candidates:
    for child_index, values in enumerate(composite.child_inputs):
        for input_index, value in enumerate(values):
            ports = composite.reads.get((child_index, value), ())
            yield ChildRegionInputInsertionPoint(child_index, input_index), ports


def _outputs(graph: Graph, instance: Instance) -> Iterator[tuple[RegionOutputInsertionPoint, str]]:
    """Outputs of a leaf's nodes, or of a composite's children."""
    if instance.region.type is RegionType.LEAF:
        for node_index, name in enumerate(instance.nodes):
            for output_index, value in enumerate(graph.node(name).outputs):
                if value:
                    yield RegionOutputInsertionPoint(None, node_index, output_index), value
    else:
        for child_index, values in enumerate(instance.child_outputs):
            for output_index, value in enumerate(values):
                yield RegionOutputInsertionPoint(child_index, None, output_index), value


@dataclass(frozen=True)
class InsertionScheme:
    """A frozen set of insertion points of one pattern; an identity, which holds no measurements."""

    points: frozenset[InsertionPoint] = frozenset()

    @property
    def node_inputs(self) -> tuple[NodeInputInsertionPoint, ...]:
        """Its node input points, in order."""
        return tuple(sorted(p for p in self.points if isinstance(p, NodeInputInsertionPoint)))

    @property
    def child_region_inputs(self) -> tuple[ChildRegionInputInsertionPoint, ...]:
        """Its child region input points, in order."""
        return tuple(sorted(p for p in self.points if isinstance(p, ChildRegionInputInsertionPoint)))

    @property
    def region_outputs(self) -> tuple[RegionOutputInsertionPoint, ...]:
        """Its region output points, in order."""
        return tuple(sorted((p for p in self.points if isinstance(p, RegionOutputInsertionPoint)), key=sort_key))

    def distance(self, other: InsertionScheme) -> int:
        """Edit distance: the number of points in exactly one of the two schemes."""
        return len(self.points ^ other.points)

    def to_data(self) -> list[list[str | int | None]]:
        """Plain data, in order."""
        return [to_data(p) for p in sorted(self.points, key=sort_key)]

    @classmethod
    def from_data(cls, data: object) -> InsertionScheme:
        """Read what :meth:`to_data` wrote. Raises ValueError if it is not that."""
        if not isinstance(data, list):
            raise ValueError(f"{data!r} is not a list of insertion points")
        return cls(frozenset(from_data(item) for item in data))


@dataclass(frozen=True)
class ConcatGroup:
    """The points that cover all inputs of one Concat: they are set or cleared together."""

    concat: str  # name of the Concat node in the first instance of the pattern
    points: frozenset[InsertionPoint]  # the points that cover its inputs


def concat_groups(graph: Graph, nodes: Iterable[str], table: PointTable) -> tuple[ConcatGroup, ...]:
    """Groups of the Concat nodes among ``nodes``; only Concats of which every computed input has a legal point."""
    point_of = {
        port: point
        for point, ports in table.items()
        if not isinstance(point, RegionOutputInsertionPoint)
        for port in ports
    }
    groups: dict[frozenset[InsertionPoint], ConcatGroup] = {}
    for name in nodes:
        node = graph.node(name)
        if node.op_type != "Concat":
            continue
        ports = [port for port, value in node.input_ports() if not graph.is_constant(value)]
        if len(ports) > 1 and all(p in point_of for p in ports):
            points = frozenset(point_of[p] for p in ports)
            groups.setdefault(points, ConcatGroup(name, points))
    return tuple(groups.values())


def activation_ports(graph: Graph, placement: Placement) -> frozenset[Port]:
    """The ports of ``placement`` that read computed values: those that a search selects among."""
    return frozenset(p for p, _ in placement if not graph.is_constant(graph.value_of(p)))


class SchemeCompletion:
    """Completes a selection of activation ports to a placement that the target can run in low precision.

    * If all computed activations of a unit read Q/DQ, its weight, its bias and its constant operands are quantized
      too: no integer kernel applies without them.
    * If only Concats read a value without Q/DQ, and other consumers read it with Q/DQ, these Concats read Q/DQ too
      (*promotion*): the Concat can then run on integers and the producer can be fused, at no cost.

    Args:
        base: a placement whose types are kept for the ports selected, and whose constants are kept where no activation
            decides about them (weight-only quantization).
        rewrites: selectable rewrites to apply wherever their ports are quantized, besides those of ``base``.
    """

    def __init__(
        self,
        graph: Graph,
        units: Collection[Unit],
        rules: Rules,
        base: Placement | None = None,
        rewrites: frozenset[PortRewrite] = frozenset(),
    ) -> None:
        self._graph = graph
        self._rules = rules
        self._base = base if base is not None else Placement()
        self._rewrites = rewrites | self._base.rewrites
        self._types: dict[Port, QType] = {}
        self._operands: list[tuple[tuple[Port, ...], tuple[tuple[Port, QType], ...]]] = []
        owned: set[Port] = set()
        for unit in units:
            if not unit.selectable:
                continue
            computed = tuple(p for p in unit.activations if not graph.is_constant(graph.value_of(p)))
            given = [t for t in rules.types if all(self._base.qtype(p) is t for p in computed)]
            qtype = given[0] if given and computed else unit.activation or rules.activation
            implied = [site for site in static_sites(unit, rules, qtype) if site[0] not in computed]
            self._types.update(dict.fromkeys(computed, qtype))
            if computed and implied:
                self._operands.append((computed, tuple(implied)))
                owned.update(p for p, _ in implied)
        self._unowned = tuple((p, q) for p, q in self._base if p not in owned and graph.is_constant(graph.value_of(p)))
        self._weight_only = frozenset(
            computed
            for computed, implied in self._operands
            if any(p in self._base for p, _ in implied) and not any(p in self._base for p in computed)
        )
        self._concat_inputs = tuple(
            dict.fromkeys(
                v
                for n in graph.nodes
                if n.op_type == "Concat"
                for v in n.inputs
                if v and not graph.is_constant(v) and graph.is_float(v) and v not in graph.captured
            )
        )

    def activations(self, placement: Placement) -> frozenset[Port]:
        """The activation ports of ``placement``; :meth:`placement` takes them back."""
        return activation_ports(self._graph, placement)

    def placement(self, selected: Collection[Port]) -> Placement:
        """The placement that selecting these activation ports amounts to. Linear in the model's size."""
        chosen = set(selected)
        self._promote(chosen)
        base = self._base
        sites: dict[Port, QType] = {p: base.qtype(p) or self._types.get(p, self._rules.activation) for p in chosen}
        for computed, implied in self._operands:
            covered = all(p in chosen for p in computed)
            if covered or (computed in self._weight_only and not any(p in chosen for p in computed)):
                for port, qtype in implied:
                    kept = base.qtype(port)
                    if covered or kept is not None:
                        sites[port] = kept or qtype
        sites.update(self._unowned)
        return Placement(sites.items()).with_rewrites(self._rewrites)

    def _promote(self, chosen: set[Port]) -> None:
        graph = self._graph
        for value in self._concat_inputs:
            without_qdq = [p for p in graph.consumers(value) if p not in chosen]
            if not without_qdq or len(without_qdq) == len(graph.consumers(value)):
                continue
            if all(p.node != GRAPH_OUTPUT and graph.node(p.node).op_type == "Concat" for p in without_qdq):
                chosen.update(without_qdq)
