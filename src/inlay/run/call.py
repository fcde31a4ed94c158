"""What a call of a command asks for, read and checked: model, samples, target, settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from inlay.data import (
    AUTO_MASK,
    NO_MASK,
    Images,
    InputSpec,
    Samples,
    ShapeWish,
    Workload,
    batch_wishes,
    bound,
    files_of,
    input_specs,
    likely_sizes,
    parse_batch,
    parse_shapes,
    random_of_shapes,
    read_labels,
    read_samples,
    tuned_sizes,
    workload_of,
)
from inlay.deadline import NEVER
from inlay.errors import DataError, UsageError
from inlay.model.guard import limited
from inlay.model.joins import joined
from inlay.model.load import ModelFile, ModelSource, load
from inlay.model.user_code import user_function
from inlay.prepare.config import TuneConfig
from inlay.prepare.options import (
    DEFAULT_MIN_SQNR_DB,
    STRATEGIES,
    check_sqnr,
    command_line,
    parse_bind,
    parse_duration,
    parse_share,
)
from inlay.quant.accuracy import Bound, find_metric
from inlay.quant.metrics import AGREEMENTS
from inlay.regions.cache import PatternCache
from inlay.run.inputs import TuneRequest
from inlay.run.progress import Logged
from inlay.space.recipe_file import find_recipe
from inlay.targets.base import OptionValue, TargetSpec

DataSource = str | Path | Iterable[Mapping[str, np.ndarray]] | None
Sizes = Sequence[str] | Mapping[str, int]
Batch = str | int | Sequence[int] | None
GivenOptions = Sequence[str] | Mapping[str, OptionValue]


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
    def read(cls, model: ModelSource, data: DataSource, bind: Sizes, images: Images | None = None) -> Given:
        """The model at a path."""
        return cls.of(load(model), data, bind, images)

    @classmethod
    def of(cls, file: ModelFile, data: DataSource, bind: Sizes, images: Images | None = None) -> Given:
        """A model that is loaded already."""
        if data is None and images is not None:
            raise UsageError("--image-size, --mean, --std and their kin are for --data FOLDER with images")
        sizes = parse_bind(bind)
        specs = bound(input_specs(file.model), sizes)
        return cls(file, None if data is None else read_samples(data, specs, images, user_function), specs, sizes)

    def at_sizes_of(self, files: Iterable[ModelFile]) -> Given:
        """The same, with the sizes that the first of ``files`` remembers to have been tuned at, if any does."""
        tuned = next(filter(None, (tuned_sizes(file.model) for file in files)), {})
        return replace(self, specs=[replace(spec, tuned=tuned) for spec in self.specs])

    def at_likely_sizes(self) -> tuple[Given, str]:
        """The same with a plausible size for each dynamic dimension, and these sizes for people."""
        sizes = likely_sizes(self.specs)
        listed = ", ".join(f"{name}={size}" for name, size in sizes.items())
        tried = f" (with {listed}; --bind gives others)" if sizes else ""
        return replace(self, specs=bound(self.specs, sizes)), tried

    def samples_or_random(self, rng: np.random.Generator, count: int, wishes: Sequence[ShapeWish] = ()) -> Samples:
        """Its samples, or random ones where there are none, of the shapes that are wished for."""
        return joined(self.samples or random_of_shapes(self.specs, wishes, rng, count), self.file.model)

    def workload(self, rng: np.random.Generator, shapes: Sequence[str], batch: Batch) -> Workload:
        """What latency is measured on. Raises UsageError where the inputs do not take what is asked for."""
        wishes, batches = parse_shapes(shapes, self.specs), batch_wishes(parse_batch(batch), self.specs)
        samples = self.samples_or_random(rng, max(1, len(wishes)), wishes)
        return workload_of(samples.feeds, self.specs, wishes, batches)

    def masked(self, samples: Samples, mask: str) -> Samples:
        """``samples`` with ``--mask``. Raises UsageError where the model has no such input."""
        names = [s.name for s in self.specs]
        if mask not in (AUTO_MASK, NO_MASK, *names):
            raise UsageError(f"--mask {mask}: give {AUTO_MASK}, {NO_MASK}, or an input: {', '.join(names)}")
        return replace(samples, mask=mask)


def request_of(function: Callable[..., Any], call: Mapping[str, Any], target: TargetSpec) -> TuneRequest:
    """A call of ``tune``, read and checked.

    Args:
        function: whose signature declares the options.
        call: its arguments by name.
        target: to tune for.

    Raises:
        InlayError: the model, the samples or an option cannot be used.
    """
    budget_s = seconds_of(call["budget"])
    end = NEVER if budget_s is None else NEVER.within(budget_s - call["before_s"])
    with limited(lambda: end.left):  # the user's functions may not end
        return _request_of(function, call, target, budget_s)


def _request_of(
    function: Callable[..., Any], call: Mapping[str, Any], target: TargetSpec, budget_s: float | None
) -> TuneRequest:
    data, labels, metric, strategy = call["data"], call["labels"], call["metric"], call["strategy"]
    given = Given.read(call["model"], data, call["bind"], call["images"])
    samples = None if given.samples is None else given.masked(given.samples, call["mask"])
    if samples is None and call["mask"] != AUTO_MASK:
        raise UsageError("--mask without --data: random samples have no padding")
    if labels is not None:
        if samples is None:
            raise UsageError("--labels without --data: labels belong to samples")
        if metric in (None, "sqnr", *AGREEMENTS):
            raise UsageError("--labels without a --metric that looks at them: give top1, or module:function")
        array = labels if isinstance(labels, np.ndarray) else read_labels(labels, len(samples))
        if array.ndim == 0 or len(array) != len(samples):
            raise DataError(f"labels: an array of shape {list(array.shape)}, but there are {len(samples)} samples")
        samples = replace(samples, labels=array)
    measure = find_metric(metric, None if samples is None else samples.labels)
    baseline, cache, recipe = call["qdq_baseline"], call["pattern_cache"], call["recipe"]
    config = TuneConfig(
        target=target,
        bound=_bound(_name_of(metric), call["max_drop"], call["min_sqnr"], call["no_bound"]),
        bind=given.sizes,
        budget_s=budget_s,
        qdq_baseline=None if baseline is None else Path(baseline),
        pattern_cache=None if cache is None else Path(cache),
        nodes=tuple(call["nodes"]),
        shapes=tuple(call["shapes"]),
        batch=parse_batch(call["batch"]),
        recipe=None if recipe is None else find_recipe(recipe),
        command=command_line(function, call),
        **{name: call[name] for name in _AS_GIVEN},
    )
    if strategy not in STRATEGIES:
        raise UsageError(f"--strategy {strategy}: give {', '.join(STRATEGIES)}")
    if config.pattern_cache is not None:
        PatternCache.load(config.pattern_cache)  # a cache that cannot be read is an error before any work is done
    further = [Path(g) for g in (data, labels, recipe, baseline, cache) if isinstance(g, str | Path)]
    return TuneRequest(
        given.file,
        Path(call["out"]),
        samples,
        config,
        measure,
        call["restart"],
        call["progress"] or Logged(),
        sources=tuple(g.absolute() for g in further if g.exists()),
    )


_AS_GIVEN = (
    "seed", "max_measurements", "max_builds", "keep_qparams", "cost_db", "strategy", "schemes_per_region", "quant_type",
    "freeze_shapes", "augment", "max_opset", "accept_unproven",
)  # fmt: skip
"""Options of ``tune`` that are settings of a run as they are."""


def seconds_of(budget: str | float | None) -> float | None:
    """Seconds of a budget; None for no limit. Raises UsageError."""
    if budget is None or budget == "none":
        return None
    return parse_duration(budget if isinstance(budget, str) else f"{budget:f}")


def _name_of(metric: str | Callable[..., float] | None) -> str | None:
    return metric if metric is None or isinstance(metric, str) else str(getattr(metric, "__name__", metric))


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
    return Bound(check_sqnr(min_sqnr), named, drop)
