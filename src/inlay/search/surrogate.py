"""What the search has learned, and what it predicts from that: models of cost and noise in place of measurements."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from inlay.quant.sensitivity import Powers, Sensitivity
from inlay.search import policy
from inlay.search.bars import Bars
from inlay.search.cost_model import CostModel, Prediction
from inlay.search.cost_prior import CASES, CostParameters
from inlay.search.edges import FLOAT
from inlay.search.labeling import LabelingProblem
from inlay.search.noise_model import NoiseAllowance
from inlay.search.rewrite_choice import RewriteChoice, choose_rewrites
from inlay.search.solver import Solver
from inlay.search.unit_graph import UnitGraph
from inlay.targets.base import KernelTime
from inlay.trial import Failed, Measured, Trial
from inlay.types import Placement, PortRewrite

_INTEGERS = frozenset({"int8", "uint8", "int4", "uint4"})


@dataclass(frozen=True)
class Disagreement:
    """A unit that did not run as labeled."""

    unit: str  # its name
    op_type: str  # its operator
    wanted_low: bool  # its label
    kernels: tuple[str, ...]  # operators and element types that ran instead


def disagreements(graph: UnitGraph, labels: np.ndarray, kernels: Sequence[KernelTime]) -> list[Disagreement]:
    """Units whose kernels compute in another precision than their label.

    Units without a kernel of their own (fused into another's, or removed as they only move elements) do not count, nor
    do kernels of unknown precision. A unit with several kernels counts as low when any of them reads integers.
    """
    by_unit: defaultdict[int, list[KernelTime]] = defaultdict(list)
    for kernel in kernels:
        owner = graph.owner(kernel.nodes)
        if owner is not None and kernel.kind == "compute" and kernel.precision:
            by_unit[owner].append(kernel)
    found = []
    for i, own in sorted(by_unit.items()):
        low = any(k.precision in _INTEGERS for k in own)
        wanted = labels[i] != FLOAT
        if graph.changeable[i] and low != wanted:
            unit = graph.units[i]
            names = tuple(f"{k.op_type} ({k.precision})" for k in own)
            found.append(Disagreement(unit.name, unit.op_type, bool(wanted), names))
    return found


@dataclass(frozen=True, kw_only=True)
class Oracles:
    """What the search may ask besides proposing placements. Answers must be the same when a run is resumed."""

    # kernel times of a placement; empty when it cannot be profiled
    profile: Callable[[Placement], Sequence[KernelTime]]
    outputs: Sequence[str]  # names of the float outputs at which noise is told
    sensitivity: Callable[[], Sensitivity]  # noise of every source alone
    noise: Callable[[Placement], Powers | None]  # noise of a placement, by a probe; None where it cannot be probed
    label: Callable[[Mapping[str, str]], Placement]  # the placement in which the named units have these precisions
    # noise of a placement at each output, by name, as the numeric reference computes it on every sample that trials are
    # judged by; None where there is no time for that, empty where probes are all there is
    computed: Callable[[Placement], Mapping[str, float] | None] = lambda _: {}
    hurried: Callable[[], bool] = lambda: False  # whether the anchors took much of the time
    rewrites: frozenset[PortRewrite] = frozenset()  # the selectable rewrites of the target, wherever they apply
    patience: Callable[[], float] = lambda: math.inf  # seconds that one integer program may take, beyond its own limit
    profiles: bool = True  # whether the target gives times of kernels at all
    # those that usually pay on such a processor, for models that there is no time to profile
    usual_rewrites: Callable[[], RewriteChoice] = RewriteChoice
    goes_on: Callable[[], bool] = lambda: False  # whether the search goes on where hardly anything is left to find


@dataclass(frozen=True)
class CheckedPrediction:
    """A prediction that was made before a measurement, and the nanoseconds that were measured."""

    digest: str
    predicted: Prediction
    measured_ns: float


class Point(NamedTuple):
    """Latency in nanoseconds and SQNR in dB of a measured model."""

    ns: float
    sqnr_db: float


def with_rewrites(prices: np.ndarray, graph: UnitGraph, rewrites: RewriteChoice) -> np.ndarray:
    """Prices of all parameters with those rewrites, in nanoseconds, shape (parameters,)."""
    found = prices.copy()
    for i, unit in enumerate(graph.units):
        found[i * CASES + CASES // 2 : (i + 1) * CASES] *= rewrites.ratios.get(unit.name, 1.0)
    return found


class Surrogate:
    """Trials so far, and models of cost and noise that they correct.

    Args:
        anchors: trials of the anchors by name, complete by the time of the first call.
        chosen: for each anchor's name, the precisions of its units by name.
        bound: noise over signal that the SQNR bound allows; None where there is no such bound.
        known: unit and boundary costs by signature, from earlier runs.
        priced: costs by the processor's table, NaN where it has none, shape (parameters,); empty without one.

    Attributes:
        solver: solves for labelings within the allowance; holds the noise model.
        rewrites: selectable rewrites that make their operators faster.
        bars: labels that a runtime refuses.
        best: the best labeling so far, which was measured in ``best_ns``.
        points: every measured model.
        predictions: made before measurements.
        disagreements: units that did not run as labeled, by name and label.
    """

    def __init__(
        self,
        graph: UnitGraph,
        oracles: Oracles,
        anchors: Mapping[str, Trial],
        chosen: Mapping[str, Mapping[str, str]],
        *,
        bound: float | None,
        baseline_ns: float,
        known: Mapping[str, float] | None = None,
        priced: np.ndarray | None = None,
    ) -> None:
        self.graph, self.oracles = graph, oracles
        self._anchors, self._chosen, self._baseline_ns = anchors, chosen, baseline_ns
        self._priced = None if priced is None or not priced.size else priced
        self.cost_model = CostModel(graph, known, None if oracles.profiles else self._at_pace(baseline_ns))
        self.allowance = NoiseAllowance(bound)
        self.solver = Solver(
            graph,
            oracles.outputs,
            self.allowance,
            oracles.sensitivity,
            lambda labels: oracles.noise(self.placement(labels)),
            anchors,
            chosen,
            oracles.patience,
        )
        self.rewrites = RewriteChoice()
        self.bars = Bars(graph)
        self.best = np.zeros(len(graph.units), np.int8)
        self.best_ns = float("inf")
        self.points: list[Point] = []
        self.predictions: list[CheckedPrediction] = []
        self.disagreements: dict[tuple[str, bool], Disagreement] = {}
        self._trials: dict[Placement, Trial] = {}
        self._explained: dict[Placement, bool] = {}  # by the numeric reference, of models with more noise than probed
        self._tried: list[tuple[np.ndarray, Trial]] = []

    @property
    def knows_costs(self) -> bool:
        """Whether anything says what units cost: a profile, or where there are none, the processor's table."""
        return self.cost_model.profiled or (not self.oracles.profiles and self._priced is not None)

    @property
    def expected_anchors(self) -> Mapping[str, float]:
        """Nanoseconds of each anchor by the table, where that is the cost model; none elsewhere."""
        if self.oracles.profiles or self._priced is None:
            return {}
        labels = {name: self.graph.labels(units) for name, units in self._chosen.items()}
        return {name: self.cost_model.predict(each).mean for name, each in labels.items()}

    def _at_pace(self, baseline_ns: float) -> np.ndarray | None:
        """The table's costs, scaled so that all in float takes what the baseline does: the machine may be another."""
        if self._priced is None:
            return None
        parameters = CostParameters(self.graph)
        in_float = float(np.nansum(self._priced[parameters.paid(np.zeros(len(self.graph.units), np.int8))]))
        return self._priced * (baseline_ns / in_float) if in_float > 0.0 else self._priced

    def placement(self, labels: np.ndarray) -> Placement:
        """The placement of a labeling and all that follows from it, with the faster rewrites."""
        plain = self.oracles.label(self.graph.precisions(self.graph.fixed_point(labels)))
        return plain.with_rewrites(self.rewrites.rewrites)

    def trial(self, labels: np.ndarray) -> Trial | None:
        """The trial of a labeling, if there was one."""
        return self._trials.get(self.placement(labels))

    def solve(self, maximum: float | None = None) -> np.ndarray:
        """The best labeling under the expected costs that keeps the allowance, or ``maximum`` noise in its place."""
        return self.solver.solve(self.expected_problem(), maximum, known=[self.best], exact=True)

    def expected_problem(self) -> LabelingProblem:
        """The labeling problem under the expected costs, without labels that are barred."""
        return self.bars.priced(self.cost_model.expected_problem())

    def sampled_problem(self, rng: np.random.Generator) -> LabelingProblem:
        """The same under costs drawn from what is known of them."""
        return self.bars.priced(self.cost_model.sampled_problem(rng))

    def fails(self, labels: np.ndarray, trial: Trial) -> bool:
        """Whether the runtime refuses a trial's model, or computes something else, as far as that breaks the bound."""
        if isinstance(trial.outcome, Failed):
            return True
        if trial.accuracy is None or trial.accuracy.feasible or not labels.any():
            return False
        labels = self.graph.propagate(labels)
        return self.solver.is_wrong(labels, trial.accuracy) and not self._explains(labels, trial)

    def _explains(self, labels: np.ndarray, trial: Trial) -> bool:
        """Whether the numeric reference computes such noise, too: then probes of few samples did not show it.

        Where an output is the position of a maximum, for instance, hardly any sample has all of the noise.
        """
        placement, accuracy = trial.proposal.placement, trial.accuracy
        assert accuracy is not None, "it has noise"
        if placement not in self._explained:
            noise = self.oracles.computed(placement)
            found = noise is None or (bool(noise) and not self.solver.is_wrong(labels, accuracy, noise))
            self._explained[placement] = found
            if found:
                self.solver.believe(labels, accuracy)
        return self._explained[placement]

    @property
    def ran(self) -> list[np.ndarray]:
        """Labelings whose models the runtime computes as they say."""
        return [labels for labels, trial in self._tried if not self.fails(labels, trial)]

    @property
    def wrong(self) -> list[tuple[np.ndarray, Trial]]:
        """Labelings whose models it computes otherwise, for no reason that is known, with their trials."""
        computed = [(y, t) for y, t in self._tried if not isinstance(t.outcome, Failed)]
        unexplained = [(y, t) for y, t in computed if not self.bars.forbid(y) and not self.solver.believes(y)]
        return [(labels, trial) for labels, trial in unexplained if self.fails(labels, trial)]

    def nearest(self, labels: np.ndarray) -> np.ndarray:
        """The labeling that ran and differs from ``labels`` in fewest units; all float only where nothing else ran.

        Float says little of what is refused: every step away from it is another label.
        """
        ran = [each for each in self.ran if each.any()] or [np.zeros(len(self.graph.units), np.int8)]
        return min(ran, key=lambda each: int((each != labels).sum()))

    def solve_by_table(self) -> np.ndarray | None:
        """The best labeling by the processor's cost table alone that keeps the allowance; None without a table."""
        if self._priced is None:
            return None
        model = CostModel(self.graph, priced=with_rewrites(self._priced, self.graph, self.rewrites))
        return self.solver.solve(model.expected_problem(), known=[self.best])

    def choose_rewrites(self) -> None:
        """For each selectable rewrite, profile the anchor that has the most ports for it, without and with it.

        Where there is no time for that, what usually pays is taken.
        """
        measured = [t.proposal.placement for t in self._anchors.values() if isinstance(t.outcome, Measured)]
        plain = [p for p in measured if not p.rewrites]
        for name in sorted({r.name for r in self.oracles.rewrites}):
            offered = [r for r in self.oracles.rewrites if r.name == name]
            usual = max(plain, key=lambda p: len(p.with_rewrites(offered).rewrites), default=Placement())
            rewritten = usual.with_rewrites(offered)
            if rewritten.rewrites:
                profiles = [self.oracles.profile(p) for p in (usual, rewritten)]
                if all(profiles):
                    self.rewrites |= choose_rewrites(self.graph, rewritten.rewrites, *profiles)
                elif self.oracles.profiles:
                    self.rewrites |= self.oracles.usual_rewrites().named(name)

    def update_from_anchors(self) -> None:
        """Learn from the anchors' trials and profiles."""
        for name, trial in self._anchors.items():
            if name in self._chosen:
                self.update(self.graph.labels(self._chosen[name]), trial)

    def update(self, labels: np.ndarray, trial: Trial, prediction: Prediction | None = None) -> None:
        """Learn from a trial and, where that is worth a build, from its profile.

        Args:
            prediction: made before; None to profile in any case.
        """
        labels = self.graph.propagate(labels)
        self._remember(labels, trial)
        self._tried.append((self.graph.fixed_point(labels), trial))
        self.allowance.update(trial)
        if trial.accuracy is not None:
            self.solver.update(labels, trial.accuracy)
        if not isinstance(trial.outcome, Measured):
            return
        speedup = trial.outcome.latency.speedup
        ns = self._baseline_ns / speedup.value
        self.points.append(Point(ns, trial.outcome.accuracy.sqnr_db))
        finite = 0.0 < speedup.low < speedup.high < np.inf
        stddev = float(np.log(speedup.high / speedup.low) / 4.0 if finite else policy.UNKNOWN_SPREAD)
        better = trial.feasible and (
            trial.accepted or not np.isfinite(self.best_ns) or ns < self.best_ns * policy.CLEARLY_BETTER
        )
        informative = better or prediction is None or self._is_surprise(ns, prediction)
        if better and ns < self.best_ns:
            self.best, self.best_ns = labels, ns
        if prediction is not None:
            self.predictions.append(CheckedPrediction(trial.proposal.placement.digest, prediction, ns))
        if informative:
            ns = self._update_from_profile(labels, trial.proposal.placement, ns, stddev)
        self.cost_model.update_from_latency(labels, ns, stddev)

    def _remember(self, labels: np.ndarray, trial: Trial) -> None:
        proposed = trial.proposal.placement
        self._trials[proposed] = trial
        stated = self.placement(labels)
        if stated.rewrites == proposed.rewrites and (self.graph.fixed_point(labels) == labels).all():
            self._trials[stated] = trial  # the same model, with all that follows stated

    def _is_surprise(self, ns: float, prediction: Prediction) -> bool:
        """Whether a prediction was so wrong that a profile is worth its time."""
        error = abs(ns - prediction.mean)
        if error > max(policy.PROFILE_ERROR * ns, policy.PROFILE_SIGMAS * prediction.stddev):
            return True
        return error > policy.PROFILE_ERROR_NEAR_BEST * ns and ns < policy.NEAR_BEST * self.best_ns

    def _update_from_profile(self, labels: np.ndarray, placement: Placement, ns: float, stddev: float) -> float:
        """Learn from a profile; nanoseconds with the faster rewrites, which anchors lack."""
        kernels = self.oracles.profile(placement)
        self.disagreements.update({(d.unit, d.wanted_low): d for d in disagreements(self.graph, labels, kernels)})
        faster = self.rewrites.applied(self.graph, placement, kernels)
        if kernels:
            ns *= sum(k.ns for k in faster) / sum(k.ns for k in kernels)
        self.cost_model.update_from_profile(labels, faster, ns, stddev)
        return ns
