"""Region patterns in a run: evolution, what the given pattern cache knows, and the cache that every run leaves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from inlay.errors import UsageError
from inlay.patterns.cache import PatternCache
from inlay.patterns.config import Config
from inlay.patterns.evolve import Evolve
from inlay.patterns.known import Coverage, KnownSchemes, schemes_of
from inlay.patterns.schemes import SchemeCompletion, activation_ports
from inlay.patterns.search_space import SearchSpace, find_search_space
from inlay.patterns.tree import RegionType, find_regions
from inlay.prepare.config import TuneConfig
from inlay.prepare.model import PreparedModel
from inlay.run.evaluate import Candidate
from inlay.trial import Measured, Trial, shown_ratio
from inlay.types import Placement, PortRewrite

PATTERN_CACHE = "pattern-cache"
"""Name of the anchor in which every pattern has the best scheme that the given cache knows of it."""
LEFT = "pattern_cache.yaml"  # name of the cache in the folder of a run
_EVOLUTION_STREAM = 3  # tells the random stream of evolution from others of the same seed
_MOST_LEARNED = 32
"""Placements of a run, the fastest first, whose schemes are kept: as many as a cache by default holds of a pattern."""
_MOST_WORK = 1_000_000  # nodes times placements that are expressed as schemes: a second or two


class RunPatterns:
    """The region patterns of one run (:class:`~inlay.run.joined.JoinedStrategy`), found when they are first needed.

    Raises:
        UsageError: the pattern cache cannot be read.
    """

    def __init__(self, prepared: PreparedModel, config: TuneConfig) -> None:
        self._prepared = prepared
        self.config = Config(schemes_per_region=config.schemes_per_region, seed=config.seed)
        self.cache = None if config.pattern_cache is None else PatternCache.load(config.pattern_cache)
        self._evolve: Evolve | None = None

    @staticmethod
    def check(config: TuneConfig) -> None:
        """Raise UsageError where the given pattern cache cannot be read."""
        if config.pattern_cache is not None:
            PatternCache.load(config.pattern_cache)

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

    def anchors(self, say: Callable[[str], None]) -> Sequence[tuple[str, Placement]]:
        """What the given cache knows of all patterns, as one placement; none without a cache."""
        if self.coverage is None:
            return ()
        say(f"pattern cache: {self.coverage}")
        if not self.coverage.known:
            return ()
        ports = self._known.together(frozenset())
        completion = SchemeCompletion(self.space.graph, self.space.units, self.space.rules)
        return ((PATTERN_CACHE, completion.placement(ports)),)

    def strategy(self, incumbent: Placement, imported: Sequence[Placement], rewrites: frozenset[PortRewrite]) -> Evolve:
        """Region-pattern evolution from the incumbent."""
        self._evolve = Evolve(
            self.space,
            base=incumbent,
            config=self.config,
            rng=np.random.default_rng([self.config.seed, _EVOLUTION_STREAM]),
            cache=self.cache,
            seeds=imported,
            rewrites=rewrites,
        )
        return self._evolve

    def leave(self, folder: Path, judged: Sequence[Candidate]) -> None:
        """Merge the schemes of the fastest placements, and all that evolution measured, into the cache there."""
        graph, timed = self.space.graph, [c for c in judged if c.placement is not None and c.trial.feasible]
        timed.sort(key=lambda c: -c.speedup)
        most = min(_MOST_LEARNED, max(1, _MOST_WORK // max(1, len(graph.nodes))))
        ports = [(activation_ports(graph, c.placement), c.speedup) for c in timed[:most] if c.placement is not None]
        learned = self._known.learned(schemes_of(self.space, ports), self.config)
        if self._evolve is not None and self._evolve.best.speedup is not None:
            learned.merge(self._evolve.learned())
        if (folder / LEFT).exists():
            with contextlib.suppress(UsageError):  # a damaged cache is replaced
                learned.merge(PatternCache.load(folder / LEFT))
        learned.save(folder / LEFT)

    def notes(self, anchors: Mapping[str, Trial]) -> Sequence[str]:
        """What the given cache was good for."""
        if self.coverage is None:
            return ()
        trial = anchors.get(PATTERN_CACHE)
        outcome = None if trial is None else trial.outcome
        told = shown_ratio(outcome.latency.speedup) if isinstance(outcome, Measured) else ""
        gain = f"; their best schemes together, measured first, gave {told}" if told else ""
        return (f"pattern cache: {self.coverage}{gain}",)

    def facts(self) -> Mapping[str, Any]:
        """How much the given cache knew."""
        return {} if self.coverage is None else {"patterns": asdict(self.coverage)}

    def regions(self) -> Mapping[tuple[int, int], Sequence[str]]:
        """The regions of the tree below its root."""
        of = self._prepared
        tree = find_regions(of.graph, of.units, of.rules, Config())
        below = (r for r in tree.regions if r.type is not RegionType.ROOT)
        return {(r.id, -1 if r.parent is None else r.parent): r.nodes for r in below}

    @cached_property
    def _known(self) -> KnownSchemes:
        return KnownSchemes(self.space, self.cache)
