"""What a run is asked for, and what it works with: model, samples, workload, target, settings; notes on inputs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from inlay.data import (
    AUTO_MASK,
    Samples,
    Split,
    Workload,
    batch_wishes,
    bound,
    common_sizes,
    fixed_values,
    input_specs,
    parse_shapes,
    random_of_shapes,
    split,
    workload_of,
)
from inlay.data.fixed import shown
from inlay.errors import UsageError
from inlay.files import refuse_overwriting
from inlay.installed import __version__
from inlay.measure.lab import HERE, Lab
from inlay.model.graph import Graph
from inlay.model.held import changed_since, held
from inlay.model.joins import joined
from inlay.model.load import ModelFile
from inlay.model.passes.branches import deciding_inputs
from inlay.prepare.config import TuneConfig
from inlay.prepare.qdq_import import read_baseline
from inlay.prepare.strip_qdq import holds_quantized
from inlay.quant.accuracy import JUDGING, Metric
from inlay.run.evaluation.evaluator import ModelEvaluator
from inlay.run.progress import Progress, Silent
from inlay.targets.base import TargetSpec
from inlay.trial import counted

RANDOM_SAMPLES = 8  # stand-ins where no samples are given: enough for a split in three
_MOST_SAMPLES, _MOST_COUNTED = 32, 2000
"""Samples in the selection and in the verification part. A metric that counts, such as an accuracy of 1 in 100, needs
thousands; the SQNR of an output settles with tens."""
MOST_JUDGED = 24  # samples that candidates are judged on, where the selection part has fewer


OUTPUTS = ("model.onnx", "model.onnx.data", "result.json", "recipe.yaml", "run.sqlite", "report.html")
"""What a run writes into its folder; ``pattern_cache.yaml`` besides, which is merged with what it held."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TuneRequest:
    """What a caller asks for."""

    file: ModelFile  # the ONNX model
    out: Path  # folder for the results; the same request continues the run in it
    # real inputs, with labels where the metric needs them; None for random inputs (latency is then real, accuracy is
    # not)
    samples: Samples | None = None
    config: TuneConfig = field(default_factory=TuneConfig)  # settings
    metric: Metric | None = None  # the function behind `config.bound.metric`
    evaluator: ModelEvaluator | None = None  # the evaluation behind `config.bound.evaluation`
    restart: bool = False  # forget an earlier run in `out`
    progress: Progress = field(default_factory=Silent)  # hears what happens
    lab: Lab = HERE  # where latency is measured, and by which clock; this machine's own by default
    before_s: float = 0.0  # seconds of the budget that the command has used up before this
    # files and folders besides the model that all this was read from: no command on the run overwrites them
    sources: tuple[Path, ...] = ()
    # where the target computes float32 operators in fewer bits, and the given model is faster in float32, the run is
    # for the target as it computes in float32
    any_precision: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class RunInputs:
    """What a run works with, once everything that can be wrong with the call has been ruled out."""

    config: TuneConfig  # settings
    file: ModelFile  # the model
    qdq_baseline: ModelFile | None  # the Q/DQ model to beat, or None
    samples: Samples  # all samples
    parts: Split  # the same, split for calibration, selection and verification
    judged: int  # how many samples candidates are judged on (`judging`)
    workload: Workload  # what latency is measured on
    metric: Metric | None  # the function behind `config.bound.metric`, or None
    evaluator: ModelEvaluator | None  # the evaluation behind `config.bound.evaluation`, or None
    out: Path  # folder of the results
    sources: tuple[Path, ...] = ()  # what all this was read from besides the model

    @classmethod
    def of(cls, asked: TuneRequest, rng: np.random.Generator) -> RunInputs:
        """Load the Q/DQ baseline, draw random samples where there are none, and split them.

        Raises:
            InlayError: an output would overwrite an input, the Q/DQ baseline does not fit the model, or random samples
                cannot be drawn for its inputs.
        """
        file, samples, config = asked.file, asked.samples, asked.config
        specs = input_specs(file.model)
        baseline = None if config.qdq_baseline is None else read_baseline(config.qdq_baseline, file)
        if config.keep_qparams and baseline is None and not holds_quantized(file):
            raise UsageError("--keep-qparams: there is no Q/DQ model to keep them from")
        specs = bound(specs, config.bind)
        wishes, batches = parse_shapes(config.shapes, specs), batch_wishes(config.batch, specs)
        if samples is None:
            samples = random_of_shapes(specs, wishes, rng, RANDOM_SAMPLES)
        samples = joined(samples, file.model)
        given = (*file.files, *(() if baseline is None else baseline.files))
        refuse_overwriting([asked.out / name for name in OUTPUTS], given)
        counted = samples.labels is not None or asked.config.bound.metric is not None
        parts = split(samples, rng, others=_MOST_COUNTED if counted else _MOST_SAMPLES)
        every = (p.feeds for p in (parts.calibration, parts.selection, parts.verification))
        workload = workload_of([feed for feeds in every for feed in feeds], specs, wishes, batches)
        judged = len(parts.selection)
        if parts.verified and samples.kind != "random" and asked.config.bound.metric is None:
            judged = max(judged, min(MOST_JUDGED, judged + len(parts.calibration)))
        return cls(
            config=config,
            file=file,
            qdq_baseline=baseline,
            samples=samples,
            parts=parts,
            judged=judged,
            workload=workload,
            metric=asked.metric,
            evaluator=asked.evaluator,
            out=asked.out,
            sources=asked.sources,
        )

    @property
    def frozen(self) -> dict[str, int]:
        """Sizes of the dynamic dimensions that the written model is to have fixed, by symbol."""
        feeds = (*self.samples.feeds, *self.workload.feeds)
        common = common_sizes(input_specs(self.file.model), feeds) if self.config.freeze_shapes else {}
        return {**common, **self.config.bind}

    @property
    def verification(self) -> Samples | None:
        """Samples that neither calibration nor search sees; None where there are too few to keep some back."""
        return self.parts.verification if self.parts.verified else None

    @property
    def stated(self) -> int:
        """How many samples a statement on new ones rests on at most; 0 where there is none, as of random ones."""
        return 0 if self.samples.kind == "random" else len(self.samples)

    @property
    def judging(self) -> Samples:
        """The samples that candidates are judged on: those for the selection, and behind them some of the calibration.

        A few samples say little of how samples differ. Those of the calibration do, too, although their own accuracy
        is flattered. A metric is judged on the selection alone.
        """
        selection, more = self.parts.selection, self.judged - len(self.parts.selection)
        return selection.and_then(self.parts.calibration.evenly(more)) if more > 0 else selection

    def timed_on(self, counted: Sequence[tuple[int, int]]) -> RunInputs:
        """The same with latency measured on some samples for the calibration, which together take every branch.

        They are given by number, with how many each stands for. Where samples differ in shape, or shapes are asked for,
        those stay what it is measured on.
        """
        asked = self.config.shapes or self.config.batch is not None
        if asked or len(counted) < 2 or len(self.workload.feeds) > 1:
            return self
        return replace(self, workload=Workload.of_some(self.parts.calibration.feeds, counted))

    def judged_on(self, judged: int, verification: int) -> RunInputs:
        """The same with so many samples for candidates and for the winner, evenly spaced."""
        parts, unseen = self.parts, self.parts.verification.evenly(verification)
        parts = replace(parts, selection=parts.selection.evenly(judged), verification=unseen)
        return replace(self, parts=parts, judged=judged)

    def held_in(self, work: Path) -> RunInputs:
        """The same with copies of the given models in ``work``: whatever is written over them changes nothing.

        Raises:
            ModelError: one of them is no longer what was loaded.
        """
        baseline = None if self.qdq_baseline is None else held(self.qdq_baseline, work / "given-baseline")
        return replace(self, file=held(self.file, work / "given"), qdq_baseline=baseline)

    @property
    def changed(self) -> tuple[str, ...]:
        """What people should know of given models that are no longer what was read."""
        files = [self.file, *([] if self.qdq_baseline is None else [self.qdq_baseline])]
        return tuple(filter(None, map(changed_since, files)))

    def on(self, target: TargetSpec) -> RunInputs:
        """The same for another target."""
        return replace(self, config=replace(self.config, target=target))

    def identity(self, target: str) -> dict[str, str]:
        """What must be equal for a run to resume: everything that changes its trials.

        Args:
            target: name and digest of the fingerprint of the target that was asked for.
        """
        return {
            "version": __version__,
            "judging": JUDGING,
            "model": self.file.sha256,
            "samples": self.samples.digest,
            "target": target,
            "qdq_baseline": "" if self.qdq_baseline is None else self.qdq_baseline.sha256,
            **({"fixed": json.dumps(values, sort_keys=True)} if (values := fixed_values(self.file.model)) else {}),
            **({} if self.samples.mask == AUTO_MASK else {"mask": self.samples.mask}),
            **self.config.identity(),
        }


