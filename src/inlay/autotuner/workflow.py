"""The whole step-by-step search, with state, cache and failures taken care of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from inlay.autotuner.subject import SampleSource, Source
from inlay.autotuner.tuner import QDQAutotuner
from inlay.regions.config import Config
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
    qdq_baseline: Placement | None = None,
    nodes: Iterable[str] | None = None,
    rules: Rules | None = None,
    samples: SampleSource | None = None,
    bind: Mapping[str, int] | None = None,
) -> QDQAutotuner:
    """Tune a model with a latency function of your own.

    Every pattern is profiled once; the state is saved after each, and the same call continues from there. Schemes for
    which ``measure`` raises an exception count as failures. Ctrl+C saves the state and what was learned, and then
    propagates to the caller.

    Args:
        model: path of a model, or a model in memory.
        output_dir: gets ``model.onnx`` (the best one), ``state.yaml`` and ``pattern_cache.yaml``.
        measure: milliseconds per inference of the ONNX file it is given.
        config: settings.
        pattern_cache_file: schemes from earlier runs.
        state_file: instead of ``output_dir/state.yaml``.
        qdq_baseline: placement of a quantized model, as a seed.
        nodes: globs over node names that restrict the search.
        rules: the target's table.
        samples: inputs to calibrate with.
        bind: sizes of dynamic dimensions by symbol.

    Returns:
        The tuner, with its incumbent.
    """
    out = Path(output_dir)
    out.mkdir(parents=True, exist_ok=True)
    state = Path(state_file) if state_file is not None else out / "state.yaml"
    tuner = QDQAutotuner(model, rules=rules, samples=samples, bind=bind)
    candidate = out / "candidate.onnx"
    tuner.refuse_overwriting(candidate, out / "model.onnx", state, out / "pattern_cache.yaml")
    tuner.initialize(config, pattern_cache_file, nodes)
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
