"""Import of an existing Q/DQ placement as schemes; every one of its sites is accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from inlay.model.graph import Graph
from inlay.patterns.schemes import InsertionScheme, activation_ports
from inlay.patterns.search_space import RegionPattern, SearchSpace
from inlay.types import GRAPH_OUTPUT, Placement, Port, QType


@dataclass(frozen=True, kw_only=True)
class ImportReport:
    """What became of a placement's sites: each is in one of the fields below `placement`, `schemes` aside."""

    placement: Placement  # what can be imported: the `points` and `implied` sites, with their types
    points: tuple[Port, ...]  # ports of insertion points, which the search can set and clear
    implied: tuple[Port, ...]  # ports of constants (weights, biases), which follow the activations of their operator
    # ports of no insertion point, with the reason; the search leaves them out, although the placement as a whole may be
    # measured
    kept: tuple[tuple[Port, str], ...]
    unknown: tuple[tuple[Port, str], ...]  # ports that the normalized model does not have, with the reason
    # by pattern signature, the scheme that the import amounts to in most of its instances
    schemes: dict[str, InsertionScheme]
    # sites of a Q/DQ model without a port in the normalized model, with the reason
    lost: tuple[tuple[str, str], ...] = ()
    # sites inside operators that normalization makes of several, and which the placement quantizes as a whole, with the
    # reason
    within: tuple[tuple[str, str], ...] = ()

    @property
    def sites(self) -> int:
        """Number of sites, all of which are accounted for."""
        return sum(map(len, (self.points, self.implied, self.kept, self.unknown, self.lost, self.within)))

    def __str__(self) -> str:
        lines = [
            f"{self.sites} Q/DQ sites: {len(self.points)} imported, {len(self.implied)} implied by them, "
            f"{len(self.kept)} not searched, {len(self.within)} inside operators that are quantized as a whole, "
            f"{len(self.unknown) + len(self.lost)} not in the normalized model"
        ]
        reasons = Counter(reason for _, reason in (*self.kept, *self.within, *self.unknown, *self.lost))
        lines += [f"  {count}: {reason}" for reason, count in reasons.most_common()]
        return "\n".join(lines)


def import_placement(
    space: SearchSpace,
    sites: Iterable[tuple[Port, QType]],
    lost: Iterable[tuple[str, str]] = (),
    within: Iterable[tuple[str, str]] = (),
) -> ImportReport:
    """Account for ``sites``, as extracted from a Q/DQ model, and express them as schemes; the rest as in the report."""
    graph = space.graph
    reached = {port for table in space.tables.values() for ports in table.values() for port in ports}
    constants = {p for unit in space.units if unit.selectable for p in (*unit.weights, *unit.biases)}
    constants |= {p for u in space.units if u.selectable for p in u.activations if graph.is_constant(graph.value_of(p))}
    points, implied, kept, unknown = [], [], [], []
    usable: dict[Port, QType] = {}
    for port, qtype in sorted(dict(sites).items()):
        missing = _missing(graph, port)
        if missing:
            unknown.append((port, missing))
            continue
        if port in reached:
            points.append(port)
        elif port in constants:
            implied.append(port)
        else:
            kept.append((port, _reason(space, port)))
            continue
        usable[port] = qtype
    placement = Placement(usable.items())
    chosen = activation_ports(graph, placement)
    schemes = {p.signature: scheme_of_ports(space, p, chosen) for p in space.patterns.values() if p.points}
    return ImportReport(
        placement=placement,
        points=tuple(points),
        implied=tuple(implied),
        kept=tuple(kept),
        unknown=tuple(unknown),
        schemes=schemes,
        lost=tuple(lost),
        within=tuple(within),
    )


def sites_of_values(graph: Graph, values: Iterable[str], qtype: QType) -> list[tuple[Port, QType]]:
    """All consumers of ``values``, with ``qtype``; an unknown value yields a port that the model lacks."""
    sites: list[tuple[Port, QType]] = []
    for value in values:
        consumers = graph.consumers(value)
        sites.extend((port, qtype) for port in consumers or (Port(value, 0),))
    return sites


def scheme_of_ports(space: SearchSpace, pattern: RegionPattern, selected: Collection[Port]) -> InsertionScheme:
    """The scheme that selected ports amount to in most instances of ``pattern``.

    A point counts as set where all its ports are selected.
    """
    counted: Counter[InsertionScheme] = Counter()
    for instance in pattern.instances:
        table = space.tables[instance.region.id]
        found = frozenset(point for point, ports in table.items() if all(p in selected for p in ports))
        counted[InsertionScheme(found)] += 1
    return counted.most_common(1)[0][0]


def with_scheme(
    space: SearchSpace, pattern: RegionPattern, scheme: InsertionScheme, ports: frozenset[Port]
) -> frozenset[Port]:
    """``ports`` with the points of ``scheme`` set in every instance, and the pattern's other points cleared there."""
    cleared: set[Port] = set()
    added: set[Port] = set()
    for instance in pattern.instances:
        for point, own in space.tables[instance.region.id].items():
            if point in scheme.points:
                added.update(own)
            elif ports.issuperset(own):
                cleared.update(own)
    return ports - cleared | added


def _missing(graph: Graph, port: Port) -> str:
    if port.node != GRAPH_OUTPUT and not graph.has_node(port.node):
        return f"there is no node {port.node} in the normalized model"
    try:
        graph.value_of(port)
    except KeyError:
        return f"{port.node or 'the graph'} has no such port in the normalized model"
    return ""


def _reason(space: SearchSpace, port: Port) -> str:
    graph = space.graph
    value = graph.value_of(port)
    if port.node == GRAPH_OUTPUT:
        rejection = space.rejections.outputs.get(value)
        return (
            f"graph output: {rejection.reason}"
            if rejection
            else "graph output that is no insertion point of any region"
        )
    if graph.is_constant(value):
        return "a constant of an operator that runs in float on this target"
    rejection = space.rejections.ports.get(port)
    return rejection.reason if rejection is not None else "no insertion point reaches it"
