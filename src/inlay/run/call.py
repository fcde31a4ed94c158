"""What a call of a command asks for, read and checked: model, samples, target, settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from inlay.data import (
    AUTO_MASK,
    FIXED,
    NO_MASK,
    FixedValues,
    Images,
    InputSpec,
    Samples,
    ShapeWish,
    Workload,
    batch_wishes,
    bound,
    files_of,
    fixed_values,
    input_specs,
    labelled,
    parse_batch,
    parse_fixed,
    parse_shapes,
    random_of_shapes,
    read_samples,
    sizes_to_try,
    tuned_sizes,
    workload_of,
)
from inlay.deadline import NEVER
from inlay.errors import UsageError, near
from inlay.installed import MODELS
from inlay.installed import joined as installed
from inlay.model.guard import limited
from inlay.model.joins import joined
from inlay.model.load import ModelFile, ModelSource, load
from inlay.model.user_code import source_sha256, user_function
from inlay.prepare.config import TuneConfig
from inlay.prepare.declare import Options, shown
from inlay.prepare.options import (
    DEFAULT_MIN_SQNR_DB,
    STRATEGIES,
    check_sqnr,
    parse_bind,
    parse_duration,
    parse_limits,
    parse_share,
)
from inlay.quant.accuracy import find_metric
from inlay.quant.bound import DEFAULT_DROP, Bound, EvaluationBound
from inlay.quant.metrics import AGREEMENTS
from inlay.quant.tasks.recognize import CHOICES
from inlay.quant.tasks.task import MOST_LOST
from inlay.run.evaluation.evaluator import ModelEvaluator, evaluator_of
from inlay.run.inputs import TuneRequest
from inlay.run.joined import joined_strategies
from inlay.run.notebook import usual
from inlay.run.options import Batch, DataSource, Sizes, TuneOptions
from inlay.space.recipe_file import find_recipe
from inlay.targets.base import TargetSpec
from inlay.targets.objective import aimed_at


class Module(Protocol):
    """What is no ONNX model, and may be made one, such as a ``torch.nn.Module``."""

    @property
    def forward(self) -> Callable[..., Any]:
        """What it computes."""


OptionsT = TypeVar("OptionsT", bound=Options)


def as_model(model: Any, options: OptionsT) -> tuple[ModelSource, OptionsT]:
    """``model`` as an ONNX model, and ``options`` with samples that fit it; both as they are where it is one.

    What is none, such as a PyTorch module, is for what joined by the name of the package that defines its type.

    Raises:
        InlayError: it cannot be exported, or the samples do not fit it.
        UsageError: there is nothing installed for such an object.
    """
    if isinstance(model, ModelSource):
        return model, options
    found = installed(MODELS)
    for kind in type(model).__mro__:
        if (maker := found.get(kind.__module__.partition(".")[0])) is not None:
            made: tuple[ModelSource, OptionsT] = maker.load()(model, options)
            return made
    taken = "str or Path or ModelProto or torch.nn.Module"
    raise UsageError(f"{options.caller()}: model takes {taken}, not {shown(model)}")


def files_in(*given: object) -> list[Path]:
    """The files among what was given."""
    return [path for source in given for path in files_of(source)]


@dataclass(frozen=True, eq=False)
class Given:
    """A model with the samples that were given for it, if any, and the sizes of its dynamic dimensions."""

    file: ModelFile
    samples: Samples | None
    specs: Sequence[InputSpec]
    sizes: Mapping[str, int]

    @classmethod
    def read(
        cls, model: ModelSource, data: DataSource, bind: Sizes, images: Images | None = None, fix: FixedValues = ()
    ) -> Given:
        """The model at a path."""
        file = load(model)
        if fix:  # as the written file will say it, so that whoever reads either knows
            values = parse_fixed(fix, bound(input_specs(file.model), parse_bind(bind)))
            file.model.metadata_props[FIXED] = json.dumps({**fixed_values(file.model), **values})
        return cls.of(file, data, bind, images)

    @classmethod
    def of(cls, file: ModelFile, data: DataSource, bind: Sizes, images: Images | None = None) -> Given:
        """A model that is loaded already."""
        if data is None and images is not None:
            raise UsageError("--preprocess applies only to --data FOLDER with images")
        sizes = parse_bind(bind)
        specs = bound(input_specs(file.model), sizes)
        return cls(file, None if data is None else read_samples(data, specs, images, user_function), specs, sizes)

    def at_sizes_of(self, files: Sequence[ModelFile]) -> Given:
        """The same, with the sizes that the first of ``files`` remembers to have been tuned at, and fixed values."""
        tuned = next(filter(None, (tuned_sizes(file.model) for file in files)), {})
        fixed = {s.name: s.fixed for file in files for s in input_specs(file.model) if s.fixed is not None}
        return replace(self, specs=[replace(s, tuned=tuned, fixed=fixed.get(s.name)) for s in self.specs])

    def at_plausible_sizes(self) -> Iterator[tuple[Given, dict[str, int]]]:
        """The same with a plausible size for each dynamic dimension that has none, and all sizes: likeliest first."""
        for sizes in sizes_to_try(self.specs):
            specs = bound(self.specs, sizes)
            pairs = [(s.dims or (), t.dims or ()) for s, t in zip(input_specs(self.file.model), specs, strict=True)]
            found = {d: n for s, t in pairs for d, n in zip(s, t, strict=True) if isinstance(d, str)}
            yield replace(self, specs=specs), {d: n for d, n in found.items() if isinstance(n, int)}

    def samples_or_random(self, rng: np.random.Generator, count: int, wishes: Sequence[ShapeWish] = ()) -> Samples:
        """Its samples, or random ones where there are none, of the shapes that are wished for."""
        return joined(self.samples or random_of_shapes(self.specs, wishes, rng, count), self.file.model)

    def workload(self, rng: np.random.Generator, shapes: Sequence[str], batch: Batch) -> Workload:
        """What latency is measured on. Raises UsageError where the inputs do not take what is asked for."""
        wishes, batches = parse_shapes(shapes, self.specs), batch_wishes(parse_batch(batch), self.specs)
        return workload_of(self.samples_or_random(rng, max(1, len(wishes)), wishes).feeds, self.specs, wishes, batches)

    def masked(self, samples: Samples, mask: str) -> Samples:
        """``samples`` with ``--mask``. Raises UsageError where the model has no such input."""
        names = [s.name for s in self.specs]
        if mask not in (AUTO_MASK, NO_MASK, *names):
            raise UsageError(f"--mask {mask}: give {AUTO_MASK}, {NO_MASK}, or an input: {', '.join(names)}")
        return replace(samples, mask=mask)


def request_of(model: ModelSource, options: TuneOptions, target: TargetSpec, command: str) -> TuneRequest:
    """A call of ``tune``, read and checked.

    Args:
        command: the line that asks for it, for people.

    Raises:
        InlayError: the model, the samples or an option cannot be used.
    """
    budget_s = seconds_of(options.budget)
    end = NEVER if budget_s is None else NEVER.within(budget_s - options.before_s)
    with limited(lambda: end.left):  # the user's functions may not end
        given = Given.read(model, options.data, options.bind, options.images, options.fix)
        samples = _samples(given, options)
        measure = find_metric(options.metric, None if samples is None else samples.labels)
        _check_task(options, samples)
        evaluator = evaluator_of(options.evaluate)
    if options.strategy not in STRATEGIES:
        meant = near(options.strategy, STRATEGIES)
        raise UsageError(f"--strategy {options.strategy}: give {', '.join(STRATEGIES)}{meant}")
    config = TuneConfig(
        target=aimed_at(target, options.objective, options.streams, bool(options.device or options.ray)),
        bound=bound_of(options, evaluator),
        task=options.task,
        bind=given.sizes,
        budget_s=budget_s,
        qdq_baseline=_path(options.qdq_baseline),
        pattern_cache=_path(options.pattern_cache),
        nodes=tuple(options.nodes),
        shapes=tuple(options.shapes),
        batch=parse_batch(options.batch),
        recipe=None if options.recipe is None else find_recipe(options.recipe),
        command=command,
        seed=options.seed,
        max_measurements=options.max_measurements,
        max_builds=options.max_builds,
        keep_qparams=options.keep_qparams,
        cost_db=options.cost_db,
        costs=_path(options.costs),
        strategy=options.strategy,
        schemes_per_region=options.schemes_per_region,
        quant_type=options.quant_type,
        freeze_shapes=options.freeze_shapes,
        augment=options.augment,
        base=options.base,
        max_opset=options.max_opset,
        accept_unproven=options.accept_unproven,
        sources=sources_of({"--evaluate": options.evaluate, "--metric": options.metric}),
    )
    if config.pattern_cache is not None:
        for each in joined_strategies().values():
            each.check(config)
    sources = (options.data, options.labels, options.recipe, options.qdq_baseline, options.pattern_cache, options.costs)
    further = [Path(source) for source in sources if isinstance(source, str | Path)]
    return TuneRequest(
        file=given.file,
        out=Path(options.out),
        samples=samples,
        config=config,
        metric=measure,
        evaluator=evaluator,
        restart=options.restart,
        progress=options.progress or usual(),
        sources=tuple(path.absolute() for path in further if path.exists()),
    )


def sources_of(given: Mapping[str, object]) -> dict[str, str]:
    """Digests of the source of what options name, where that is the user's own."""
    named = {option: source_sha256(each) for option, each in given.items() if isinstance(each, str) or callable(each)}
    return {option: digest for option, digest in named.items() if digest}


