"""The default strategy: learn what units and boundaries cost, cut, measure, learn again; then explore where it may pay.

Profiles of the anchors give a cost model; its minimum cut is the first guess, and each guess that is measured (and, if
good, profiled) corrects the model until the cut repeats itself. Where the accuracy bound stands in the way, the noise
of every value becomes a constraint of the same problem. After that, draws from the model (Thompson sampling) and
changes around the incumbent are tried in the order of their expected gain, until it drowns in the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.stats import norm

from inlay.quant.sensitivity import Noise
from inlay.search.base import Dialogue, Scripted, Strategy
from inlay.search.costmodel import CostModel, Prediction
from inlay.search.cut import Problem, Term, minimum_cut, solve
from inlay.search.fusion import Disagreement, disagreements
from inlay.search.noise import Allowance, NoiseModel
from inlay.search.structure import Structure
from inlay.targets.base import KernelTime
from inlay.trial import Infeasible, Measured, Proposal, Trial
from inlay.types import Placement

_CUTS = 8
_TIGHTENINGS = 6
_DRAWS = 2  # draws that may repeat what is known before a round of them is given up
_NEAR = 1.05  # a measured model this close to the best is worth a profile,
_NEWS = 0.01  # if its forecast was this wrong
_SURPRISE = 0.03  # a model this far from its forecast is worth one, too: it teaches most
_INTEGER_UNITS = 2500  # above, the constrained problem is solved by a sweep of multipliers instead
_INEXACT = 0.002  # negative boundary costs beyond this part of the latency are not ignored
_NEIGHBOURS = 400
_LEAST_GAIN = 0.0005
_TIGHTER_RETREAT = 0.7  # of the allowed noise, after an attempt that fell short
_FRONT_DB = (3.0, 6.0, 10.0)


@dataclass(frozen=True)
class Oracles:
    """What the strategy may ask besides judging proposals. Answers must be the same when a run is resumed.

    Attributes:
        profile: kernel times of a placement; empty when it cannot be profiled.
        sensitivity: noise of every value alone, at the float outputs.
        label: the placement in which the named units run in low precision.
    """

    profile: Callable[[Placement], Sequence[KernelTime]]
    sensitivity: Callable[[], Noise]
    label: Callable[[frozenset[str]], Placement]


@dataclass(frozen=True)
class Forecast:
    """A prediction made before a measurement: nanoseconds, their standard deviation, and what was measured."""

    digest: str
    predicted: Prediction
    measured_ns: float


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
        structure: Structure,
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
        self._outputs = outputs
        self._baseline_ns = baseline_ns
        self._rng = rng
        self.model = CostModel(structure, known)
        self.forecasts: list[Forecast] = []
        self.disagreements: dict[tuple[str, bool], Disagreement] = {}
        self._allowance = Allowance(bound)
        self._noise: NoiseModel | None = None
        self._told: dict[Placement, Trial] = {}
        self._best = np.zeros(len(structure.units), bool)
        self._best_ns = float("inf")

    def _propose(self) -> Dialogue:
        if not self._structure.free.any():
            return
        self._learn_anchors()
        if not self.model.profiled:
            return
        yield from self._cuts()
        yield from self._explore()
        yield from self._front()

    def retreat(self, least_db: float) -> Strategy:
        """A strategy that looks for the fastest model of at least ``least_db`` dB, until one is found."""
        return Scripted("retreat", partial(self._retreat, least_db))

    def _retreat(self, least_db: float) -> Dialogue:
        if not self.model.profiled:
            return
        most = _noise_of(least_db)
        for _ in range(_TIGHTENINGS):
            labels = self._solve(self.model.mean(), most)
            if not labels.any():
                return
            trial = self._told.get(self._placement(labels))
            if trial is None:
                trial = yield from self._try(labels, f"retreat to {least_db:.1f} dB")
            if trial.accuracy is None or trial.accuracy.sqnr_db >= least_db:
                return
            most *= _TIGHTER_RETREAT

    # --- what is known -------------------------------------------------------------------------------------------

    def _learn_anchors(self) -> None:
        for name, trial in self._anchors.items():
            if name in self._chosen:
                self._take_in(self._structure.labels(self._chosen[name]), trial)

    def _take_in(self, labels: np.ndarray, trial: Trial, forecast: Prediction | None = None) -> None:
        """Learn from a trial; where it is good, or not what was forecast, from its profile too."""
        labels = self._structure.settled(labels)
        placement = trial.proposal.placement
        self._told[placement] = self._told[self._placement(labels)] = trial
        self._allowance.tell(trial)
        if self._noise is not None and trial.accuracy is not None:
            self._noise.learn(labels, trial.accuracy)
        if not isinstance(trial.outcome, Measured):
            return
        speedup = trial.outcome.latency.speedup
        ns = self._baseline_ns / speedup.value
        spread = np.log(speedup.high / speedup.low) / 4.0 if 0.0 < speedup.low < speedup.high < np.inf else 0.02
        better = trial.feasible and (trial.accepted or not np.isfinite(self._best_ns) or ns < self._best_ns * 0.99)
        surprise = forecast is not None and abs(ns - forecast.ns) > max(_SURPRISE * ns, 2.0 * forecast.sd)
        news = forecast is not None and abs(ns - forecast.ns) > _NEWS * ns and ns < _NEAR * self._best_ns
        if forecast is None or better or surprise or news:
            kernels = self._oracles.profile(placement)
            self.model.learn(labels, kernels, ns, float(spread))
            self.disagreements.update(
                {(d.unit, d.wanted_low): d for d in disagreements(self._structure, labels, kernels)}
            )
        self.model.observe(labels, ns, float(spread))
        if better and ns < self._best_ns:
            self._best, self._best_ns = labels, ns

    def _try(self, labels: np.ndarray, origin: str, timed: bool = False) -> Generator[Proposal, Trial, Trial]:
        labels = self._structure.settled(labels)
        placement = self._placement(labels)
        forecast = self.model.predict(labels)
        trial = yield Proposal(placement, origin, anchor=timed)
        if isinstance(trial.outcome, Measured):
            measured = self._baseline_ns / trial.outcome.latency.speedup.value
            self.forecasts.append(Forecast(placement.digest, forecast, measured))
        self._take_in(labels, trial, forecast)
        return trial

    def _placement(self, labels: np.ndarray) -> Placement:
        return self._oracles.label(self._structure.names(self._structure.settled(labels)))

    def _new(self, labels: np.ndarray) -> bool:
        return self._placement(labels) not in self._told

    # --- solving -------------------------------------------------------------------------------------------------

    def _solve(self, parameters: np.ndarray, most: float | None = None) -> np.ndarray:
        """The best labelling under these costs that is expected to keep the bound."""
        problem = self.model.problem(parameters)
        labels = self._unbounded(problem)
        needless = most is None and self._noise is None and not self._allowance.active
        most = self._allowance.most if most is None else most
        if needless or not np.isfinite(most):
            return labels
        if self._noise is None:
            self._noise = NoiseModel(self._structure, self._oracles.sensitivity(), self._outputs)
            for name, trial in self._anchors.items():
                if name in self._chosen and trial.accuracy is not None and self._chosen[name]:
                    self._noise.learn(self._structure.labels(self._chosen[name]), trial.accuracy)
        if self._quiet(labels, most):
            return labels
        if len(problem.float_cost) <= _INTEGER_UNITS:
            found = solve(problem, self._noise.limits(most, len(problem.terms)))
            if found is not None:
                return found
        return self._sweep(problem, most)

    def _unbounded(self, problem: Problem) -> np.ndarray:
        """The best labelling whatever its noise: a cut, or where that is not exact by much, an integer program."""
        whole = float(np.minimum(problem.float_cost, problem.low_cost).sum())
        if -problem.negative > _INEXACT * whole and len(problem.float_cost) <= _INTEGER_UNITS:
            found = solve(problem)
            if found is not None:
                return found
        return minimum_cut(problem.clipped())

    def _quiet(self, labels: np.ndarray, most: float | None = None) -> bool:
        """Whether a labelling is expected to keep the bound."""
        most = self._allowance.most if most is None else most
        return self._noise is None or bool((self._noise.predict(labels) <= most).all())

    def _sweep(self, problem: Problem, most: float) -> np.ndarray:
        """The cheapest labelling within the limit that some price on noise gives: bisection on the price."""
        assert self._noise is not None
        problem = problem.clipped()
        table = (self._noise.table * self._noise.factor).max(axis=1)
        weights = np.zeros(len(problem.terms))
        weights[len(weights) - len(table) :] = table  # the terms of values are the last
        low, high = 0.0, float(np.abs(problem.low_cost - problem.float_cost).sum()) / max(most, 1e-30)
        best = np.zeros(len(problem.float_cost), bool)
        for _ in range(24):
            price = np.sqrt(low * high) if low > 0.0 else high * 1e-6
            terms = [
                Term(t.producer, t.consumers, t.float_reader, t.up, t.down, t.touched + price * float(w))
                for t, w in zip(problem.terms, weights, strict=True)
            ]
            labels = minimum_cut(Problem(problem.float_cost, problem.low_cost, terms, problem.free, problem.ties))
            if self._quiet(labels, most):
                best, high = labels, price
            else:
                low = price
        return best

    # --- phases --------------------------------------------------------------------------------------------------

    def _cuts(self) -> Dialogue:
        """Solve, measure, learn, until the solution is a model that was judged."""
        free = self._unbounded(self.model.problem(self.model.mean()))
        if self._new(free):
            yield from self._try(free, "cut without a bound", timed=True)
        failures = 0
        for number in range(_CUTS + _TIGHTENINGS):
            labels = self._solve(self.model.mean())
            if not self._new(labels):
                break
            trial = yield from self._try(labels, f"cut {number + 1}")
            failures += isinstance(trial.outcome, Infeasible)
            if failures > _TIGHTENINGS:
                break

    def _explore(self) -> Dialogue:
        """Draws and changes around the incumbent, in the order of expected improvement."""
        patience = int(np.clip(self._structure.free.sum() // 4, 12, 60))
        idle = 0
        while idle < patience:
            found = self._most_promising()
            if found is None:
                return
            labels, origin = found
            before = self._best_ns
            yield from self._try(labels, origin)
            idle = 0 if self._best_ns < before * (1.0 - _LEAST_GAIN) else idle + 1

    def _most_promising(self) -> tuple[np.ndarray, str] | None:
        best: tuple[float, np.ndarray, str] | None = None
        best_ns = self.model.predict(self._best).ns  # the measured figure may owe its place to luck
        for labels, origin in self._candidates():
            if not self._quiet(labels) or not self._new(labels):
                continue
            gain = _expected_gain(self.model.predict(labels), best_ns)
            if best is None or gain > best[0]:
                best = (gain, labels, origin)
        if best is None or best[0] < _LEAST_GAIN * best_ns:
            return None
        return best[1], best[2]

    def _candidates(self) -> Iterator[tuple[np.ndarray, str]]:
        for _ in range(_DRAWS):
            yield self._solve(self.model.sample(self._rng)), "draw"
        yield self._solve(self.model.mean()), "cut"
        yield from self._neighbours()

    def _neighbours(self) -> Iterator[tuple[np.ndarray, str]]:
        """Single flips, flips of runs of units in topological order, and flips of both sides of a value."""
        free = np.flatnonzero(self._structure.free)
        changes: dict[tuple[int, ...], bool] = {}
        for edge in self._structure.edges:
            members = tuple(sorted(m for m in {edge.producer, *edge.consumers} if m >= 0 and self._structure.free[m]))
            for label in (False, True):
                if len(members) > 1:
                    changes[(*members, int(label))] = label
        size = 1
        while size <= len(free) // 2 + 1:
            for start in range(0, len(free), max(1, size // 2)):
                run = tuple(free[start : start + size].tolist())
                for label in (False, True):
                    changes[(*run, int(label))] = label
            size *= 2
        keys = list(changes)
        if len(keys) > _NEIGHBOURS:
            keys = [keys[i] for i in self._rng.choice(len(keys), _NEIGHBOURS, replace=False)]
        for key in keys:
            labels = self._best.copy()
            labels[list(key[:-1])] = changes[key]
            if (labels != self._best).any():
                name = self._structure.units[key[0]].name
                what = name if len(key) == 2 else f"{len(key) - 1} units from {name}"
                yield labels, f"flip: {what} to {'low precision' if changes[key] else 'float'}"

    def _front(self) -> Dialogue:
        """The fastest models that are more accurate than the bound asks for."""
        best = self._seen_noise()
        if best is None:
            return
        for step in _FRONT_DB:
            labels = self._solve(self.model.mean(), best * 10.0 ** (-step / 10.0))
            if labels.any() and self._new(labels):
                yield from self._try(labels, f"front: {step:.0f} dB above the bound")

    def _seen_noise(self) -> float | None:
        most = self._allowance.most
        return most if np.isfinite(most) and self._best.any() else None


def _noise_of(sqnr_db: float) -> float:
    return float(10.0 ** (-sqnr_db / 10.0))


def _expected_gain(prediction: Prediction, best_ns: float) -> float:
    """Expected improvement over ``best_ns``, nanoseconds: ``sd (z cdf(z) + pdf(z))``."""
    sd = max(prediction.sd, 1e-9)
    z = (best_ns - prediction.ns) / sd
    return float(sd * (z * norm.cdf(z) + norm.pdf(z)))
