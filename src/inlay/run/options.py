"""What calls of the larger commands ask for, declared once for Python, the command line and configuration files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from inlay.data import AUTO_MASK, FixedValues, Images
from inlay.prepare import options
from inlay.prepare.config import TuneConfig
from inlay.prepare.declare import Options, documented
from inlay.run.progress import Progress
from inlay.space.recipe import Recipe
from inlay.targets.base import OptionValue, TargetSpec
from inlay.targets.objective import OBJECTIVES
from inlay.targets.registry import DEFAULT_TARGET

DataSource = str | Path | Iterable[Mapping[str, np.ndarray]] | None
Sizes = Sequence[str] | Mapping[str, int]
Limits = Sequence[str] | Mapping[str, float]
Batch = str | int | Sequence[int] | None
GivenOptions = Sequence[str] | Mapping[str, OptionValue]
Targets = str | TargetSpec | Sequence[str | TargetSpec]


@documented
@dataclass(frozen=True, kw_only=True, eq=False)
class TuneOptions(Options):
    """What a call of :func:`inlay.tune` asks for."""

    out: Annotated[str | Path, options.OUT] = "inlay-out"
    target: Annotated[Targets, options.TARGETS] = DEFAULT_TARGET
    target_options: Annotated[GivenOptions, options.TARGET_OPTIONS] = ()
    data: Annotated[DataSource, options.DATA] = None
    images: Annotated[Images | None, options.IMAGES] = None
    labels: Annotated[str | Path | np.ndarray | None, options.LABELS] = None
    mask: Annotated[str, options.MASK] = AUTO_MASK
    metric: Annotated[str | Callable[..., float] | None, options.METRIC] = None
    task: Annotated[str, options.TASK] = TuneConfig.task
    evaluate: Annotated[str | Callable[..., Any] | None, options.EVALUATE] = None
    max_drop: Annotated[str | float | None, options.MAX_DROP] = None
    at_least: Annotated[Limits, options.AT_LEAST] = ()
    at_most: Annotated[Limits, options.AT_MOST] = ()
    higher_is_better: Annotated[bool, options.HIGHER_IS_BETTER] = False
    lower_is_better: Annotated[bool, options.LOWER_IS_BETTER] = False
    min_sqnr: Annotated[float | None, options.MIN_SQNR] = None
    no_bound: Annotated[bool, options.NO_BOUND] = False
    accept_unproven: Annotated[bool, options.ACCEPT_UNPROVEN] = TuneConfig.accept_unproven
    budget: Annotated[str | float | None, options.BUDGET] = f"{options.DEFAULT_BUDGET_S:.0f}s"
    max_measurements: Annotated[int | None, options.MAX_MEASUREMENTS] = TuneConfig.max_measurements
    max_builds: Annotated[int | None, options.MAX_BUILDS] = TuneConfig.max_builds
    threads: Annotated[int, options.THREADS] = 1
    objective: Annotated[str, options.OBJECTIVE] = OBJECTIVES[0]
    streams: Annotated[int, options.STREAMS] = 0
    bind: Annotated[Sizes, options.BIND] = ()
    fix: Annotated[FixedValues, options.FIX] = ()
    freeze_shapes: Annotated[bool, options.FREEZE_SHAPES] = TuneConfig.freeze_shapes
    shapes: Annotated[Sequence[str], options.SHAPES] = TuneConfig.shapes
    batch: Annotated[Batch, options.BATCH] = TuneConfig.batch
    seed: Annotated[int, options.SEED] = TuneConfig.seed
    qdq_baseline: Annotated[str | Path | None, options.QDQ_BASELINE] = None
    keep_qparams: Annotated[bool, options.KEEP_QPARAMS] = TuneConfig.keep_qparams
    cost_db: Annotated[bool, options.COST_DB] = TuneConfig.cost_db
    costs: Annotated[str | Path | None, options.COSTS] = None
    strategy: Annotated[str, options.STRATEGY] = TuneConfig.strategy
    schemes_per_region: Annotated[int, options.SCHEMES_PER_REGION] = TuneConfig.schemes_per_region
    pattern_cache: Annotated[str | Path | None, options.PATTERN_CACHE] = None
    quant_type: Annotated[str, options.QUANT_TYPE] = TuneConfig.quant_type
    base: Annotated[str, options.BASE] = TuneConfig.base
    max_opset: Annotated[int | None, options.MAX_OPSET] = TuneConfig.max_opset
    augment: Annotated[str, options.AUGMENT] = TuneConfig.augment
    nodes: Annotated[Sequence[str], options.NODES] = TuneConfig.nodes
    recipe: Annotated[str | Path | Recipe | None, options.SEARCH_RECIPE] = None
    ray: Annotated[str | None, options.RAY] = None
    device: Annotated[str | None, options.DEVICE] = None
    restart: Annotated[bool, options.RESTART] = False
    progress: Annotated[Progress | None, options.PROGRESS] = None
    before_s: Annotated[float, options.BEFORE] = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class OneTarget(Options):
    """For one target, with samples."""

    target: Annotated[str | TargetSpec, options.TARGET] = DEFAULT_TARGET
    target_options: Annotated[GivenOptions, options.TARGET_OPTIONS] = ()
    data: Annotated[DataSource, options.DATA] = None
    images: Annotated[Images | None, options.IMAGES] = None


@documented
@dataclass(frozen=True, kw_only=True, eq=False)
class QuantizeOptions(OneTarget):
    """What a call of :func:`inlay.quantize` asks for."""

    mask: Annotated[str, options.MASK] = AUTO_MASK
    bind: Annotated[Sizes, options.BIND] = ()
    fix: Annotated[FixedValues, options.FIX] = ()
    freeze_shapes: Annotated[bool, options.FREEZE_SHAPES] = False
    recipe: Annotated[str | Path | Recipe, options.RECIPE] = options.BY_COSTS
    processors: Annotated[Sequence[str], options.PROCESSORS] = ()
    costs: Annotated[str | Path | None, options.COSTS] = None
    min_sqnr: Annotated[float | None, options.INSTANT_MIN_SQNR] = None
    quant_type: Annotated[str, options.QUANT_TYPE] = TuneConfig.quant_type
    base: Annotated[str, options.BASE] = TuneConfig.base
    max_opset: Annotated[int | None, options.MAX_OPSET] = TuneConfig.max_opset
    threads: Annotated[int, options.THREADS] = 1
    augment: Annotated[str, options.AUGMENT] = TuneConfig.augment
    ray: Annotated[str | None, options.RAY] = None
    device: Annotated[str | None, options.DEVICE] = None
    seed: Annotated[int, options.SEED] = 0
    progress: Annotated[Progress | None, options.PROGRESS] = None
    before_s: Annotated[float, options.BEFORE] = 0.0


@documented
@dataclass(frozen=True, kw_only=True, eq=False)
class BenchOptions(OneTarget):
    """What a call of :func:`inlay.bench` asks for."""

    blocks: Annotated[int, options.BLOCKS] = 10
    processes: Annotated[int, options.PROCESSES] = 2
    threads: Annotated[int, options.THREADS] = 1
    objective: Annotated[str, options.OBJECTIVE] = OBJECTIVES[0]
    streams: Annotated[int, options.STREAMS] = 0
    rate: Annotated[float, options.RATE] = 0.0
    bind: Annotated[Sizes, options.BIND] = ()
    shapes: Annotated[Sequence[str], options.SHAPES] = ()
    batch: Annotated[Batch, options.BATCH] = None
    ray: Annotated[str | None, options.RAY] = None
    device: Annotated[str | None, options.DEVICE] = None
    seed: Annotated[int, options.SEED] = 0
    progress: Annotated[Progress | None, options.PROGRESS] = None