_MOST = 8  # numbers of an input that is suggested to be fixed


def limit_notes(file: ModelFile, frozen: str) -> Iterator[str]:
    """What a written model is for alone: the values of inputs that were fixed, and the sizes, ``frozen``, if any."""
    fixed = [f"{s.name}={shown(s.fixed)}" for s in input_specs(file.model) if s.fixed is not None]
    if fixed:
        yield f"the written model is for {', '.join(fixed)} only: whatever else a program feeds there has no effect"
    if frozen:
        yield f"the written model accepts no sizes other than {frozen}: its shapes are fixed"


def fixable_notes(file: ModelFile, samples: Samples) -> tuple[str, ...]:
    """What could be fixed: inputs that are the same in all samples and alone decide which branch of an If is taken."""
    specs = {s.name: s for s in input_specs(file.model)}
    found = []
    for name, nodes in deciding_inputs(file.model).items():
        spec, arrays = specs.get(name), [feed[name] for feed in samples.feeds if name in feed]
        if spec is None or spec.fixed is not None or spec.dtype.kind not in "fiub" or not arrays:
            continue
        first = arrays[0]
        if 0 < first.size <= _MOST and all(np.array_equal(first, a) for a in arrays[1:]):
            value = f"{name}={shown(first)}"
            found.append(
                f"input {name} alone decides which branch of {', '.join(nodes)} is taken, and is {shown(first)} in all "
                f"samples: --fix {value} makes a model for that value only, without the other branches"
            )
    return tuple(found)


def freezable_notes(graph: Graph, file: ModelFile, samples: Samples) -> tuple[str, ...]:
    """Whether sizes could be fixed: branches are chosen by sizes alone, and some are the same in all samples."""
    branches = [n for n in graph.nodes if n.op_type == "If" and n.inputs and graph.is_fixed(n.inputs[0])]
    sizes = {} if samples.kind == "random" else common_sizes(input_specs(file.model), samples.feeds)
    if not branches or not sizes:
        return ()
    listed = ", ".join(f"{name}={size}" for name, size in sizes.items())
    many = f"{counted(len(branches), 'If')} {'is' if len(branches) == 1 else 'are'}"
    same = f"{listed} {'is' if len(sizes) == 1 else 'are'} the same in all samples"
    return (
        f"{many} decided in each inference, by sizes alone, and {same}: --freeze-shapes decides once what follows from "
        "that, in a model for these sizes only",
    )