def _samples(given: Given, options: TuneOptions) -> Samples | None:
    """Its samples with labels and mask. Raises UsageError, DataError."""
    if given.samples is None:
        if options.mask != AUTO_MASK:
            raise UsageError("--mask needs --data: random samples have no padding")
        if options.labels is not None:
            raise UsageError("--labels needs --data: labels belong to samples")
        return None
    samples, labels = given.masked(given.samples, options.mask), options.labels
    if labels is None:
        return samples
    if options.metric in (None, "sqnr", *AGREEMENTS):
        raise UsageError("--labels needs a --metric that uses them: give top1, or module:function")
    return labelled(samples, labels, given.specs)


def _check_task(options: TuneOptions, samples: Samples | None) -> None:
    """Raise UsageError where ``--task`` is none, or says nothing here."""
    if options.task not in CHOICES:
        raise UsageError(f"--task {options.task}: give {', '.join(CHOICES)}{near(options.task, CHOICES)}")
    if options.task in MOST_LOST and options.metric is not None:
        raise UsageError("--task names a bound, and so does --metric: give one of them")
    if options.task in MOST_LOST and samples is None:
        raise UsageError("--task needs --data: random samples show nothing of a task")


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)


def seconds_of(budget: str | float | None) -> float | None:
    """Seconds of a budget; None for no limit. Raises UsageError."""
    if budget is None or budget == "none":
        return None
    return parse_duration(budget if isinstance(budget, str) else f"{budget:f}")


