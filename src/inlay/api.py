"""The commands as functions, with the same arguments as on the command line."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from inlay.data import InputSpec, Samples, input_specs, random_samples, read_labels, read_samples, save_feed
from inlay.errors import CompileFailed, InlayError, ModelError, UsageError
from inlay.measure.client import Worker
from inlay.measure.stats import speedup
from inlay.model.load import load
from inlay.prepare.config import (
    DEFAULT_BUDGET_S,
    DEFAULT_MIN_SQNR_DB,
    STRATEGIES,
    TuneConfig,
    parse_bind,
    parse_duration,
    parse_share,
)
from inlay.prepare.model import prepare
from inlay.quant.accuracy import Bound, find_metric
from inlay.regions.cache import PatternCache
from inlay.regions.search_space import SearchSpace
from inlay.run import quantize as oneshot
from inlay.run import select as _selection
from inlay.run import tune as tuning
from inlay.run.progress import Progress
from inlay.run.quantize import Quantized
from inlay.run.result import TuneResult
from inlay.run.select import Selected
from inlay.space.recipe import Recipe
from inlay.space.recipe_file import find_recipe
from inlay.targets.base import Artifact, Capabilities, TargetSpec
from inlay.targets.registry import available, create
from inlay.trial import Interval

DataSource = str | Path | Iterable[Mapping[str, np.ndarray]] | None
_RANDOM_SAMPLES = 8


def tune(
    model: str | Path,
    *,
    out: str | Path = "inlay-out",
    target: str | TargetSpec = "ort-cpu",
    data: DataSource = None,
    labels: str | Path | np.ndarray | None = None,
    metric: str | None = None,
    max_drop: str | float | None = None,
    min_sqnr: float | None = None,
    no_bound: bool = False,
    budget: str | float | None = DEFAULT_BUDGET_S,
    max_measurements: int | None = None,
    max_builds: int | None = None,
    threads: int = 1,
    bind: Sequence[str] | Mapping[str, int] = (),
    seed: int = 0,
    qdq_baseline: str | Path | None = None,
    keep_qparams: bool = False,
    cost_db: bool = True,
    strategy: str = "auto",
    schemes_per_region: int = 30,
    pattern_cache: str | Path | None = None,
    nodes: Sequence[str] = (),
    recipe: str | Path | Recipe | None = None,
    restart: bool = False,
    progress: Progress | None = None,
) -> TuneResult:
    """Find the fastest placement of Q/DQ nodes that keeps the accuracy bound.

    Args:
        model: the ONNX model.
        out: folder for ``model.onnx``, ``result.json`` and ``run.sqlite``. The same call on it continues the run.
        target: name of an installed target, or a name with options.
        data: samples: a ``.npz``, a folder, ``module:function``, or feeds ({input: array}); None for random inputs.
        labels: one per sample: a file, or an array.
        metric: ``top1``, ``sqnr``, or ``module:function`` of (outputs, labels) where larger is better.
        max_drop: most that the metric may fall below float: 0.005, or "0.5%". 1 % where only a metric is given.
        min_sqnr: least SQNR in dB of the worst output; 20 where neither it nor a metric is given.
        no_bound: do not bound the accuracy.
        budget: seconds (or a text such as "10m") of search; None or "none" for no limit.
        max_measurements: most candidates to time.
        max_builds: most models to build during the search, probes and profiles included.
        threads: of the runtime.
        bind: sizes of dynamic dimensions.
        seed: of every random choice.
        qdq_baseline: a Q/DQ model to start from and to beat.
        keep_qparams: use the numbers that came with a Q/DQ model.
        cost_db: start from the costs that earlier runs on this target learned, and add this one's.
        strategy: ``auto``, ``guided`` (cost model), ``evolve`` (region patterns), ``refine``, or ``anchors``.
        schemes_per_region: most placements that evolution tries for one pattern.
        pattern_cache: a file of schemes from earlier runs, which are tried first.
        nodes: globs over node names; only matching nodes may be quantized.
        recipe: rules, or a file of them; nodes that they keep in float stay float.
        restart: forget an earlier run in ``out``.
        progress: is told what happens.

    Raises:
        InlayError: see :mod:`inlay.errors`.
    """
    spec = _spec(target, threads)
    file = load(model)
    specs = input_specs(file.model)
    sizes = dict(bind) if isinstance(bind, Mapping) else parse_bind(list(bind))
    samples = _samples(data, specs)
    if labels is not None:
        if samples is None:
            raise UsageError("--labels without --data: labels belong to samples")
        array = labels if isinstance(labels, np.ndarray) else read_labels(labels, len(samples))
        samples = replace(samples, labels=array)
    function = find_metric(metric, None if samples is None else samples.labels)
    bound = _bound(metric, max_drop, min_sqnr, no_bound)
    config = TuneConfig(
        target=spec,
        bound=bound,
        bind=sizes,
        seed=seed,
        budget_s=_seconds(budget),
        max_measurements=max_measurements,
        max_builds=max_builds,
        qdq_baseline=None if qdq_baseline is None else Path(qdq_baseline),
        keep_qparams=keep_qparams,
        cost_db=cost_db,
        strategy=strategy,
        schemes_per_region=schemes_per_region,
        pattern_cache=None if pattern_cache is None else Path(pattern_cache),
        nodes=tuple(nodes),
        recipe=None if recipe is None else find_recipe(recipe),
    )
    if strategy not in STRATEGIES:
        raise UsageError(f"--strategy {strategy}: give {', '.join(STRATEGIES)}")
    if config.pattern_cache is not None:
        PatternCache.load(config.pattern_cache)  # a cache that cannot be read is said before any work is done
    return tuning.tune(file, out, samples, config, function, restart, progress)


@dataclass(frozen=True)
class BenchRow:
    """One model of a comparison: median milliseconds, and the first model's latency over its own."""

    path: Path
    latency_ms: float
    speedup: Interval
    blocks: int


