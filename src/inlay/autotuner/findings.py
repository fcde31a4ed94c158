"""What a step-by-step tuner knows, for its caller to read."""

from __future__ import annotations

from collections.abc import Mapping

from inlay.autotuner.state import SchemeRecord, TunerState
from inlay.autotuner.subject import Subject
from inlay.errors import UsageError
from inlay.model.graph import Graph
from inlay.regions.evolve import Evolve
from inlay.regions.known import Coverage
from inlay.regions.search_space import RegionPattern
from inlay.regions.tree import Region
from inlay.space.rules import Rules
from inlay.types import Placement


class Findings:
    """The part of :class:`~inlay.autotuner.tuner.QDQAutotuner` that changes nothing."""

    _subject: Subject
    _evolve: Evolve | None
    _state: TunerState

    @property
    def graph(self) -> Graph:
        """The normalized model, whose nodes regions and insertion points are about."""
        return self._subject.graph

    @property
    def rules(self) -> Rules:
        """What the target runs in low precision, with ``Config.default_quant_type`` as type of activations."""
        return self._subject.prepared.rules

    @property
    def regions(self) -> list[Region]:
        """One region for each pattern that has insertion points, in the order in which to profile them.

        What is found for one region holds for all regions of its pattern.
        """
        return [p.instances[0].region for p in self._core.patterns()]

    @property
    def all_regions(self) -> tuple[Region, ...]:
        """Every region of the tree, by id."""
        return self._core.space.tree.regions

    def pattern_of(self, region: Region) -> RegionPattern:
        """The pattern of ``region``."""
        return self._core.space.pattern_of[region.id]

    @property
    def coverage(self) -> Coverage:
        """How many patterns the given cache knows: "12 of 40 patterns known, 7 by structure"."""
        return self._core.known.coverage

    @property
    def baseline_latency_ms(self) -> float | None:
        """The first latency submitted; None before that."""
        return self._state.baseline_ms

    @property
    def latency_ms(self) -> float | None:
        """Latency of the incumbent, which :meth:`export_best` writes; None before the baseline was submitted."""
        return self._state.incumbent_ms

    @property
    def speedup(self) -> float | None:
        """Baseline over incumbent; None before the baseline was submitted."""
        if self._state.baseline_ms is None or self._state.incumbent_ms is None:
            return None
        return self._state.baseline_ms / self._state.incumbent_ms

    @property
    def profile_region(self) -> Region | None:
        """The region that is being profiled; after :meth:`load_state` the one that was when the state was saved."""
        profile = self._state.profile
        return None if profile is None else self._core.space.patterns[profile.signature].instances[0].region

    @property
    def records(self) -> list[SchemeRecord]:
        """Schemes generated for the current region."""
        return [] if self._state.profile is None else list(self._state.profile.records)

    @property
    def profiled_patterns(self) -> Mapping[str, int]:
        """Number of schemes measured, by signature of the patterns whose search is finished."""
        return dict(self._state.profiled)

    @property
    def best_placement(self) -> Placement:
        """The incumbent: float, or what was accepted so far."""
        return self._core.incumbent

    @property
    def _core(self) -> Evolve:
        if self._evolve is None:
            raise UsageError("call initialize first")
        return self._evolve