def bound_of(options: TuneOptions, evaluator: ModelEvaluator | None) -> Bound:
    """The constraint. Raises UsageError where options contradict each other."""
    metric, max_drop, min_sqnr = options.metric, options.max_drop, options.min_sqnr
    if metric is not None and not isinstance(metric, str):
        metric = str(getattr(metric, "__name__", metric))
    evaluation = _evaluation_bound(options, evaluator)
    named = options.task if options.task in MOST_LOST else None if metric in (None, "sqnr") else metric
    if evaluation is not None and named is not None:
        raise UsageError("give --evaluate, --metric or --task, one of them: each says what is accurate enough")
    if options.no_bound:
        if max_drop is not None or min_sqnr is not None or options.at_least or options.at_most:
            raise UsageError("--no-bound contradicts --max-drop, --min-sqnr, --min and --max")
        return Bound(metric=named, evaluation=evaluation)
    if max_drop is not None and named is None and evaluation is None:
        raise UsageError("--max-drop needs --metric, --task or --evaluate: it bounds the fall of a metric")
    drop = None if max_drop is None else parse_share(str(max_drop))
    if named is None:
        if min_sqnr is None and evaluation is None:
            return Bound(DEFAULT_MIN_SQNR_DB, is_usual=True)
        return Bound(check_sqnr(min_sqnr), evaluation=evaluation)
    usual = MOST_LOST.get(options.task, DEFAULT_DROP)
    return Bound(check_sqnr(min_sqnr), named, usual if drop is None else drop)


def _evaluation_bound(options: TuneOptions, evaluator: ModelEvaluator | None) -> EvaluationBound | None:
    least, most = parse_limits("--min", options.at_least), parse_limits("--max", options.at_most)
    higher, lower = options.higher_is_better, options.lower_is_better
    if evaluator is None:
        given = {"--min": least, "--max": most, "--higher-is-better": higher, "--lower-is-better": lower}
        idle = next((name for name, value in given.items() if value), None)
        if idle is not None:
            falls = "; how far --metric or --task falls below float is bounded by --max-drop"
            raise UsageError(
                f"{idle} needs --evaluate: it is about the scores of that{falls if idle in ('--min', '--max') else ''}"
            )
        return None
    if higher and lower:
        raise UsageError("give --higher-is-better or --lower-is-better; of single scores, --min and --max say which")
    both = next((name for name, _ in least if name in dict(most)), None)
    if both is not None:
        raise UsageError(
            f"--min {both} and --max {both}: give one of the two, which says in which direction it is better"
        )
    return EvaluationBound(
        evaluator.name,
        None if options.max_drop is None else parse_share(str(options.max_drop)),
        least,
        most,
        True if higher else False if lower else None,
        options.no_bound,
    )
