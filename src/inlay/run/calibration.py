"""Calibrate a prepared model for a run: observe its values, choose its numbers, and keep both in the journal."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from inlay.calibrate.choice import DEFAULT_S, SHARE, CalibrationChoice, Fixed, Ticks, choose_calibration, flip
from inlay.calibrate.tables import observe
from inlay.data import Split
from inlay.measure.client import Worker
from inlay.measure.journal import Journal
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.config import TuneConfig
from inlay.prepare.model import PreparedModel
from inlay.prepare.qdq_import import Imported
from inlay.quant.accuracy import Judge
from inlay.quant.calibrator import Observed
from inlay.quant.qparams import QParamsTable
from inlay.run.facts import CALIBRATION, CHOICE, CalibrationRecord
from inlay.run.progress import Progress
from inlay.search.baselines import anchor_placements
from inlay.types import Placement


@dataclass(frozen=True, eq=False)
class Calibration:
    """Where a run's numbers come from.

    Attributes:
        config: settings.
        parts: the samples, split.
        worker: runs what is compared.
        journal: keeps what was chosen.
        progress: is told.
        clock: tells seconds.
    """

    config: TuneConfig
    parts: Split
    worker: Worker
    journal: Journal
    progress: Progress
    clock: Callable[[], float]

    def candidates(
        self, prepared: PreparedModel, judge: Judge, feeds: Sequence[Path], imported: Imported
    ) -> CandidateWriter:
        """Ranges of all values, and what turns a placement into a file with them.

        Args:
            prepared: the model.
            judge: of the selection samples.
            feeds: their files.
            imported: Q/DQ models whose numbers may be kept.
        """
        observed = observe(prepared, self.parts.calibration, [p for _, p in imported.placements])
        placement = dict(anchor_placements(prepared.graph, prepared.units, prepared.rules)).get(
            "full-int8", Placement()
        )
        some = feeds[:8]
        part = Judge(judge.reference[: len(some)], self.parts.selection.part(range(len(some))), self.config.bound)

        def probe(table: QParamsTable, placement: Placement, timed: bool = False) -> tuple[float, float]:
            """Latency in ns (0 where it is not wanted) and SQNR in dB."""
            artifact = CandidateWriter(prepared, table, "probe", "").write(placement)
            try:
                fidelity = part.judge(self.worker.run(artifact, some)).sqnr_db
                ns = self.worker.time([artifact], some[0], 1, self.config.protocol.slot_ns, 0).ns if timed else None
                return 0.0 if ns is None else float(ns[0, 0]), fidelity
            finally:
                self.worker.drop(artifact)

        fixed = imported.qparams if self.config.keep_qparams else {}
        numbers = self._numbers(prepared, observed, placement, probe, fixed)
        calibration = hashlib.sha256(
            f"{observed.digest} {numbers.identity} {sorted(map(str, fixed.items()))}".encode()
        ).hexdigest()
        table = numbers.table(prepared, observed, fixed)
        record = CalibrationRecord(
            calibration[:16], self.worker.fingerprint.digest, self.config.target, table.as_json()
        )
        self.journal.record_fact(CALIBRATION, record)
        self.journal.record_feed("shapes", self.parts.calibration.feeds[0])
        return CandidateWriter(prepared, table, calibration[:16], self.worker.fingerprint.digest)

    def _numbers(
        self,
        prepared: PreparedModel,
        observed: Observed,
        placement: Placement,
        probe: Callable[..., tuple[float, float]],
        fixed: Fixed,
    ) -> CalibrationChoice:
        """How ranges are made; decided once in a run, however often that is continued."""
        known = self.journal.fact(CHOICE)
        if known is not None:
            return known
        timed = not self.worker.deterministic and self.clock is time.monotonic
        numbers = choose_calibration(
            prepared,
            observed,
            placement,
            () if self.parts.calibration.kind == "random" else self.parts.calibration.feeds,
            lambda table, placement: probe(table, placement)[1],
            DEFAULT_S if self.config.budget_s is None else SHARE * self.config.budget_s,
            self.config.bound.min_sqnr_db,
            self.config.methods,
            fixed,
            time.monotonic if timed else Ticks.of(prepared),
        )
        if self.worker.deterministic and len(placement) and not fixed:
            numbers = flip(numbers, prepared, observed, lambda table: probe(table, placement, timed=True))
        self.journal.record_fact(CHOICE, numbers)
        self.progress.stage(str(numbers))
        return numbers
