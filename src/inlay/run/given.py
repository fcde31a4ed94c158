"""The given model: what it costs and computes, and the first incumbent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from inlay.data import Samples, save_feed, shapes_of
from inlay.deadline import Deadline
from inlay.errors import JournalError, NoDevice, TargetError, TimedOut, UsageError
from inlay.measure.client import Worker
from inlay.measure.lab import Take
from inlay.measure.own_precision import BLOCKS, gain_in_float32
from inlay.measure.race import Meter
from inlay.prepare.config import TuneConfig
from inlay.prepare.protocol import Protocol
from inlay.quant.accuracy import CHECKED_LATER, EXACT_DB, UNCHECKED, Bound, Judge, Metric, Outputs
from inlay.quant.tasks.recognize import task_of
from inlay.quant.tasks.task import Task
from inlay.run.evaluate import Candidate, Evaluator
from inlay.run.facts import BASELINE_NS, PARTS, PRECISION, PrecisionChoice, digest_of
from inlay.run.reference import RunFiles, exact_outputs, in_reference
from inlay.run.robustness import beside_noise
from inlay.run.session import Session
from inlay.search.baselines import ORIGINAL
from inlay.targets.base import Artifact, OwnPrecision, TargetSpec
from inlay.targets.registry import create, in_float32
from inlay.trial import Accuracy, Interval, Latency, Measured, Proposal, Trial, shown_sqnr
from inlay.types import Placement

_HANG_FACTOR = 3.0  # times that timing the given model in float32 may take what it should, before its calls are ended


@dataclass(frozen=True, eq=False)
class Given:
    """The model as it was given."""

    file: Artifact  # of it
    feeds: Sequence[Path]  # the samples of `judging`, those of the selection first
    compared: Callable[[], Judge]  # what compares others with it on these, once its outputs are known
    reference: RunFiles  # gives its outputs in float32, see `reference`
    rounded: Sequence[Outputs] | None = None  # what the target itself makes of the feeds, where that is something else
    precision: str = ""  # that the target computes in then, for people

    @cached_property
    def judge(self) -> Judge:
        """What compares others with it on ``feeds``.

        Raises:
            ModelError: it does not run on one of them.
            UsageError: the bound is none.
        """
        return self.compared()

    @cached_property
    def accuracy(self) -> Accuracy:
        """Its own, on the target. The model is what a user has: it is never outside the bound."""
        if self.rounded is not None:
            return replace(self.judge.judge(self.rounded), feasible=True, reason="", margin_db=0.0)
        drop = None if self.judge.float_metric is None else 0.0
        return Accuracy(True, EXACT_DB, metric=self.judge.float_metric, drop=drop, silent=self.judge.silent)

    def bounded(self, bound: Bound) -> Given:
        """The same with another bound."""
        judge = self.judge.bounded(bound)
        return replace(self, compared=lambda: judge)

    def compare(
        self, samples: Samples, reference: Sequence[Outputs], bound: Bound | None = None, metric: Metric | None = None
    ) -> Judge:
        """What compares others with it on other samples, in the same parts of outputs, without a margin."""
        task = self.judge.task
        if task is not None:
            task = task.bound(binds=bound is not None and binds_in_task(bound))
        return Judge(reference, samples, bound or Bound(), metric, confidence=None, parts=self.judge.parts, task=task)

    def remark(self, bound: Bound, target: str) -> str:
        """What people should know of it, if anything."""
        if self.rounded is None:
            return self.judge.remark
        db, least = self.accuracy.sqnr_db, bound.min_sqnr_db
        lost = "" if least is None or db >= least else f", below {least:g} dB with nothing in 8 bits"
        return f"{target} itself computes the given model at {shown_sqnr(db)} against float32{lost} ({self.precision})"


def binds_in_task(bound: Bound) -> bool:
    """Whether what a model is for counts beside ``bound``: not beside the user's own measure, nor without a bound."""
    return bound.metric is None and bound.evaluation is None and bound.min_sqnr_db is not None


