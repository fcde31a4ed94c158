"""The commands as functions.

The command line is derived from their signatures (:mod:`inlay.cli.options`), help from :mod:`inlay.prepare.options`.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, overload

import numpy as np

from inlay.across.labels import target_of, targets_of
from inlay.across.result import AcrossResult
from inlay.across.tune import outputs_of, tune_across
from inlay.data import AUTO_MASK, Images, bound, common_sizes
from inlay.deadline import NEVER, Deadline
from inlay.errors import InlayError, UsageError
from inlay.explain import explain as _explain
from inlay.explain import repair as _repair
from inlay.explain.changes import changes
from inlay.explain.explanation import Explanation
from inlay.explain.policy import BUDGET_S as EXPLAIN_BUDGET_S
from inlay.farm.lab import measuring
from inlay.files import refuse_overwriting, scratch
from inlay.model.collector import collector_paused
from inlay.model.held import kept
from inlay.model.load import ModelSource
from inlay.prepare import options
from inlay.prepare.arguments import arguments
from inlay.prepare.config import TuneConfig
from inlay.prepare.model import prepare
from inlay.prepare.options import check_sqnr, documented
from inlay.regions.config import Config
from inlay.regions.search_space import SearchSpace, find_search_space
from inlay.run import select as _run_select
from inlay.run import tune as _run_tune
from inlay.run.call import Batch, DataSource, Given, GivenOptions, Sizes, files_in, request_of, seconds_of
from inlay.run.compare import BenchRow, compare, load_all
from inlay.run.inputs import RANDOM_SAMPLES
from inlay.run.inspection import DryRun, Inspection, inspection, quantizable_in
from inlay.run.inspection import dry_run as _dry_run
from inlay.run.instant import calibrate_machine as _calibrate
from inlay.run.instant import quantize as _run_quantize
from inlay.run.instant.calibrate_machine import Calibrated
from inlay.run.instant.quantize import Quantized
from inlay.run.progress import Logged, Progress
from inlay.run.result import TuneResult
from inlay.run.select import Selected
from inlay.space.recipe import Recipe
from inlay.space.recipe_file import find_recipe
from inlay.targets.base import Capabilities, TargetSpec
from inlay.targets.registry import DEFAULT_TARGET, create

Targets = str | TargetSpec | Sequence[str | TargetSpec]


@overload
def tune(model: ModelSource, *, target: Literal["auto"], **more: Any) -> AcrossResult: ...
@overload
def tune(model: ModelSource, *, target: str | TargetSpec = ..., **more: Any) -> TuneResult: ...
@overload
def tune(model: ModelSource, *, target: Sequence[str | TargetSpec], **more: Any) -> TuneResult | AcrossResult: ...
@documented  # type: ignore[misc]  # the overloads tell results apart, and leave the other options to this signature
def tune(
    model: Annotated[ModelSource, options.MODEL],
    *,
    out: Annotated[str | Path, options.OUT] = "inlay-out",
    target: Annotated[Targets, options.TARGETS] = DEFAULT_TARGET,
    target_options: Annotated[GivenOptions, options.TARGET_OPTIONS] = (),
    data: Annotated[DataSource, options.DATA] = None,
    images: Annotated[Images | None, options.IMAGES] = None,
    labels: Annotated[str | Path | np.ndarray | None, options.LABELS] = None,
    mask: Annotated[str, options.MASK] = AUTO_MASK,
    metric: Annotated[str | Callable[..., float] | None, options.METRIC] = None,
    max_drop: Annotated[str | float | None, options.MAX_DROP] = None,
    min_sqnr: Annotated[float | None, options.MIN_SQNR] = None,
    no_bound: Annotated[bool, options.NO_BOUND] = False,
    accept_unproven: Annotated[bool, options.ACCEPT_UNPROVEN] = TuneConfig.accept_unproven,
    budget: Annotated[str | float | None, options.BUDGET] = f"{options.DEFAULT_BUDGET_S:.0f}s",
    max_measurements: Annotated[int | None, options.MAX_MEASUREMENTS] = TuneConfig.max_measurements,
    max_builds: Annotated[int | None, options.MAX_BUILDS] = TuneConfig.max_builds,
    threads: Annotated[int, options.THREADS] = 1,
    bind: Annotated[Sizes, options.BIND] = (),
    freeze_shapes: Annotated[bool, options.FREEZE_SHAPES] = TuneConfig.freeze_shapes,
    shapes: Annotated[Sequence[str], options.SHAPES] = TuneConfig.shapes,
    batch: Annotated[Batch, options.BATCH] = TuneConfig.batch,
    seed: Annotated[int, options.SEED] = TuneConfig.seed,
    qdq_baseline: Annotated[str | Path | None, options.QDQ_BASELINE] = None,
    keep_qparams: Annotated[bool, options.KEEP_QPARAMS] = TuneConfig.keep_qparams,
    cost_db: Annotated[bool, options.COST_DB] = TuneConfig.cost_db,
    strategy: Annotated[str, options.STRATEGY] = TuneConfig.strategy,
    schemes_per_region: Annotated[int, options.SCHEMES_PER_REGION] = TuneConfig.schemes_per_region,
    pattern_cache: Annotated[str | Path | None, options.PATTERN_CACHE] = None,
    quant_type: Annotated[str, options.QUANT_TYPE] = TuneConfig.quant_type,
    max_opset: Annotated[int | None, options.MAX_OPSET] = TuneConfig.max_opset,
    augment: Annotated[str, options.AUGMENT] = TuneConfig.augment,
    nodes: Annotated[Sequence[str], options.NODES] = TuneConfig.nodes,
    recipe: Annotated[str | Path | Recipe | None, options.SEARCH_RECIPE] = None,
    ray: Annotated[str | None, options.RAY] = None,
    restart: Annotated[bool, options.RESTART] = False,
    progress: Annotated[Progress | None, options.PROGRESS] = None,
    before_s: Annotated[float, options.BEFORE] = 0.0,
) -> TuneResult | AcrossResult:
    """Find the fastest placement of Q/DQ nodes that keeps the accuracy bound.

    With several targets, each is tuned for within the one budget, and the single file that suits all best is delivered;
    with ``auto``, the file and the target to deploy with. The same call on the same ``out`` continues where it stopped.

    Returns:
        An :class:`~inlay.across.result.AcrossResult` for ``auto`` and for two targets or more.

    Raises:
        InlayError: see :mod:`inlay.errors`.
    """
    begun = time.monotonic() - before_s
    from inlay.report import leave_report  # templates and drawings: no other command waits for them

    specs, others = targets_of(target, target_options, threads)
    asked = request_of(tune, locals(), next(iter(specs.values())))
    alone = len(specs) == 1 and others is None
    given = [*files_in(data, labels, recipe), *([] if alone else asked.file.files)]
    refuse_overwriting(outputs_of(Path(out), {} if alone else specs), given)
    if not isinstance(model, (str, Path)):  # later commands on this folder read the given model, too
        asked = replace(asked, file=kept(asked.file, Path(out) / "given.onnx"))
    with measuring(ray, specs.values(), asked.progress.stage) as lab:
        asked = replace(asked, before_s=time.monotonic() - begun, lab=lab)
        if not alone:
            found = tune_across(asked, specs, others)
            own = (leave_report(Path(out) / each.folder) for each in found.columns.values() if each.folder)
            return replace(found, notes=(*found.notes, *filter(None, own)))
        result = _run_tune.tune(replace(asked, any_precision=True))
    return replace(result, notes=(*result.notes, *filter(None, [leave_report(Path(out))])))


def dry_run(model: ModelSource, **asked: Any) -> DryRun:
    """Say what :func:`tune` would do with these arguments, after running the model a few times; nothing is written.

    Raises:
        InlayError: what ``tune`` would raise for them.
    """
    call = arguments(tune, tune.limits, (model,), asked)  # type: ignore[attr-defined]  # of the wrapper
    specs, others = targets_of(*(call[name] for name in ("target", "target_options", "threads")))
    if len(specs) > 1 or others is not None:
        raise UsageError("a dry run looks at one target: give --target NAME")
    return _dry_run(replace(request_of(tune, call, *specs.values()), before_s=call["before_s"]))


@documented
def inspect(
    model: Annotated[ModelSource, options.MODEL],
    *,
    target: Annotated[str | TargetSpec, options.TARGET] = DEFAULT_TARGET,
    target_options: Annotated[GivenOptions, options.TARGET_OPTIONS] = (),
    bind: Annotated[Sizes, options.BIND] = (),
) -> Inspection:
    """Say what a model takes and gives, what it consists of, and what of it the target can run in low precision.

    Raises:
        InlayError: the model cannot be read, or the target cannot be used.
    """
    capabilities = Capabilities.of(create(target_of(target, target_options)))
    given, tried = Given.read(model, None, bind).at_likely_sizes()
    try:
        feed = given.samples_or_random(np.random.default_rng(0), 1).feeds[0]
        return inspection(given.file, quantizable_in(given.file, capabilities, feed), "")
    except InlayError as error:
        return inspection(given.file, None, f"{error}{tried}")


@documented
def bench(
    models: Annotated[Sequence[ModelSource], options.MODELS],
    *,
    target: Annotated[str | TargetSpec, options.TARGET] = DEFAULT_TARGET,
    target_options: Annotated[GivenOptions, options.TARGET_OPTIONS] = (),
    data: Annotated[DataSource, options.DATA] = None,
    images: Annotated[Images | None, options.IMAGES] = None,
    blocks: Annotated[int, options.BLOCKS] = 10,
    processes: Annotated[int, options.PROCESSES] = 2,
    threads: Annotated[int, options.THREADS] = 1,
    bind: Annotated[Sizes, options.BIND] = (),
    shapes: Annotated[Sequence[str], options.SHAPES] = (),
    batch: Annotated[Batch, options.BATCH] = None,
    ray: Annotated[str | None, options.RAY] = None,
    seed: Annotated[int, options.SEED] = 0,
    progress: Annotated[Progress | None, options.PROGRESS] = None,
) -> list[BenchRow]:
    """Compare the latency of models that take the same inputs: interleaved, paired, with 95 % intervals.

    Raises:
        UsageError: fewer than two models.
        InlayError: a model cannot be read, built or run.
    """
    files = load_all(models)
    rng = np.random.default_rng(seed)
    workload = Given.of(files[0], data, bind, images).at_sizes_of(files).workload(rng, shapes, batch)
    spec = target_of(target, target_options, threads)
    with measuring(ray, [spec], (progress or Logged()).stage) as lab:
        return compare(files, spec, workload, blocks, processes, rng, lab)


@documented
def quantize(
    model: Annotated[ModelSource, options.MODEL],
    out: Annotated[str | Path, options.QUANTIZED],
    *,
    target: Annotated[str | TargetSpec, options.TARGET] = DEFAULT_TARGET,
    target_options: Annotated[GivenOptions, options.TARGET_OPTIONS] = (),
    data: Annotated[DataSource, options.DATA] = None,
    images: Annotated[Images | None, options.IMAGES] = None,
    mask: Annotated[str, options.MASK] = AUTO_MASK,
    bind: Annotated[Sizes, options.BIND] = (),
    freeze_shapes: Annotated[bool, options.FREEZE_SHAPES] = False,
    recipe: Annotated[str | Path | Recipe, options.RECIPE] = options.BY_COSTS,
    min_sqnr: Annotated[float, options.INSTANT_MIN_SQNR] = options.DEFAULT_MIN_SQNR_DB,
    quant_type: Annotated[str, options.QUANT_TYPE] = TuneConfig.quant_type,
    max_opset: Annotated[int | None, options.MAX_OPSET] = TuneConfig.max_opset,
    threads: Annotated[int, options.THREADS] = 1,
    augment: Annotated[str, options.AUGMENT] = TuneConfig.augment,
    ray: Annotated[str | None, options.RAY] = None,
    seed: Annotated[int, options.SEED] = 0,
    progress: Annotated[Progress | None, options.PROGRESS] = None,
    before_s: Annotated[float, options.BEFORE] = 0.0,
) -> Quantized:
    """Quantize in one shot, without a search: by the processor's cost table within an accuracy bound, or by a recipe.

    Raises:
        UsageError: no such recipe, or a rule of it matches nothing.
        InlayError: the model or the samples cannot be used.
    """
    begun = time.monotonic() - before_s
    rules = None if recipe == options.BY_COSTS else find_recipe(recipe)
    spec = target_of(target, target_options, threads)
    given = Given.read(model, data, bind, images)
    samples = given.masked(given.samples_or_random(np.random.default_rng(seed), RANDOM_SAMPLES), mask)
    refuse_overwriting([Path(out), Path(f"{out}.data")], [*given.file.files, *files_in(data, recipe)])
    common = common_sizes(given.specs, samples.feeds) if freeze_shapes else {}
    wish = (check_sqnr(min_sqnr), {**common, **given.sizes}, bound(given.specs, common), augment, seed, max_opset)
    with measuring(ray, [spec], (progress or Logged()).stage) as lab:
        return _run_quantize.quantize(given.file, Path(out), spec, samples, rules, quant_type, *wish, lab, begun)


@documented
def calibrate_machine(
    *,
    target: Annotated[str | TargetSpec, options.TARGET] = DEFAULT_TARGET,
    target_options: Annotated[GivenOptions, options.TARGET_OPTIONS] = (),
    threads: Annotated[int, options.THREADS] = 1,
    budget: Annotated[str | float | None, options.CALIBRATION_BUDGET] = f"{options.CALIBRATION_BUDGET_S:.0f}s",
    seed: Annotated[int, options.SEED] = 0,
    progress: Annotated[Progress | None, options.PROGRESS] = None,
) -> Calibrated:
    """Measure what the kernels of this processor cost, once; ``quantize`` and ``tune`` then start from that.

    Raises:
        UsageError: the target has no models that its kernels could be measured by.
        InlayError: none of them could be measured, or the table cannot be kept.
    """
    spec, stage = target_of(target, target_options, threads), (progress or Logged()).stage
    return _calibrate.calibrate_machine(spec, seconds_of(budget), np.random.default_rng(seed), stage)


@documented
def select(
    out: Annotated[str | Path, options.RUN],
    *,
    to: Annotated[str | Path | None, options.SELECTED] = None,
    max_drop: Annotated[str | float | None, options.SELECTED_MAX_DROP] = None,
    min_sqnr: Annotated[float | None, options.SELECTED_MIN_SQNR] = None,
    fastest: Annotated[bool, options.FASTEST] = False,
    max_size: Annotated[str | int | None, options.SELECTED_MAX_SIZE] = None,
    max_memory: Annotated[str | int | None, options.SELECTED_MAX_MEMORY] = None,
    minimize: Annotated[str, options.SELECTED_MINIMIZE] = "latency",
) -> Selected:
    """Write the fastest, smallest or leanest model that an earlier run measured within other bounds, without a search.

    Raises:
        UsageError: no wish, contradicting wishes, or no measured model keeps them.
        JournalError: there is no finished run in ``out``.
    """
    wish = _run_select.wish(min_sqnr, max_drop, max_size, minimize, fastest, max_memory)
    return _run_select.select(Path(out), Path(to) if to is not None else Path(out) / "selected.onnx", wish)


@documented
def explain(
    model: Annotated[ModelSource, options.MODEL],
    *,
    target: Annotated[str | TargetSpec, options.TARGET] = DEFAULT_TARGET,
    target_options: Annotated[GivenOptions, options.TARGET_OPTIONS] = (),
    data: Annotated[DataSource, options.DATA] = None,
    images: Annotated[Images | None, options.IMAGES] = None,
    budget: Annotated[str | float | None, options.EXPLAIN_BUDGET] = f"{EXPLAIN_BUDGET_S:.0f}s",
    threads: Annotated[int, options.THREADS] = 1,
    bind: Annotated[Sizes, options.BIND] = (),
    repair: Annotated[str | Path | None, options.REPAIR] = None,
    seed: Annotated[int, options.SEED] = 0,
    progress: Annotated[Progress | None, options.PROGRESS] = None,
) -> Explanation:
    """Say why each operator of a float or Q/DQ model runs in the precision in which it runs, and what that costs.

    Raises:
        UsageError: the target gives no times of kernels, or there is nothing to repair.
        InlayError: the model or the samples cannot be used.
    """
    seconds, hears = seconds_of(budget), progress or Logged()
    deadline = NEVER if seconds is None else NEVER.within(seconds)
    spec = target_of(target, target_options, threads)
    given = Given.read(model, data, bind, images)
    samples = given.samples_or_random(np.random.default_rng(seed), RANDOM_SAMPLES)
    out = None if repair is None else Path(repair)
    if out is not None:
        refuse_overwriting([out, Path(f"{out}.data")], [*given.file.files, *files_in(data)])
        _repair.refuse(given.file, out)
    found = _explain.explain(given.file, spec, samples, deadline, hears.stage)
    if out is None:
        return found
    done, made = _repair.repair(given.file, out, spec, samples, seconds, seed, hears)
    if made is not None:
        after = _explain.explain(made, spec, samples, Deadline(-math.inf), hears.stage)
        done = replace(done, changes=changes(found, after))
    return replace(found, repair=done)


@documented
def write_report(out: Annotated[str | Path, options.RUN]) -> Path:
    """Write ``report.html`` of an earlier run into its folder, as ``tune`` does at its end.

    Returns:
        The file: one page without references to anything outside.

    Raises:
        JournalError: there is no finished run in ``out``, or the folder cannot be written to.
    """
    from inlay.report import write_report as write

    return write(Path(out))


_FORM = options.Option(
    "ort-exclude, ort-overrides, nncf, netron, model-explorer, or csv (of the trials).", flags=("--as",), metavar="FORM"
)
"""Not with the other options: no room below names what is of one runtime."""


@documented
def export(
    out: Annotated[str | Path, options.RUN],
    form: Annotated[str, _FORM],
    to: Annotated[str | Path | None, options.EXPORTED] = None,
) -> Path:
    """Write what a run found in the terms of another tool, and return the path.

    Raises:
        UsageError: no such form, or ``to`` is a file of the run.
        JournalError: there is no finished run in ``out``, or it lacks what the form needs.
    """
    from inlay.report.exports import export as write

    return write(Path(out), form, None if to is None else Path(to))


@documented
def regions(
    model: Annotated[ModelSource, options.MODEL],
    *,
    target: Annotated[str | TargetSpec, options.TARGET] = DEFAULT_TARGET,
    target_options: Annotated[GivenOptions, options.TARGET_OPTIONS] = (),
    data: Annotated[DataSource, options.DATA] = None,
    images: Annotated[Images | None, options.IMAGES] = None,
    bind: Annotated[Sizes, options.BIND] = (),
    nodes: Annotated[Sequence[str], options.NODES] = (),
    maximum_sequence_region_size: Annotated[int, options.LARGEST_LEAF] = 10,
    minimum_topdown_search_size: Annotated[int, options.SMALLEST_SEQUENCE] = 10,
) -> SearchSpace:
    """Regions, patterns and insertion points of a model, normalized as ``tune`` would.

    Raises:
        UsageError: a glob of ``nodes`` matches nothing.
        InlayError: the model cannot be used.
    """
    capabilities = Capabilities.of(create(target_of(target, target_options)))
    with collector_paused(lives_on=True), scratch() as folder:  # without a collection
        given = Given.read(model, data, bind, images)
        feed = given.samples_or_random(np.random.default_rng(0), 1).feeds[0]
        prepared = prepare(given.file, capabilities, feed, folder, nodes)
        graph, rules, allowed, units = prepared.graph, prepared.rules, prepared.allowed, prepared.units
        del given, prepared
        gc.collect()  # of a large model, its nodes take as much memory as its regions and patterns will
        config = Config(
            maximum_sequence_region_size=maximum_sequence_region_size,
            minimum_topdown_search_size=minimum_topdown_search_size,
        )
        return find_search_space(graph, rules, None, allowed, config, units=units if allowed is None else None)
