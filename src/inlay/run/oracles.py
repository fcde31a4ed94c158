"""Set the guided strategy up for a run: its oracles answer from the journal where they can, so that a run resumes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from inlay.data import Samples
from inlay.deadline import Deadline
from inlay.measure.costs import Costs
from inlay.measure.journal import Journal
from inlay.model.pool import OpenPool
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.config import TuneConfig
from inlay.prepare.model import PreparedModel
from inlay.prepare.options import DEFAULT_BUDGET_S
from inlay.quant.sensitivity import Sensitivity
from inlay.run.cost_database import CostDatabase
from inlay.run.evaluate import Evaluator
from inlay.run.facts import BASELINE_NS, KNOWN_COSTS, PRICED, SENSITIVITY, USUAL_REWRITES
from inlay.run.machine_costs import read_costs
from inlay.run.noise_probes import Probes
from inlay.run.progress import Progress
from inlay.run.schedule import PROBING, PROFILING, SOLVING
from inlay.search.baselines import Anchors, anchor_units
from inlay.search.cost_prior import CostParameters
from inlay.search.guided import Guided
from inlay.search.rewrite_choice import RewriteChoice
from inlay.search.surrogate import Oracles, Surrogate
from inlay.search.unit_graph import UnitGraph, build_unit_graph
from inlay.targets.base import Fingerprint, KernelTime
from inlay.targets.registry import create
from inlay.trial import noise_of
from inlay.types import Placement

_PROFILED_BUILDS = 2
"""Builds that a profile takes: one with profiling, and often the plain one before it."""
_DRAWS_STREAM = 1
"""Tells the random stream of the guided strategy from others of the same seed."""


@dataclass(frozen=True, eq=False, kw_only=True)
class GuidedSetup:
    """What the guided strategy of a run works with.

    Attributes:
        prepared: the model.
        candidates: writes placements.
        evaluator: profiles them.
        journal: keeps every answer.
        fingerprint: of the target, for the cost database.
        config: settings; ``cost_db`` is off where a run must not depend on earlier ones.
        feed: file of the inputs that latency is measured on.
        selection: the samples that noise is probed on.
        progress: hears of the probing.
        search_end: when the search must end, by what is known at the time.
        costs: what steps take, by what is known at the time.
        open_pool: finds who helps with probing.
        probing_s: seconds of each series of probes.
    """

    prepared: PreparedModel
    candidates: CandidateWriter
    evaluator: Evaluator
    journal: Journal
    fingerprint: Fingerprint
    config: TuneConfig
    feed: Path
    selection: Samples
    progress: Progress
    search_end: Callable[[], Deadline]
    costs: Callable[[], Costs]
    open_pool: OpenPool | None = None
    probing_s: list[float] = field(default_factory=list)

    def strategy(self, anchors: Anchors, hurried: Callable[[], bool]) -> Guided:
        """The strategy, with costs known from earlier runs; ``hurried`` as in ``Oracles``."""
        prepared, config = self.prepared, self.config
        unit_graph = build_unit_graph(prepared.graph, prepared.units)
        seconds = PROBING.share * (config.budget_s or DEFAULT_BUDGET_S)
        probes = Probes(
            prepared,
            self.candidates.table,
            self.selection.feeds,
            self.journal,
            seconds,
            spent=self.probing_s,
            search_end=self.search_end,
            costs=self.costs,
            mask=self.selection.mask,
            open_pool=self.open_pool,
            parts=self.evaluator.parts,
        )
        oracles = Oracles(
            profile=self._profile,
            sensitivity=partial(self._sensitivity, probes),
            noise=probes.noise,
            label=prepared.label,
            hurried=hurried,
            rewrites=prepared.selectable_rewrites,
            patience=lambda: SOLVING.share * self.search_end().left,
            profiles=self.evaluator.times_kernels,
            usual_rewrites=partial(self.journal.once, USUAL_REWRITES, partial(self._usual_rewrites, unit_graph)),
        )
        least_db = config.bound.min_sqnr_db
        surrogate = Surrogate(
            unit_graph,
            oracles,
            anchors.trials,
            anchor_units(prepared.graph, prepared.units),
            outputs=self.evaluator.parts.of_each(prepared.graph.float_outputs),
            bound=None if least_db is None else noise_of(least_db),
            baseline_ns=self._baseline_ns,
            known=self.journal.once(KNOWN_COSTS, partial(self._known_costs, unit_graph)),
            priced=self.journal.once(PRICED, partial(self._priced, unit_graph)),
        )
        return Guided(surrogate, np.random.default_rng([config.seed, _DRAWS_STREAM]))

    def save_costs(self, guided: Guided) -> None:
        """Add the costs that the strategy learned to the cost database."""
        if self.config.cost_db and guided.surrogate.cost_model.profiled:
            CostDatabase(self.fingerprint).add(guided.surrogate.cost_model.summary())

    @property
    def _baseline_ns(self) -> float:
        known = self.journal.fact(BASELINE_NS)
        assert known is not None, "the baseline is measured before anything else"
        return known

    def _known_costs(self, unit_graph: UnitGraph) -> dict[str, float]:
        if not self.config.cost_db:
            return {}
        return CostDatabase(self.fingerprint).read(set(CostParameters(unit_graph).signatures))

    def _priced(self, unit_graph: UnitGraph) -> np.ndarray:
        """Costs by the table that was measured on this very target, or that ships where a target gives no profiles."""
        known = read_costs(create(self.config.target), self.fingerprint, own=self.config.cost_db)
        if known.warning:
            self.progress.stage(known.warning)
        table = known.table if known.own or not self.evaluator.times_kernels else None
        return np.zeros(0) if table is None else table.price(self.prepared.graph, CostParameters(unit_graph))

    def _usual_rewrites(self, unit_graph: UnitGraph) -> RewriteChoice:
        table = read_costs(create(self.config.target), self.fingerprint, own=self.config.cost_db).table
        if table is None:
            return RewriteChoice()
        parameters = CostParameters(unit_graph)
        return table.choose_rewrites(self.prepared.graph, parameters, self.prepared.selectable_rewrites)

    def _sensitivity(self, probes: Probes) -> Sensitivity:
        if self.journal.fact(SENSITIVITY) is None:
            self.progress.stage("probe how much noise each value's quantization makes")
        return probes.sensitivity()

    def _profile(self, placement: Placement) -> list[KernelTime]:
        write = partial(self.candidates.write, placement)
        end = self.search_end()
        fits = end.fits(_PROFILED_BUILDS * self.costs().candidate_build_s)
        seconds = PROFILING.share * end.left if fits else 0.0
        return self.evaluator.profile(self.candidates.key(placement), write, self.feed, self._baseline_ns, seconds)


def guided_report(guided: Guided) -> dict[str, Any]:
    """What the guided strategy learned, for ``search`` in ``result.json``.

    ``forecast_error`` is the median relative error of its predictions, ``unattributed`` the largest share of any
    profile's kernel time without a known cause, ``fusion_disagreements`` the units that ran against the rules, and
    ``barred`` those that the runtime refused or computed wrong.
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
        "barred": [asdict(each) for each in guided.surrogate.bars.found],
    }
