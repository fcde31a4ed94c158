"""Set the guided strategy up for a run: its oracles answer from the journal where they can, so that runs resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from inlay.data import Feed
from inlay.measure.journal import Journal
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.config import DEFAULT_BUDGET_S, TuneConfig
from inlay.prepare.model import PreparedModel
from inlay.quant.sensitivity import Sensitivity
from inlay.run.cost_database import CostDatabase
from inlay.run.evaluate import Evaluator
from inlay.run.facts import BASELINE_NS, KNOWN_COSTS, SENSITIVITY
from inlay.run.noise_probes import SHARE, Probes
from inlay.run.progress import Progress
from inlay.search.baselines import WEIGHTED
from inlay.search.cost_model import CostModel
from inlay.search.guided import Guided, Oracles
from inlay.search.unit_graph import UnitGraph, build_unit_graph
from inlay.targets.base import Fingerprint, KernelTime
from inlay.trial import Trial, noise_of
from inlay.types import Placement


@dataclass(frozen=True, eq=False)
class Guide:
    """What the strategy's oracles need.

    Attributes:
        prepared: the model.
        candidates: writes placements.
        evaluator: profiles them.
        journal: keeps every answer.
        fingerprint: of the target, for the cost database.
        config: settings.
        feed: the inputs that latency is measured on.
        probing: seconds of each series of probes.
    """

    prepared: PreparedModel
    candidates: CandidateWriter
    evaluator: Evaluator
    journal: Journal
    fingerprint: Fingerprint
    config: TuneConfig
    feed: Path
    probing: list[float] = field(default_factory=list)

    def strategy(
        self,
        anchors: Mapping[str, Trial],
        selection: Sequence[Feed],
        progress: Progress,
        hurried: Callable[[], bool] = lambda: False,
    ) -> Guided:
        """The strategy, with costs known from earlier runs; ``hurried`` as in :class:`Oracles`."""
        units = self.prepared.selectable
        chosen = {
            "float": frozenset[str](),
            "full-int8": frozenset(u.name for u in units),
            "conv-matmul": frozenset(u.name for u in units if u.op_type in WEIGHTED),
        }
        graph = self.prepared.graph
        structure = build_unit_graph(graph, self.prepared.units)
        seconds = SHARE * (self.config.budget_s or DEFAULT_BUDGET_S)
        probes = Probes(self.prepared, self.candidates.table, selection, self.journal, seconds, spent=self.probing)

        def sensitivity() -> Sensitivity:
            if self.journal.fact(SENSITIVITY) is None:
                progress.stage("probe how much noise each value's quantization makes")
            return probes.sensitivity()

        least = self.config.bound.min_sqnr_db
        return Guided(
            structure,
            Oracles(
                self._profile,
                sensitivity,
                probes.noise,
                self.prepared.label,
                hurried,
                self.prepared.selectable_rewrites,
            ),
            anchors,
            chosen,
            graph.float_outputs,
            None if least is None else noise_of(least),
            self._baseline_ns,
            np.random.default_rng([self.config.seed, 1]),
            self._known(structure),
        )

    def remember(self, guided: Guided) -> None:
        """Add what was learned to the cost database."""
        if self.config.cost_db and guided.surrogate.cost_model.profiled:
            CostDatabase(self.fingerprint).add(guided.surrogate.cost_model.summary())

    @property
    def _baseline_ns(self) -> float:
        known = self.journal.fact(BASELINE_NS)
        assert known is not None, "the baseline is measured before anything else"
        return known

    def _known(self, structure: UnitGraph) -> dict[str, float]:
        def read() -> dict[str, float]:
            wanted = CostModel(structure).signatures()
            return CostDatabase(self.fingerprint).read(wanted) if self.config.cost_db else {}

        return self.journal.once(KNOWN_COSTS, read)

    def _profile(self, placement: Placement) -> list[KernelTime]:
        write = partial(self.candidates.write, placement)
        return self.evaluator.profile(self.candidates.key(placement), write, self.feed, self._baseline_ns)


def learned(guided: Guided) -> dict[str, Any]:
    """How good the forecasts were, how much kernel time has no known cause, and which units ran against the rules.

    For ``result.json``. ``unattributed`` is the largest share of any profile's kernel time.
    """
    errors = [abs(f.measured_ns / f.predicted.mean - 1.0) for f in guided.surrogate.predictions]
    return {
        "forecasts": [
            {
                "placement_digest": f.digest,
                "predicted_ms": f.predicted.mean / 1e6,
                "sd_ms": f.predicted.stddev / 1e6,
                "measured_ms": f.measured_ns / 1e6,
            }
            for f in guided.surrogate.predictions
        ],
        "forecast_error": float(np.median(errors)) if errors else None,
        "unattributed": max(guided.surrogate.cost_model.unattributed, default=None),
        "fusion_disagreements": [asdict(d) for d in guided.surrogate.disagreements.values()],
    }
