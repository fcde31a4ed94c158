"""Region patterns over runs: what the given pattern cache knows of the model, and the cache that every run leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property

from inlay.prepare.config import TuneConfig
from inlay.prepare.model import PreparedModel
from inlay.regions.cache import PatternCache
from inlay.regions.config import Config
from inlay.regions.evolve import Evolve
from inlay.regions.known import Coverage, KnownSchemes, schemes_of
from inlay.regions.schemes import SchemeCompletion, activation_ports
from inlay.regions.search_space import SearchSpace, find_search_space
from inlay.run.evaluate import Candidate
from inlay.types import Placement

PATTERN_CACHE = "pattern-cache"
"""Name of the anchor in which every pattern has the best scheme that the given cache knows of it."""

_MOST_LEARNED = 32
"""Placements of a run, the fastest first, whose schemes are kept: as many as a cache by default holds of a pattern."""
_MOST_WORK = 1_000_000
"""Nodes times placements that are expressed as schemes: a second or two."""


class RunPatterns:
    """The region patterns of one run; they are found when they are first needed.

    Args:
        prepared: the model.
        config: of the run.

    Raises:
        UsageError: the pattern cache cannot be read.
    """

    def __init__(self, prepared: PreparedModel, config: TuneConfig) -> None:
        self._prepared = prepared
        self.config = Config(schemes_per_region=config.schemes_per_region, seed=config.seed)
        self.cache = None if config.pattern_cache is None else PatternCache.load(config.pattern_cache)

    @cached_property
    def space(self) -> SearchSpace:
        """The search space of the model."""
        of = self._prepared
        whole = of.units if of.allowed is None else None
        return find_search_space(of.graph, of.rules, None, of.allowed, self.config, units=whole)

    @cached_property
    def coverage(self) -> Coverage | None:
        """How many of the model's patterns the given cache knows; None without one."""
        return None if self.cache is None else self._known.coverage

    def anchors(self, say: Callable[[str], None]) -> tuple[tuple[str, Placement], ...]:
        """What the given cache knows of all patterns, as one placement to be measured first; none without a cache.

        ``say`` is told how much that is.
        """
        if self.coverage is None:
            return ()
        say(f"pattern cache: {self.coverage}")
        if not self.coverage.known:
            return ()
        ports = self._known.together(frozenset())
        completion = SchemeCompletion(self.space.graph, self.space.units, self.space.rules)
        return ((PATTERN_CACHE, completion.placement(ports)),)

    def learned(self, judged: Iterable[Candidate], evolve: Evolve | None) -> PatternCache:
        """The cache that the run leaves: the schemes of its fastest placements, and all that evolution measured."""
        graph, timed = self.space.graph, [c for c in judged if c.placement is not None and c.trial.feasible]
        timed.sort(key=lambda c: -c.speedup)
        most = min(_MOST_LEARNED, max(1, _MOST_WORK // max(1, len(graph.nodes))))
        ports = [(activation_ports(graph, c.placement), c.speedup) for c in timed[:most] if c.placement is not None]
        learned = self._known.learned(schemes_of(self.space, ports), self.config)
        if evolve is not None and evolve.best.speedup is not None:
            learned.merge(evolve.learned())
        return learned

    @cached_property
    def _known(self) -> KnownSchemes:
        return KnownSchemes(self.space, self.cache)
