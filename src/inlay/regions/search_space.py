"""The search space of one model on one target: regions, patterns, and the ports of every insertion point."""

from __future__ import annotations

import fnmatch
import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

from inlay.errors import UsageError
from inlay.model.graph import Graph
from inlay.regions.patterns import Instance, PatternFinder, summarize
from inlay.regions.point_filters import Rejections, filter_context, find_rejections
from inlay.regions.points import InsertionPoint, legal_points
from inlay.regions.schemes import ConcatGroup, InsertionScheme, concat_groups
from inlay.regions.tree import RegionTree, RegionType, find_regions
from inlay.space.rules import Rules
from inlay.space.units import Unit, find_units
from inlay.types import Port

PointTable = Mapping[InsertionPoint, tuple[Port, ...]]


@dataclass(frozen=True, eq=False)
class RegionPattern:
    """A structural signature with its insertion points, and the regions that have it.

    Attributes:
        signature: 20 hexadecimal digits; equal for isomorphic regions of any models.
        type: LEAF, COMPOSITE or ROOT.
        summary: its operators, for people.
        size: how many nodes an instance has.
        points: insertion points, in order; the same for all instances.
        instances: the regions with this pattern, in tree order.
        groups: Concat groups, as points; the same for all instances.
    """

    signature: str
    type: RegionType
    summary: str
    size: int
    points: tuple[InsertionPoint, ...] = field(repr=False)
    instances: tuple[Instance, ...] = field(repr=False)
    groups: tuple[ConcatGroup, ...] = field(default=(), repr=False)

    def matches(self, other: RegionPattern) -> bool:
        """Whether schemes of one mean the same in the other."""
        return self.signature == other.signature


@dataclass(frozen=True, eq=False)
class SearchSpace:
    """Everything that the pattern search needs to know of a model.

    Attributes:
        graph, rules, units: the model and its target.
        offers: which ports are offered, and why others are not.
        tree: the region tree.
        patterns: by signature, in the order of their first region.
        pattern_of: pattern of each region, by region id.
        tables: ports of each point of each region, by region id.
    """

    graph: Graph
    rules: Rules
    units: tuple[Unit, ...]
    rejections: Rejections
    tree: RegionTree
    patterns: Mapping[str, RegionPattern]
    pattern_of: Mapping[int, RegionPattern]
    tables: Mapping[int, PointTable]

    def ports(self, scheme: InsertionScheme, region_id: int) -> frozenset[Port]:
        """The ports that ``scheme`` selects in one region. Raises UsageError when it belongs to another pattern."""
        return scheme.ports(self.tables[region_id])


def find_search_space(
    graph: Graph,
    rules: Rules,
    nodes: Iterable[str] | None = None,
    allowed: frozenset[str] | None = None,
    *,
    maximum_sequence_region_size: int = 10,
    minimum_topdown_search_size: int = 10,
) -> SearchSpace:
    """Regions, patterns and insertion points of ``graph``.

    Args:
        graph: the model.
        rules: the target's table.
        nodes: globs over node names; only the ports of matching nodes are offered. None means all.
        allowed: names of nodes, likewise.
        maximum_sequence_region_size: most nodes of a leaf.
        minimum_topdown_search_size: fewest nodes of a sequence that becomes a COMPOSITE.

    Raises:
        UsageError: a glob matches no node.
    """
    if nodes is not None:
        chosen = select_nodes(graph, nodes)
        allowed = chosen if allowed is None else chosen & allowed
    with _no_collector():
        return _find(graph, rules, maximum_sequence_region_size, minimum_topdown_search_size, allowed)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Millions of small objects are made here, all of them long-lived: looking for garbage among them costs a third."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _find(graph: Graph, rules: Rules, longest: int, least: int, allowed: frozenset[str] | None) -> SearchSpace:
    units = find_units(graph, rules)
    rejections = find_rejections(filter_context(graph, rules, units, allowed))
    tree = find_regions(
        graph,
        rules,
        maximum_sequence_region_size=longest,
        minimum_topdown_search_size=least,
        units=units,
    )
    finder = PatternFinder(graph, rejections, tree.live_ranges)
    signatures: dict[int, str] = {}
    instances: dict[str, list[Instance]] = {}
    tables: dict[int, PointTable] = {}
    for region in reversed(tree.regions):  # children before their parents
        instance = finder.instance(region, signatures)
        signatures[region.id] = instance.signature
        instances.setdefault(instance.signature, []).append(instance)
        tables[region.id] = legal_points(graph, instance, rejections, tree.live_ranges)
    patterns = {}
    for region in tree.regions:
        signature = signatures[region.id]
        if signature not in patterns:
            found = instances[signature]
            found.reverse()
            patterns[signature] = _pattern(graph, signature, found, tables)
    pattern_of = {r.id: patterns[signatures[r.id]] for r in tree.regions}
    return SearchSpace(
        graph,
        rules,
        units,
        rejections,
        tree,
        MappingProxyType(patterns),
        MappingProxyType(pattern_of),
        MappingProxyType(tables),
    )


def _pattern(
    graph: Graph, signature: str, instances: list[Instance], tables: Mapping[int, PointTable]
) -> RegionPattern:
    first = instances[0]
    table = tables[first.region.id]
    return RegionPattern(
        signature,
        first.region.type,
        summarize(graph, first),
        first.region.size,
        tuple(table),
        tuple(instances),
        concat_groups(graph, first.nodes, table),
    )


def select_nodes(graph: Graph, globs: Iterable[str]) -> frozenset[str]:
    """Names of the nodes that match any of ``globs`` (``*``, ``?``, ``[…]``; case counts).

    Raises:
        UsageError: globs that match nothing, by name.
    """
    selected: set[str] = set()
    idle = []
    names = [n.name for n in graph.nodes]
    for glob in globs:
        found = fnmatch.filter(names, glob) if glob else []
        found = [n for n in found if fnmatch.fnmatchcase(n, glob)]
        if not found:
            idle.append(glob)
        selected.update(found)
    if idle:
        some = ", ".join(names[:3])
        raise UsageError(f"--nodes: no node matches {', '.join(map(repr, idle))}; node names are such as {some}")
    return frozenset(selected)
