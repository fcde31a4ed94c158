"""Labellings that keep the accuracy bound: solve, probe, correct the noise model, until solutions hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from inlay.quant.sensitivity import Powers, Sensitivity
from inlay.search import milp as program
from inlay.search.labeling import Problem
from inlay.search.lagrangian import LagrangianSolver
from inlay.search.noise_model import Allowance, NoiseModel
from inlay.search.unit_graph import UnitGraph
from inlay.trial import Accuracy, Trial, decibels

_INTEGER_UNITS = 2500  # above, no integer program is tried
_GAP = 5e-3  # part of the latency that a solution may miss: below what can be measured
_CORRECTIONS = 5  # solutions that are probed before one is taken
_CLOSE = 0.8  # part of the allowed noise beyond which a solution is not worth correcting further
_TIGHTER = 0.93  # of the limit where the probes refute a solution; twice where it is one that they refuted before


class Solver:
    """Best labellings under given costs, with and without a bound on the noise.

    The noise model is made when a bound first stands in the way, as probing takes time.

    Args:
        structure: units and values.
        outputs: names of the float outputs.
        allowance: how much noise is allowed.
        sensitivity: noise of every source alone.
        noise: the same of a labelling, by a probe; None where probes do not run.
        anchors: what the anchors showed, filled by the time of the first question.
        chosen: for each anchor's name the units that it runs in low precision.
    """

    def __init__(
        self,
        structure: UnitGraph,
        outputs: Sequence[str],
        allowance: Allowance,
        sensitivity: Callable[[], Sensitivity],
        noise: Callable[[np.ndarray], Powers | None],
        anchors: Mapping[str, Trial],
        chosen: Mapping[str, frozenset[str]],
    ) -> None:
        self._structure = structure
        self._outputs = outputs
        self._allowance = allowance
        self._sensitivity = sensitivity
        self._ask = noise
        self._anchors = anchors
        self._chosen = chosen
        self._noise: NoiseModel | None = None

    @property
    def bounded(self) -> bool:
        """Whether accuracy stands in the way of speed, so that noise was looked into."""
        return self._noise is not None and bool(np.isfinite(self._allowance.most))

    def compare(self, labels: np.ndarray, accuracy: Accuracy) -> None:
        """Take in a verdict of the judge."""
        if self._noise is not None and labels.any():
            self.probe(labels)
            self._noise.compare(labels, accuracy)

    def solve(
        self,
        problem: Problem,
        most: float | None = None,
        corrections: int = _CORRECTIONS,
        known: Sequence[np.ndarray] = (),
        exact: bool = False,
    ) -> np.ndarray:
        """The best labelling that keeps the bound (or ``most`` noise), by the probes where there are some.

        Args:
            problem: costs.
            most: noise allowed; that of the bound without it.
            corrections: solutions that are probed at most; float where the probes refute them all.
            known: labels to improve on, besides.
            exact: by integer programs in the end, which take longer.
        """
        relaxed = LagrangianSolver(problem, known)
        labels = free = relaxed.free
        needless = most is None and self._noise is None and not self._allowance.active
        most = self._allowance.most if most is None else most
        if needless or not np.isfinite(most):
            return self._exactly(problem, free) if exact else free
        self._find_noise()
        best, least, limit = np.zeros_like(free), float("inf"), most
        for _ in range(corrections):
            if not self.quiet(labels, most):
                labels = self.within(relaxed, limit)
            fresh = self.probe(labels)
            noise = float(self.predicted(labels).max(initial=0.0))
            if noise <= most and problem.cost(labels) < least:
                best, least = labels, problem.cost(labels)
            if noise > most:
                limit *= _TIGHTER if fresh else _TIGHTER**2
            elif not fresh or noise >= _CLOSE * most:
                break
            labels = free
        if exact:
            labels = self._exactly(problem, best, limit)
            self.probe(labels)
            if self.quiet(labels, most) and problem.cost(labels) < least:
                return labels
        return best

    def _find_noise(self) -> None:
        """Make the noise model, where there is none: from probes, and from what the anchors showed."""
        if self._noise is None:
            self._noise = NoiseModel(self._structure, self._sensitivity(), self._outputs)
            for name, trial in self._anchors.items():
                if name in self._chosen and trial.accuracy is not None and self._chosen[name]:
                    labels = self._structure.labels(self._chosen[name])
                    self.probe(labels)
                    self._noise.compare(labels, trial.accuracy)

    def probe(self, labels: np.ndarray) -> bool:
        """Ask for the noise of a labelling, and learn it; False where it was known, or cannot be asked."""
        if self._noise is None or self._noise.knows(labels):
            return False
        found = self._ask(labels)
        if found is None:
            return False
        self._noise.learn(labels, found)
        return True

    def unbounded(self, problem: Problem, known: Sequence[np.ndarray] = ()) -> np.ndarray:
        """The best labelling whatever its noise."""
        return self._exactly(problem, LagrangianSolver(problem, known).free)

    def _exactly(self, problem: Problem, good: np.ndarray, most: float | None = None) -> np.ndarray:
        """The best labelling by an integer program where one finds better than ``good``, which keeps ``most`` noise."""
        if len(problem.float_cost) > _INTEGER_UNITS or not (problem.negative or problem.traps or most is not None):
            return good  # without negative costs and limits it is a minimum cut
        limits = [] if most is None or self._noise is None else self._noise.limits(most, len(problem.terms))
        found = program.solve(problem, limits, gap=_GAP)
        return good if found is None or problem.cost(found) >= problem.cost(good) else found

    def predicted(self, labels: np.ndarray) -> np.ndarray:
        """Noise at each output, as known or predicted; shape (outputs,), empty without a noise model."""
        return np.zeros(0) if self._noise is None else self._noise.predict(labels)

    def quiet(self, labels: np.ndarray, most: float | None = None) -> bool:
        """Whether a labelling is expected to keep the bound."""
        most = self._allowance.most if most is None else most
        return bool((self.predicted(labels) <= most).all())

    def within(self, relaxed: LagrangianSolver, most: float) -> np.ndarray:
        """A good labelling whose noise is at most ``most`` by the noise model."""
        assert self._noise is not None
        return relaxed.within(self._noise.limits(most, relaxed.terms))

    def decibels(self, labels: np.ndarray) -> float:
        """SQNR of the worst output, as known or predicted."""
        return decibels(self.predicted(labels).max(initial=0.0))
