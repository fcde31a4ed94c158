"""What a pattern cache knows of one model: schemes to try first, and schemes to keep for the next run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from inlay.patterns.cache import CacheEntry, Kinship, PatternCache
from inlay.patterns.config import Config
from inlay.patterns.scheme_import import scheme_of_ports, with_scheme
from inlay.patterns.schemes import InsertionScheme
from inlay.patterns.search_space import RegionPattern, SearchSpace
from inlay.patterns.structure import Structure, find_structures
from inlay.types import Port

_MOST_RELATED = 8
"""Schemes of other patterns with the same structure that are tried for one pattern: those of the nearest patterns, the
best of each first. The first mostly fits; each costs a measurement."""

CACHED, RELATED = "cached", "cached, by structure"
"""How a scheme was made: by an earlier run, for this very pattern or for one of the same structure."""


@dataclass(frozen=True)
class Coverage:
    """How many patterns with insertion points a cache knows schemes of.

    Attributes:
        total: patterns of the model.
        known: those with schemes in the cache.
        related: those of ``known`` that are known by their structure only.
    """

    total: int
    known: int
    related: int

    def __str__(self) -> str:
        by_structure = f", {self.related} by structure" if self.related else ""
        return f"{self.known} of {self.total} patterns known{by_structure}"


class KnownSchemes:
    """The schemes of a cache for the patterns of one model.

    Args:
        space: of the model.
        cache: from earlier runs, on this model or others.
    """

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
            config: limits of the cache.

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
