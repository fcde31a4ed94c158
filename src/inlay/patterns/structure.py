"""The structural tier: what the patterns of two models have in common whose sizes differ.

The exact signature of a pattern holds shapes, so a network at another resolution, width or batch has none of the same.
Its *structure* leaves out sizes (:class:`~inlay.patterns.node_facts.StructureDescriber`). Structures have a canonical
order of their own, in which a scheme is carried from a pattern to another one with the same structure.

Many patterns of one model may share a structure. Those at about the same *depth* of both networks correspond best.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from inlay.patterns.node_facts import StructureDescriber
from inlay.patterns.patterns import PatternFinder
from inlay.patterns.schemes import InsertionPoint, InsertionScheme, legal_points
from inlay.patterns.search_space import RegionPattern, SearchSpace

_LARGEST = 5000
"""Nodes of the largest pattern that has a structure: larger ones are whole networks, known by their parts."""


@dataclass(frozen=True, eq=False)
class Structure:
    """The structure of one pattern."""

    signature: str  # 20 hexadecimal digits; equal for equal structures of any models
    depth: float  # where its instances begin in the model, on average: 0 at the inputs, 1 at the outputs
    points: Mapping[InsertionPoint, InsertionPoint]  # each legal insertion point of the pattern as one of the structure

    def generalized(self, scheme: InsertionScheme) -> InsertionScheme:
        """A scheme of the pattern as one of the structure."""
        return InsertionScheme(frozenset(self.points[p] for p in scheme.points))

    def specialized(self, scheme: InsertionScheme) -> InsertionScheme:
        """A scheme of the structure as one of the pattern; points that are not legal here are dropped."""
        return InsertionScheme(frozenset(mine for mine, general in self.points.items() if general in scheme.points))


def find_structures(space: SearchSpace) -> Mapping[str, Structure]:
    """The structure of every pattern of ``space`` that is not too large, by the pattern's signature."""
    graph, live_ranges = space.graph, space.tree.live_ranges
    finder = PatternFinder(graph, live_ranges, StructureDescriber(graph, space.rejections))
    found: dict[str, Structure] = {}
    of_region: dict[int, str] = {}  # signatures of structures, by region id
    for pattern in sorted(space.patterns.values(), key=lambda p: p.instances[0].region.level):
        region = pattern.instances[0].region
        if region.size > _LARGEST:
            continue
        instance = finder.instance(region, of_region)
        table = legal_points(graph, instance, space.rejections, live_ranges)
        general = {(type(point), ports): point for point, ports in table.items()}
        points = {point: general[type(point), ports] for point, ports in space.tables[region.id].items()}
        found[pattern.signature] = Structure(instance.signature, _depth(space, pattern), MappingProxyType(points))
        of_region.update({i.region.id: instance.signature for i in pattern.instances})
    return found


def _depth(space: SearchSpace, pattern: RegionPattern) -> float:
    nodes = space.graph.nodes
    first = [min(space.graph.node(n).index for n in next(i.region.leaves()).direct_nodes) for i in pattern.instances]
    return round(sum(first) / len(first) / len(nodes), 4)
