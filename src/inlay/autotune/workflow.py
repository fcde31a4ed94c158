"""Whole tasks in one call: a search with state, cache and failures taken care of, and the placement of a Q/DQ model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from inlay.autotune.subject import SampleSource, Source
from inlay.autotune.tuner import RANDOM_RANGES, QDQAutotuner
from inlay.errors import TargetError, UsageError
from inlay.patterns.config import Config
from inlay.patterns.scheme_import import ImportReport
from inlay.patterns.tree import RegionGroup
from inlay.quant.accuracy import Bound
from inlay.space.rules import Rules
from inlay.types import Placement


def region_pattern_autotuning_workflow(
    model: Source,
    output_dir: str | Path,
    measure: Callable[[Path], float],
    *,
    config: Config | None = None,
    pattern_cache_file: str | Path | None = None,
    state_file: str | Path | None = None,
    qdq_baseline: Placement | Source | Iterable[str] | None = None,
    nodes: Iterable[str] | None = None,
    regions: Iterable[RegionGroup] | None = None,
    rules: Rules | None = None,
    samples: SampleSource | None = None,
    bind: Mapping[str, int] | None = None,
    bound: Bound | float | None = None,
    labels: np.ndarray | None = None,
) -> QDQAutotuner:
    """Tune a model with a latency function of your own.

    Every pattern is profiled once; then the float model and the best one are measured again, in turns, for the speed-up
    that is reported. The state is saved after every reading, and the same call continues from there, also after a kill.
    Ctrl+C saves what was learned, and then propagates to the caller.

    A scheme fails where ``measure`` says so: it returns ``inf``, ``nan`` or a number that is not positive, or raises
    TargetError. Any other exception, and any other value, may be an accident: the scheme is measured once more, and
    what had been measured before up to seven times more. After three schemes in a row that failed so, the best model so
    far is measured again: where that fails as well, ``measure`` is broken, and the workflow ends. In the end a warning
    tells how many readings failed, and why; ``tuner.failed_readings`` has it too.

    Args:
        model: path of a model, or a model in memory.
        output_dir: gets ``model.onnx`` (the best one), ``state.yaml`` with ``state.calibration.npz`` beside it, and
            ``pattern_cache.yaml``.
        measure: milliseconds per inference of the ONNX file it is given.
        config: settings.
        pattern_cache_file: schemes from earlier runs.
        state_file: instead of ``output_dir/state.yaml``.
        qdq_baseline: a quantized model, or its placement, as a seed (:meth:`QDQAutotuner.import_insertion_points`).
        nodes: globs over node names that restrict the search.
        regions: regions of your own (:meth:`QDQAutotuner.initialize`).
        rules: the target's table, as of :class:`QDQAutotuner`.
        samples: inputs to calibrate with; without any, ranges come from random data, and a warning says so.
        bind: sizes of dynamic dimensions by symbol.
        bound: what every accepted placement must keep.
        labels: one per sample, for the metric of ``bound``.

    Returns:
        The tuner, with its incumbent, its latency and its speed-up.

    Raises:
        UsageError: the float model could not be measured, ``measure`` is broken, or an argument is wrong. An exception
            that ``measure`` raises for the float model comes through.
        ModelError: a model cannot be read.
    """
    out = Path(output_dir)
    out.mkdir(parents=True, exist_ok=True)
    state = Path(state_file) if state_file is not None else out / "state.yaml"
    tuner = QDQAutotuner(model, rules=rules, samples=samples, bind=bind, bound=bound, labels=labels)
    candidate = out / "candidate.onnx"
    tuner.refuse_overwriting(candidate, out / "model.onnx", state, out / "pattern_cache.yaml")
    tuner.initialize(config, pattern_cache_file, nodes, regions)
    tuner.keep_calibration_beside(state)
    if state.exists():
        tuner.load_state(state)
    if qdq_baseline is not None:
        tuner.import_insertion_points(qdq_baseline)
    device = _Device(tuner, measure, candidate)
    try:
        if tuner.baseline_latency_ms is None:
            tuner.export_onnx(candidate, insert_qdq=False)
            tuner.submit(device.reading())
            tuner.save_state(state)
        for region in tuner.regions:
            if tuner.pattern_of(region).signature in tuner.profiled_patterns:
                continue
            tuner.set_profile_region(region)
            while tuner.generate() is not None:
                device.read()
                if not device.doubtful:
                    tuner.save_state(state)
            tuner.set_profile_region(None)
            if not device.doubtful:
                tuner.save_state(state)
        device.ask()
        while len(tuner.best_placement) and tuner.generate() is not None:
            device.read()
            tuner.save_state(state)
    finally:
        candidate.unlink(missing_ok=True)
        if tuner.baseline_latency_ms is not None:
            _finish(tuner, None if device.doubtful else state, out)
    if tuner.failed_readings:
        warnings.warn(_failures(tuner.failed_readings), stacklevel=2)
    return tuner


def _finish(tuner: QDQAutotuner, state: Path | None, out: Path) -> None:
    if state is not None:
        tuner.save_state(state)
    tuner.pattern_cache().save(out / "pattern_cache.yaml")
    tuner.export_best(out / "model.onnx")


def _failures(counts: Mapping[str, int]) -> str:
    """How many readings failed, and why, as one line."""
    usual = sorted(counts.items(), key=lambda item: -item[1])
    told = "; ".join(f"{count} x {reason}" for reason, count in usual[:_TOLD])
    more = f"; {sum(n for _, n in usual[_TOLD:])} for other reasons" if usual[_TOLD:] else ""
    total = sum(counts.values())
    return f"{total} {'reading' if total == 1 else 'readings'} failed: {told}{more}"


class _Device:
    """Measures what a tuner hands out, with a function that may raise anything.

    Attributes:
        doubtful: whether the last schemes all failed by exceptions, so that the function may be broken; the state is
            not saved then, and they come again.
    """

    def __init__(self, tuner: QDQAutotuner, measure: Callable[[Path], float], candidate: Path) -> None:
        self._tuner, self._measure, self._candidate = tuner, measure, candidate
        self._unsound = 0  # readings in a row that ended with an exception

    @property
    def doubtful(self) -> bool:
        return self._unsound > 0

    def read(self) -> None:
        """Measure what the tuner chose, and submit it. Raises UsageError where the function is broken."""
        self._tuner.export_onnx(self._candidate)
        try:
            latency = self.reading()
        except TargetError as error:
            self._unsound = 0
            self._tuner.submit(math.nan, success=False, reason=str(error))
        except Exception as error:  # a user's function raises anything: of its own fault, or of the model's
            self._unsound += 1
            if self._unsound >= _DOUBTED:
                self.ask()
            self._tuner.submit(math.nan, success=False, reason=_told(error), retry=True)
        else:
            self._unsound = 0
            self._tuner.submit(latency)

    def ask(self) -> None:
        """Measure the best model so far, where the last readings make that necessary.

        Raises:
            UsageError: that fails as well, though it had been measured before: nothing can be said of any scheme.
        """
        if not self._unsound:
            return
        self._tuner.export_best(self._candidate)
        for tries in range(1, _ASKED + 1):
            try:
                self.reading()
            except Exception as error:
                if tries == _ASKED:
                    raise UsageError(
                        f"measure failed {self._unsound + tries} times in a row, the last {tries} for a model that it "
                        f"had measured before: {_told(error)}. Mend it and call again: what was measured is kept"
                    ) from error
            else:
                break
        self._unsound = 0

    def reading(self) -> float:
        """Milliseconds that the function says of the candidate. Raises UsageError where that is no number."""
        found = self._measure(self._candidate)
        try:
            return float(found)
        except (TypeError, ValueError):
            raise UsageError(f"measure returned {repr(found)[:60]} where milliseconds are needed") from None


_DOUBTED = 6  # exceptions in a row, two for each of three schemes, after which the function is doubted
_ASKED = 6  # exceptions in a row for a model that had been measured before, after which the function is broken
_TOLD = 3  # reasons of failed readings that are told one by one


def _told(error: Exception) -> str:
    """An exception as one line: its type and text."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def placement_of(
    qdq_model: Source,
    model: Source | None = None,
    *,
    rules: Rules | None = None,
    samples: SampleSource | None = None,
    bind: Mapping[str, int] | None = None,
) -> ImportReport:
    """Extract the placement of a Q/DQ model of any origin, with a report of every site.

    Args:
        qdq_model: the quantized model.
        model: the float model whose ports the placement is to have; by default the one inside ``qdq_model``. In both
            cases the ports are those of the normalized model, as :class:`QDQAutotuner` has it.
        rules: as of :class:`QDQAutotuner`.
        samples: likewise; they show where Q/DQ pairs saturate.
        bind: likewise.

    Returns:
        ``report.placement`` is the placement, ``print(report)`` the summary.

    Raises:
        ModelError: a model cannot be read, or the quantized one not be taken apart.
        UsageError: it holds no Q/DQ nodes, or is another network's.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", RANDOM_RANGES)  # no ranges are computed
        tuner = QDQAutotuner(qdq_model if model is None else model, rules=rules, samples=samples, bind=bind)
    tuner.initialize()
    return tuner.import_insertion_points(qdq_model)
