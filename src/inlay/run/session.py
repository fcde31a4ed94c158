"""What one run holds open: its output folder, scratch files, worker processes and journal."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np

from inlay.calibrate.gptq import rounding_seconds
from inlay.data import Samples, save_feeds
from inlay.deadline import Deadline
from inlay.errors import ModelError, TargetError, TimedOut, TooShort
from inlay.measure.client import Limit, Worker
from inlay.measure.costs import FREE, Costs, Ending, Of
from inlay.measure.journal import Journal
from inlay.measure.lab import Ahead, Search
from inlay.measure.policy import RECENT_MESSAGES
from inlay.model.guard import end as end_guarded
from inlay.model.guard import limited
from inlay.model.heard import Hears, hearing
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.config import TuneConfig
from inlay.prepare.model import PreparedModel
from inlay.quant.tolerance import samples_needed
from inlay.run.evaluation.judging import EvaluationJudge
from inlay.run.facts import SAMPLES, not_measured, rounding_of
from inlay.run.folder import work_in
from inlay.run.inputs import RunInputs, TuneRequest
from inlay.run.progress import Phases
from inlay.run.schedule import CROSSING, Schedule, deadline_of
from inlay.targets.base import Artifact, TargetSpec

_QUICK_S = 0.05
"""Seconds of a run below which a model counts as quick: what surrounds the inference is a large part of them."""

_READINGS, _READING_MOST = 3, 0.1
"""Before a budget is refused, the given model is read up to so many times, each for this share of the time left."""

_LEAST_BUILDS = 12  # models that are built before the search, as they are and in low precision, to choose ranges by

_BUILT_BYTES_S = 2e8  # bytes of a model that are read, packed and optimized in a second

_LARGE, _SOON_S = 1 << 28, 10.0
"""Bytes of a model from which on processes free theirs while others hold the same ones, and seconds that building it
again may take: a decoder of 653 MB took 5.5 GB at most, of which one process held 1.9 GB for nothing."""

_LEAST_LIMIT_S = 2.0
"""That a call of the runtime may take, however little time is left; else half of that: a hang must leave some."""


def call_limit_s(config: TuneConfig, left_s: float, most_s: float = math.inf) -> float:
    """Seconds that a call of a runtime may take, where ``left_s`` are left, and it may take ``most_s``."""
    return min(config.limit_s, max(_LEAST_LIMIT_S, min(left_s / 2.0, most_s)))


class Session:
    """The resources of one run; see :func:`open_session`.

    Attributes:
        work: folder for scratch files.
        worker: builds, runs and times models during the search.
        rng: seeds measurements.
        lab: starts workers; its clock is the run's.
        worker_s: seconds that starting the worker took.
        resumed: earlier sessions of the run judged candidates.
        evaluation: holds models against the given one by the user's own evaluation; None without one.
    """

    def __init__(
        self, asked: TuneRequest, inputs: RunInputs, work: Path, rng: np.random.Generator, begun: float
    ) -> None:
        self.inputs, self.work, self.rng = inputs, work, rng
        self.progress, self.lab = asked.progress, asked.lab
        self._phases = Phases(asked.progress)
        self.doing: Hears = self._phases.doing  # hears where a stage is
        self._begun = begun
        self._workers: list[Worker] = []
        self._calibrating_s = 0.0
        self._costs, self._ending = FREE, Ending()  # until the given model has run
        self.any_precision = asked.any_precision
        self.evaluation: EvaluationJudge | None = None
        self._brief = Deadline(clock=self.lab.clock)
        end = math.inf if inputs.config.budget_s is None else begun + inputs.config.budget_s
        self._deadline = Deadline(end, self.lab.clock)  # what earlier sessions took is known when the plan is made
        starting = self.lab.clock()
        self._phases.doing(f"start {inputs.config.target.name}")
        with hearing(self._phases.doing):
            self.worker = self.start_worker(inputs.config.target, work, self.limit_s)
        self.worker_s = self.lab.clock() - starting
        try:
            self.worker.must_time()
            if said := not_measured(self.worker.fingerprint.facts):
                self.progress.stage(said)
            identity = inputs.identity(self.worker.fingerprint.identity)
            self.journal = Journal(inputs.out / "run.sqlite", identity, asked.restart, lambda: self.seconds)
            self.plan = Schedule(
                begun=begun,
                deadline=deadline_of(inputs.config.budget_s, self.journal.spent_s, begun, self.lab.clock),
                config=inputs.config,
                costs=lambda: self.costs,
                size=inputs.file.size,
                started_s=self.worker_s,
            )
            self.resumed, self._deadline = self.journal.judged, self.plan.deadline
        except BaseException:  # also where it is interrupted: nobody else could end the worker
            self.worker.close()
            raise

    def limit_s(self) -> float:
        """Seconds that the next call of the runtime may take."""
        return call_limit_s(self.inputs.config, self._deadline.left, self._brief.left)

    @property
    def is_over(self) -> bool:
        """Whether calls of the runtime are ended since the budget is at its end: they say nothing of a model."""
        return self._deadline.left <= 2.0 * _LEAST_LIMIT_S

    @contextlib.contextmanager
    def brief(self, seconds: float) -> Iterator[None]:
        """Within it, calls of runtimes end with these seconds: nothing depends on them."""
        self._brief = Deadline(clock=self.lab.clock).within(seconds)
        try:
            yield
        finally:
            self._brief = Deadline(clock=self.lab.clock)

    def go_on_with(self, worker: Worker) -> None:
        """From now on the run is for the target of ``worker``, which was started by :meth:`start_worker`."""
        worker.builds += self.worker.builds
        self.worker.close()
        self.worker = worker
        self.inputs = self.inputs.on(worker.spec)

    @contextlib.contextmanager
    def given_model_runs(self) -> Iterator[None]:
        """Without the given model there is nothing to compare with: where it fails, the run ends, with a line on it."""
        try:
            yield
        except TargetError as error:
            target = self.inputs.config.target.name
            raise ModelError(f"{self.inputs.file.path} does not run on {target}: {error}") from error

    def start_worker(self, spec: TargetSpec, folder: Path, limit: Limit) -> Worker:
        """A worker whose busy time counts as the run's."""
        worker = self.lab.start(spec, folder, limit)
        self._workers.append(worker)
        return worker

    def start_beside(self, spec: TargetSpec, folder: Path, limit: Limit) -> Worker:
        """The same, which holds models of its own: where they are large, no other process keeps any meanwhile."""
        if self.inputs.file.size >= _LARGE and self.costs.build_s <= _SOON_S:
            self.worker.free()
            end_guarded()
        return self.start_worker(spec, folder, limit)

    def building_ahead(self, candidates: CandidateWriter, feeds: Sequence[Path]) -> AbstractContextManager[Ahead]:
        """Whoever builds ahead of a search among ``candidates``, which are run on ``feeds``."""
        search = Search(
            spec=self.inputs.config.target,
            folder=self.work,
            limit=self.limit_s,
            key=candidates.key,
            write=candidates.write,
            feeds=feeds,
            patience_s=lambda: self.costs.judge_s(len(feeds)),
            judged=lambda key: self.journal.trial(key) is not None,
        )
        return self.lab.ahead(search)

    def save_feeds(self, name: str, samples: Samples) -> list[Path]:
        """Write samples as files that a worker can read, into the scratch folder ``name``."""
        return save_feeds(self.work / name, samples.feeds)

    @property
    def costs(self) -> Costs:
        """What steps cost, by the latest messages of all workers."""
        return self._costs_by(np.median)

    def _costs_by(self, of: Of) -> Costs:
        """The same, where several messages did the same, by ``of`` what they took."""
        took: dict[str, list[float]] = {}
        for worker in self._workers:
            for do, seconds in worker.took.items():
                took[do] = [*took.get(do, ()), *seconds][-RECENT_MESSAGES:]
        ending = self._ending
        if (evaluation := self.evaluation) is not None:
            more_s = evaluation.planned_s - evaluation.seconds
            ending = replace(ending, evaluating_s=evaluation.seconds, evaluating_more_s=more_s)
        return replace(self._costs.learned(took, of), ending=ending)

    def timed(self, inference_s: float) -> None:
        """The given model was timed: it takes so many seconds; nothing is learned where the target gives no times."""
        if self.worker.fingerprint.gives_times:
            self._costs = replace(self._costs, inference_s=inference_s)

    def evaluate_given(self) -> None:
        """Have the user's own evaluation, where there is one, judge the given model.

        Raises:
            DataError: it fails.
            UsageError: its scores cannot be bounded as asked for, or the budget is too short for it.
        """
        inputs = self.inputs
        if inputs.evaluator is None or inputs.config.bound.evaluation is None:
            return
        self.stage("evaluate the given model")
        evaluation = EvaluationJudge(
            evaluator=inputs.evaluator,
            bound=inputs.config.bound.evaluation,
            given=inputs.file.content,
            place=self.work,
            journal=self.journal,
            budget_s=self.plan.seconds,
            clock=self.lab.clock,
            seed=inputs.config.seed,
        )
        evaluation.begin(self.plan.before_writing)
        self.evaluation = evaluation

    @property
    def least_preparing_s(self) -> float:
        """Seconds that preparing takes by the model's size alone, before anything of it was run."""
        return _LEAST_BUILDS * self.inputs.file.size / _BUILT_BYTES_S

    def calibrated(self, prepared: PreparedModel) -> None:
        """The qparams of a model were chosen: time is kept for rounding its weights once more."""
        self._ending = replace(self._ending, rounding_s=rounding_seconds(prepared, rounding_of(self.journal)))

    def run_given(self, file: Artifact, feed: Path) -> None:
        """Find out what the given model takes: a quick one is timed at little cost, a slow one runs once more, warm.

        Raises:
            TargetError: it does not run.
        """
        clock, slot_ns = self.lab.clock, self.inputs.config.protocol.slot_ns
        begun = built = clock()
        try:
            self.worker.load(file, identify=True)
            built = clock()
            self.worker.run(file, [feed])
        except TimedOut:
            least = Costs.assumed(self.worker_s, built - begun, clock() - built, slot_ns)  # and it was not over then
            if self.journal.empty:
                self.plan.require(least, self.journal.spent_s, more=True)
            raise
        inference_s = clock() - built
        if self.plan.is_limited:  # else nothing depends on it
            inference_s = self._read_again(file, feed, inference_s)
        self._assume(built - begun, inference_s)

    def _assume(self, build_s: float, inference_s: float) -> None:
        slot_ns, feeds = self.inputs.config.protocol.slot_ns, len(self.inputs.workload.feeds)
        self._costs = Costs.assumed(self.worker_s, build_s, inference_s, slot_ns, self.worker.deterministic, feeds)

    def _read_again(self, file: Artifact, feed: Path, known_s: float) -> float:
        """Seconds of an inference: of a quick model as it is timed, of others the least of two readings."""
        if known_s < _QUICK_S and self.worker.fingerprint.gives_times:
            slot_ns = self.inputs.config.protocol.slot_ns
            return float(self.worker.time([file], feed, 1, slot_ns, 0).ns[0, 0]) * 1e-9
        again = self.lab.clock()
        self.worker.run(file, [feed])
        return min(known_s, self.lab.clock() - again)

    def _require_time(self, file: Artifact, feed: Path) -> None:
        """Raise TooShort where the budget is too short even by the least of several readings.

        Other work on the machine may have held up the first ones for longer than they take.
        """
        for left in reversed(range(_READINGS)):
            known, most_s = self._costs, _READING_MOST * self.plan.deadline.left
            try:
                self.plan.require(self._costs_by(min), self.journal.spent_s)
                break
            except TooShort:
                if not left or known.inference_s > most_s:
                    raise
            build_s, begun = known.build_s, self.lab.clock()
            if build_s + known.inference_s <= most_s:
                self.worker.drop(file)
                self.worker.load(file)
                build_s = min(build_s, self.lab.clock() - begun)
            self._assume(build_s, min(known.inference_s, self._read_again(file, feed, known.inference_s)))

    def limit_samples(self, file: Artifact, feed: Path) -> None:
        """Keep as many samples as there is time to judge models on: decided once in a run, with its first inference.

        Raises:
            UsageError: the budget is too short for anything.
        """
        if self.journal.empty:
            self._require_time(file, feed)
        parts, costs = self.inputs.parts, self.costs
        counts = self.journal.fact(SAMPLES)
        if counts is None and self.journal.empty:
            wanted = self.inputs.judged, len(parts.verification)
            counts = self.plan.samples(wanted[0]), self.plan.samples(wanted[1])
            if counts != wanted:  # all samples are no fact: a folder is not taken up by a run that found nothing out
                self.journal.record_fact(SAMPLES, counts)
        if counts is not None:
            self.inputs = self.inputs.judged_on(*counts)
        unseen, others = self.inputs.verification, self.inputs.parts.calibration
        known = 0 if unseen is None else len(unseen)
        missing = max(0, self.plan.samples(samples_needed() or 0) - known)
        crossed = 0 if others.kind == "random" else min(missing, len(others) + known)
        if costs.crossing_s(crossed, crossed) > CROSSING * self.plan.seconds:
            crossed = 0  # then only what time is left
        self._ending = replace(self._ending, unseen=known, crossed=crossed)

    @property
    def seconds(self) -> float:
        """Since the command began."""
        return self.lab.clock() - self._begun

    def stage(self, text: str, until: Callable[[], Deadline] | None = None) -> None:
        """Report that a stage begins, and record the time that was spent until then.

        Args:
            until: when it is over at the latest, as far as is known at the time; by default with the command.
        """
        self._phases.begin(text, lambda: (until() if until else self.plan.before_writing).left)
        self.journal.record_seconds()

    @contextlib.contextmanager
    def calibrating(self) -> Iterator[None]:
        """Count the time of the block as calibration, except where the worker was busy."""
        begun, busy = self.lab.clock(), self.worker.busy_s
        yield
        self._calibrating_s += self.lab.clock() - begun - (self.worker.busy_s - busy)

    def overhead(self, waited_s: float, probing_s: float) -> float:
        """Share of the wall time in which no worker was busy, nothing was calibrated or probed, and no pause was made.

        Normalization counts as overhead, although it runs the model.
        """
        at_work = sum(w.busy_s for w in self._workers) + waited_s + self._calibrating_s + probing_s
        return round(max(0.0, 1.0 - at_work / max(self.seconds, 1e-9)), 4)

    def throttled(self) -> list[str]:
        """What the machine said of itself during each block that heat held back."""
        return [each for worker in self._workers for each in worker.throttled]


