"""Schemes: which insertion points of a pattern carry Q/DQ; and the completion of selected ports to a placement."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from inlay.model.graph import Graph
from inlay.regions.points import (
    ChildRegionInputInsertionPoint,
    InsertionPoint,
    NodeInputInsertionPoint,
    PointTable,
    RegionOutputInsertionPoint,
    from_data,
    sort_key,
    to_data,
)
from inlay.space.rules import Rules
from inlay.space.units import Unit
from inlay.types import GRAPH_OUTPUT, Placement, Port, PortRewrite, QType


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
    """The points that cover all inputs of one Concat: they are set or cleared together.

    Attributes:
        concat: name of the Concat node in the first instance of the pattern.
        points: the points that cover its inputs.
    """

    concat: str
    points: frozenset[InsertionPoint]


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
        graph: the model.
        units: its units.
        rules: the target's table.
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
        self._operands: list[tuple[tuple[Port, ...], tuple[tuple[Port, QType], ...]]] = []
        owned: set[Port] = set()
        for unit in units:
            if not unit.selectable:
                continue
            computed = tuple(p for p in unit.activations if not graph.is_constant(graph.value_of(p)))
            implied = [(p, rules.activation) for p in unit.activations if p not in computed]
            implied += [(p, rules.weight) for p in unit.weights]
            implied += [(p, QType.INT32) for p in unit.biases]
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
        sites: dict[Port, QType] = {p: base.qtype(p) or self._rules.activation for p in chosen}
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
