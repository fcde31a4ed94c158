"""Region-pattern evolution: search one pattern at a time, all of its regions together.

::

    everything at once;
    patterns, leaves first ─▶ schemes: cached, all, none, then drawn ─▶ placement ─▶ (measured) ─▶ incumbent?

The incumbent is one placement of the whole model. A scheme is tried by setting its points, in all regions of its
pattern, and clearing the pattern's other points that are set; what lies outside the pattern's points stays as it is.
So a composite region starts from what its leaves found, and a scheme that is not faster leaves no trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from inlay.model.graph import Graph
from inlay.regions.cache import CacheEntry, PatternCache
from inlay.regions.config import Config
from inlay.regions.sampling import SchemeSampler
from inlay.regions.scheme_import import scheme_of_ports
from inlay.regions.schemes import InsertionScheme, SchemeCompletion
from inlay.regions.search_space import RegionPattern, SearchSpace, find_search_space
from inlay.regions.tree import RegionType
from inlay.space.rules import Rules
from inlay.trial import Measured, Proposal, Trial
from inlay.types import Placement, Port, PortRewrite

_ENUMERABLE = 12
"""Patterns with at most so many points can be searched through to the last scheme."""


class PatternState:
    """What is known of one pattern while it is searched: schemes with their scores, best first."""

    def __init__(
        self, pattern: RegionPattern, sampler: SchemeSampler, given: list[tuple[InsertionScheme, str]]
    ) -> None:
        self.pattern = pattern
        self.sampler = sampler
        self.scores: dict[InsertionScheme, float] = {}
        self.tried: set[InsertionScheme] = set()
        self.drawn = 0
        every = InsertionScheme(frozenset(pattern.points))
        self.queue = [*given, (every, "all"), (InsertionScheme(), "none")]
        self.queue.reverse()

    @property
    def ranked(self) -> list[InsertionScheme]:
        """Schemes measured so far, best first; equal ones in the order in which they were measured."""
        return sorted(self.scores, key=lambda s: -self.scores[s])

    @property
    def exhausted(self) -> bool:
        """Whether every scheme was tried."""
        count = len(self.pattern.points)
        return count <= _ENUMERABLE and len(self.tried) >= 1 << count


class Evolve:
    """The strategy: see the module's text. Fulfils :class:`inlay.search.base.Strategy`.

    Args:
        graph: the normalized model.
        rules: the target's table.
        base: the placement to start from, such as the best known; it is asked for first unless it is empty.
        config: settings.
        rng: source of all random choices; by default made from ``config.seed``.
        cache: schemes from earlier runs, which are tried first.
        space: the search space, where the caller has it already (it must be of ``graph``).
        seeds: placements from elsewhere; what they amount to in a pattern is tried before anything is drawn.
        rewrites: selectable rewrites to apply wherever their ports are quantized, besides those of ``base``.
    """

    name = "evolve"

    def __init__(
        self,
        graph: Graph,
        rules: Rules,
        base: Placement | None = None,
        config: Config | None = None,
        rng: np.random.Generator | None = None,
        cache: PatternCache | None = None,
        space: SearchSpace | None = None,
        seeds: Sequence[Placement] = (),
        rewrites: frozenset[PortRewrite] = frozenset(),
    ) -> None:
        self.config = config or Config()
        self.space = space or find_search_space(
            graph,
            rules,
            maximum_sequence_region_size=self.config.maximum_sequence_region_size,
            minimum_topdown_search_size=self.config.minimum_topdown_search_size,
        )
        base = base if base is not None else Placement()
        self.completion = SchemeCompletion(graph, self.space.units, rules, base, rewrites)
        self.incumbent = base
        self.score = 1.0 if not len(base) else 0.0
        self._rng = rng if rng is not None else np.random.default_rng(self.config.seed)
        self._cache = cache if cache is not None else PatternCache()
        self._selected = self.completion.activations(base)
        self._seeds = [self.completion.activations(p) for p in seeds]
        self._seen = {base.digest}
        self._states: dict[str, PatternState] = {}
        self._pending: tuple[Proposal, frozenset[Port], PatternState | None, InsertionScheme | None] | None = None
        self._steps = self._run(base)

    def ask(self) -> Proposal | None:
        """The next placement, or None when every pattern was searched."""
        return next(self._steps, None)

    def tell(self, trial: Trial) -> None:
        """Rank the scheme, and make it the incumbent when the judge accepted it and it is fast enough."""
        assert self._pending is not None, "tell without ask"
        proposal, selected, state, scheme = self._pending
        assert trial.proposal.placement == proposal.placement, "told of a placement that was not asked for"
        self._pending = None
        score = speed(trial)
        if state is not None and scheme is not None and score is not None:
            state.scores[scheme] = score
        if score is None:
            return
        first = state is None and proposal.placement == self.incumbent
        gain = trial.versus_incumbent.value if trial.versus_incumbent is not None else None
        enough = gain is None or gain >= self.config.performance_threshold
        if first or (trial.accepted and enough):
            self.incumbent, self._selected, self.score = proposal.placement, selected, score

    def patterns(self) -> list[RegionPattern]:
        """Patterns that have points, in the order of the search: leaves, then composites by height, the root last."""
        found = [p for p in self.space.patterns.values() if p.points]
        return sorted(found, key=lambda p: (_height(p), -len(p.instances) * p.size))

    def current(self, pattern: RegionPattern) -> InsertionScheme:
        """The scheme of ``pattern`` that the incumbent amounts to, in most of its regions."""
        return scheme_of_ports(self.space, pattern, self._selected)

    def resolve(self, pattern: RegionPattern, scheme: InsertionScheme) -> frozenset[Port]:
        """The incumbent's activation ports, with ``scheme`` in force in all regions of ``pattern``."""
        cleared: set[Port] = set()
        added: set[Port] = set()
        for instance in pattern.instances:
            for point, ports in self.space.tables[instance.region.id].items():
                if point in scheme.points:
                    added.update(ports)
                elif all(p in self._selected for p in ports):
                    cleared.update(ports)
        return frozenset(self._selected - cleared | added)

    def learned(self) -> PatternCache:
        """What was learned, for the next run: each pattern's scheme in force, then the best ones measured."""
        made = PatternCache(
            minimum_distance=self.config.pattern_cache_minimum_distance,
            max_entries_per_pattern=self.config.pattern_cache_max_entries_per_pattern,
        )
        for pattern in self.patterns():
            state = self._states.get(pattern.signature)
            entries = [CacheEntry(self.current(pattern), self.score)]
            entries += [CacheEntry(s, state.scores[s]) for s in state.ranked] if state else []
            made.add(pattern.signature, pattern.summary, entries)
        return made

    def _run(self, base: Placement) -> Iterator[Proposal]:
        """The search, as one loop; it waits for ``tell`` at each yield."""
        if len(base):
            yield self.offer(base, self._selected, None, None, "evolve: start")
        for selected, origin in (
            (self._all_cached(), "all cached schemes together"),
            (self._everything(), "all points"),
        ):
            placement = self.completion.placement(selected)
            if self._is_new(placement):
                selected = self.completion.activations(placement)
                yield self.offer(placement, selected, None, None, f"evolve: {origin}")
        for pattern in self.patterns():
            state = self.open(pattern)
            while (found := self.next_scheme(state)) is not None:
                scheme, selected, placement, how = found
                origin = f"evolve: {pattern.type.value.lower()} {pattern.signature[:8]}, {how}"
                yield self.offer(placement, selected, state, scheme, origin)

    def open(self, pattern: RegionPattern) -> PatternState:
        """Begin, or go on with, the search of ``pattern``."""
        state = self._states.get(pattern.signature)
        if state is None:
            fitting = set(pattern.points)
            given = [(e.scheme, "cached") for e in self._cache.entries(pattern.signature) if e.scheme.points <= fitting]
            given += [(scheme_of_ports(self.space, pattern, seed), "imported") for seed in self._seeds]
            sampler = SchemeSampler(pattern.points, pattern.groups, self.config, self._rng)
            state = self._states[pattern.signature] = PatternState(pattern, sampler, given)
        start = self.current(pattern)
        state.scores.setdefault(start, self.score)
        if self.resolve(pattern, start) == self._selected:
            state.tried.add(start)
        else:  # the pattern's regions differ: making them alike is worth a try
            state.queue.append((start, "alike"))
        return state

    def next_scheme(self, state: PatternState) -> tuple[InsertionScheme, frozenset[Port], Placement, str] | None:
        """A scheme whose placement was not seen before, or None when the pattern is done."""
        if state.drawn >= self.config.schemes_per_region:
            return None
        attempts = 0
        while attempts < self.config.maximum_generation_attempts and not state.exhausted:
            if state.queue:
                scheme, how = state.queue.pop()
            else:
                attempts += 1
                scheme, how = state.sampler.draw(self.current(state.pattern), state.ranked, state.drawn)
            if scheme in state.tried:
                continue
            state.tried.add(scheme)
            selected = self.resolve(state.pattern, scheme)
            placement = self.completion.placement(selected)
            if self._is_new(placement):
                state.drawn += 1
                state.sampler.record(how)
                # promotion may have added ports: they are part of what was measured
                return scheme, self.completion.activations(placement), placement, how
        return None

    def offer(
        self,
        placement: Placement,
        selected: frozenset[Port],
        state: PatternState | None,
        scheme: InsertionScheme | None,
        origin: str,
    ) -> Proposal:
        """Make the proposal that the next ``tell`` is about."""
        proposal = Proposal(placement, origin)
        self._pending = (proposal, selected, state, scheme)
        return proposal

    def add_seed(self, placement: Placement) -> None:
        """Add a seed after the fact: it is tried in every pattern that was not opened yet."""
        self._seeds.append(self.completion.activations(placement))

    def state(self) -> tuple[Placement, frozenset[Port], float]:
        """The incumbent; :meth:`restore` brings it back."""
        return self.incumbent, self._selected, self.score

    def restore(self, state: tuple[Placement, frozenset[Port], float]) -> None:
        """Return to an incumbent from :meth:`state`, forgetting none of what was measured."""
        self.incumbent, self._selected, self.score = state

    def _is_new(self, placement: Placement) -> bool:
        if placement.digest in self._seen:
            return False
        self._seen.add(placement.digest)
        return True

    def _everything(self) -> frozenset[Port]:
        """The ports of every point of every region, beside those that are set."""
        tables = self.space.tables.values()
        return self._selected.union(*(ports for table in tables for ports in table.values()))

    def _all_cached(self) -> frozenset[Port]:
        """The best cached scheme of every pattern, one upon the other in the order of the search."""
        before = self._selected
        for pattern in self.patterns():
            fitting = set(pattern.points)
            scheme = next(
                (e.scheme for e in self._cache.entries(pattern.signature) if e.scheme.points <= fitting), None
            )
            if scheme is not None:
                self._selected = self.resolve(pattern, scheme)
        after, self._selected = self._selected, before
        return after


def speed(trial: Trial) -> float | None:
    """Speedup over the baseline of a trial that may be delivered, or None."""
    if not trial.feasible:
        return None
    assert isinstance(trial.outcome, Measured)
    return trial.outcome.latency.speedup.value


def _height(pattern: RegionPattern) -> int:
    region = pattern.instances[0].region
    return region.level if region.type is not RegionType.ROOT else 1 << 30
