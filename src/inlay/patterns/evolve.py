"""Region-pattern evolution: search one pattern at a time, in all of its instances together.

::

    everything at once;
    patterns, leaves first ─▶ schemes: cached, all, none, then drawn ─▶ placement ─▶ (measured) ─▶ incumbent?

The incumbent is a placement of the whole model. Trying a scheme sets its points in all instances of its pattern and
clears the pattern's other points that are set; everything else stays as it is. So a composite region starts from what
the search of its leaves found, and a scheme that is not faster leaves no trace.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from inlay.patterns.cache import PatternCache
from inlay.patterns.config import Config
from inlay.patterns.known import KnownSchemes
from inlay.patterns.sampling import SchemeSampler
from inlay.patterns.scheme_import import scheme_of_ports, with_scheme
from inlay.patterns.schemes import InsertionScheme, SchemeCompletion
from inlay.patterns.search_space import RegionPattern, SearchSpace
from inlay.trial import Proposal, Trial
from inlay.types import Placement, Port, PortRewrite

_ENUMERABLE_POINTS = 12
"""Most points of a pattern whose schemes (at most 4096) are counted, so as to end the search after the last one."""


class PatternSearch:
    """The search of one pattern: what is queued, tried and measured."""

    def __init__(
        self, pattern: RegionPattern, sampler: SchemeSampler, given: Sequence[tuple[InsertionScheme, str]]
    ) -> None:
        self.pattern = pattern  # the pattern
        self.sampler = sampler  # draws schemes once the queue is empty
        every = InsertionScheme(frozenset(pattern.points))
        # schemes to try before any is drawn, with how they were made; the last one is next
        self.queue = [(InsertionScheme(), "none"), (every, "all"), *reversed(given)]
        # over the float baseline, of measured schemes; None for a start that was not measured itself
        self.speedups: dict[InsertionScheme, float | None] = {}
        self.tried: set[InsertionScheme] = set()  # schemes that need not be tried again
        self.drawn = 0  # number of schemes whose placement was new

    def copy(self) -> PatternSearch:
        """Another one with the same state, which draws the same schemes and leaves this one as it is."""
        other = PatternSearch(self.pattern, deepcopy(self.sampler), ())
        other.queue, other.speedups, other.tried = [*self.queue], dict(self.speedups), set(self.tried)
        other.drawn = self.drawn
        return other

    @property
    def ranked(self) -> list[InsertionScheme]:
        """Schemes with known speedups, best first (ties in the order of measurement), then the others."""
        return sorted(self.speedups, key=lambda s: -(self.speedups[s] or 0.0))

    def to_data(self) -> dict[str, Any]:
        """What was tried so far, as plain data; :meth:`restore` takes it back."""
        known = [(self.speedups.get(s), s.to_data()) for s in self.tried]
        known.sort(key=lambda pair: (-(pair[0] or 0.0), repr(pair[1])))
        tried = [{"speedup": speedup, "points": points} for speedup, points in known]
        return {"drawn": self.drawn, "group_samples": self.sampler.group_samples, "tried": tried}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_data` gave. Raises ValueError, KeyError or TypeError where it is something else."""
        self.drawn, self.sampler.group_samples = int(data["drawn"]), int(data["group_samples"])
        for item in data["tried"]:
            scheme, speedup = InsertionScheme.from_data(item["points"]), item["speedup"]
            self.tried.add(scheme)
            if speedup is not None:
                self.speedups[scheme] = float(speedup)

    @property
    def exhausted(self) -> bool:
        """Whether every scheme was tried."""
        points = len(self.pattern.points)
        return points <= _ENUMERABLE_POINTS and len(self.tried) >= 1 << points


@dataclass(frozen=True)
class Candidate:
    """A placement to be measured."""

    placement: Placement  # of the whole model
    ports: frozenset[Port]  # its activation ports, those added by promotion included
    how: str  # how it was made
    # the search that it belongs to; None for a placement that belongs to no single pattern
    search: PatternSearch | None = None
    scheme: InsertionScheme | None = None  # the scheme that it tries; None likewise


@dataclass(frozen=True)
class Incumbent:
    """The best placement so far."""

    placement: Placement  # of the whole model
    ports: frozenset[Port]  # its activation ports
    speedup: float | None  # over the float baseline; None until it is measured


