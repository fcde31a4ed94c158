"""The step-by-step tuner: which placement to measure next, and what follows from its latency.

:class:`QDQAutotuner` joins two things: the strategy (:class:`~inlay.patterns.evolve.Evolve`), which proposes schemes,
and the frozen :class:`~inlay.autotune.state.TunerState`, which every call replaces by its successor.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from inlay.autotune import state as transitions
from inlay.autotune.findings import Findings, reporter
from inlay.autotune.state import TunerState
from inlay.autotune.state_file import read_state, resumed, write_state
from inlay.autotune.subject import SampleSource, Source, Subject, beside
from inlay.errors import UsageError
from inlay.files import refuse_overwriting, replacing
from inlay.model.graph import Graph
from inlay.patterns.cache import PatternCache
from inlay.patterns.config import Config
from inlay.patterns.evolve import Evolve, PatternSearch
from inlay.patterns.scheme_import import ImportReport, import_placement, sites_of_values
from inlay.patterns.search_space import RegionPattern, find_search_space
from inlay.patterns.tree import Region, RegionGroup
from inlay.quant.accuracy import Bound
from inlay.space.rules import Rules
from inlay.targets.base import Capabilities, TargetSpec
from inlay.targets.registry import DEFAULT_TARGET, create
from inlay.trial import plain
from inlay.types import Placement, Port, QType

RANDOM_RANGES = "ranges come from random data, since no samples were given: outputs of the models mean little"
"""What a tuner without samples warns of."""


class QDQAutotuner(Findings):
    """Tunes Q/DQ placement one region pattern at a time, with latencies that the caller measures.

    Args:
        model: path of a model, an ``onnx.ModelProto`` or an ``onnx_ir.Model``. A model that is quantized already is
            taken apart; :meth:`import_insertion_points` makes its placement a seed.
        rules: what the target runs in low precision; ONNX Runtime on this machine's CPU by default.
        samples: inputs to calibrate with, as ``--data`` takes them, or an iterable of feeds. Without any, random ones
            are used, and a warning says so: latencies are real then, outputs are not.
        bind: sizes of dynamic dimensions by symbol; 1 for a batch without one where there are no samples.
        bound: what every accepted placement must keep on samples that its ranges do not come from: the least SQNR in
            dB, or a :class:`~inlay.quant.accuracy.Bound`. None for no bound. A scheme outside it is not handed out.
        labels: one per sample, for the metric of ``bound``.

    Raises:
        ModelError: the model cannot be read.
        DataError: the samples do not fit it.
        UsageError: without samples, a dynamic dimension has no size or a bound is given; the metric is not known.
    """

    def __init__(
        self,
        model: Source,
        *,
        rules: Rules | None = None,
        samples: SampleSource | None = None,
        bind: Mapping[str, int] | None = None,
        bound: Bound | float | None = None,
        labels: np.ndarray | None = None,
    ) -> None:
        target = Capabilities(rules) if rules is not None else Capabilities.of(create(TargetSpec(DEFAULT_TARGET)))
        self._subject = Subject(model, target, samples, bind, bound, labels)
        if self._subject.samples_kind == "random":
            warnings.warn(RANDOM_RANGES, stacklevel=2)
        self._evolve: Evolve | None = None
        self._search: PatternSearch | None = None  # of the pattern that is being profiled
        self._exhausted = False  # whether the region at hand has no schemes left
        self._state = TunerState()

    def initialize(
        self,
        config: Config | None = None,
        pattern_cache: PatternCache | str | Path | None = None,
        nodes: Iterable[str] | None = None,
        regions: Iterable[RegionGroup] | None = None,
    ) -> None:
        """Find regions, patterns and insertion points, and start from float.

        Args:
            config: settings.
            pattern_cache: schemes from earlier runs, or the path of their file; they are tried first.
            nodes: globs over node names that restrict the search.
            regions: regions of your own: each a list of names of nodes (of :attr:`graph`), or of such regions. Nodes
                in none of them become regions as they come. None for those of :meth:`find_groups`.

        Raises:
            UsageError: the cache cannot be read, a glob matches nothing, the target lacks
                ``config.default_quant_type``, or ``regions`` name a node that does not exist or is in another one.
        """
        config = config or Config()
        cache = PatternCache.load(pattern_cache) if isinstance(pattern_cache, (str, Path)) else pattern_cache
        if config.default_quant_type is not None:
            self._subject.quantize_as(config.default_quant_type)
        groups = self.find_groups(self.graph) if regions is None else regions
        space = find_search_space(self.graph, self.rules, nodes, config=config, groups=groups)
        self._log = reporter(config.verbose)
        self._cache = PatternCache() if cache is None else cache
        self._evolve = Evolve(space, config=config, cache=cache)
        self._seeds: list[Placement] = []
        self._search, self._exhausted, self._state = None, False, TunerState()
        self._log(f"{len(space.tree.regions)} regions, {len(space.in_search_order())} patterns with insertion points")
        if cache is not None:
            self._log(f"pattern cache: {self.coverage}")

    def find_groups(self, graph: Graph) -> Iterable[RegionGroup] | None:
        """Regions of ``graph`` as ``initialize`` takes them, for a subclass to override; None finds them as usual."""
        return None

    def set_profile_region(self, region: Region | None, commit: bool = True) -> None:
        """Finish the current region and begin with ``region`` (None: only finish).

        A promising scheme whose turns against the incumbent (``Config.confirmations``) are not over is not lost:
        ``generate`` goes on with it in the next region; without one it is decided by the turns that there were. The
        current region again is not begun anew, but goes on.

        Args:
            region: one of this model's regions.
            commit: keep what was accepted for the current region; otherwise return to the placement before it.

        Raises:
            UsageError: no baseline was submitted yet, a scheme still waits for its latency, or the region is another
                model's.
        """
        core, profile, pending = self._core, self._state.profile, self._state.pending
        if pending is not None and pending.measured is not None:
            raise UsageError("set_profile_region: submit the latency of the generated scheme first")
        pattern = None if region is None else self._own_pattern(region)
        if commit and profile is not None and pattern is not None and pattern.signature == profile.signature:
            return  # it goes on, as after load_state
        self._exhausted = False
        if profile is not None and not commit:
            core.best = profile.before[0]
        self._state = transitions.committed(self._state) if commit else transitions.reverted(self._state)
        if pattern is None:
            self._state, trial = transitions.settled(self._state, self._least_gain)
            if trial is not None:
                core.tell(trial)
            return
        if self._state.baseline_ms is None:
            raise UsageError("set_profile_region: submit the latency of the float model first")
        incumbent = core.best
        self._search = core.search_of(pattern)
        self._state = transitions.start_region(self._state, pattern.signature, incumbent, core.current(pattern))

    def _own_pattern(self, region: Region) -> RegionPattern:
        known = self._core.space.tree.regions
        if region.id >= len(known) or known[region.id] is not region:
            raise UsageError(f"region {region.id} is not one of this model's: take it from .regions")
        return self.pattern_of(region)

    def generate(self) -> int | None:
        """Choose what to measure next.

        Returns:
            Index of a scheme of the current region, to be exported, measured and submitted; None when the region is
            done (what is submitted then is one more reading of the incumbent). An index may come again: then the
            scheme is measured once more, to tell luck from speed (``Config.confirmations``). Index 0 is the scheme that
            the region started from.

            After ``set_profile_region(None)``, when all regions are done, it is the final comparison that goes on: 0
            for the float model, 1 for the incumbent, in turns, until the interval of :attr:`speedup` is narrow or
            there are ``Config.final_pairs``; None when it is over, or nothing was accepted.

        Raises:
            UsageError: no region was chosen, or a scheme still waits for its latency.
        """
        core, profile = self._core, self._state.profile
        if profile is None or self._search is None:
            return self._final_turn()
        if profile.pending is not None:
            if profile.pending.measured is not None:
                raise UsageError("generate: submit the latency of the generated scheme first")
            self._state, index = transitions.next_turn(self._state, core.incumbent)
            return index
        while (found := core.known_together(self._search) or core.next_candidate(self._search)) is not None:
            assert found.scheme is not None, "a candidate of a pattern's search tries a scheme"
            proposal = core.propose(found, f"step by step: {profile.signature[:8]}, {found.how}")
            self._state = transitions.generated(self._state, found.scheme, proposal)
            index = self.records[-1].index
            accuracy = self._subject.judge(found.placement)
            if accuracy is None or accuracy.feasible:
                self._log(f"scheme {index} of {profile.signature[:8]}: {found.how}")
                return index
            self._state, trial = transitions.refused(self._state, accuracy)
            core.tell(trial)
            self._log(f"scheme {index} of {profile.signature[:8]} is not measured: {accuracy.reason}")
        self._exhausted = True
        return None

    def _final_turn(self) -> int | None:
        """Whose turn it is in the final comparison."""
        state, pairs = self._state, self._core.config.final_pairs
        if not state.profiled and not len(self._core.incumbent):
            raise UsageError("generate: choose a region with set_profile_region first")
        if state.final is not None and state.final.waiting:
            raise UsageError("generate: submit the latency of the model that was handed out first")
        if len(self._core.incumbent) and pairs:
            self._state = transitions.compared(state, pairs)
        final = self._state.final
        if final is None or not final.waiting:
            self._exhausted = True
            return None
        return int(final.tuned_next)

    def export_onnx(self, path: str | Path | None = None, insert_qdq: bool = True) -> bytes:
        """Write the model that ``generate`` chose to measure, or the incumbent when no latency is awaited.

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
            pending, final = self._state.pending, self._state.final
            measured = None if pending is None else pending.measured
            if final is not None and final.waiting and not final.tuned_next:
                measured = Placement()
            placement = self._core.incumbent if measured is None else measured
        return self._write(placement, path)

    def export_best(self, path: str | Path | None = None) -> bytes:
        """Write the incumbent, latency awaited or not, as :meth:`export_onnx`; warn where the given file changed."""
        self._subject.warn_of_change()
        return self._write(self._core.incumbent, path)

    def _write(self, placement: Placement, path: str | Path | None) -> bytes:
        data = bytes(self._subject.emit(placement).SerializeToString())
        if path is not None:
            self.refuse_overwriting(path)
            with replacing(Path(path), UsageError) as fresh:
                fresh.write_bytes(data)
        return data

    def refuse_overwriting(self, *paths: str | Path) -> None:
        """Raise UsageError where one of ``paths`` is the model or a file of samples."""
        refuse_overwriting(map(Path, paths), self._subject.files)

    def submit(self, latency_ms: float, success: bool = True, reason: str = "", retry: bool = False) -> None:
        """Report a latency: first the float model's, then that of what ``generate`` chose.

        Where a reading fails of a model that had been measured before, ``generate`` asks for another one.

        Args:
            latency_ms: milliseconds per inference. Where it is not a positive number (``inf``, ``nan``), the reading
                failed.
            success: whether the model could be built and run.
            reason: why not, for :attr:`records` and :attr:`failed_readings`.
            retry: whether the failure may be the measurement's: then a scheme that has no reading yet comes once more.

        Raises:
            UsageError: :meth:`initialize` was not called, nothing was generated, or the float model failed.
        """
        core = self._core
        usable = success and math.isfinite(latency_ms) and latency_ms > 0
        if self._state.baseline_ms is None:
            if not success:
                raise UsageError("submit: the float model must run before anything can be compared with it")
            if not usable:
                raise UsageError(
                    f"submit: a latency of the float model is a positive number of milliseconds, not {latency_ms}"
                )
            self._state = transitions.with_baseline(self._state, float(latency_ms))
            return
        if not usable and not reason:
            reason = "submitted as a failure" if not success else f"no latency: {latency_ms}"
        pending, final = self._state.pending, self._state.final
        if pending is None and final is not None and final.waiting:
            self._state = transitions.compared_with(self._state, float(latency_ms) if usable else None, reason)
            return
        if pending is None and self._exhausted:
            return
        if pending is None or pending.measured is None:
            raise UsageError("submit: generate a scheme first")
        reading = float(latency_ms) if usable else None
        turns = core.config.confirmations
        self._state, trial = transitions.submitted(self._state, reading, self._least_gain, turns, reason, retry)
        if trial is not None:
            core.tell(trial)
            self._log(
                f"{plain(self._state.incumbent_ms, 4)} ms, {self._estimate:.3f}x" if trial.accepted else "not accepted"
            )
            profile = self._state.profile
            if trial.accepted and profile is not None and profile.records[pending.index].signature != profile.signature:
                before = (core.best, self._state.incumbent_ms)  # of an earlier region, and stays with it
                self._state = replace(self._state, profile=replace(profile, before=before))

    @property
    def _least_gain(self) -> float:
        """Speedup over the incumbent that a scheme needs."""
        return self._core.config.least_gain(self._estimate or 1.0)

    def import_insertion_points(
        self, placement: Placement | Source | Iterable[str], qtype: QType | None = None
    ) -> ImportReport:
        """Use the placement of a quantized model as a seed: its schemes are tried first in every pattern.

        Args:
            placement: a Q/DQ model of the same network (a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``); ports;
                or an iterable of names of quantized values (all whose consumers read Q/DQ).
            qtype: type of values given by name; the target's activation type by default.

        Returns:
            Every site, imported or listed with the reason why not.

        Raises:
            ModelError: the Q/DQ model cannot be read, or not be taken apart.
            UsageError: it holds no Q/DQ nodes, or is another network's.
        """
        core = self._core
        lost: list[tuple[str, str]] = []
        within: list[tuple[str, str]] = []
        sites: Iterable[tuple[Port, QType]]
        if isinstance(placement, (str, Path, onnx.ModelProto, ir.Model)):
            sites, missing = self._subject.placement_in(placement)
            for site in missing:
                (within if site.within else lost).append((site.node, site.reason))
        elif isinstance(placement, Placement):
            sites = placement
        else:
            sites = sites_of_values(core.space.graph, placement, qtype or self.rules.activation)
        report = import_placement(core.space, sites, lost, within)
        core.add_seed(report.placement)
        self._seeds.append(report.placement)
        self._log(str(report))
        return report

    def pattern_cache(self) -> PatternCache:
        """What was learned so far, for ``initialize`` of a later run."""
        return self._core.learned()

    def save_state(self, path: str | Path) -> None:
        """Write all that was measured as YAML; the file is complete or not there at all.

        That includes the region at hand: what a search has learned is saved after any ``submit``. What calibration
        found is kept beside it, once, in a file whose name ends with ``.calibration.npz``.

        Raises:
            UsageError: it cannot be written.
        """
        self.refuse_overwriting(path)
        self.keep_calibration_beside(path)
        write_state(Path(path), self._subject.sha256, self._state, self._core)

    def load_state(self, path: str | Path) -> None:
        """Continue from :meth:`save_state`; :attr:`profile_region` is the region at hand.

        Settings stay those of :meth:`initialize`, and so do its cache and what was imported. The calibration is the one
        that is kept beside the state, unless model, samples, rules or versions are others, or it is damaged: then the
        model is calibrated again.

        Raises:
            JournalError: it belongs to another model.
            UsageError: it cannot be read, or is not a saved state.
        """
        state = read_state(Path(path), self._subject.sha256, self._subject.graph)
        self.keep_calibration_beside(path)
        self._evolve = self._fresh_core(state.cache)
        self._state = resumed(state, self._evolve)
        profile = self._state.profile
        self._search = None if profile is None else self._evolve.searches[profile.signature]
        self._exhausted = False

    def keep_calibration_beside(self, state: str | Path) -> None:
        """Keep what calibration finds beside ``state`` as soon as it is known; errors as of :meth:`save_state`."""
        place = beside(Path(state))
        self.refuse_overwriting(place)
        self._subject.keep_calibration(place)

    def _fresh_core(self, learned: PatternCache) -> Evolve:
        """A search that knows what was given, and what an earlier session learned."""
        core = self._core
        cache = PatternCache(learned.minimum_distance, learned.max_entries_per_pattern)
        for known in (learned, self._cache):
            cache.merge(known)
        return Evolve(core.space, config=core.config, cache=cache, seeds=self._seeds)
