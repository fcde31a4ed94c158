"""The whole step-by-step search, with state, cache and failures taken care of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from inlay.autotuner.subject import SampleSource, Source
from inlay.autotuner.tuner import QDQAutotuner
from inlay.quant.accuracy import Bound
from inlay.regions.config import Config
from inlay.regions.tree import RegionGroup
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

    Every pattern is profiled once. The state is saved after every reading, and the same call continues from there, also
    after a kill. Where ``measure`` raises an exception, or returns what is no positive number (``inf``, ``nan``), the
    scheme has failed, is recorded, and the search goes on. Ctrl+C saves what was learned, and then propagates to the
    caller.

    Args:
        model: path of a model, or a model in memory.
        output_dir: gets ``model.onnx`` (the best one), ``state.yaml`` and ``pattern_cache.yaml``.
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
        UsageError: the float model could not be measured, or an argument is wrong.
        ModelError: a model cannot be read.
    """
    out = Path(output_dir)
    out.mkdir(parents=True, exist_ok=True)
    state = Path(state_file) if state_file is not None else out / "state.yaml"
    tuner = QDQAutotuner(model, rules=rules, samples=samples, bind=bind, bound=bound, labels=labels)
    candidate = out / "candidate.onnx"
    tuner.refuse_overwriting(candidate, out / "model.onnx", state, out / "pattern_cache.yaml")
    tuner.initialize(config, pattern_cache_file, nodes, regions)
    if state.exists():
        tuner.load_state(state)
    if qdq_baseline is not None:
        tuner.import_insertion_points(qdq_baseline)
    try:
        if tuner.baseline_latency_ms is None:
            tuner.export_onnx(candidate, insert_qdq=False)
            tuner.submit(measure(candidate))
            tuner.save_state(state)
        for region in tuner.regions:
            if tuner.pattern_of(region).signature in tuner.profiled_patterns:
                continue
            tuner.set_profile_region(region)
            while tuner.generate() is not None:
                tuner.export_onnx(candidate)
                try:
                    latency = float(measure(candidate))
                except Exception:  # whatever a user's function raises or returns is one failed scheme
                    tuner.submit(math.nan, success=False)
                else:
                    tuner.submit(latency)
                tuner.save_state(state)
            tuner.set_profile_region(None)
            tuner.save_state(state)
    finally:
        candidate.unlink(missing_ok=True)
        if tuner.baseline_latency_ms is not None:
            _finish(tuner, state, out)
    return tuner


def _finish(tuner: QDQAutotuner, state: Path, out: Path) -> None:
    tuner.save_state(state)
    tuner.pattern_cache().save(out / "pattern_cache.yaml")
    tuner.export_best(out / "model.onnx")
