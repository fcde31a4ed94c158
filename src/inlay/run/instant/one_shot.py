"""What every way to quantize without a search needs first: the float model's outputs, and the model prepared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from inlay.calibrate import policy
from inlay.calibrate.observe import halves
from inlay.calibrate.tables import CalibrationChoice
from inlay.data import InputSpec, Samples, Workload, bound, fixed_values, input_specs, save_feed
from inlay.deadline import NEVER, Deadline
from inlay.errors import CompileFailed, ModelError, RunFailed
from inlay.measure.client import Worker
from inlay.model.load import ModelFile
from inlay.prepare.candidate_writer import CandidateWriter, belongs
from inlay.prepare.halves import find_wide, keep_wide
from inlay.prepare.model import PreparedModel, prepare, where_taken
from inlay.prepare.options import DEFAULT_MIN_SQNR_DB
from inlay.prepare.smoothquant import find_scales
from inlay.prepare.strip_qdq import strip_qdq
from inlay.quant.accuracy import Bound, Judge, Outputs
from inlay.quant.tasks.recognize import task_of
from inlay.quant.tasks.task import Task
from inlay.run.reference import RunFiles
from inlay.run.robustness import StressTest, beside_noise, variations_of
from inlay.space.recipe import Recipe
from inlay.targets.base import Artifact, Capabilities, TargetSpec
from inlay.trial import Accuracy
from inlay.types import AUTO, Placement

PREPARING_S = 15.0
"""Seconds in which outliers are moved into weights where the answer must be quick: up to 7 dB depend on them."""
_SMOOTHING = 0.35
"""Share of the time that is left in which they should be: beyond, they are judged in fewer forms of the products."""
_SCORING, _LEAST_SCORED = 0.15, 4
"""Share of the time that is left for running a model on the samples that it is scored on, of which there are so many:
three or four models are, and with fewer samples the margin for what differs between them rises."""
_VARYING = 0.07  # share of the time that is left then for running the given and the delivered model on variations
_LEAST_VARIATIONS = 2


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A placement with its qparams, and what is known of it."""

    placement: Placement  # what is quantized
    calibration: CalibrationChoice  # how ranges were chosen
    writer: CandidateWriter  # writes placements with these qparams
    shared: Mapping[str, str]  # for nodes whose values share a scale, why
    # on the scoring samples; None where there are no samples, or it is yet to be measured
    accuracy: Accuracy | None = None
    varied: Sequence[Outputs] | None = None  # outputs for each variation; None where none were run


@dataclass(frozen=True, eq=False, kw_only=True)
class QuantizeRequest:
    """What a caller asks for."""

    file: ModelFile  # the ONNX model
    target: TargetSpec  # where it will run
    samples: Samples  # real ones, or random ones, which neither choose ranges nor measure accuracy
    # which operators, in which types; None for the fastest within the bound of a few that are built, by the
    # processor's cost table and their own profiles, and for the target's usual one where it tells no latencies
    rules: Recipe | None = None
    quant_type: str = AUTO  # of activations, where the rules do not say
    base: str = AUTO  # of what is not quantized
    bound_db: float | None = None  # least SQNR of the worst output; None for what is usual, by the model's task
    sizes: Mapping[str, int] = field(default_factory=dict)  # of dynamic dimensions that are to be fixed, by symbol
    augment: str = "auto"  # how samples are varied, as in `stress_set`
    seed: int = 0  # of the variations, and of the order of measurements
    max_opset: int | None = None  # the newest opset that the file may have
    costs: Path | None = None  # a cost table that goes before those that are known

    @cached_property
    def specs(self) -> Sequence[InputSpec]:
        """The inputs, with the sizes that dynamic dimensions have."""
        return bound(input_specs(self.file.model), self.sizes)

    @property
    def real(self) -> bool:
        """Whether the samples can choose ranges and measure accuracy."""
        return self.samples.kind != "random"

    @property
    def changes_it(self) -> bool:
        """Whether something is asked for that the given file has not, so that it is no answer."""
        return bool(self.sizes) or bool(fixed_values(self.file.model)) or self.max_opset is not None

    @property
    def given(self) -> Artifact:
        """The file as it was given."""
        return Artifact(self.file.content.resolve(), self.file.sha256)


