"""How good a qparams table is for a placement: the one score by which calibration compares tables."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from inlay.data import Feed, load_feed
from inlay.errors import CompileFailed, RunFailed, TargetError, TimedOut
from inlay.measure.client import Worker
from inlay.model.pool import Stored, each, several
from inlay.model.reference import SharedSession, outputs_of
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.model import PreparedModel
from inlay.quant.accuracy import Judge, Outputs
from inlay.quant.qparams import QParamsTable
from inlay.targets.base import Artifact, TargetSpec
from inlay.trial import Failed, Stage
from inlay.types import Placement

Question = tuple[QParamsTable, Placement]  # A table, and the placement that is quantized with it
Outcomes = Iterator["Future[list[dict[str, np.ndarray]]]"]
"""For each question in turn the outputs for every sample, or the TargetError that it ended with."""
Run = Callable[[Iterable[Question]], Outcomes]  # runs quantized models on each scoring sample
Score = Callable[[Iterable[Question]], Iterator[float | Failed]]
"""SQNR in dB of the worst output for each question in turn, or where it failed; a table is made when its turn comes."""


_NUMBERS = itertools.count()  # of tables: models with the same placement differ


class ExactOutputs:
    """What the float model makes of samples: each is run once, by whoever helps."""

    def __init__(self, prepared: PreparedModel) -> None:
        self._prepared = prepared
        self._known: dict[int, tuple[Feed, Outputs]] = {}  # with the sample, whose number nothing else gets so

    def of(self, feeds: Iterable[Feed]) -> list[Outputs]:
        """Outputs for each of ``feeds``. Raises CompileFailed, RunFailed, and what looking at ``feeds`` raises."""
        asked, new = list[int](), list[Feed]()

        def unknown() -> Iterator[Feed]:
            for feed in feeds:
                asked.append(id(feed))
                if id(feed) not in self._known:
                    new.append(feed)
                    yield feed

        found = [*self._session.each(unknown())]
        self._known.update({id(feed): (feed, outputs) for feed, outputs in zip(new, found, strict=True)})
        return [self._known[number][1] for number in asked]

    @cached_property
    def _session(self) -> SharedSession:
        return SharedSession(self._prepared.emitter.base, self._prepared.store, optimize=True)


def in_process(prepared: PreparedModel, feeds: Sequence[Feed]) -> Run:
    """The numeric oracle, without a target's worker, on ``feeds``."""

    def run(questions: Iterable[Question]) -> Outcomes:
        emit, store = prepared.emitter.emit, prepared.store
        plain = ((table, placement.without_halves()) for table, placement in questions)  # it rounds to no halves
        return each(outputs_of, ((Stored(emit(placement, table), store), feeds) for table, placement in plain))

    return run


@dataclass(frozen=True, eq=False)
class OnTarget:
    """The target, in its worker process, on the samples in the files ``feeds``."""

    prepared: PreparedModel
    worker: Worker
    feeds: Sequence[Path]

    def outputs(self, questions: Iterable[Question]) -> Outcomes:
        """Outputs for each feed, by the worker or by whoever helps and has the same runtime on the same processor."""
        artifacts = (self._written(table, placement) for table, placement in questions)
        pool = several()
        arrays = [] if pool is None else [load_feed(path) for path in self.feeds]
        asked: deque[Artifact] = deque()
        here = set[str]()

        def calls() -> Iterator[tuple[TargetSpec, str, Artifact, Sequence[Feed]]]:
            for artifact in artifacts:
                asked.append(artifact)
                yield self.worker.spec, self.worker.fingerprint.digest, artifact, arrays

        def run(
            spec: TargetSpec, fingerprint: str, artifact: Artifact, _: Sequence[Feed]
        ) -> list[dict[str, np.ndarray]]:
            here.add(artifact.digest)
            return self.worker.run(artifact, self.feeds)

        for outcome in each(run if pool is None else pool.run_model, calls(), run):
            artifact = asked.popleft()
            if artifact.digest not in here:
                self.worker.built_elsewhere(artifact)
            self._drop(artifact)
            yield outcome

    def timed_outputs(self, table: QParamsTable, placement: Placement, slot_ns: int) -> tuple[Sequence[Outputs], float]:
        """Outputs for each feed, and nanoseconds per inference by one reading of ``slot_ns``. Raises TargetError.

        One reading is enough only where the target is deterministic.
        """
        artifact = self._written(table, placement)
        try:
            outputs = self.worker.run(artifact, self.feeds)
            return outputs, float(self.worker.time([artifact], self.feeds[0], 1, slot_ns, 0).ns[0, 0])
        finally:
            self._drop(artifact)

    def _drop(self, artifact: Artifact) -> None:
        self.worker.drop(artifact)
        artifact.path.unlink(missing_ok=True)

    def _written(self, table: QParamsTable, placement: Placement) -> Artifact:
        return CandidateWriter(self.prepared, table, f"probe {next(_NUMBERS)}", "").write(placement)


def score_by(judge: Judge, run: Run) -> Score:
    """How good tables are for placements.

    ``judge`` compares what ``run`` gives with the float model's outputs on the scoring samples.
    """

    def score(questions: Iterable[Question]) -> Iterator[float | Failed]:
        for outcome in run(questions):
            try:
                yield judge.judge(outcome.result()).sqnr_db
            except TargetError as error:
                yield Failed(_stage(error), str(error))

    return score


def _stage(error: TargetError) -> Stage:
    stages: dict[type[TargetError], Stage] = {CompileFailed: "compile", RunFailed: "run", TimedOut: "timeout"}
    return next((stage for kind, stage in stages.items() if isinstance(error, kind)), "worker")