def bench(
    models: Sequence[str | Path],
    *,
    target: str | TargetSpec = "ort-cpu",
    data: DataSource = None,
    blocks: int = 10,
    processes: int = 2,
    threads: int = 1,
    bind: Sequence[str] | Mapping[str, int] = (),
    seed: int = 0,
) -> list[BenchRow]:
    """Compare models that take the same inputs; ratios are to the first.

    Raises:
        UsageError: fewer than two models.
        InlayError: a model cannot be read, built or run.
    """
    if len(models) < 2:
        raise UsageError("bench compares models: give two or more")
    files = [load(m) for m in models]
    specs = input_specs(files[0].model)
    for file in files[1:]:
        names = [s.name for s in input_specs(file.model)]
        if names != [s.name for s in specs]:
            raise UsageError(f"{file.path} takes the inputs {names}, {files[0].path} takes {[s.name for s in specs]}")
    sizes = dict(bind) if isinstance(bind, Mapping) else parse_bind(list(bind))
    rng = np.random.default_rng(seed)
    samples = _samples(data, specs) or random_samples(specs, sizes, rng, 1)
    artifacts = [Artifact(f.path.resolve(), f"{i}-{f.sha256}") for i, f in enumerate(files)]
    readings = []
    with tempfile.TemporaryDirectory() as folder:
        feed = Path(folder) / "feed.npz"
        save_feed(feed, samples.feeds[0])
        for _ in range(processes):
            with Worker(_spec(target, threads), Path(folder)) as worker:
                _loadable(worker, artifacts)
                timing = worker.time(artifacts, feed, blocks, 4_000_000, int(rng.integers(2**31)))
                readings.append(timing.ns)
                deterministic = worker.deterministic
    ns = np.concatenate(readings)
    rows = []
    for i, file in enumerate(files):
        gain = speedup(ns[:, 0], ns[:, i])
        if deterministic or i == 0:
            ratio = float(ns[0, 0] / ns[0, i]) if deterministic else 1.0
            gain = Interval(ratio, ratio, ratio)
        rows.append(BenchRow(file.path, float(np.median(ns[:, i])) / 1e6, gain, len(ns)))
    return rows


def quantize(
    model: str | Path,
    out: str | Path,
    *,
    target: str | TargetSpec = "ort-cpu",
    data: DataSource = None,
    bind: Sequence[str] | Mapping[str, int] = (),
    recipe: str | Path | Recipe = "full-int8",
    seed: int = 0,
) -> Quantized:
    """Quantize ``model`` by a recipe, the target's usual one by default, and write it to ``out``.

    Args:
        model: the ONNX model.
        out: the file to write.
        target: name of an installed target, or a name with options.
        data: samples, as for :func:`tune`; None for random inputs.
        bind: sizes of dynamic dimensions.
        recipe: ``full-int8``, ``conv-matmul``, a YAML file of rules, or rules.
        seed: of random inputs.

    Raises:
        UsageError: no such recipe, or a rule of it matches nothing.
        InlayError: the model or the samples cannot be used.
    """
    rules = find_recipe(recipe)
    spec = _spec(target, 1)
    file = load(model)
    specs = input_specs(file.model)
    sizes = dict(bind) if isinstance(bind, Mapping) else parse_bind(list(bind))
    given = _samples(data, specs)
    samples = given or random_samples(specs, sizes, np.random.default_rng(seed), _RANDOM_SAMPLES)
    return oneshot.quantize(file, Path(out), spec, samples, rules)


