"""The step-by-step tuner: which placement to measure next, and what to make of the latency."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from inlay.autotuner.duel import Duel, Spread
from inlay.autotuner.prepared import SampleSource, Source, Subject
from inlay.autotuner.state import SavedState, read_state, write_state
from inlay.errors import UsageError
from inlay.regions.cache import PatternCache
from inlay.regions.config import Config
from inlay.regions.evolve import Evolve, PatternSearch
from inlay.regions.scheme_import import ImportReport, import_placement, sites_of_values
from inlay.regions.schemes import InsertionScheme
from inlay.regions.search_space import RegionPattern, find_search_space
from inlay.regions.tree import Region
from inlay.space.rules import Rules
from inlay.targets.base import Capabilities, TargetSpec
from inlay.targets.registry import create
from inlay.trial import Accuracy, Failed, Interval, Latency, Measured, Outcome, Proposal, Trial
from inlay.types import Placement, Port, QType

_UNJUDGED = Accuracy(feasible=True, sqnr_db=math.nan, reason="accuracy is not judged in the step-by-step API")


@dataclass(frozen=True)
class SchemeRecord:
    """What is known of one scheme that was generated for a region's pattern.

    Attributes:
        index: as :meth:`QDQAutotuner.generate` returned it.
        scheme: the insertion points.
        placement: what it amounted to when it was generated.
        latency_ms: last reading, or None.
        failed: whether it was submitted as a failure.
        accepted: whether it became the incumbent.
    """

    index: int
    scheme: InsertionScheme
    placement: Placement
    latency_ms: float | None = None
    failed: bool = False
    accepted: bool = False


class QDQAutotuner:
    """Tunes Q/DQ placement one region pattern at a time, with latencies that the caller measures.

    Args:
        model: path of a model, an ``onnx.ModelProto`` or an ``onnx_ir.Model``. Models that are quantized already
        should be
            stripped first; import their placement with :meth:`import_insertion_points`.
        rules: what the target runs in low precision; ONNX Runtime on this machine's CPU by default.
        samples: inputs to calibrate with, as ``--data`` takes them, or an iterable of feeds. Without any, random ones
            are used: latencies are real then, outputs are not.

    Raises:
        ModelError: the model cannot be read.
        DataError: the samples do not fit it.
    """

    def __init__(self, model: Source, *, rules: Rules | None = None, samples: SampleSource | None = None) -> None:
        target = Capabilities(rules) if rules is not None else Capabilities.of(create(TargetSpec("ort-cpu")))
        self._rules = target.rules
        self._prepared = Subject(model, target, samples)
        self._evolve: Evolve | None = None
        self._baseline_ms: float | None = None
        self._incumbent_ms: float | None = None
        self._region: Region | None = None
        self._state: PatternSearch | None = None
        self._records: list[SchemeRecord] = []
        self._before: Any = None
        self._pending: tuple[int, Proposal] | None = None
        self._duel: Duel | None = None
        self._turn: Placement | None = None
        self._first_ms = math.nan
        self._spread = Spread()
        self._profiled: dict[str, int] = {}

    def initialize(
        self,
        config: Config | None = None,
        pattern_cache: PatternCache | str | Path | None = None,
        nodes: Iterable[str] | None = None,
    ) -> None:
        """Find regions, patterns and insertion points, and start from float.

        Args:
            config: settings.
            pattern_cache: schemes from earlier runs, or the path of their file; they are tried first.
            nodes: globs over node names that restrict the search.

        Raises:
            UsageError: the cache cannot be read, or a glob matches nothing.
        """
        config = config or Config()
        cache = PatternCache.load(pattern_cache) if isinstance(pattern_cache, (str, Path)) else pattern_cache
        space = find_search_space(
            self._prepared.graph,
            self._rules,
            maximum_sequence_region_size=config.maximum_sequence_region_size,
            minimum_topdown_search_size=config.minimum_topdown_search_size,
            nodes=nodes,
        )
        rng = np.random.default_rng(config.seed)
        self._evolve = Evolve(self._prepared.graph, self._rules, None, config, rng, cache, space)
        self._baseline_ms = self._incumbent_ms = None
        self._spread = Spread()
        self._profiled = {}
        self._leave()

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
    def baseline_latency_ms(self) -> float | None:
        """The first latency submitted; None before that."""
        return self._baseline_ms

    @property
    def records(self) -> list[SchemeRecord]:
        """Schemes generated for the current region."""
        return list(self._records)

    @property
    def profiled_patterns(self) -> Mapping[str, int]:
        """Number of schemes measured, by signature of the patterns whose search is finished."""
        return dict(self._profiled)

    @property
    def best_placement(self) -> Placement:
        """The incumbent: float, or what was accepted so far."""
        return self._core.incumbent

    def set_profile_region(self, region: Region | None, commit: bool = True) -> None:
        """Finish the current region and begin with ``region`` (None: only finish).

        Args:
            region: one of this model's regions.
            commit: keep what was accepted for the current region; otherwise return to the placement before it.

        Raises:
            UsageError: no baseline was submitted yet, a latency is still awaited, or the region is another model's.
        """
        core = self._core
        if self._pending is not None:
            raise UsageError("set_profile_region: submit the latency of the generated scheme first")
        if self._state is not None:
            if commit:
                self._profiled[self._state.pattern.signature] = sum(not r.failed for r in self._records[1:])
            else:
                core.best = self._before[0]
                self._incumbent_ms = self._before[1]
        self._leave()
        if region is None:
            return
        if self._baseline_ms is None:
            raise UsageError("set_profile_region: submit the latency of the float model first")
        known = core.space.tree.regions
        if region.id >= len(known) or known[region.id] is not region:
            raise UsageError(f"region {region.id} is not one of this model's: take it from .regions")
        self._before = (core.best, self._incumbent_ms)
        self._region = region
        self._state = core.search_of(core.space.pattern_of[region.id])
        start = core.current(self._state.pattern)
        self._records = [SchemeRecord(0, start, core.incumbent, self._incumbent_ms)]

    def generate(self) -> int | None:
        """Choose what to measure next.

        Returns:
            Index of a scheme of the current region, to be exported, measured and submitted; None when the region is
            done. An index may come again: then the scheme is measured once more, to tell luck from speed
            (``Config.confirmations``). Index 0 is the scheme that the region started from.

        Raises:
            UsageError: no region is being profiled, or a latency is still awaited.
        """
        if self._state is None:
            raise UsageError("generate: choose a region with set_profile_region first")
        if self._turn is not None or (self._pending is not None and self._duel is None):
            raise UsageError("generate: submit the latency of the generated scheme first")
        core = self._core
        if self._duel is not None and self._pending is not None:
            index, proposal = self._pending
            candidate = self._duel.candidate_next
            self._turn = proposal.placement if candidate else core.incumbent
            return index if candidate else self._incumbent_index()
        found = core.next_candidate(self._state)
        if found is None:
            return None
        assert found.scheme is not None
        index = len(self._records)
        origin = f"step by step: {self._state.pattern.signature[:8]}, {found.how}"
        self._pending = (index, core.propose(found, origin))
        self._records.append(SchemeRecord(index, found.scheme, found.placement))
        self._turn = found.placement
        return index

    def export_onnx(self, path: str | Path | None = None, insert_qdq: bool = True) -> bytes:
        """Write the model to be measured: the scheme last generated, or the incumbent when none is awaited.

        Args:
            path: file to write; None only returns the bytes.
            insert_qdq: False writes the normalized float model.

        Returns:
            The serialized model; the file holds the same bytes.

        Raises:
            UsageError: the file cannot be written.
        """
        placement = Placement()
        if insert_qdq:
            placement = self._core.incumbent if self._turn is None else self._turn
        return self._write(placement, path)

    def export_best(self, path: str | Path | None = None) -> bytes:
        """Write the incumbent, whatever is awaited; otherwise as :meth:`export_onnx`."""
        return self._write(self._core.incumbent, path)

    def _write(self, placement: Placement, path: str | Path | None) -> bytes:
        data = bytes(self._prepared.emit(placement).SerializeToString())
        if path is not None:
            try:
                Path(path).write_bytes(data)
            except OSError as error:
                raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
        return data

    def submit(self, latency_ms: float, success: bool = True) -> None:
        """Report a latency: first the float model's, then each generated scheme's.

        Args:
            latency_ms: milliseconds per inference; its value does not count when ``success`` is False.
            success: whether the model could be built and run.

        Raises:
            UsageError: nothing was generated, or the latency is not a positive number.
        """
        if success and not (math.isfinite(latency_ms) and latency_ms > 0):
            raise UsageError(f"submit: a latency is a positive number of milliseconds, not {latency_ms}")
        if self._baseline_ms is None:
            if not success:
                raise UsageError("submit: the float model must run before anything can be compared with it")
            self._baseline_ms = self._incumbent_ms = float(latency_ms)
            return
        if self._pending is None or self._turn is None:
            raise UsageError("submit: generate a scheme first")
        self._turn = None
        if not success:
            self._finish(Failed("run", "submitted as a failure"), None, False)
        elif self._duel is None:
            self._first(float(latency_ms))
        else:
            self._next_turn(float(latency_ms))

    def import_insertion_points(self, placement: Placement | Iterable[str], qtype: QType | None = None) -> ImportReport:
        """Take the placement of a quantized model as a seed: what it amounts to is tried first in every pattern.

        Args:
            placement: ports, or names of quantized values (all whose consumers read Q/DQ).
            qtype: type of values given by name; the target's activation type by default.

        Returns:
            Every site, imported or listed with the reason why not.
        """
        core = self._core
        sites: Iterable[tuple[Port, QType]]
        if isinstance(placement, Placement):
            sites = placement
        else:
            sites = sites_of_values(core.space.graph, placement, qtype or self._rules.activation)
        report = import_placement(core.space, sites)
        core.add_seed(report.placement)
        return report

    def pattern_cache(self) -> PatternCache:
        """What was learned so far, for ``initialize`` of a later run."""
        return self._core.learned()

    def save_state(self, path: str | Path) -> None:
        """Write the incumbent and the finished patterns as YAML; the file is complete or not there at all.

        Raises:
            UsageError: it cannot be written.
        """
        core = self._core
        write_state(
            Path(path),
            SavedState(
                self._prepared.sha256,
                self._baseline_ms,
                self._incumbent_ms,
                dict(self._profiled),
                core.incumbent,
                core.learned(),
            ),
            core.config,
        )

    def load_state(self, path: str | Path) -> None:
        """Go on from :meth:`save_state`: its incumbent, baseline, finished patterns and cache.

        Settings stay those of :meth:`initialize`.

        Raises:
            JournalError: it belongs to another model.
            UsageError: it cannot be read, or is not a saved state.
        """
        core = self._core
        saved = read_state(Path(path), self._prepared.sha256, self._prepared.graph)
        self._baseline_ms, self._incumbent_ms = saved.baseline_ms, saved.incumbent_ms
        speedup = None
        if saved.baseline_ms is not None and saved.incumbent_ms is not None:
            speedup = saved.baseline_ms / saved.incumbent_ms
        self._evolve = Evolve(
            self._prepared.graph,
            self._rules,
            saved.placement,
            core.config,
            np.random.default_rng(core.config.seed),
            saved.cache,
            core.space,
            base_speedup=speedup,
        )
        self._profiled = dict(saved.profiled)
        self._leave()

    @property
    def _core(self) -> Evolve:
        if self._evolve is None:
            raise UsageError("call initialize first")
        return self._evolve

    def _leave(self) -> None:
        self._region = self._state = self._pending = self._duel = self._turn = None
        self._records = []

    def _incumbent_index(self) -> int:
        accepted = [r.index for r in self._records if r.accepted]
        return accepted[-1] if accepted else 0

    def _first(self, latency_ms: float) -> None:
        """The first reading of a scheme: dismissed at once, believed at once, or to be confirmed."""
        assert self._incumbent_ms is not None
        ratio = self._incumbent_ms / latency_ms
        threshold = self._core.config.performance_threshold
        turns = self._core.config.confirmations
        self._first_ms = latency_ms
        if ratio <= 1 or ratio < threshold or not turns:
            self._finish(self._measured(latency_ms), ratio, ratio > 1 and ratio >= threshold)
        else:
            self._duel = Duel(turns)

    def _next_turn(self, latency_ms: float) -> None:
        assert self._duel is not None
        (self._duel.candidate_ms if self._duel.candidate_next else self._duel.incumbent_ms).append(latency_ms)
        threshold = self._core.config.performance_threshold
        if not self._duel.finished and not self._duel.hopeless(threshold):
            return
        duel, self._duel = self._duel, None
        accepted, ratio = duel.verdict(threshold, self._spread)
        assert self._incumbent_ms is not None
        self._finish(self._measured(self._incumbent_ms / ratio), ratio, accepted)

    def _measured(self, latency_ms: float) -> Measured:
        assert self._baseline_ms is not None
        speedup = self._baseline_ms / latency_ms
        return Measured(Latency(latency_ms * 1e6, Interval(speedup, speedup, speedup), 1), _UNJUDGED)

    def _finish(self, outcome: Outcome, ratio: float | None, accepted: bool) -> None:
        assert self._pending is not None
        (index, proposal), self._pending, self._duel = self._pending, None, None
        versus = None if ratio is None else Interval(ratio, ratio, ratio)
        self._core.tell(Trial(proposal, outcome, accepted, versus))
        latency = outcome.latency.ns / 1e6 if isinstance(outcome, Measured) else None
        if accepted:
            self._incumbent_ms = latency
        record = self._records[index]
        self._records[index] = SchemeRecord(
            index, record.scheme, record.placement, latency, isinstance(outcome, Failed), accepted
        )
