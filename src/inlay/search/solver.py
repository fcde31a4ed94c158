"""Labelings that keep the accuracy constraint: solve, probe, correct the noise model, until a solution holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from inlay.quant.sensitivity import Powers, Sensitivity
from inlay.search import milp, policy
from inlay.search.labeling import LabelingProblem, Limit
from inlay.search.lagrangian import LagrangianSolver
from inlay.search.noise_model import NoiseAllowance, NoiseModel
from inlay.search.unit_graph import UnitGraph
from inlay.trial import Accuracy, Trial, decibels, noise_of


class Solver:
    """The best labelings under given costs, with and without the accuracy constraint.

    The noise model is made when the constraint first rules something out, as probing takes time.

    Args:
        probe: measures the noise of a labeling; None where it cannot.
        patience: seconds that one integer program may take.
    """

    def __init__(
        self,
        graph: UnitGraph,
        outputs: Sequence[str],
        allowance: NoiseAllowance,
        sensitivity: Callable[[], Sensitivity],
        probe: Callable[[np.ndarray], Powers | None],
        anchors: Mapping[str, Trial],
        chosen: Mapping[str, Mapping[str, str]],
        patience: Callable[[], float] = lambda: policy.MILP_SECONDS,
    ) -> None:
        self._graph, self._outputs, self._allowance = graph, outputs, allowance
        self._sensitivity, self._probe, self._patience = sensitivity, probe, patience
        self._anchors, self._chosen = anchors, chosen
        self._noise: NoiseModel | None = None
        self._believed = set[bytes]()

    @property
    def constrained(self) -> bool:
        """Whether the accuracy constraint ruled something out, so that there is a noise model."""
        return self._noise is not None and bool(np.isfinite(self._allowance.maximum))

    def solve(
        self,
        problem: LabelingProblem,
        maximum: float | None = None,
        corrections: int = policy.CORRECTIONS,
        known: Sequence[np.ndarray] = (),
        exact: bool = False,
    ) -> np.ndarray:
        """The best labeling that keeps the noise allowance, as far as probes can tell; all float where none does.

        Args:
            maximum: noise allowed, in place of the allowance's.
            corrections: solutions that are probed, at most.
            exact: finish with integer programs, which take longer.
        """
        relaxed = LagrangianSolver(problem, known)
        labels = unconstrained = relaxed.unconstrained
        nothing_ruled_out = maximum is None and self._noise is None and not self._allowance.active
        maximum = self._allowance.maximum if maximum is None else maximum
        if nothing_ruled_out or not np.isfinite(maximum):
            return self._exact(problem, unconstrained) if exact else unconstrained
        self._make_noise_model()
        best, best_cost, limit = np.zeros_like(unconstrained), float("inf"), maximum
        for _ in range(corrections):
            if not self.within_allowance(labels, maximum):
                labels = self.solve_within(relaxed, limit)
            new = self.probe(labels)
            noise = float(self.noise(labels).max(initial=0.0))
            if noise <= maximum and problem.cost(labels) < best_cost:
                best, best_cost = labels, problem.cost(labels)
            if noise > maximum:
                limit *= policy.CORRECTION_TIGHTENING if new else policy.CORRECTION_TIGHTENING**2
            elif not new or noise >= policy.USED_ENOUGH * maximum:
                break
            labels = unconstrained
        if exact:
            labels = self._exact(problem, best, limit)
            self.probe(labels)
            if self.within_allowance(labels, maximum) and problem.cost(labels) < best_cost:
                return labels
        return best

    def solve_unconstrained(self, problem: LabelingProblem, known: Sequence[np.ndarray] = ()) -> np.ndarray:
        """The best labeling, whatever its noise."""
        return self._exact(problem, LagrangianSolver(problem, known).unconstrained)

    def solve_within(self, relaxed: LagrangianSolver, maximum: float) -> np.ndarray:
        """A labeling of low cost whose noise is at most ``maximum`` by the noise model."""
        assert self._noise is not None
        return relaxed.within(self._noise.limits(maximum, relaxed.boundaries))

    def update(self, labels: np.ndarray, accuracy: Accuracy) -> None:
        """Learn from a trial's accuracy."""
        if self._noise is not None and labels.any() and not self.is_wrong(labels, accuracy):
            self._noise.compare(labels, accuracy)

    def is_wrong(self, labels: np.ndarray, accuracy: Accuracy, computed: Mapping[str, float] | None = None) -> bool:
        """Whether a model computes something else than its labels say: they account for a fraction of such noise.

        Args:
            computed: that noise by output, where more is known than a probe shows.
        """
        self.probe(labels)
        if self._noise is None or not self._noise.knows(labels):
            return False
        return self._noise.excess(labels, accuracy, computed) > policy.WRONG

    def believe(self, labels: np.ndarray, accuracy: Accuracy) -> None:
        """Learn from the accuracy of a model that is wrong for no reason that was found."""
        self._believed.add(labels.tobytes())
        if self._noise is not None:
            self._noise.compare(labels, accuracy)

    def believes(self, labels: np.ndarray) -> bool:
        """Whether that was done."""
        return labels.tobytes() in self._believed

    def prepare(self) -> None:
        """Make the noise model where the constraint ruled something out."""
        if self._allowance.active:
            self._make_noise_model()

    def probe(self, labels: np.ndarray) -> bool:
        """Probe the noise of a labeling and learn it; False where it was known, or cannot be probed."""
        if self._noise is None or self._noise.knows(labels):
            return False
        noise = self._probe(labels)
        if noise is None:
            return False
        self._noise.update(labels, noise)
        return True

    def noise(self, labels: np.ndarray) -> np.ndarray:
        """Noise at each output, as probed or predicted; shape (outputs,), empty without a noise model."""
        return np.zeros(0) if self._noise is None else self._noise.predict(labels)

    def within_allowance(self, labels: np.ndarray, maximum: float | None = None) -> bool:
        """Whether a labeling is predicted to keep the allowance, or ``maximum`` in its place."""
        return bool((self.noise(labels) <= (self._allowance.maximum if maximum is None else maximum)).all())

    def sqnr_db(self, labels: np.ndarray) -> float:
        """SQNR of the worst output, as probed or predicted."""
        return decibels(self.noise(labels).max(initial=0.0))

    def _make_noise_model(self) -> None:
        """Make the noise model, where there is none, from probes and from the anchors' trials."""
        if self._noise is None:
            most = policy.MOST_FLOOR * self._allowance.maximum
            self._noise = NoiseModel(self._graph, self._sensitivity(), self._outputs, self._in_float(), most)
            for name, trial in self._anchors.items():
                if name in self._chosen and trial.accuracy is not None and self._chosen[name]:
                    self.update(self._graph.labels(self._chosen[name]), trial.accuracy)

    def _in_float(self) -> list[float]:
        """Noise of the model in float at each output, as measured."""
        tried = [self._anchors[name] for name, chosen in self._chosen.items() if not chosen and name in self._anchors]
        found = [trial.accuracy for trial in tried if trial.accuracy is not None]
        measured = {o.name: noise_of(o.sqnr_db) for accuracy in found for o in accuracy.outputs}
        return [measured.get(name, 0.0) for name in self._outputs]

    def _exact(self, problem: LabelingProblem, good: np.ndarray, maximum: float | None = None) -> np.ndarray:
        """The solution of an integer program where it is better than ``good``, which keeps ``maximum`` noise."""
        seconds = min(policy.MILP_SECONDS, self._patience())
        if len(problem.float_cost) > policy.MILP_UNITS or (problem.is_cut and maximum is None) or not seconds:
            return good
        limits: Sequence[Limit] = ()
        if maximum is not None and self._noise is not None:
            limits = self._noise.limits(maximum, len(problem.boundaries))
        found = milp.solve(problem, limits, seconds, gap=policy.MILP_GAP)
        return good if found is None or problem.cost(found) >= problem.cost(good) else found