def bound_in_task(
    samples: Samples, reference: Sequence[Outputs], config: TuneConfig, run: RunFiles, folder: Path
) -> tuple[Bound, Task | None]:
    """The bound that models are judged by, and the given model's task, whose figures bind where nothing else does."""
    task = beside_noise(task_of(samples, reference, config.task), samples, reference, run, folder)
    bound = config.searched
    if task is None or not binds_in_task(config.bound):
        return bound, task
    return task.usual(bound), task.bound(binds=True)


def run_given(session: Session) -> Given:
    """Run the given model, and find out what its steps take.

    Where it runs on another machine, its outputs are waited for when somebody needs them.

    Raises:
        ModelError: it does not run.
        UsageError: the budget is too short.
    """
    inputs, known = session.inputs, not session.journal.empty
    file = Artifact(inputs.file.content.resolve(), inputs.file.sha256)
    session.stage("build and run the model as it is")
    (first,) = session.save_feeds("first", inputs.parts.selection.part([0]))
    with session.given_model_runs():
        if known:
            _as_chosen(session)
        session.run_given(file, first)
        _refuse_shapes(session, file)  # before the budget is: what does not run needs no more of it
        session.limit_samples(file, first)
        choice = None if known else _choose_precision(session, file)
        feeds = session.save_feeds("selection", session.inputs.judging)
    if choice is not None:  # not before: a folder is not taken up by a call that is refused
        session.journal.record_fact(PRECISION, choice)
    worker = session.worker
    inputs, apart = session.inputs, len(session.inputs.parts.selection)
    confidence = CHECKED_LATER if inputs.parts.verified else UNCHECKED
    run, in_float32 = partial(worker.run, file), in_reference(inputs.file)
    precision, exact = OwnPrecision.of(create(inputs.config.target)), None
    with session.given_model_runs():
        outputs = worker.running(file, feeds)
        if precision is not None and "accuracy" not in worker.lacks and inputs.samples.kind != "random":
            exact = exact_outputs(in_float32, outputs.result(), inputs.judging, feeds, session.journal)

    def compared() -> Judge:
        with session.given_model_runs():
            reference = outputs.result() if exact is None else exact
        by = run if exact is None else in_float32
        bound, task = bound_in_task(inputs.judging, reference, inputs.config, by, session.work)
        if task is not None and inputs.parts.verified:  # else what nothing has seen tells
            task = task.bound(binds=task.binds and (task.finds_rows or bool(bound.in_task)))
        judge = Judge(reference, inputs.judging, bound, inputs.metric, confidence, apart, task=task)
        judge.refuse_idle_bound()
        return judge.asked_twice().stating(session.plan.samples(inputs.stated))

    if exact is None:
        given = Given(file, feeds, compared, run)
    else:
        given = Given(file, feeds, compared, in_float32, outputs.result(), str(precision))
    if outputs.done():
        _ = given.judge  # which refuses what it can before the work
    return given


def _as_chosen(session: Session) -> None:
    """Go on in the precision that the run's first session chose.

    Raises:
        JournalError: that is float32, and this call wants the target's own precision.
        TargetError: no worker can be started for it.
    """
    choice = session.journal.fact(PRECISION)
    if choice is None or not choice.options:
        return
    spec = session.inputs.config.target
    if not session.any_precision or choice.options.keys() & spec.options.keys():
        raise JournalError(
            f"{session.journal.path} belongs to a run in float32, which was faster than {choice.own}: give another "
            "output folder, or --restart to start over"
        )
    exact = replace(spec, options={**spec.options, **choice.options})
    session.go_on_with(session.start_worker(exact, session.work, session.limit_s))


