"""What a step-by-step tuner knows, for its caller to read, and what it says while it works."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

from inlay.autotune.state import SchemeRecord, TunerState
from inlay.autotune.subject import Subject
from inlay.errors import UsageError
from inlay.model.graph import Graph
from inlay.patterns.evolve import Evolve
from inlay.patterns.known import Coverage
from inlay.patterns.search_space import RegionPattern
from inlay.patterns.tree import Region
from inlay.space.rules import Rules
from inlay.trial import Interval, plain
from inlay.types import Placement

_LOGGER = logging.getLogger("inlay.autotune")


def reporter(verbose: bool) -> Callable[[str], None]:
    """Reports to the logger ``inlay.autotune``: at level INFO where ``verbose``, otherwise DEBUG.

    A verbose one is heard in any case: where the logger has no handler, on standard error.
    """
    if verbose:
        _LOGGER.setLevel(min(_LOGGER.level or logging.INFO, logging.INFO))
        if not _LOGGER.hasHandlers():
            _LOGGER.addHandler(logging.StreamHandler(sys.stderr))
    level = logging.INFO if verbose else logging.DEBUG
    return lambda text: _LOGGER.log(level, "%s", text)


class Findings:
    """The part of :class:`~inlay.autotune.tuner.QDQAutotuner` that changes nothing."""

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
        """Latency of the float model: the first one submitted, then that of the final comparison; None before both.

        While the incumbent is the float model itself, this is :attr:`latency_ms`, from its newest readings.
        """
        if self._is_float:
            return self._state.incumbent_ms
        found = self._compared
        return self._state.baseline_ms if found is None else found[0].value * found[1].value

    @property
    def latency_ms(self) -> float | None:
        """Latency of the incumbent, which :meth:`export_best` writes; None before the baseline was submitted.

        Until the final comparison it is an estimate (:attr:`speedup`).
        """
        return self._state.incumbent_ms if self._compared is None else self._compared[0].value

    @property
    def latency_interval_ms(self) -> tuple[float, float] | None:
        """Where the incumbent's latency lies, at 95 % confidence; None before the final comparison."""
        return None if self._compared is None else (self._compared[0].low, self._compared[0].high)

    @property
    def speedup(self) -> float | None:
        """Float model over incumbent; None before the baseline was submitted.

        Before the final comparison (``generate`` after ``set_profile_region(None)``) it is an estimate from readings
        that were accepted because they were good, and one of the float model: more often too high than too low.
        """
        return self._estimate if self._final_speedup is None else self._final_speedup.value

    @property
    def speedup_low(self) -> float | None:
        """Lower end of the 95 % interval of :attr:`speedup`; None before the final comparison."""
        return None if self._final_speedup is None else self._final_speedup.low

    @property
    def speedup_high(self) -> float | None:
        """Upper end of the 95 % interval of :attr:`speedup`; None before the final comparison."""
        return None if self._final_speedup is None else self._final_speedup.high

    @property
    def summary(self) -> str:
        """Latencies, speed-up and where they come from, as one line for people."""
        before, after, ratio = self.baseline_latency_ms, self.latency_ms, self.speedup
        if before is None or after is None or ratio is None:
            return "nothing was measured"
        if not len(self.best_placement):
            return f"{plain(before, 4)} ms in float; no scheme was faster"
        found = f"{plain(before, 4)} ms -> {plain(after, 4)} ms, {ratio:.2f}x"
        if self._final_speedup is None:
            return f"{found}: an estimate from the readings of the search, not measured again"
        final = self._state.final
        pairs = len(final.duel.ratios) if final is not None else 0
        return f"{found} [{self._final_speedup.low:.2f}, {self._final_speedup.high:.2f}] in {pairs} pairs of readings"

    @property
    def failed_readings(self) -> Mapping[str, int]:
        """How many readings failed, by reason; those that succeeded at another try included."""
        return dict(self._state.failures)

    @property
    def _estimate(self) -> float | None:
        """The speed-up of the incumbent as the search knows it."""
        if self._state.baseline_ms is None or self._state.incumbent_ms is None:
            return None
        return self._state.baseline_ms / self._state.incumbent_ms

    @property
    def _is_float(self) -> bool:
        """Whether the incumbent, measured or not, is the float model."""
        return self._state.baseline_ms is not None and self._evolve is not None and not len(self.best_placement)

    @property
    def _final_speedup(self) -> Interval | None:
        """The speed-up of the final comparison; of the float model over itself there is nothing to measure."""
        if self._is_float:
            return Interval.exactly(1.0)
        return None if self._state.final is None else self._state.final.speedup

    @property
    def _compared(self) -> tuple[Interval, Interval] | None:
        """Latency in ms and speed-up of the incumbent, as the final comparison found them."""
        final = self._state.final
        found = None if final is None else final.speedup
        return None if final is None or found is None else (final.latency_ms, found)

    @property
    def profile_region(self) -> Region | None:
        """The region that is being profiled; after :meth:`load_state` the one that was when the state was saved."""
        profile = self._state.profile
        return None if profile is None else self._core.space.patterns[profile.signature].instances[0].region

    @property
    def records(self) -> list[SchemeRecord]:
        """Schemes generated for the current region."""
        return [] if self._state.profile is None else list(self._state.profile.records)

    def records_of(self, region: Region) -> list[SchemeRecord]:
        """Schemes generated so far for the pattern of ``region``, whether it is finished or at hand.

        Those of a finished pattern have the placement that their scheme gives on the present incumbent.
        """
        core, pattern = self._core, self.pattern_of(region)
        profile = self._state.profile
        if profile is not None and profile.signature == pattern.signature:
            return self.records
        finished = self._state.finished.get(pattern.signature, ())
        return [replace(r, index=i, placement=core.placement_of(pattern, r.scheme)) for i, r in enumerate(finished)]

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
