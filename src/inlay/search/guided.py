"""The default strategy: learn what units and boundaries cost, cut, measure, learn again; then explore where it may pay.

Where an operator has two kernels in low precision, the faster one is found first, from a profile of each, and is taken
from then on. Profiles of the anchors give a cost model; its minimum cut is the first guess, and each guess that is
measured (and, if good, profiled) corrects the model until the cut repeats itself. Where the accuracy bound stands in
the way, the noise of every source becomes a constraint of the same problem, and each solution is probed before it is
measured: what the probe says corrects the noise model, until solutions are what they were taken for. Solving for other
bounds gives the front of speed and accuracy. After that, draws from the model (Thompson sampling) and changes around
the incumbent are tried in the order of their expected gain, until it drowns in the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from inlay.quant.sensitivity import Powers, Sensitivity
from inlay.search.base import Dialogue, Scripted, Strategy
from inlay.search.cost_model import CostModel, Prediction
from inlay.search.executed import Disagreement, disagreements
from inlay.search.lagrangian import LagrangianSolver
from inlay.search.neighborhood import expected_gains, neighbours
from inlay.search.noise_model import Allowance
from inlay.search.rewrite_choice import RewriteChoice, choose_rewrites
from inlay.search.solver import Solver
from inlay.search.unit_graph import UnitGraph
from inlay.targets.base import KernelTime
from inlay.trial import Infeasible, Measured, Proposal, Trial, decibels, noise_of
from inlay.types import Placement, PortRewrite

_CUTS = 3
_TIGHTENINGS = 6
_DRAWS = 2  # draws that may repeat what is known before a round of them is given up
_NEAR = 1.05  # a measured model this close to the best is worth a profile,
_NEWS = 0.01  # if its forecast was this wrong
_SURPRISE = 0.03  # a model this far from its forecast is worth one, too: it teaches most
_GLANCES = 2  # corrections of a solution that is one candidate of many
_SOLVE_EVERY = 3  # steps of exploring
_NEIGHBOURS = 400
_LEAST_GAIN = 0.0005
_VERIFIED = 8  # candidates that are probed in one round of exploring
_FRONT_STEP_DB = 2.0
_FRONT_GAP_DB = 2.0  # from measured points that is far enough
_FRONT_TOP_DB = 45.0  # as good as float
_FRONT_ROUNDS = 4  # of solving again with what the last round taught
_FRONT_POINTS = 3  # to measure before exploring
_TIGHTER_RETREAT = 0.7  # of the allowed noise, after an attempt that fell short


@dataclass(frozen=True)
class Oracles:
    """What the strategy may ask besides judging proposals. Answers must be the same when a run is resumed.

    Attributes:
        profile: kernel times of a placement; empty when it cannot be profiled.
        sensitivity: noise of every source alone, at the float outputs.
        noise: the same of a placement, by a probe; None where probes do not run.
        label: the placement in which the named units run in low precision.
        hurried: whether the anchors took much of the time.
        rewrites: the selectable rewrites of the target, wherever they apply.
    """

    profile: Callable[[Placement], Sequence[KernelTime]]
    sensitivity: Callable[[], Sensitivity]
    noise: Callable[[Placement], Powers | None]
    label: Callable[[frozenset[str]], Placement]
    hurried: Callable[[], bool] = lambda: False
    rewrites: frozenset[PortRewrite] = frozenset()


@dataclass(frozen=True)
class Forecast:
    """A prediction made before a measurement: nanoseconds, their standard deviation, and what was measured."""

    digest: str
    predicted: Prediction
    measured_ns: float


@dataclass(frozen=True, eq=False)
class _Candidate:
    """Closed labels, the indices of the costs that they pay, and where they come from."""

    labels: np.ndarray
    parameters: np.ndarray
    origin: str


class Guided(Scripted):
    """See the module.

    Args:
        structure: units and values.
        oracles: profiles and sensitivities.
        anchors: what the anchors showed, filled by the time of the first ``ask``.
        chosen: for each anchor's name the units that it runs in low precision.
        outputs: names of the float outputs, as in the sensitivities.
        bound: noise over signal that the SQNR bound allows; None where there is no such bound.
        baseline_ns: latency of the given model.
        rng: of the draws.
        known: unit and boundary costs by signature, from earlier runs.
    """

    def __init__(
        self,
        structure: UnitGraph,
        oracles: Oracles,
        anchors: Mapping[str, Trial],
        chosen: Mapping[str, frozenset[str]],
        outputs: Sequence[str],
        bound: float | None,
        baseline_ns: float,
        rng: np.random.Generator,
        known: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__("guided", self._propose)
        self._structure = structure
        self._oracles = oracles
        self._anchors = anchors
        self._chosen = chosen
        self._baseline_ns = baseline_ns
        self._rng = rng
        self.model = CostModel(structure, known)
        self.forecasts: list[Forecast] = []
        self.disagreements: dict[tuple[str, bool], Disagreement] = {}
        self._allowance = Allowance(bound)
        self._solver = Solver(
            structure,
            outputs,
            self._allowance,
            oracles.sensitivity,
            lambda labels: oracles.noise(self._placement(labels)),
            anchors,
            chosen,
        )
        self._rewrites = RewriteChoice()
        self._told: dict[Placement, Trial] = {}
        self._points: list[tuple[float, float]] = []  # of what was measured: nanoseconds and dB
        self._best = np.zeros(len(structure.units), bool)
        self._best_ns = float("inf")
        self._centre: np.ndarray | None = None  # what the changes below are changes of
        self._changes: list[_Candidate] = []

    def _propose(self) -> Dialogue:
        if not self._structure.free.any():
            return
        self._choose_rewrites()
        self._learn_anchors()
        if not self.model.profiled:
            return
        if self._rewrites.rewrites and self._best.any() and self._new(self._best):
            yield from self._try(self._best, "the best anchor, faster kernels")
        yield from self._cuts()
        yield from self._front(_FRONT_POINTS)
        yield from self._explore()
        yield from self._front()

    @property
    def rewrites(self) -> frozenset[PortRewrite]:
        """The selectable rewrites that make their operators faster; known once :meth:`ask` was called."""
        return self._rewrites.rewrites

    def retreat(self, least_db: float) -> Strategy:
        """A strategy that looks for the fastest model of at least ``least_db`` dB, until one is found."""
        return Scripted("retreat", partial(self._retreat, least_db))

    def _retreat(self, least_db: float) -> Dialogue:
        if not self.model.profiled:
            return
        most = noise_of(least_db)
        for _ in range(_TIGHTENINGS):
            labels = self._solve(most)
            if not labels.any():
                return
            trial = self._told.get(self._placement(labels))
            if trial is None:
                trial = yield from self._try(labels, f"retreat to {least_db:.1f} dB")
            if trial.accuracy is None or trial.accuracy.sqnr_db >= least_db:
                return
            most *= _TIGHTER_RETREAT

    # --- what is known -------------------------------------------------------------------------------------------

    def _choose_rewrites(self) -> None:
        """For each selectable rewrite, profile the anchor that has the most ports for it, without and with it."""
        measured = [t.proposal.placement for t in self._anchors.values() if isinstance(t.outcome, Measured)]
        plain = [p for p in measured if not p.rewrites]
        for name in sorted({r.name for r in self._oracles.rewrites}):
            offered = [r for r in self._oracles.rewrites if r.name == name]
            usual = max(plain, key=lambda p: len(p.with_rewrites(offered).rewrites), default=Placement())
            rewritten = usual.with_rewrites(offered)
            if rewritten.rewrites:
                profiles = [self._oracles.profile(p) for p in (usual, rewritten)]
                self._rewrites |= choose_rewrites(self._structure, rewritten.rewrites, *profiles)

    def _learn_anchors(self) -> None:
        for name, trial in self._anchors.items():
            if name in self._chosen:
                self._take_in(self._structure.labels(self._chosen[name]), trial)

    def _take_in(self, labels: np.ndarray, trial: Trial, forecast: Prediction | None = None) -> None:
        """Learn from a trial; where it is good, or not what was forecast, from its profile too."""
        labels = self._structure.settled(labels)
        placement = trial.proposal.placement
        self._told[placement] = trial
        stated = self._placement(labels)
        if stated.rewrites == placement.rewrites and (self._structure.closed(labels) == labels).all():
            self._told[stated] = trial  # the same model with everything stated
        self._allowance.tell(trial)
        if trial.accuracy is not None:
            self._solver.compare(labels, trial.accuracy)
        if not isinstance(trial.outcome, Measured):
            return
        self._points.append((self._baseline_ns / trial.outcome.latency.speedup.value, trial.outcome.accuracy.sqnr_db))
        speedup = trial.outcome.latency.speedup
        ns = self._baseline_ns / speedup.value
        spread = np.log(speedup.high / speedup.low) / 4.0 if 0.0 < speedup.low < speedup.high < np.inf else 0.02
        better = trial.feasible and (trial.accepted or not np.isfinite(self._best_ns) or ns < self._best_ns * 0.99)
        surprise = forecast is not None and abs(ns - forecast.ns) > max(_SURPRISE * ns, 2.0 * forecast.sd)
        news = forecast is not None and abs(ns - forecast.ns) > _NEWS * ns and ns < _NEAR * self._best_ns
        if better and ns < self._best_ns:
            self._best, self._best_ns = labels, ns
        if forecast is None or better or surprise or news:
            kernels = self._oracles.profile(placement)
            self.disagreements.update(
                {(d.unit, d.wanted_low): d for d in disagreements(self._structure, labels, kernels)}
            )
            faster = self._rewrites.applied(self._structure, placement, kernels)  # only anchors are not written so
            if kernels:
                ns *= sum(k.ns for k in faster) / sum(k.ns for k in kernels)
            self.model.learn(labels, faster, ns, float(spread))
        self.model.observe(labels, ns, float(spread))

    def _try(self, labels: np.ndarray, origin: str, timed: bool = False) -> Generator[Proposal, Trial, Trial]:
        labels = self._structure.closed(labels)
        placement = self._placement(labels)
        forecast = self.model.predict(labels)
        trial = yield Proposal(placement, origin, timed=timed)
        if isinstance(trial.outcome, Measured):
            measured = self._baseline_ns / trial.outcome.latency.speedup.value
            self.forecasts.append(Forecast(placement.digest, forecast, measured))
        self._take_in(labels, trial, forecast)
        return trial

    def _placement(self, labels: np.ndarray) -> Placement:
        plain = self._oracles.label(self._structure.names(self._structure.closed(labels)))
        return plain.with_rewrites(self._rewrites.rewrites)

    def _new(self, labels: np.ndarray) -> bool:
        return self._placement(labels) not in self._told

    # --- solving -------------------------------------------------------------------------------------------------

    def _solve(self, most: float | None = None) -> np.ndarray:
        """The best labelling under the expected costs that keeps the bound (or ``most`` noise)."""
        return self._solver.solve(self.model.problem(self.model.mean()), most, known=[self._best], exact=True)

    # --- phases --------------------------------------------------------------------------------------------------

    def _cuts(self) -> Dialogue:
        """Solve, measure, learn, until the solution is a model that was judged."""
        if not (self._allowance.active and self._oracles.hurried()):  # what is outside the bound can wait
            free = self._solver.unbounded(self.model.problem(self.model.mean()), [self._best])
            if self._new(free):
                yield from self._try(free, "cut without a bound", timed=True)
        failures = 0
        for number in range(_CUTS + _TIGHTENINGS):
            labels = self._solve()
            if not self._new(labels):
                break
            trial = yield from self._try(labels, f"cut {number + 1}")
            failures += isinstance(trial.outcome, Infeasible)
            if failures > _TIGHTENINGS or number + 1 - failures >= _CUTS:
                break

    def _explore(self) -> Dialogue:
        """Draws and changes around the incumbent, in the order of expected improvement."""
        patience = int(np.clip(self._structure.free.sum() // 4, 12, 60))
        idle = step = 0
        while idle < patience:
            solve = step % _SOLVE_EVERY == 0
            found = self._most_promising(solve)
            if found is None and not solve:
                found = self._most_promising(solve=True)
            if found is None:
                return
            step += 1
            labels, origin = found
            before = self._best_ns
            yield from self._try(labels, origin)
            idle = 0 if self._best_ns < before * (1.0 - _LEAST_GAIN) else idle + 1

    def _most_promising(self, solve: bool) -> tuple[np.ndarray, str] | None:
        """The candidate with the largest expected gain, if that is worth a measurement.

        Args:
            solve: solutions of drawn and of expected costs are candidates, too.
        """
        best_ns = self.model.predict(self._best).ns  # the measured figure may owe its place to luck
        candidates = [*(self._solutions() if solve else ()), *self._around(solve)]
        gains = expected_gains(*self.model.predict_all(np.array([c.parameters for c in candidates])), best_ns)
        verified = 0
        for k in np.argsort(-gains, kind="stable").tolist():
            labels = candidates[k].labels
            if gains[k] < _LEAST_GAIN * best_ns or verified == _VERIFIED:
                break
            if self._solver.quiet(labels) and self._new(labels):
                self._solver.probe(labels)
                verified += 1
                if self._solver.quiet(labels):
                    return labels, candidates[k].origin
        return None

    def _candidate(self, labels: np.ndarray, origin: str) -> _Candidate:
        labels = self._structure.closed(labels)
        return _Candidate(labels, self.model.parameters(labels), origin)

    def _solutions(self) -> Iterator[_Candidate]:
        for parameters, origin in [
            *((self.model.sample(self._rng), "draw") for _ in range(_DRAWS)),
            (self.model.mean(), "cut"),
        ]:
            problem = self.model.problem(parameters)
            labels = self._solver.solve(problem, corrections=_GLANCES, known=[self._best])
            yield self._candidate(labels, origin)

    def _around(self, redraw: bool) -> list[_Candidate]:
        """Changes of the incumbent, drawn again where that is asked for or it is a new one."""
        if redraw or self._centre is not self._best:
            self._centre = self._best
            found = neighbours(self._structure, self._best, self._rng, _NEIGHBOURS)
            distinct = {c.labels.tobytes(): c for c in (self._candidate(*change) for change in found)}
            self._changes = list(distinct.values())
        return self._changes

    def _front(self, points: int | None = None) -> Dialogue:
        """Measure what is predicted to lie on the front: the fastest first, then gaps in accuracy next to the bound.

        Args:
            points: most to measure; None for all. Nothing happens where accuracy does not stand in the way of speed.
        """
        if not self._solver.bounded:
            return
        rounds = 1 if points is not None else _FRONT_ROUNDS
        for _ in range(rounds):
            left, before = self._predicted_front(), len(self._points)
            whole = len(left)
            while left and (points is None or points > 0):
                fastest = len(left) == whole  # comes first: with what was learned since, it may be another one
                labels = left.pop(0 if fastest else self._most_telling(left))
                self._solver.probe(labels)
                db, ns = self._solver.decibels(labels), self.model.predict(labels).ns
                if self._new(labels) and not any(other <= ns and known >= db for other, known in self._points):
                    yield from self._try(labels, f"front: about {db:.0f} dB", timed=True)
                    points = None if points is None else points - 1
            if len(self._points) == before:
                return

    def _most_telling(self, front: Sequence[np.ndarray]) -> int:
        """The point that is farthest in accuracy from what was measured; among those far enough, next to the bound."""
        bound = decibels(self._allowance.most)

        def worth(k: int) -> tuple[float, float]:
            db = self._solver.decibels(front[k])
            gap = min((abs(db - known) for _, known in self._points), default=np.inf)
            return min(gap, _FRONT_GAP_DB), -abs(db - bound)

        return max(range(len(front)), key=worth)

    def _predicted_front(self) -> list[np.ndarray]:
        """Labellings that no other is expected to beat in both latency and noise.

        The allowance sweeps from the noise of the fastest labelling down to that of float.
        """
        relaxed = LagrangianSolver(self.model.problem(self.model.mean()), [self._best])
        fastest = relaxed.free
        self._solver.probe(fastest)
        found = [fastest]
        for db in np.arange(max(self._solver.decibels(fastest), 0.0) + _FRONT_STEP_DB, _FRONT_TOP_DB, _FRONT_STEP_DB):
            labels = self._solver.within(relaxed, noise_of(float(db)))
            if not labels.any():
                break
            found.append(labels)
        front: list[np.ndarray] = []
        for labels in sorted(found, key=lambda y: self.model.predict(y).ns):
            if not front or self._solver.decibels(labels) > self._solver.decibels(front[-1]):
                front.append(labels)
        return front
