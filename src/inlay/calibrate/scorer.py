"""How good a qparams table is for a placement: the one score by which calibration compares tables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from inlay.data import Feed
from inlay.errors import CompileFailed, RunFailed, TargetError, TimedOut
from inlay.measure.client import Worker
from inlay.model.reference import Session
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.model import PreparedModel
from inlay.quant.accuracy import Judge, Outputs
from inlay.quant.qparams import QParamsTable
from inlay.targets.base import Artifact
from inlay.trial import Accuracy, Failed, Stage
from inlay.types import Placement

Score = Callable[[QParamsTable, Placement], float | Failed]
"""SQNR in dB of the worst output when a placement is quantized with a table, or where it failed."""


Run = Callable[[QParamsTable, Placement], Sequence[Outputs]]
"""Runs the quantized model on each scoring sample. Raises TargetError."""


def in_process(prepared: PreparedModel, feeds: Sequence[Feed]) -> Run:
    """The numeric oracle, without a target's worker, on ``feeds``."""

    def run(table: QParamsTable, placement: Placement) -> list[Outputs]:
        session = Session(prepared.emitter.emit(placement, table), prepared.store)
        return [session.run(feed) for feed in feeds]

    return run


@dataclass(frozen=True, eq=False)
class OnTarget:
    """The target, in its worker process, on the samples in the files ``feeds``."""

    prepared: PreparedModel
    worker: Worker
    feeds: Sequence[Path]

    def outputs(self, table: QParamsTable, placement: Placement) -> Sequence[Outputs]:
        """Outputs for each feed. Raises TargetError."""
        with self._written(table, placement) as artifact:
            return self.worker.run(artifact, self.feeds)

    def timed_outputs(self, table: QParamsTable, placement: Placement, slot_ns: int) -> tuple[Sequence[Outputs], float]:
        """Outputs for each feed, and nanoseconds per inference by one reading of ``slot_ns``. Raises TargetError.

        One reading is enough only where the target is deterministic.
        """
        with self._written(table, placement) as artifact:
            outputs = self.worker.run(artifact, self.feeds)
            return outputs, float(self.worker.time([artifact], self.feeds[0], 1, slot_ns, 0).ns[0, 0])

    @contextlib.contextmanager
    def _written(self, table: QParamsTable, placement: Placement) -> Iterator[Artifact]:
        artifact = CandidateWriter(self.prepared, table, "probe", "").write(placement)
        try:
            yield artifact
        finally:
            self.worker.drop(artifact)


@dataclass(frozen=True, eq=False)
class TableScorer:
    """Scores qparams tables.

    Attributes:
        judge: compares outputs with those of the float model on the scoring samples.
        outputs: of the quantized model on the same samples.
    """

    judge: Judge
    outputs: Run

    def accuracy(self, table: QParamsTable, placement: Placement) -> Accuracy:
        """Accuracy of ``placement`` with ``table``. Raises TargetError."""
        return self.judge.judge(self.outputs(table, placement))

    def sqnr_db(self, table: QParamsTable, placement: Placement) -> float | Failed:
        """SQNR in dB of the worst output, or where it failed."""
        try:
            return self.accuracy(table, placement).sqnr_db
        except TargetError as error:
            return Failed(_stage(error), str(error))


def _stage(error: TargetError) -> Stage:
    stages: dict[type[TargetError], Stage] = {CompileFailed: "compile", RunFailed: "run", TimedOut: "timeout"}
    return next((stage for kind, stage in stages.items() if isinstance(error, kind)), "worker")