class Evolve:
    """The strategy: see the module's docstring. Fulfils :class:`inlay.search.base.Strategy`.

    Args:
        base: the placement to start from, such as the best known; it is proposed first unless it is empty.
        rng: source of all random choices; by default made from ``config.seed``.
        seeds: existing placements; the schemes that they amount to are tried before any is drawn.
        rewrites: selectable rewrites to apply wherever their ports are quantized, besides those of ``base``.
        base_speedup: speedup of ``base`` over float, if it was measured before; 1 for the empty placement.

    Attributes:
        config, space: as given.
        known: what ``cache`` knows of the model.
        best: the incumbent; assign an earlier one to return to it, which forgets no measurement.
    """

    name = "evolve"

    def __init__(
        self,
        space: SearchSpace,
        base: Placement | None = None,
        config: Config | None = None,
        rng: np.random.Generator | None = None,
        cache: PatternCache | None = None,
        seeds: Sequence[Placement] = (),
        rewrites: frozenset[PortRewrite] = frozenset(),
        base_speedup: float | None = None,
    ) -> None:
        self.config = config or Config()
        self.space = space
        base = base if base is not None else Placement()
        self._completion = SchemeCompletion(space.graph, space.units, space.rules, base, rewrites)
        self.best = self.incumbent_of(base, base_speedup)
        self._rng = rng if rng is not None else np.random.default_rng(self.config.seed)
        self.known = KnownSchemes(space, cache)
        self._seeds = [self._completion.activations(p) for p in seeds]
        self._proposed = {base.digest}
        self._searches: dict[str, PatternSearch] = {}
        self._pending: Candidate | None = None
        self._cached_tried = not len(self.known.cache)
        self._steps = self._run(base)

    @property
    def incumbent(self) -> Placement:
        """The best placement so far."""
        return self.best.placement

    def incumbent_of(self, placement: Placement, speedup: float | None) -> Incumbent:
        """``placement`` as an incumbent; the empty one has the speedup 1."""
        if speedup is None and not len(placement):
            speedup = 1.0
        return Incumbent(placement, self._completion.activations(placement), speedup)

    def ask(self) -> Proposal | None:
        """The next placement, or None once every pattern was searched."""
        return next(self._steps, None)

    def tell(self, trial: Trial) -> None:
        """Record the scheme's speedup; the trial becomes the incumbent if it was accepted and is fast enough."""
        candidate, self._pending = self._pending, None
        assert candidate is not None, "tell without ask"
        assert trial.proposal.placement == candidate.placement, "tell must answer the proposal last asked for"
        speedup = trial.speedup
        if speedup is None or not trial.feasible:
            return
        if candidate.search is not None and candidate.scheme is not None:
            candidate.search.speedups[candidate.scheme] = speedup
        is_base = candidate.search is None and candidate.placement == self.incumbent
        gain = trial.versus_incumbent.value if trial.versus_incumbent is not None else None
        enough = gain is None or gain >= self.config.least_gain(self.best.speedup or 1.0)
        if is_base or (trial.accepted and enough):
            self.best = Incumbent(candidate.placement, candidate.ports, speedup)

    def patterns(self) -> list[RegionPattern]:
        """Patterns that have points, in the order of the search: leaves, then composites by level, the root last."""
        return self.space.in_search_order()

    def current(self, pattern: RegionPattern) -> InsertionScheme:
        """The scheme that the incumbent amounts to in most instances of ``pattern``."""
        return scheme_of_ports(self.space, pattern, self.best.ports)

    def resolve(self, pattern: RegionPattern, scheme: InsertionScheme) -> frozenset[Port]:
        """The incumbent's activation ports with ``scheme`` applied to all instances of ``pattern``."""
        return with_scheme(self.space, pattern, scheme, self.best.ports)

    def learned(self) -> PatternCache:
        """Schemes for the next run: of each pattern the incumbent's scheme, the best ones measured, those given."""
        measured: dict[str, list[tuple[InsertionScheme, float]]] = {}
        for pattern in self.patterns():
            search = self._searches.get(pattern.signature)
            found = [(self.current(pattern), self.best.speedup)]
            found += [(scheme, search.speedups[scheme]) for scheme in search.ranked] if search else []
            measured[pattern.signature] = [(scheme, speedup) for scheme, speedup in found if speedup is not None]
        return self.known.learned(measured, self.config)

    def add_seed(self, placement: Placement) -> None:
        """Add an existing placement as a seed for every pattern whose search has not begun."""
        self._seeds.append(self._completion.activations(placement))

    def search_of(self, pattern: RegionPattern) -> PatternSearch:
        """Begin, or resume, the search of ``pattern``."""
        search = self._begun(pattern)
        start = self.current(pattern)
        search.speedups.setdefault(start, self.best.speedup)
        if self.resolve(pattern, start) == self.best.ports:
            search.tried.add(start)
        else:  # the instances differ: making them alike is worth a try
            search.queue.append((start, "alike"))
        return search

    def _begun(self, pattern: RegionPattern) -> PatternSearch:
        search = self._searches.get(pattern.signature)
        if search is None:
            given = self.known.schemes(pattern)
            given = [*given, *((scheme_of_ports(self.space, pattern, seed), "imported") for seed in self._seeds)]
            sampler = SchemeSampler(pattern.points, pattern.groups, self.config, self._rng)
            search = self._searches[pattern.signature] = PatternSearch(pattern, sampler, given)
        return search

    def next_candidate(self, search: PatternSearch) -> Candidate | None:
        """A scheme whose placement was not proposed before, or None if the search of the pattern is finished."""
        if search.drawn >= self.config.schemes_per_region:
            return None
        for scheme, how in self._untried(search):
            candidate = self._candidate(self.resolve(search.pattern, scheme), how, search, scheme)
            if candidate is not None:
                search.drawn += 1
                search.sampler.record(how)
                return candidate
        return None

    def _untried(self, search: PatternSearch) -> Iterator[tuple[InsertionScheme, str]]:
        """Schemes that were not tried, queued ones first, each with how it was made; they count as tried from here."""
        attempts = 0
        while attempts < self.config.maximum_generation_attempts and not search.exhausted:
            if search.queue:
                scheme, how = search.queue.pop()
            else:
                attempts += 1
                scheme, how = search.sampler.draw(self.current(search.pattern), search.ranked, search.drawn)
            if scheme not in search.tried:
                search.tried.add(scheme)
                yield scheme, how

    def upcoming(self, count: int) -> list[Placement]:
        """What the search of the present pattern draws next if nothing is accepted meanwhile."""
        if self._pending is None or self._pending.search is None:
            return []
        search, found = self._pending.search.copy(), dict[str, Placement]()
        for scheme, how in self._untried(search):
            if len(found) >= count or search.drawn >= self.config.schemes_per_region:
                break
            placement = self._completion.placement(self.resolve(search.pattern, scheme))
            if placement.digest not in self._proposed and placement.digest not in found:
                found[placement.digest] = placement
                search.drawn += 1
                search.sampler.record(how)
        return [*found.values()]

    def withdraw(self, search: PatternSearch, scheme: InsertionScheme, placement: Placement) -> None:
        """Forget a candidate that was not measured, so that it comes again."""
        self._pending = None
        search.tried.discard(scheme)
        self._proposed.discard(placement.digest)
        search.drawn -= 1
        search.queue.append((scheme, "again"))

    def again(self, search: PatternSearch, scheme: InsertionScheme, placement: Placement | None = None) -> Candidate:
        """A candidate of an earlier session: ``placement``, or that of ``scheme`` for the present incumbent."""
        if placement is None:
            placement = self.placement_of(search.pattern, scheme)
        return Candidate(placement, self._completion.activations(placement), "again", search, scheme)

    def placement_of(self, pattern: RegionPattern, scheme: InsertionScheme) -> Placement:
        """The present incumbent with ``scheme`` in all instances of ``pattern``."""
        return self._completion.placement(self.resolve(pattern, scheme))

    @property
    def proposed(self) -> frozenset[str]:
        """Digests of the placements that were proposed so far, and are not proposed again."""
        return frozenset(self._proposed)

    @property
    def searches(self) -> Mapping[str, PatternSearch]:
        """The searches that were begun, by signature of their pattern."""
        return self._searches

    def restore(self, searches: Mapping[str, Any], proposed: Collection[str]) -> None:
        """Continue an earlier session: what its searches tried and proposed is not proposed again.

        Args:
            searches: by signature, :meth:`PatternSearch.to_data` of each; patterns that the model lacks are left out.
        """
        self._proposed |= set(proposed)
        self._cached_tried |= len(proposed) > 1
        if proposed:  # the first draws of the same stream are known already
            self._rng = np.random.default_rng([self.config.seed, len(proposed)])
        for pattern in self.patterns():
            if pattern.signature in searches:
                self._begun(pattern).restore(searches[pattern.signature])

    def known_together(self, search: PatternSearch) -> Candidate | None:
        """All that a cache knows of this model as one placement, on behalf of ``search``; None after the first time."""
        if self._cached_tried:
            return None
        self._cached_tried = True
        ports = self._all_cached()
        scheme = scheme_of_ports(self.space, search.pattern, ports)
        return self._candidate(ports, "all cached schemes together", search, scheme)

    def propose(self, candidate: Candidate, origin: str) -> Proposal:
        """Make ``candidate`` the proposal that the next ``tell`` is about."""
        self._pending = candidate
        return Proposal(candidate.placement, origin)

    def _run(self, base: Placement) -> Iterator[Proposal]:
        """The search as one loop; it waits for ``tell`` at each yield."""
        if len(base):
            yield self.propose(Candidate(base, self.best.ports, "start"), "evolve: start")
        for make_ports, how in ((self._all_cached, "all cached schemes together"), (self._all_points, "all points")):
            candidate = self._candidate(make_ports(), how)
            if candidate is not None:
                yield self.propose(candidate, f"evolve: {how}")
        for pattern in self.patterns():
            search = self.search_of(pattern)
            while (candidate := self.next_candidate(search)) is not None:
                origin = f"evolve: {pattern.type.value.lower()} {pattern.signature[:8]}, {candidate.how}"
                yield self.propose(candidate, origin)

    def _candidate(
        self,
        selected: frozenset[Port],
        how: str,
        search: PatternSearch | None = None,
        scheme: InsertionScheme | None = None,
    ) -> Candidate | None:
        """The completed placement of the ``selected`` ports, or None if it was proposed before."""
        placement = self._completion.placement(selected)
        if placement.digest in self._proposed:
            return None
        self._proposed.add(placement.digest)
        return Candidate(placement, self._completion.activations(placement), how, search, scheme)

    def _all_points(self) -> frozenset[Port]:
        """The ports of every point of every region, besides those of the incumbent."""
        tables = self.space.tables.values()
        return self.best.ports.union(*(ports for table in tables for ports in table.values()))

    def _all_cached(self) -> frozenset[Port]:
        return self.known.together(self.best.ports)
