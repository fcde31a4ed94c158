"""The commands as functions.

What the larger ones ask for is a value (:mod:`inlay.run.options`), given whole, by its fields, or both. The command
line is derived from these and from signatures (:mod:`inlay.cli.options`), help from :mod:`inlay.prepare.options`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, overload

import numpy as np

from inlay.data import FixedValues, common_sizes
from inlay.errors import UsageError
from inlay.files import as_file_name, refuse_overwriting
from inlay.installed import AFTER_TUNE, SEVERAL_TARGETS, joined
from inlay.measure.lab import measuring
from inlay.model.heard import hearing
from inlay.model.held import kept
from inlay.model.load import ModelSource
from inlay.prepare import options as declared
from inlay.prepare.declare import command_line, documented
from inlay.prepare.options import check_sqnr
from inlay.run import select as _run_select
from inlay.run import tune as _run_tune
from inlay.run.belonging import Belonging, check_file
from inlay.run.call import Given, Module, as_model, files_in, request_of, seconds_of
from inlay.run.compare import BenchRow, compare, load_all
from inlay.run.inputs import OUTPUTS, RANDOM_SAMPLES
from inlay.run.inspection import DryRun, Inspection, inspected
from inlay.run.inspection import dry_run as _dry_run
from inlay.run.instant import calibrate_machine as _calibrate
from inlay.run.instant import quantize as _run_quantize
from inlay.run.instant.calibrate_machine import Calibrated
from inlay.run.instant.one_shot import QuantizeRequest
from inlay.run.instant.quantize import Quantized
from inlay.run.notebook import usual
from inlay.run.options import (
    BenchOptions,
    GivenOptions,
    QuantizeOptions,
    Sizes,
    TuneOptions,
)
from inlay.run.progress import Phases, Progress
from inlay.run.result import TuneResult
from inlay.run.select import Selected
from inlay.space.recipe_file import find_recipe
from inlay.targets.base import Capabilities, TargetSpec
from inlay.targets.objective import aimed_at
from inlay.targets.registry import AUTO, DEFAULT_TARGET, create, for_processors, target_of

__all__ = [
    "BenchOptions", "QuantizeOptions", "TuneOptions", "TuneResult",
    "bench", "calibrate_machine", "check", "dry_run", "inspect", "quantize", "select", "tune",
]  # fmt: skip


@overload
def tune(
    model: ModelSource | Module, options: TuneOptions | None = None, *, target: Literal["auto"], **changes: Any
) -> Any: ...
@overload
def tune(
    model: ModelSource | Module,
    options: TuneOptions | None = None,
    *,
    target: str | TargetSpec = ...,
    **changes: Any,
) -> TuneResult: ...
@overload
def tune(
    model: ModelSource | Module,
    options: TuneOptions | None = None,
    *,
    target: Sequence[str | TargetSpec],
    **changes: Any,
) -> Any: ...
@overload
def tune(model: Sequence[str | Path], options: TuneOptions | None = None, **changes: Any) -> Any: ...
@documented
def tune(
    model: Annotated[ModelSource | Module | Sequence[str | Path], declared.TUNED],
    options: TuneOptions | None = None,
    **changes: Any,
) -> Any:
    """Find the fastest placement of Q/DQ nodes that keeps the accuracy bound.

    With several targets, each is tuned for within the one budget, and the single file that suits all best is delivered;
    with ``auto``, the file and the target to deploy with. The models of one program, several files or a
    ``pipeline.yaml``, are tuned within the one budget, too, and all of them are delivered. The same call on the same
    ``out`` continues where it stopped.

    Returns:
        A :class:`~inlay.TuneResult`; for ``auto`` and for two targets or more an
        :class:`~inlay.portfolio.AcrossResult`; for a pipeline a :class:`~inlay.portfolio.PipelineResult`.

    Raises:
        InlayError: see :mod:`inlay.errors`.
    """
    wish = TuneOptions.of(options, changes)
    if isinstance(model, Sequence) and not isinstance(model, str):
        if len(model) != 1:
            return _several("pipeline")([Path(each) for each in model], wish)
        model = model[0]
    if isinstance(model, (str, Path)) and _is_pipeline(Path(model)):
        return _several("pipeline")(Path(model), wish)
    begun, out = time.monotonic() - wish.before_s, Path(wish.out)
    Phases(wish.progress or usual()).doing("read the model and the samples")
    model, wish = as_model(model, wish)
    specs, others = _targets(wish)
    asked = request_of(model, wish, next(iter(specs.values())), _command_line(model, wish))
    folders = [out, *(out / as_file_name(label) for label in specs if label)]
    given = [*files_in(wish.data, wish.labels, wish.recipe), *([] if _ONE in specs else asked.file.files)]
    refuse_overwriting([folder / name for folder in folders for name in OUTPUTS], given)
    if not isinstance(model, (str, Path)):  # later commands on this folder read the given model, too
        asked = replace(asked, file=kept(asked.file, out / "given.onnx"))
    with measuring(wish.ray, specs.values(), asked.progress.stage, wish.device) as lab:
        asked = replace(asked, before_s=time.monotonic() - begun, lab=lab)
        if _ONE not in specs:
            found = _several("tune")(asked, specs, others)
            own = [note for each in found.columns.values() if each.folder for note in _afterwards(out / each.folder)]
            return replace(found, notes=(*found.notes, *own))
        result = _run_tune.tune(replace(asked, any_precision=True))
    return replace(result, notes=(*result.notes, *_afterwards(out, asked.progress.stage)))


def _afterwards(folder: Path, tell: Callable[[str], None] = lambda text: None) -> list[str]:
    """Have what is installed for it made of a finished run, such as its report; what there is to say of that."""
    notes = []
    for name, each in joined(AFTER_TUNE).items():
        tell(f"write the {name}")
        notes.append(each.load()(folder))
    return [note for note in notes if note]


_ONE = ""
"""The label of a target that is the only one."""


def _targets(wish: TuneOptions) -> tuple[Mapping[str, TargetSpec], Mapping[str, str] | None]:
    """The targets by label; where one of them is to be chosen, also those that cannot be used, with the reason."""
    asked = [wish.target] if isinstance(wish.target, (str, TargetSpec)) else list(wish.target)
    if len(asked) == 1 and asked != [AUTO]:
        return {_ONE: target_of(asked[0], wish.target_options, wish.threads)}, None
    found: tuple[Mapping[str, TargetSpec], Mapping[str, str] | None]
    found = _several("targets")(asked, wish.target_options, wish.threads)
    return found


def _is_pipeline(path: Path) -> bool:
    """Whether it says which models belong together, or is the folder of a file that does."""
    return path.suffix in (".yaml", ".yml") or (path / "pipeline.yaml").is_file()


def _several(part: str) -> Callable[..., Any]:
    """What is installed for several targets or models. Raises UsageError where there is nothing."""
    found = joined(SEVERAL_TARGETS).get(part)
    if found is None:
        raise UsageError("what tunes for several targets or models is not installed: give one, or install Inlay again")
    made: Callable[..., Any] = found.load()
    return made


def _command_line(model: ModelSource, wish: TuneOptions) -> str:
    return command_line(tune, {"model": model, **wish.by_name()})


@documented
def dry_run(
    model: Annotated[ModelSource | Module | Sequence[str | Path], declared.MODEL],
    options: TuneOptions | None = None,
    **changes: Any,
) -> DryRun:
    """Say what :func:`tune` would do with these arguments, after running the model a few times; nothing is written.

    Raises:
        InlayError: what ``tune`` would raise for them.
    """
    wish = TuneOptions.of(options, changes)
    if isinstance(model, Sequence) and not isinstance(model, str):
        if len(model) != 1:
            raise UsageError("a dry run looks at one model: give one")
        model = model[0]
    model, wish = as_model(model, wish)
    specs, _ = _targets(wish)
    if _ONE not in specs:
        raise UsageError("a dry run looks at one target: give --target NAME")
    asked = request_of(model, wish, specs[_ONE], _command_line(model, wish))
    return _dry_run(replace(asked, before_s=wish.before_s))


@documented
def inspect(
    model: Annotated[ModelSource, declared.MODEL],
    *,
    target: Annotated[str | TargetSpec, declared.TARGET] = DEFAULT_TARGET,
    target_options: Annotated[GivenOptions, declared.TARGET_OPTIONS] = (),
    bind: Annotated[Sizes, declared.BIND] = (),
    fix: Annotated[FixedValues, declared.FIX] = (),
    progress: Annotated[Progress | None, declared.PROGRESS] = None,
) -> Inspection:
    """Say what a model takes and gives, what it consists of, and what of it the target can run in low precision.

    Raises:
        InlayError: the model cannot be read, or the target cannot be used.
    """
    capabilities = Capabilities.of(create(target_of(target, target_options)))
    phases = Phases(progress or usual())
    with hearing(phases.doing):
        phases.doing("read the model")
        given = Given.read(model, None, bind, fix=fix)
        phases.doing("run the model once, and normalize it")
        return inspected(given.at_plausible_sizes(), capabilities)


@documented
def bench(
    models: Annotated[Sequence[ModelSource], declared.MODELS],
    options: BenchOptions | None = None,
    **changes: Any,
) -> list[BenchRow]:
    """Compare the latency of models that take the same inputs: interleaved, paired, with 95 % intervals.

    Raises:
        UsageError: fewer than two models.
        InlayError: a model cannot be read, built or run.
    """
    wish = BenchOptions.of(options, changes)
    files, rng = load_all(models), np.random.default_rng(wish.seed)
    given = Given.of(files[0], wish.data, wish.bind, wish.images).at_sizes_of(files)
    workload = given.workload(rng, wish.shapes, wish.batch)
    spec = target_of(wish.target, wish.target_options, wish.threads)
    spec = aimed_at(spec, wish.objective, wish.streams, bool(wish.device or wish.ray))
    phases = Phases(wish.progress or usual())
    with measuring(wish.ray, [spec], phases.begin, wish.device) as lab, hearing(phases.doing):
        return compare(files, spec, workload, wish.blocks, wish.processes, rng, lab, wish.rate)


@documented
def check(
    model: Annotated[ModelSource, declared.MODEL],
    *,
    target: Annotated[str | TargetSpec, declared.TARGET] = DEFAULT_TARGET,
    target_options: Annotated[GivenOptions, declared.TARGET_OPTIONS] = (),
    threads: Annotated[int, declared.THREADS] = 1,
) -> Belonging:
    """Say whether a file is run on the target and processor that it was quantized for, and what is known if not.

    Nothing is built or run.

    Raises:
        InlayError: the model cannot be read, or there is no such target here.
    """
    return check_file(model, target_of(target, target_options, threads))


@documented
def quantize(
    model: Annotated[ModelSource | Module, declared.MODEL],
    out: Annotated[str | Path, declared.QUANTIZED],
    options: QuantizeOptions | None = None,
    **changes: Any,
) -> Quantized:
    """Quantize in one shot, without a search: by the processor's cost table within an accuracy bound, or by a recipe.

    Raises:
        UsageError: no such recipe, or a rule of it matches nothing.
        InlayError: the model or the samples cannot be used.
    """
    wish = QuantizeOptions.of(options, changes)
    begun = time.monotonic() - wish.before_s
    phases = Phases(wish.progress or usual())
    phases.doing("read the model and the samples")  # no stage: what is refused is told in one line
    model, wish = as_model(model, wish)
    given = Given.read(model, wish.data, wish.bind, wish.images, wish.fix)
    samples = given.samples_or_random(np.random.default_rng(wish.seed), RANDOM_SAMPLES)
    samples = given.masked(samples, wish.mask)
    further = files_in(wish.data, wish.recipe, wish.costs)
    refuse_overwriting([Path(out), Path(f"{out}.data")], [*given.file.files, *further])
    common = common_sizes(given.specs, samples.feeds) if wish.freeze_shapes else {}
    rules = None if wish.recipe == declared.BY_COSTS else find_recipe(wish.recipe)
    spec = for_processors(target_of(wish.target, wish.target_options, wish.threads), wish.processors)
    if wish.processors and (wish.ray is not None or wish.device is not None):
        raise UsageError("--for: nothing is measured where a processor is not here: leave out --device and --ray")
    with measuring(wish.ray, [spec], phases.begin, wish.device) as lab, hearing(phases.doing):
        asked = QuantizeRequest(
            file=given.file,
            target=spec,
            samples=samples,
            rules=rules,
            quant_type=wish.quant_type,
            base=wish.base,
            bound_db=None if wish.min_sqnr is None else check_sqnr(wish.min_sqnr),
            sizes={**common, **given.sizes},
            augment=wish.augment,
            seed=wish.seed,
            max_opset=wish.max_opset,
            costs=None if wish.costs is None else Path(wish.costs),
        )
        return _run_quantize.quantize(asked, Path(out), lab, begun, phases.doing)


@documented
def calibrate_machine(
    *,
    target: Annotated[str | TargetSpec, declared.TARGET] = DEFAULT_TARGET,
    target_options: Annotated[GivenOptions, declared.TARGET_OPTIONS] = (),
    threads: Annotated[int, declared.THREADS] = 1,
    budget: Annotated[str | float | None, declared.CALIBRATION_BUDGET] = f"{declared.CALIBRATION_BUDGET_S:.0f}s",
    costs: Annotated[str | Path | None, declared.WRITTEN_COSTS] = None,
    seed: Annotated[int, declared.SEED] = 0,
    progress: Annotated[Progress | None, declared.PROGRESS] = None,
) -> Calibrated:
    """Measure what the kernels of this processor cost, once; ``quantize`` and ``tune`` then start from that.

    Raises:
        UsageError: the target has no models that its kernels could be measured by.
        InlayError: none of them could be measured, or the table cannot be kept.
    """
    spec, phases = target_of(target, target_options, threads), Phases(progress or usual())
    with hearing(phases.doing):
        rng, to = np.random.default_rng(seed), None if costs is None else Path(costs)
        return _calibrate.calibrate_machine(spec, seconds_of(budget), rng, phases.begin, to=to)


@documented
def select(
    out: Annotated[str | Path, declared.RUN],
    *,
    to: Annotated[str | Path | None, declared.SELECTED] = None,
    max_drop: Annotated[str | float | None, declared.SELECTED_MAX_DROP] = None,
    min_sqnr: Annotated[float | None, declared.SELECTED_MIN_SQNR] = None,
    fastest: Annotated[bool, declared.FASTEST] = False,
    max_size: Annotated[str | int | None, declared.SELECTED_MAX_SIZE] = None,
    max_memory: Annotated[str | int | None, declared.SELECTED_MAX_MEMORY] = None,
    minimize: Annotated[str, declared.SELECTED_MINIMIZE] = "latency",
) -> Selected:
    """Write the fastest, smallest or leanest model that an earlier run measured within other bounds, without a search.

    Raises:
        UsageError: no wish, contradicting wishes, or no measured model keeps them.
        JournalError: there is no finished run in ``out``.
    """
    wish = _run_select.wish(min_sqnr, max_drop, max_size, minimize, fastest, max_memory)
    return _run_select.select(Path(out), Path(to) if to is not None else Path(out) / "selected.onnx", wish)