@dataclass(frozen=True, eq=False, kw_only=True)
class OneShot:
    """A model about to be quantized once."""

    asked: QuantizeRequest  # what is asked for
    worker: Worker  # runs and times models
    scored: Samples  # samples that accuracy is measured on, and `feeds` their files
    feeds: Sequence[Path]  # see there
    reference: Sequence[Outputs]  # outputs of the given model for each of them
    test: StressTest  # variations of them
    prepared: PreparedModel  # the model
    bound: Bound  # what is to be kept: as asked for, or usual for such a model
    task: Task | None  # what the model is for, where that is sure; it binds where the bound is its own
    timed: Path  # what models are timed and profiled on: one sample, or some that together take all branches
    inference_s: float  # seconds that the given model took for one of the samples, roughly; 0 without a deadline

    @classmethod
    def open(
        cls,
        asked: QuantizeRequest,
        target: Capabilities,
        worker: Worker,
        work: Path,
        run: RunFiles,
        deadline: Deadline = NEVER,
    ) -> OneShot:
        """Run the given model by ``run`` on the scoring samples and on variations, and prepare it; raises InlayError.

        This takes a part of the time until the ``deadline`` of the whole answer. Files go to the folder ``work``.
        """
        file, samples = asked.file, asked.samples
        scored, feeds = _scoring_feeds(samples, work)
        limited, most = not math.isinf(deadline.at), policy.SCORED_VARIATIONS
        until = NEVER.within(max(PREPARING_S, _SMOOTHING * deadline.left)) if limited else NEVER
        begun, known, each_s = deadline.clock(), list[Outputs](), 0.0
        try:
            if limited:
                known += run(feeds[:1])  # which builds the model
                begun = begun if len(feeds) == 1 else deadline.clock()
                known += run(feeds[1:2]) if len(feeds) > 1 else []
                each_s = max(deadline.clock() - begun, 1e-6)
                count = int(np.clip(_SCORING * deadline.left / each_s, _LEAST_SCORED, len(feeds)))
                scored, feeds = scored.part(range(count)), feeds[:count]
                most = int(np.clip(_VARYING * deadline.left / (2.0 * each_s), _LEAST_VARIATIONS, most))
            reference = [*known, *(run(feeds[len(known) :]) if len(known) < len(feeds) else ())]
            varied = variations_of(scored, asked.specs, asked.augment, asked.seed, 1, most)
            test = StressTest.of(varied, scored, work / "varied", run)
        except (CompileFailed, RunFailed) as error:
            raise ModelError(f"{file.path} does not run on {worker.fingerprint.target}: {error}") from error
        extraction = strip_qdq(file, samples.feeds, work)
        prepared = prepare(file, target, samples.feeds[0], work, extraction=extraction, sizes=asked.sizes)
        prepared = where_taken(prepared, samples.feeds)
        prepared = prepared.tuned_for(belongs(worker.fingerprint))
        shown = prepared.request.shown
        if asked.real and extraction is None:
            soon = deadline.within(_SMOOTHING * deadline.left) if limited else NEVER
            prepared = find_scales(prepared, samples.feeds, until, samples.mask, soon).model or prepared
        asked_for = Bound(DEFAULT_MIN_SQNR_DB, is_usual=True) if asked.bound_db is None else Bound(asked.bound_db)
        task = beside_noise(task_of(scored, reference), scored, reference, run, work)
        bound = asked_for if task is None else task.usual(asked_for)
        assert bound.min_sqnr_db is not None, "each of them has one"
        prepared = keep_wide(prepared, find_wide(prepared, samples.feeds, bound.min_sqnr_db, mask=samples.mask))
        return cls(
            bound=bound,
            task=None if task is None else task.bound(binds=bool(bound.in_task)),
            asked=asked,
            worker=worker,
            scored=scored,
            feeds=feeds,
            reference=reference,
            test=test,
            prepared=prepared,
            inference_s=each_s,
            timed=feeds[0] if len(shown) == 1 else Workload.of_some(samples.feeds, shown).save(work / "timed"),
        )

    @cached_property
    def judge(self) -> Judge:
        """On the scoring samples."""
        return Judge(self.reference, self.scored, Bound(), confidence=None)


def _scoring_feeds(samples: Samples, folder: Path) -> tuple[Samples, list[Path]]:
    """The samples that tables are scored on, and their files: the first half, since the second one makes the ranges.

    Random ones say nothing of accuracy: one is enough to see that the model runs, and to time it.
    """
    paths = []
    numbers = halves(len(samples))[0][: 1 if samples.kind == "random" else policy.SCORING_SAMPLES_ONE_SHOT]
    for number in numbers:
        paths.append(folder / f"{number}.npz")
        save_feed(paths[-1], samples.feeds[number])
    return samples.part(numbers), paths