def select(
    out: str | Path,
    *,
    to: str | Path | None = None,
    max_drop: str | float | None = None,
    min_sqnr: float | None = None,
    fastest: bool = False,
) -> Selected:
    """Write the fastest model that an earlier run measured within another bound, without searching again.

    Args:
        out: folder of the run.
        to: the file to write; ``selected.onnx`` in that folder otherwise.
        max_drop: most that the metric may fall on the selection samples.
        min_sqnr: least SQNR in dB there.
        fastest: no bound.

    Raises:
        UsageError: no wish, contradicting wishes, or no measured model keeps them.
        JournalError: there is no finished run in ``out``.
    """
    if fastest == (max_drop is not None or min_sqnr is not None):
        raise UsageError("give --max-drop, --min-sqnr, or --fastest")
    wish = _selection.Wish(min_sqnr, None if max_drop is None else parse_share(str(max_drop)))
    return _selection.select(Path(out), Path(to) if to is not None else Path(out) / "selected.onnx", wish)


@dataclass(frozen=True)
class TargetRow:
    """One installed target: its facts, or why it cannot be used here."""

    name: str
    facts: Mapping[str, str]
    problem: str = ""


def list_targets() -> list[TargetRow]:
    """Every installed target."""
    rows = []
    for name in available():
        try:
            rows.append(TargetRow(name, create(TargetSpec(name)).fingerprint().facts))
        except InlayError as error:
            rows.append(TargetRow(name, {}, str(error)))
    return rows


def regions(
    model: str | Path,
    *,
    target: str | TargetSpec = "ort-cpu",
    data: DataSource = None,
    bind: Sequence[str] | Mapping[str, int] = (),
    nodes: Sequence[str] = (),
    maximum_sequence_region_size: int = 10,
    minimum_topdown_search_size: int = 10,
) -> SearchSpace:
    """Regions, patterns and insertion points of a model, normalized as ``tune`` would.

    Raises:
        UsageError: a glob of ``nodes`` matches nothing.
        InlayError: the model cannot be used.
    """
    spec = _spec(target, 1)
    file = load(model)
    specs = input_specs(file.model)
    sizes = dict(bind) if isinstance(bind, Mapping) else parse_bind(list(bind))
    samples = _samples(data, specs) or random_samples(specs, sizes, np.random.default_rng(0), 1)
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(file, Capabilities.of(create(spec)), samples.feeds[0], Path(folder), nodes)
        return prepared.space(
            maximum_sequence_region_size=maximum_sequence_region_size,
            minimum_topdown_search_size=minimum_topdown_search_size,
        )


def _spec(target: str | TargetSpec, threads: int) -> TargetSpec:
    if isinstance(target, TargetSpec):
        return target
    if target not in available():
        raise UsageError(f"--target {target}: there is no such target; installed are {', '.join(available())}")
    return TargetSpec(target, {"threads": threads} if target.startswith("ort") else {})


def _samples(data: DataSource, specs: Sequence[InputSpec]) -> Samples | None:
    return None if data is None else read_samples(data, specs)


def _seconds(budget: str | float | None) -> float | None:
    if budget is None or budget == "none":
        return None
    return parse_duration(budget) if isinstance(budget, str) else float(budget)


def _bound(metric: str | None, max_drop: str | float | None, min_sqnr: float | None, no_bound: bool) -> Bound:
    if no_bound:
        if max_drop is not None or min_sqnr is not None:
            raise UsageError("--no-bound contradicts --max-drop and --min-sqnr")
        return Bound(metric=None if metric == "sqnr" else metric)
    named = None if metric in (None, "sqnr") else metric
    if max_drop is not None and named is None:
        raise UsageError("--max-drop needs --metric: it bounds the fall of a metric")
    drop = None if named is None else parse_share(str(max_drop)) if max_drop is not None else 0.01
    if named is None and min_sqnr is None:
        min_sqnr = DEFAULT_MIN_SQNR_DB
    return Bound(min_sqnr, named, drop)


def _loadable(worker: Worker, artifacts: Sequence[Artifact]) -> None:
    for artifact in artifacts:
        try:
            worker.load(artifact)
        except CompileFailed as error:
            raise ModelError(f"{artifact.path}: {error}") from error
