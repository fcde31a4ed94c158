"""Insertion points: slots of a pattern at which Q/DQ may be set, and the ports they stand for in one region.

Indices are canonical: they count nodes, children, inputs and outputs in the order that :mod:`inlay.regions.patterns`
gives them, which is the same in every region with the pattern. For an operator whose inputs may stand in any order,
``input_index`` counts them in canonical order too, not as they happen to be written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from inlay.errors import UsageError
from inlay.model.graph import Graph
from inlay.regions.boundaries import LiveRange, leaves_region
from inlay.regions.patterns import Instance
from inlay.regions.point_filters import Rejections
from inlay.regions.tree import RegionType
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
    """Input ``input_index`` of child ``child_index``: every offered port in that child that reads the value."""

    child_index: int
    input_index: int

    def __str__(self) -> str:
        return f"child {self.child_index} input {self.input_index}"


@dataclass(frozen=True)
class RegionOutputInsertionPoint:
    """An output of the region: every port that reads the value, graph outputs included.

    Attributes:
        child_index: the child that hands it out; None in a leaf.
        node_index: the node that computes it; None unless in a leaf.
        output_index: number among the child's, or the node's, outputs.
    """

    child_index: int | None
    node_index: int | None
    output_index: int

    def __str__(self) -> str:
        holder = f"child {self.child_index}" if self.node_index is None else f"node {self.node_index}"
        return f"output {self.output_index} of {holder}"


InsertionPoint = NodeInputInsertionPoint | ChildRegionInputInsertionPoint | RegionOutputInsertionPoint

_KINDS: Mapping[str, type[InsertionPoint]] = {
    "node_input": NodeInputInsertionPoint,
    "child_input": ChildRegionInputInsertionPoint,
    "output": RegionOutputInsertionPoint,
}


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
    if isinstance(point, NodeInputInsertionPoint):
        return ["node_input", point.node_index, point.input_index]
    if isinstance(point, ChildRegionInputInsertionPoint):
        return ["child_input", point.child_index, point.input_index]
    return ["output", point.child_index, point.node_index, point.output_index]


def from_data(data: object) -> InsertionPoint:
    """Read what :func:`to_data` wrote.

    Raises:
        ValueError: it is not an insertion point.
    """
    if not isinstance(data, list) or not data or data[0] not in _KINDS:
        raise ValueError(f"{data!r} is not an insertion point")
    kind, *indices = data
    optional = 2 if kind == "output" else 0
    for i, index in enumerate(indices):
        fine = isinstance(index, int) and not isinstance(index, bool) and index >= 0
        if not fine and not (index is None and i < optional):
            raise ValueError(f"{data!r} is not an insertion point: its indices must be numbers from 0 on")
    if len(indices) != (3 if kind == "output" else 2):
        raise ValueError(f"{data!r} is not an insertion point: it has {len(indices)} indices")
    if kind == "output" and (indices[0] is None) == (indices[1] is None):
        raise ValueError(f"{data!r} is not an insertion point: either the child or the node must be given")
    return _KINDS[kind](*indices)


def resolve(point: InsertionPoint, table: Mapping[InsertionPoint, tuple[Port, ...]]) -> tuple[Port, ...]:
    """The ports that ``point`` stands for, by a region's table from :func:`legal_points`.

    Raises:
        UsageError: the region's pattern has no such point.
    """
    try:
        return table[point]
    except KeyError:
        raise UsageError(f"the region offers no insertion point at {point}") from None


def legal_points(
    graph: Graph, instance: Instance, rejections: Rejections, live_ranges: Mapping[str, LiveRange]
) -> Mapping[InsertionPoint, tuple[Port, ...]]:
    """Every point that ``instance``'s region offers, in order, with its ports. Linear in the region's size."""
    found: dict[InsertionPoint, tuple[Port, ...]] = {}
    if instance.region.type is RegionType.LEAF:
        for node_index, name in enumerate(instance.nodes):
            for input_index, slot in enumerate(instance.slots[node_index]):
                port = Port(name, slot)
                if rejections.allows(port):
                    found[NodeInputInsertionPoint(node_index, input_index)] = (port,)
    else:
        reads = instance.reads
        for child_index, values in enumerate(instance.child_inputs):
            for input_index, value in enumerate(values):
                ports = tuple(p for p in reads.get((child_index, value), ()) if rejections.allows(p))
                if ports:
                    found[ChildRegionInputInsertionPoint(child_index, input_index)] = ports
    for output, value in _outputs(graph, instance, live_ranges):
        if rejections.outputs[value] is None:
            found[output] = graph.consumers(value)
    return MappingProxyType(found)


def _outputs(
    graph: Graph, instance: Instance, live_ranges: Mapping[str, LiveRange]
) -> Iterator[tuple[RegionOutputInsertionPoint, str]]:
    """Outputs of the region that some port reads."""
    region = instance.region
    if region.type is RegionType.LEAF:
        held = [
            (RegionOutputInsertionPoint(None, n, i), value)
            for n, name in enumerate(instance.nodes)
            for i, value in enumerate(graph.node(name).outputs)
            if value
        ]
    else:
        held = [
            (RegionOutputInsertionPoint(c, None, i), value)
            for c, values in enumerate(instance.child_outputs)
            for i, value in enumerate(values)
        ]
    return ((p, v) for p, v in held if leaves_region(live_ranges[v], region.leaf_range) and graph.consumers(v))
