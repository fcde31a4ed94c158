"""What a pattern cache knows of one model: schemes to try first, and schemes to keep for the next run.

The exact signature of a pattern holds shapes, so a network at another resolution, width or batch has none of the same.
Its *structure* leaves out sizes (:class:`~inlay.patterns.node_facts.StructureDescriber`). Structures have a canonical
order of their own, in which a scheme is carried from a pattern to another one with the same structure.

Many patterns of one model may share a structure. Those at about the same *depth* of both networks correspond best.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from inlay.patterns.cache import CacheEntry, Kinship, PatternCache
from inlay.patterns.config import Config
from inlay.patterns.node_facts import StructureDescriber
from inlay.patterns.patterns import PatternFinder
from inlay.patterns.scheme_import import scheme_of_ports, with_scheme
from inlay.patterns.schemes import InsertionPoint, InsertionScheme, legal_points
from inlay.patterns.search_space import RegionPattern, SearchSpace
from inlay.types import Port

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


_MOST_RELATED = 8
"""Schemes of other patterns with the same structure that are tried for one, the nearest and best ones first."""

CACHED, RELATED = "cached", "cached, by structure"
"""How a scheme was made: by an earlier run, for this very pattern or for one of the same structure."""


@dataclass(frozen=True)
class Coverage:
    """How many patterns with insertion points a cache knows schemes of."""

    total: int  # patterns of the model
    known: int  # those with schemes in the cache
    related: int  # those of `known` that are known by their structure only

    def __str__(self) -> str:
        by_structure = f", {self.related} by structure" if self.related else ""
        return f"{self.known} of {self.total} patterns known{by_structure}"


class KnownSchemes:
    """The schemes of a cache for the patterns of one model."""

    def __init__(self, space: SearchSpace, cache: PatternCache | None) -> None:
        self._space = space
        self.cache = cache if cache is not None else PatternCache()
        self._found: dict[str, list[tuple[InsertionScheme, str]]] = {}

    @cached_property
    def structures(self) -> Mapping[str, Structure]:
        """The structure of each pattern, by the pattern's signature."""
        return find_structures(self._space)

    def schemes(self, pattern: RegionPattern) -> list[tuple[InsertionScheme, str]]:
        """Schemes of ``pattern`` to try, with how they were made: its own, best first, then those of relatives.

        A pattern's own schemes that have points which are not legal here are left out; relatives' lose such points.
        """
        found = self._found.get(pattern.signature)
        if found is None:
            legal = set(pattern.points)
            own = [e.scheme for e in self.cache.entries(pattern.signature) if e.scheme.points <= legal]
            known = dict.fromkeys(own, CACHED)
            if len(self.cache):
                for scheme in self._related(pattern):
                    known.setdefault(scheme, RELATED)
            found = self._found[pattern.signature] = list(known.items())
        return found

    def best(self, pattern: RegionPattern) -> InsertionScheme | None:
        """The scheme of ``pattern`` that promises most; None where none is known."""
        return next((scheme for scheme, _ in self.schemes(pattern)), None)

    def together(self, ports: frozenset[Port]) -> frozenset[Port]:
        """``ports`` with the most promising scheme of every known pattern applied, in the order of the search."""
        for pattern in self._space.in_search_order():
            scheme = self.best(pattern)
            if scheme is not None:
                ports = with_scheme(self._space, pattern, scheme, ports)
        return ports

    @property
    def coverage(self) -> Coverage:
        """How many patterns are known."""
        patterns = self._space.in_search_order()
        first = [self.schemes(p)[0][1] for p in patterns if self.schemes(p)]
        return Coverage(len(patterns), len(first), first.count(RELATED))

    def learned(self, measured: Mapping[str, Iterable[tuple[InsertionScheme, float]]], config: Config) -> PatternCache:
        """The cache that a run leaves.

        Args:
            measured: schemes with the speedup of their best placement, by signature of their pattern; of equal
                speedups the first is preferred.

        Returns:
            What was measured; and of the given cache what was not, with what has no match in this model.
        """
        cache = PatternCache(config.pattern_cache_minimum_distance, config.pattern_cache_max_entries_per_pattern)
        for signature, schemes in measured.items():
            structure = self.structures.get(signature)
            entries = [CacheEntry(s, x, None if structure is None else structure.generalized(s)) for s, x in schemes]
            kinship = None if structure is None else Kinship(structure.signature, structure.depth)
            cache.add(signature, self._space.patterns[signature].summary, entries, kinship)
        for signature in self.cache:
            new = {scheme for scheme, _ in measured.get(signature, ())}
            earlier = [e for e in self.cache.entries(signature) if e.scheme not in new]
            cache.add(signature, self.cache.summary(signature), earlier, self.cache.kinship(signature))
        return cache

    def _related(self, pattern: RegionPattern) -> Iterator[InsertionScheme]:
        structure = self.structures.get(pattern.signature)
        if structure is None:
            return
        relatives = self.cache.relatives(structure.signature, structure.depth)
        ranked = [
            (rank + nearness, nearness, entry.general)
            for nearness, entries in enumerate(relatives[:_MOST_RELATED])
            for rank, entry in enumerate(entries[:_MOST_RELATED])
            if entry.general is not None
        ]
        for _, _, general in sorted(ranked, key=lambda item: item[:2])[:_MOST_RELATED]:
            yield structure.specialized(general)


def schemes_of(
    space: SearchSpace, placements: Collection[tuple[frozenset[Port], float]]
) -> dict[str, list[tuple[InsertionScheme, float]]]:
    """Placements, given as activation ports with their speedups, as schemes of each pattern; the fastest first."""
    ranked = sorted(placements, key=lambda pair: -pair[1])
    found: dict[str, list[tuple[InsertionScheme, float]]] = {}
    for pattern in space.in_search_order():
        best: dict[InsertionScheme, float] = {}
        for ports, speedup in ranked:
            best.setdefault(scheme_of_ports(space, pattern, ports), speedup)
        found[pattern.signature] = list(best.items())
    return found
