"""Which strategies a run uses, and in which order: the anchors first, then what ``--strategy`` names.

What they ask (profiles, noise, costs of earlier runs) is answered from the journal where it can be: so a run resumes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from inlay.errors import Late
from inlay.prepare.options import DEFAULT_BUDGET_S
from inlay.quant.sensitivity import Sensitivity
from inlay.run.budget import Budget, SearchTime
from inlay.run.confirm.contenders import shows_its_fastest
from inlay.run.evaluate import Evaluator
from inlay.run.facts import BASELINE_NS, COMPUTED, DONE, KNOWN_COSTS, PRICED, SENSITIVITY, USUAL_REWRITES
from inlay.run.joined import JoinedStrategy, joined_strategies
from inlay.run.machine_costs import CostDatabase, MachineCosts, read_costs
from inlay.run.noise_probes import Probes, computed_noise
from inlay.run.preparation import Calibrated
from inlay.run.schedule import PROBING, PROFILING, SOLVING
from inlay.run.session import Session
from inlay.search.base import Chain, Strategy
from inlay.search.baselines import FLOAT, Anchors, anchor_units
from inlay.search.cost_prior import CostParameters
from inlay.search.guided import Guided
from inlay.search.refine import Refine
from inlay.search.rewrite_choice import RewriteChoice
from inlay.search.surrogate import Oracles, Surrogate
from inlay.search.unit_graph import UnitGraph, build_unit_graph
from inlay.space.units import STATIC
from inlay.targets.base import KernelTime
from inlay.targets.registry import create
from inlay.trial import noise_of
from inlay.types import Placement

_PROFILED_BUILDS = 2  # builds that a profile takes: one with profiling, and often the plain one before it
_DRAWS_STREAM = 1  # tells the random stream of the guided strategy from others of the same seed


@dataclass(frozen=True, eq=False, kw_only=True)
class Strategies:
    """The strategies of one run."""

    anchors: Anchors  # the first of them; their trials are reported by name
    guided: Guided  # the cost-model strategy; also searches again where the winner fails on unseen samples
    joined: Mapping[str, JoinedStrategy]  # what joined the run
    chain: Strategy  # all that the run uses, one after the other
    probing_s: list[float]  # seconds of each series of noise probes

    def save_costs(self, session: Session) -> None:
        """Add the costs that were learned to the cost database."""
        if _shares_costs(session) and self.guided.surrogate.cost_model.profiled:
            CostDatabase(session.worker.fingerprint).add(self.guided.surrogate.cost_model.summary())


def compose(session: Session, model: Calibrated, evaluator: Evaluator, feed: Path, budget: Budget) -> Strategies:
    """The strategies for a prepared model: anchors, then by default the guided one, then those that joined.

    Where there are no times of kernels, ``refine`` follows the guided one, which knows only what a table says.
    """
    prepared, imported, config = model.prepared, model.imported, session.inputs.config
    joined = {name: kind(prepared, config) for name, kind in joined_strategies().items()}
    given = (*imported.placements, *(a for each in joined.values() for a in each.anchors(session.stage)))

    def outside(placement: Placement) -> bool:
        return session.evaluation is not None and session.evaluation.known(placement.digest) is False

    spare, hurries = budget.spare, budget.hurries
    space, rewritten = (prepared.graph, prepared.units, prepared.rules), prepared.is_rewritten
    anchors = Anchors(*space, given, spare, hurries, outside=outside, rewritten=rewritten)
    asked = _Asked(session, model, evaluator, feed, budget.time)
    surrogate = asked.surrogate(anchors, budget)
    guided = Guided(surrogate, np.random.default_rng([config.seed, _DRAWS_STREAM]))
    anchors.expect(surrogate.expected_anchors)

    def begun(joining: JoinedStrategy) -> Strategy:
        placements = [placement for _, placement in imported.placements]
        return joining.strategy(evaluator.incumbent.placement or Placement(), placements, guided.rewrites)

    low_precision = {
        name: frozenset(units)
        for name, units in anchor_units(prepared.graph, prepared.units).items()
        if name != FLOAT and all(precision == STATIC for precision in units.values())
    }
    further = {name: partial(begun, each) for name, each in joined.items()}
    refine = Refine(prepared.selectable, prepared.label, anchors.trials, low_precision)
    after_anchors: dict[str, list[Strategy | Callable[[], Strategy]]] = {
        **{name: [each] for name, each in further.items()},
        "auto": [guided, *(() if evaluator.times_kernels else (refine,)), *further.values()],
        "guided": [guided],
        "refine": [refine],
        "anchors": [],
    }
    chain = Chain([anchors, *after_anchors[config.strategy]], lambda: guided.is_done)
    return Strategies(anchors=anchors, guided=guided, joined=joined, chain=chain, probing_s=asked.probing_s)


@dataclass(frozen=True, eq=False)
class _Asked:
    """What answers the guided strategy."""

    session: Session
    model: Calibrated
    evaluator: Evaluator
    feed: Path
    time: SearchTime
    probing_s: list[float] = field(default_factory=list)

    def surrogate(self, anchors: Anchors, budget: Budget) -> Surrogate:
        """What the guided strategy knows at first, with the costs of earlier runs, and whom it asks."""
        prepared, journal, config = self.model.prepared, self.session.journal, self.session.inputs.config
        oracles = Oracles(
            profile=self._profile,
            outputs=self.evaluator.judge.parts.of_each(prepared.graph.float_outputs),
            sensitivity=self._sensitivity,
            noise=self._probes.noise,
            computed=self._computed,
            label=prepared.label,
            hurried=budget.hurried,
            rewrites=prepared.selectable_rewrites,
            patience=lambda: SOLVING * self.time.end().left,
            profiles=self.evaluator.times_kernels,
            usual_rewrites=lambda: journal.once(USUAL_REWRITES, self._usual_rewrites),
            goes_on=self._goes_on,
        )
        least_db = config.searched.min_sqnr_db
        return Surrogate(
            self._units,
            oracles,
            anchors.trials,
            anchor_units(prepared.graph, prepared.units),
            bound=None if least_db is None else noise_of(least_db),
            baseline_ns=self._baseline_ns,
            known=journal.once(KNOWN_COSTS, self._known_costs),
            priced=journal.once(PRICED, self._priced),
        )

    def _goes_on(self) -> bool:
        """Whether there is more time than a session that was done had, or samples may not show what is fastest."""
        is_larger = (self.session.inputs.config.budget_s or math.inf) > (self.session.journal.fact(DONE) or math.inf)
        return is_larger or not shows_its_fastest(self.evaluator.judged)

    @cached_property
    def _units(self) -> UnitGraph:
        return build_unit_graph(self.model.prepared.graph, self.model.prepared.units)

    @cached_property
    def _probes(self) -> Probes:
        session, selection = self.session, self.session.inputs.parts.selection
        return Probes(
            self.model.prepared,
            self.model.candidates.table,
            selection,
            session.journal,
            PROBING * (session.inputs.config.budget_s or DEFAULT_BUDGET_S),
            spent=self.probing_s,
            search_end=self.time.end,
            costs=session.plan.costs,
            open_pool=session.lab.open_pool,
            parts=self.evaluator.judge.parts,
        )

    def _computed(self, placement: Placement) -> Mapping[str, float] | None:
        """Answers :attr:`~inlay.search.surrogate.Oracles.computed`."""
        journal, feeds, model = self.session.journal, self.session.inputs.judging.feeds, self.model
        fact, seconds = COMPUTED.of(placement.digest), self.session.plan.costs().judge_s(len(feeds))
        if journal.fact(fact) is None and not self.time.end().fits(seconds):
            return None
        asked = partial(computed_noise, model.prepared, model.candidates.table, placement, feeds, self.evaluator.judge)
        try:
            return journal.once(fact, asked)
        except Late:
            return None

    @property
    def _baseline_ns(self) -> float:
        known = self.session.journal.fact(BASELINE_NS)
        assert known is not None, "the baseline is measured before anything else"
        return known

    def _known_costs(self) -> dict[str, float]:
        if not _shares_costs(self.session):
            return {}
        return CostDatabase(self.session.worker.fingerprint).read(set(CostParameters(self._units).signatures))

    def _priced(self) -> np.ndarray:
        """Costs by the table that was measured on this very target, or that ships where a target gives no profiles."""
        known = self._machine_costs
        if known.warning:
            self.session.progress.stage(known.warning)
        table = known.table if known.own or not self.evaluator.times_kernels else None
        return np.zeros(0) if table is None else table.price(self.model.prepared.graph, CostParameters(self._units))

    def _usual_rewrites(self) -> RewriteChoice:
        table = self._machine_costs.table
        if table is None:
            return RewriteChoice()
        return table.choose_rewrites(
            self.model.prepared.graph, CostParameters(self._units), self.model.prepared.selectable_rewrites
        )

    @property
    def _machine_costs(self) -> MachineCosts:
        found = self.session.worker.fingerprint
        target = create(self.session.inputs.config.target, found.facts)
        return read_costs(target, found, own=_shares_costs(self.session), given=self.session.inputs.config.costs)

    def _sensitivity(self) -> Sensitivity:
        if self.session.journal.fact(SENSITIVITY) is None:
            self.session.progress.stage("probe how much noise each value's quantization makes")
        return self._probes.sensitivity()

    def _profile(self, placement: Placement) -> list[KernelTime]:
        candidates, end = self.model.candidates, self.time.end()
        fits = end.fits(_PROFILED_BUILDS * self.session.costs.candidate_build_s)
        seconds = PROFILING * end.left if fits else 0.0
        write = partial(candidates.write, placement)
        return self.evaluator.profile(candidates.key(placement), write, self.feed, self._baseline_ns, seconds)


def _shares_costs(session: Session) -> bool:
    """Whether what earlier runs and the machine's table say counts; else the seed alone decides."""
    config = session.inputs.config
    return config.cost_db and not session.worker.deterministic and config.target.reading == "latency"


def guided_report(guided: Guided, trial_s: float | None) -> dict[str, Any]:
    """What the guided strategy learned, for ``search`` in ``result.json``; a trial takes ``trial_s``, if it is known.

    ``forecast_error`` is the median relative error of its predictions, ``unattributed`` the largest share of any
    profile's kernel time without a known cause, ``fusion_disagreements`` the units that ran against the rules, and
    ``barred`` those that the runtime refused or computed wrong. ``left`` says how likely a clear gain is left to find,
    and in how many seconds.
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
        **({} if guided.prospect is None else {"left": guided.prospect.as_json(trial_s)}),
        "unattributed": max(guided.surrogate.cost_model.unattributed, default=None),
        "fusion_disagreements": [asdict(d) for d in guided.surrogate.disagreements.values()],
        "barred": [asdict(each) for each in guided.surrogate.bars.found],
    }
