"""Insertion points: slots of a pattern at which Q/DQ may be inserted, and the ports they stand for in one region.

Indices are canonical: they count nodes, children, inputs and outputs in the order of :mod:`inlay.regions.patterns`,
which is the same in every instance of the pattern. The inputs of a commutative operator are counted in canonical
order too, not as written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from types import MappingProxyType

from inlay.model.graph import Graph
from inlay.regions.patterns import Instance
from inlay.regions.point_filters import Rejections
from inlay.regions.tree import LiveRange, RegionType, leaves_region
from inlay.types import Port


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
    """An output of the region: every port that reads the value, graph outputs included.

    Attributes:
        child_index: the child region that it is an output of; None in a leaf.
        node_index: the node that computes it; None unless in a leaf.
        output_index: index among the outputs of that child or node.
    """

    child_index: int | None
    node_index: int | None
    output_index: int

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
    if any(not _is_index(index) and not (index is None and i < optional) for i, index in enumerate(indices)):
        raise ValueError(f"{data!r} is not an insertion point: its indices must be integers from 0 on")
    if kind == "output" and (indices[0] is None) == (indices[1] is None):
        raise ValueError(f"{data!r} is not an insertion point: either the child or the node must be given")
    return point_type(*indices)


def _is_index(index: object) -> bool:
    return isinstance(index, int) and not isinstance(index, bool) and index >= 0


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