@contextlib.contextmanager
def open_session(asked: TuneRequest) -> Iterator[Session]:
    """Check the inputs, lock the output folder, start the worker and open the journal.

    Within it guarded calls end with the budget. A run that fails before it found anything out leaves no journal behind.

    Raises:
        JournalError: the folder is in use, belongs to another run, or cannot be written.
        InlayError: the inputs cannot be used.
    """
    begun = asked.lab.clock() - asked.before_s
    rng = np.random.default_rng(asked.config.seed)
    inputs = RunInputs.of(asked, rng)
    with work_in(inputs.out) as work, _naming_the_budget(asked, begun):
        inputs = inputs.held_in(work)
        session = Session(asked, inputs, work, rng, begun)
        try:
            with limited(session.limit_s), hearing(session.doing):
                yield session
        finally:
            session.worker.close()
            session.journal.close()


@contextlib.contextmanager
def _naming_the_budget(asked: TuneRequest, begun: float) -> Iterator[None]:
    """Raise TooShort in place of TimedOut where a call of the runtime was ended since the budget was at its end."""
    try:
        yield
    except TimedOut as error:
        budget_s = asked.config.budget_s
        if budget_s is None or begun + budget_s - asked.lab.clock() > 2.0 * _LEAST_LIMIT_S:
            raise
        raise TooShort(f"--budget {budget_s:.0f}s ended before there was a result: {error}") from error
