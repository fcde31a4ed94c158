"""Calibrate a prepared model for a run: observe its values, choose its qparams, and keep both in the journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from inlay.calibrate import policy
from inlay.calibrate.choose import choose_calibration, choose_flips
from inlay.calibrate.observe import Observed, observe
from inlay.calibrate.scorer import OnTarget, TableScorer, in_process
from inlay.calibrate.table_search import CalibrationTask
from inlay.calibrate.tables import CalibrationChoice, FixedQParams
from inlay.data import Split, StressSet
from inlay.deadline import NEVER, Deadline
from inlay.measure.client import Worker
from inlay.measure.journal import Journal
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.config import TuneConfig
from inlay.prepare.model import PreparedModel
from inlay.prepare.qdq_import import ImportedQDQ
from inlay.quant.accuracy import Judge
from inlay.quant.qparams import QParamsTable
from inlay.run.facts import CALIBRATION, CALIBRATION_SAMPLES, CHOICE, CalibrationRecord, record_rounding, rounding_of
from inlay.run.progress import Progress
from inlay.run.robustness import StressTest
from inlay.search.baselines import CONV_MATMUL, FULL_INT8, anchor_placements
from inlay.types import Placement


@dataclass(frozen=True, eq=False, kw_only=True)
class Calibration:
    """Where a run's qparams come from.

    Attributes:
        config: settings.
        parts: the samples, split.
        worker: runs the models that are compared.
        journal: keeps the choice.
        progress: gets the choice as a stage.
        deadline: when it must be over, on the run's clock.
        stress: variations of the calibration samples.
        test: variations of the selection samples.
    """

    config: TuneConfig
    parts: Split
    worker: Worker
    journal: Journal
    progress: Progress
    deadline: Deadline
    stress: StressSet
    test: StressTest

    def candidates(
        self, prepared: PreparedModel, judge: Judge, feeds: Sequence[Path], imported: ImportedQDQ
    ) -> CandidateWriter:
        """Choose the qparams of all values, and return what writes placements with them.

        Args:
            prepared: the model.
            judge: of the samples that candidates are judged on, those of the selection first.
            feeds: their files.
            imported: Q/DQ models whose qparams may be kept.
        """
        placements = [p for _, p in imported.placements]
        observing = self.deadline.within(policy.OBSERVING_SHARE * self.deadline.left)
        known = self.journal.fact(CALIBRATION_SAMPLES)
        if known is not None:  # a resumed run takes the same ones
            observing = NEVER
        begun = observing.clock()
        observed = observe(prepared, self.parts.calibration, placements, known, observing, self.stress)
        sample_s = (observing.clock() - begun) / (observed.samples + len(self.stress.variations))
        self.journal.record_fact(CALIBRATION_SAMPLES, observed.samples)
        anchors = dict(anchor_placements(prepared.graph, prepared.units, prepared.rules))
        count = min(policy.SCORING_SAMPLES, len(self.parts.selection))
        some = Judge(judge.reference[:count], self.parts.selection.part(range(count)), self.config.bound)
        target = OnTarget(prepared, self.worker, feeds[:count])
        fixed = imported.qparams if self.config.keep_qparams else {}
        choice = self._choice(prepared, observed, anchors, some, target, fixed, sample_s)
        digest = choice.digest(observed, str(sorted(map(str, fixed.items()))))
        table = choice.table(prepared, observed, fixed)
        origin = CalibrationRecord(digest, self.worker.fingerprint.digest, self.config.target, table.as_json())
        self.journal.record_fact(CALIBRATION, origin)
        self.journal.record_feed("shapes", self.parts.calibration.feeds[0])
        return CandidateWriter(prepared, table, digest, self.worker.fingerprint.digest)

    def _choice(
        self,
        prepared: PreparedModel,
        observed: Observed,
        anchors: Mapping[str, Placement],
        judge: Judge,
        target: OnTarget,
        fixed: FixedQParams,
        sample_s: float,
    ) -> CalibrationChoice:
        """How qparams are made: chosen once in a run, however often that is continued."""
        known = self.journal.fact(CHOICE)
        if known is not None:
            return replace(known, rounding=rounding_of(self.journal))
        budget_s, placement = self.config.budget_s, anchors.get(FULL_INT8, Placement())
        varied = OnTarget(prepared, self.worker, self.test.feeds)
        # each table that is tried on the target is a build: where their number is limited, the search needs them; and
        # what gives no times is an emulator, which takes seconds for an inference
        limited = self.config.max_builds is not None or not self.worker.fingerprint.gives_times
        outputs = in_process(prepared, self.parts.selection.feeds[: len(target.feeds)]) if limited else target.outputs
        widening = self.test.names and not limited
        task = CalibrationTask(
            prepared=prepared,
            observed=observed,
            placement=placement,
            feeds=() if self.parts.calibration.kind == "random" else self.parts.calibration.feeds,
            score=TableScorer(judge, outputs),
            min_sqnr_db=self.config.bound.min_sqnr_db,
            methods=self.config.methods,
            fixed=fixed,
            stress_score=TableScorer(self.test.judge, varied.outputs) if widening else None,
            products=anchors.get(CONV_MATMUL, Placement()),
        )
        seconds = policy.DEFAULT_SECONDS if budget_s is None else policy.BUDGET_SHARE * budget_s
        choice = choose_calibration(task, seconds, deadline=self.deadline, inference_s=sample_s)
        if self.worker.deterministic and len(placement) and not fixed and not limited:

            def measure(table: QParamsTable) -> tuple[float, float]:
                outputs, ns = target.timed_outputs(table, placement, self.config.protocol.slot_ns)
                return ns, judge.judge(outputs).sqnr_db

            choice = choose_flips(choice, prepared, observed, measure)
        record_rounding(self.journal, choice.rounding)
        self.journal.record_fact(CHOICE, choice)
        self.progress.stage(str(choice))
        return choice
