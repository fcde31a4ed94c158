"""The region-pattern search space of one model on one target: regions, patterns, insertion points and their ports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from inlay.model.gc_pause import gc_paused
from inlay.model.graph import Graph
from inlay.patterns.config import Config
from inlay.patterns.node_facts import NodeDescriber
from inlay.patterns.patterns import Instance, PatternFinder, summarize
from inlay.patterns.point_filters import FilterContext, Rejections, find_rejections
from inlay.patterns.schemes import ConcatGroup, InsertionPoint, PointTable, concat_groups, legal_points
from inlay.patterns.tree import (
    Region,
    RegionGroup,
    RegionTree,
    RegionType,
    find_live_ranges,
    find_regions,
    regions_of_groups,
)
from inlay.space.recipe import select_nodes
from inlay.space.rules import Rules
from inlay.space.units import Unit, find_units


@dataclass(frozen=True, eq=False)
class RegionPattern:
    """A structural signature with its insertion points, and the regions that have it."""

    signature: str  # 20 hexadecimal digits; equal for isomorphic regions of any models
    type: RegionType  # LEAF, COMPOSITE or ROOT
    summary: str  # its operators, for people
    size: int  # number of nodes of an instance
    # legal insertion points, in order; the same for all instances
    points: tuple[InsertionPoint, ...] = field(repr=False)
    instances: tuple[Instance, ...] = field(repr=False)  # the regions with this pattern, in tree order
    # Concat groups, as points; the same for all instances
    groups: tuple[ConcatGroup, ...] = field(default=(), repr=False)

    @classmethod
    def from_region(cls, region: Region, graph: Graph, rules: Rules) -> RegionPattern:
        """The pattern of one region by itself.

        Args:
            region: of a tree of ``graph``, found or supplied.
        """
        rejections = find_rejections(FilterContext(graph, rules, find_units(graph, rules), None))
        leaf_index = dict.fromkeys((n.name for n in graph.nodes), region.leaf_range[1])  # any leaf outside
        for leaf in region.leaves():
            leaf_index.update(dict.fromkeys(leaf.direct_nodes, leaf.leaf_range[0]))
        live_ranges = find_live_ranges(graph, leaf_index)
        finder = PatternFinder(graph, live_ranges, NodeDescriber(graph, rejections))
        signatures: dict[int, str] = {}
        for inner in reversed(list(region.walk())):  # children before their parents
            instance = finder.instance(inner, signatures)
            signatures[inner.id] = instance.signature
        table = legal_points(graph, instance, rejections, live_ranges)
        return _pattern(graph, instance.signature, [instance], {region.id: table})

    def matches(self, other: RegionPattern) -> bool:
        """Whether schemes of one mean the same in the other."""
        return self.signature == other.signature


@dataclass(frozen=True, eq=False, kw_only=True)
class SearchSpace:
    """All that the region-pattern search needs of a model."""

    # graph, rules, units: the model and its target
    graph: Graph
    rules: Rules
    units: tuple[Unit, ...]
    rejections: Rejections  # why ports and outputs are not legal insertion points
    tree: RegionTree  # the region tree
    patterns: Mapping[str, RegionPattern]  # by signature, in the order of their first region
    pattern_of: Mapping[int, RegionPattern]  # pattern of each region, by region id
    tables: Mapping[int, PointTable]  # the insertion points of each region with their ports, by region id

    def in_search_order(self) -> list[RegionPattern]:
        """Patterns that have points: leaves, then composites by level, the root last.

        On one level, those come first that hold the largest part of the model.
        """
        return sorted((p for p in self.patterns.values() if p.points), key=_search_order)


def _search_order(pattern: RegionPattern) -> tuple[bool, int, int]:
    region = pattern.instances[0].region
    return region.type is RegionType.ROOT, region.level, -len(pattern.instances) * pattern.size


def find_search_space(
    graph: Graph,
    rules: Rules,
    nodes: Iterable[str] | None = None,
    allowed: frozenset[str] | None = None,
    config: Config | None = None,
    groups: Iterable[RegionGroup] | None = None,
    units: tuple[Unit, ...] | None = None,
) -> SearchSpace:
    """Regions, patterns and insertion points of ``graph``.

    Args:
        nodes: globs over node names; only ports of matching nodes are legal. None means all.
        allowed: names of nodes, as a further restriction; None means all.
        groups: the regions; None to find them.
        units: all units of ``graph``; None to find them.

    Raises:
        UsageError: a glob matches no node, or ``groups`` are no partition of nodes.
    """
    if nodes is not None:
        chosen = select_nodes(graph, nodes)
        allowed = chosen if allowed is None else chosen & allowed
    with gc_paused():
        return _find(graph, rules, allowed, config or Config(), groups, units or find_units(graph, rules))


def _find(
    graph: Graph,
    rules: Rules,
    allowed: frozenset[str] | None,
    config: Config,
    groups: Iterable[RegionGroup] | None,
    units: tuple[Unit, ...],
) -> SearchSpace:
    rejections = find_rejections(FilterContext(graph, rules, units, allowed))
    tree = find_regions(graph, units, rules, config) if groups is None else regions_of_groups(graph, groups, config)
    finder = PatternFinder(graph, tree.live_ranges, NodeDescriber(graph, rejections))
    signatures: dict[int, str] = {}
    instances: dict[str, list[Instance]] = {}
    tables: dict[int, PointTable] = {}
    for region in reversed(tree.regions):  # children before their parents
        instance = finder.instance(region, signatures)
        signatures[region.id] = instance.signature
        instances.setdefault(instance.signature, []).append(instance)
        tables[region.id] = legal_points(graph, instance, rejections, tree.live_ranges)
    in_order = dict.fromkeys(signatures[region.id] for region in tree.regions)
    patterns = {signature: _pattern(graph, signature, instances[signature][::-1], tables) for signature in in_order}
    pattern_of = {region.id: patterns[signatures[region.id]] for region in tree.regions}
    frozen = MappingProxyType
    return SearchSpace(
        graph=graph,
        rules=rules,
        units=units,
        rejections=rejections,
        tree=tree,
        patterns=frozen(patterns),
        pattern_of=frozen(pattern_of),
        tables=frozen(tables),
    )


def _pattern(
    graph: Graph, signature: str, instances: list[Instance], tables: Mapping[int, PointTable]
) -> RegionPattern:
    first = instances[0]
    table = tables[first.region.id]
    return RegionPattern(
        signature,
        first.region.type,
        summary=summarize(graph, first),
        size=first.region.size,
        points=tuple(table),
        instances=tuple(instances),
        groups=concat_groups(graph, first.nodes, table),
    )