def _choose_precision(session: Session, file: Artifact) -> PrecisionChoice | None:
    """Go on in float32 where the given model is faster so; None where there is nothing to choose."""
    worker, spec = session.worker, session.inputs.config.target
    if not session.any_precision or worker.deterministic or not worker.fingerprint.gives_times:
        return None
    own, exact = OwnPrecision.of(create(spec)), in_float32(spec)
    if own is None or exact is None:
        return None
    config, most_s = session.inputs.config, session.plan.precision_s
    if session.costs.beside_s(BLOCKS, config.protocol.slot_ns) > most_s:
        return PrecisionChoice(own.name, late=True)
    session.stage(f"time the given model in {own.name} and in float32")
    started: list[Worker] = []

    def start(target: TargetSpec) -> Worker:
        started.append(session.start_worker(target, session.work, session.limit_s))
        return started[-1]

    rng = np.random.default_rng(config.seed)
    feed = session.inputs.workload.save(session.work / "precision")
    gain = chosen = None
    # a device that is announced as it computes by itself may refuse to compute otherwise
    with session.brief(_HANG_FACTOR * most_s), contextlib.suppress(TargetError, NoDevice):
        gain, chosen = gain_in_float32(
            worker,
            exact,
            start,
            model=file,
            feed=feed,
            slot_ns=config.protocol.slot_ns,
            rng=rng,
            until=lambda: Deadline(clock=session.lab.clock).within(most_s),
        )
    for each in started:
        if each is not chosen:
            session.worker.builds += each.builds
            each.took.clear()  # it says nothing of what the search's own steps take
    if chosen is None:
        return PrecisionChoice(own.name, gain=gain)
    session.go_on_with(chosen)
    return PrecisionChoice(own.name, own.exact, gain)


def _refuse_shapes(session: Session, file: Artifact) -> None:
    """Raise UsageError where the given model does not run on shapes that were asked for: before the work, not after."""
    config, workload = session.inputs.config, session.inputs.workload
    if not config.shapes and config.batch is None:
        return
    for number, feed in enumerate(workload.feeds):
        shape = ", ".join(f"{name} {'x'.join(map(str, sizes))}" for name, sizes in shapes_of(feed))
        path = session.work / f"asked-{number}.npz"
        save_feed(path, feed)
        try:
            session.worker.run(file, [path])
        except TargetError as error:
            asked = "--shape" if config.batch is None else f"--batch {','.join(map(str, config.batch))}"
            raise UsageError(f"{asked}: the model does not run at {shape}: {error}") from error


def evaluator_of(
    session: Session,
    given: Given,
    feed: Path,
    protocol: Protocol,
    left_s: Callable[[], float],
    take: Take = lambda key: None,
) -> tuple[Evaluator, Meter]:
    """What judges candidates, with the given model as the first incumbent.

    Raises:
        JournalError: earlier sessions compared other parts of outputs, so that their figures are others.
    """
    worker, journal, lab = session.worker, session.journal, session.lab
    parts = digest_of(given.judge.parts)
    if journal.once(PARTS, lambda: parts) != parts:
        journal.refuse("the parts that outputs are compared in")
    meter = Meter(worker, journal, feed, protocol, session.inputs.config.seed, lab.sleep, lab.clock, left_s)
    original = _original(session, given, meter)
    session.timed(original.latency_ns * 1e-9)
    return Evaluator(worker, meter, given.judge, journal, given.feeds, original, given.file, take), meter


def _original(session: Session, given: Given, meter: Meter) -> Candidate:
    """The given model as the first incumbent: as fast as itself, and exact where the target computes in float32."""
    blocks = meter.protocol.first_blocks
    with session.given_model_runs():
        measure = partial(meter.measure, "baseline", [given.file], blocks)
        try:
            ns = session.journal.once(BASELINE_NS, lambda: float(np.median(measure())))
        except TimedOut:
            if session.plan.before_writing.left:
                raise
            ns = session.journal.record_fact(BASELINE_NS, session.costs.inference_s * 1e9)  # there was time for one
    outcome = Measured(Latency(ns, Interval.exactly(1.0), 1), given.accuracy)
    trial = Trial(Proposal(Placement(), ORIGINAL, anchor=True), outcome, accepted=True)
    return Candidate(given.file.digest, trial, lambda: given.file, source=given.file.path)
