"""How much quantization noise a labeling makes, and may make: the accuracy constraint as linear limits.

The noise at an output is modeled as a sum over *sources*: quantizing a value behind a float producer, running a unit in
low precision on inputs that are quantized already, and running it in one of its forms. It is not one sum over quantized
values: the output of an operator that only moves elements lies on the quantization grid already, so quantizing it again
adds nothing. The noise of each source alone is the prior. It overestimates: saturating operators absorb noise, and
rounding twice is not twice as bad. So every labeling whose noise is known corrects the sources that it consists of.
Beneath them all lies what the target makes itself where it computes float32 in fewer bits, which no probe shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from inlay.quant.sensitivity import Powers, Sensitivity
from inlay.search import policy
from inlay.search.edges import FIRST_FORM, LOW, State
from inlay.search.labeling import Limit
from inlay.search.unit_graph import UnitGraph
from inlay.trial import Accuracy, Trial, decibels, noise_of

_LEAST, _MOST = policy.NOISE_RANGE


class NoiseModel:
    """Noise power over signal power at each of the float ``outputs``, as a sum over units and values.

    Args:
        in_float: noise of the model in float at each output, on the target; none by default.
        most: of that, what lies beneath all others: operators in low precision do not make it.
    """

    def __init__(
        self,
        graph: UnitGraph,
        alone: Sensitivity,
        outputs: Sequence[str],
        in_float: Sequence[float] = (),
        most: float = math.inf,
    ) -> None:
        self._graph = graph
        self.outputs = tuple(outputs)
        self._in_float = np.array(in_float or (0.0,) * len(self.outputs), np.float64)
        self._floor = np.minimum(self._in_float, most)
        none = (0.0,) * len(self.outputs)
        shape = (-1, len(self.outputs))
        values = np.array([alone.values.get(e.value, none) for e in graph.edges], np.float64).reshape(shape)
        units = np.array([alone.constants.get(u.name, none) for u in graph.units], np.float64).reshape(shape)
        for k, edge in enumerate(graph.edges):
            if edge.producer >= 0 and graph.selectable[edge.producer] and not graph.units[edge.producer].moves_data:
                units[edge.producer] += values[k]
        forms = [[alone.forms.get(f, {}).get(u.name, none) for u in graph.units] for f in graph.forms]
        parts = units, values, np.array(forms, np.float64).reshape(shape)
        self._prior: np.ndarray = np.clip(np.concatenate(parts), _LEAST, _MOST)
        self._fitted: np.ndarray | None = None
        self._known: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}  # sources and noise by labels
        self._ratios: list[np.ndarray] = []

    def sources(self, labels: np.ndarray) -> np.ndarray:
        """Sources of a labeling: units in low precision, values quantized behind float producers, units in forms."""
        graph = self._graph
        low, quantized = (labels == LOW) & graph.selectable, graph.states(labels) == int(State.QUANTIZE)
        return np.concatenate([low, quantized, *(labels == FIRST_FORM + k for k in range(len(graph.forms)))])

    @property
    def table(self) -> np.ndarray:
        """Noise of each source, shape (units + values + units of each form, outputs)."""
        if self._fitted is None:
            self._fitted = self._fit()
        return self._fitted

    @property
    def factor(self) -> np.ndarray:
        """Measured noise over probed noise, a geometric mean of recent trials; shape (outputs,)."""
        if not self._ratios:
            return np.ones(len(self.outputs))
        return np.asarray(np.exp(np.mean(np.log(self._ratios[-policy.RECENT_RATIOS :]), axis=0)))

    def predict(self, labels: np.ndarray) -> np.ndarray:
        """Noise at each output, shape (outputs,): as probed where it was, else the sum over sources."""
        return np.asarray(self._probed(labels) * self.factor + self._floor)

    def _probed(self, labels: np.ndarray) -> np.ndarray:
        """What a probe shows, or would, of a labeling."""
        known = self._known.get(_key(labels))
        return np.asarray(self.table[self.sources(labels)].sum(axis=0) if known is None else known[1])

    def knows(self, labels: np.ndarray) -> bool:
        """Whether ``labels`` were probed."""
        return _key(labels) in self._known

    def update(self, labels: np.ndarray, noise: Powers) -> None:
        """Learn the noise of a labeling, as probed."""
        capped = np.minimum(np.asarray(noise, np.float64), _MOST)
        self._known[_key(labels)] = (self.sources(labels), capped)
        self._fitted = None

    def excess(self, labels: np.ndarray, accuracy: Accuracy, computed: Mapping[str, float] | None = None) -> float:
        """Measured noise over what is expected, at the output where that is most.

        Less than :data:`~inlay.search.policy.HARDLY_ANY_NOISE` is not expected of any.

        Args:
            computed: what is expected beside the noise of the float model, by output; None for what a probe shows.
        """
        probed = dict(zip(self.outputs, self._probed(labels), strict=True)) if computed is None else computed
        below = dict(zip(self.outputs, self._in_float, strict=True))
        expected = {name: max(probed.get(name, 0.0) + noise, policy.HARDLY_ANY_NOISE) for name, noise in below.items()}
        found = [noise_of(o.sqnr_db) / expected[o.name] for o in accuracy.outputs if o.name in expected]
        return max(found, default=0.0)

    def compare(self, labels: np.ndarray, accuracy: Accuracy) -> None:
        """Learn from a trial's accuracy: real kernels and all samples make a little more or less noise than probes."""
        measured = {o.name: noise_of(o.sqnr_db) for o in accuracy.outputs}
        parts = zip(self.outputs, self._probed(labels), self._floor, self.factor, strict=True)
        ratios = [
            np.clip((measured[o] - below) / p, *policy.MEASURED_OVER_PROBED) if o in measured and p > _LEAST else f
            for o, p, below, f in parts
        ]
        self._ratios.append(np.array(ratios, np.float64))

    def limits(self, maximum: float, boundaries: int) -> list[Limit]:
        """The constraint that no output's noise over signal exceeds ``maximum``.

        The last of the problem's ``boundaries`` (how many there are) are the graph's edges, in order.
        """
        table = self.table * self.factor
        n, edges = len(self._graph.units), len(self._graph.edges)
        quantize = np.zeros((boundaries, len(self.outputs)))
        quantize[boundaries - edges :] = table[n : n + edges]
        forms = table[n + edges :].reshape(len(self._graph.forms), n, len(self.outputs)).swapaxes(0, 1)
        left = np.maximum(maximum - self._floor, 0.0)
        return [Limit(quantize[:, k], table[:n, k], float(left[k]), forms[:, :, k]) for k in range(len(self.outputs))]

    def _fit(self) -> np.ndarray:
        """Noise of the sources that explains what was probed, close to the prior.

        Each labeling's logarithmic error is distributed over its sources by their shares of its noise, as in
        expectation maximization for sums of positive parts; relative errors count alike, whatever the noise. Sources
        that were never probed follow those that were: what all errors have in common is a property of the model.
        """
        known = [(x, n) for x, n in self._known.values() if x.any()]
        if not known:
            return self._prior
        rows = np.array([x for x, _ in known], np.float64)
        probed = np.log(np.maximum([n for _, n in known], _LEAST))
        trust, pull = policy.PRIOR_LABELINGS, policy.PRIOR_PULL * policy.PRIOR_LABELINGS
        fitted: np.ndarray = np.empty_like(self._prior)
        for k in range(len(self.outputs)):
            prior = np.log(self._prior[:, k])
            log = prior.copy()
            for _ in range(policy.FIT_ROUNDS):
                shares = rows * np.exp(log)
                total = np.maximum(shares.sum(axis=1), _LEAST)
                shares /= total[:, None]
                seen = shares.sum(axis=0)
                common = _weighted_median(log - prior, seen)
                error = shares.T @ (probed[:, k] - np.log(total))
                log += policy.FIT_STEP * (error + pull * (prior + common - log)) / (seen + trust)
            fitted[:, k] = np.exp(log)
        return fitted


def _key(labels: np.ndarray) -> bytes:
    return labels.astype(np.int8).tobytes()


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    """A median, so that a few sources that are off by orders of magnitude do not move it; 0 without weights."""
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order[int(np.searchsorted(total, total[-1] / 2.0))]]) if total[-1] > 0.0 else 0.0


class NoiseAllowance:
    """Noise power over signal power that the search aims at; ``bound`` is None where another metric decides."""

    def __init__(self, bound: float | None) -> None:
        self._bound = bound
        self._feasible = 0.0  # most noise of a feasible trial
        self._infeasible = math.inf  # least noise of an infeasible one
        self._margin_db = 0.0

    def update(self, trial: Trial) -> None:
        """Learn from a trial's accuracy, unless it failed before that was known."""
        accuracy = trial.accuracy
        if accuracy is None:
            return
        noise = noise_of(accuracy.sqnr_db)
        self._margin_db = max(self._margin_db * policy.MARGIN_DECAY, accuracy.margin_db)
        if accuracy.feasible:
            self._feasible = max(self._feasible, noise)
        else:
            self._infeasible = min(self._infeasible, noise)

    @property
    def active(self) -> bool:
        """Whether any trial was infeasible."""
        return self._infeasible < math.inf

    @property
    def maximum(self) -> float:
        """Noise to aim at: just inside the bound or, for a metric, between the best feasible and infeasible trials."""
        if self._bound is not None:
            with_margin = self._bound * noise_of(self._margin_db)  # the margin covers the variance between samples
            return min(with_margin, self._infeasible) * policy.ALLOWANCE_MARGIN
        if not self.active:
            return math.inf
        straddled = 0.0 < self._feasible < self._infeasible
        low = self._feasible if straddled else self._infeasible * policy.METRIC_START
        return math.sqrt(low * self._infeasible)


class Aim:
    """Which noise to solve for so that what is found meets the allowance, by what was found so far.

    Solutions differ from what probes say of them, most where few samples were probed. One outside the bound says what
    it missed it by; where what comes next has room left, the way back to that is halved.
    """

    def __init__(self, allowance: NoiseAllowance) -> None:
        self._allowance = allowance
        self._beyond_db = self._missed_db = 0.0  # beyond the allowance: what to aim at, and the last that was outside
        self._again = policy.AIM_AGAIN

    @property
    def maximum(self) -> float | None:
        """Noise to solve for; None for the allowance itself."""
        return self._allowance.maximum * noise_of(self._beyond_db) if self._beyond_db else None

    def correct(self, trial: Trial) -> bool:
        """Ask for what a model outside the bound missed it by; False where it missed nothing that has dB."""
        if trial.accuracy is None or trial.feasible:
            return False
        missing_db = decibels(self._allowance.maximum) - trial.accuracy.sqnr_db
        if missing_db <= 0.0:
            return False
        self._missed_db = self._beyond_db
        self._beyond_db += min(missing_db, policy.AIM_STEP_DB)
        return True

    def goes_on(self, known: Trial) -> bool:
        """Whether to solve once more where the solution was tried already: for less noise, or back halfway for more."""
        self._again -= 1
        if self._again < 0:
            return False
        if not known.feasible:
            return self.correct(known)
        halved_db = (self._beyond_db - self._missed_db) / 2.0
        if halved_db < policy.AIM_CLOSE_DB:
            return False
        self._beyond_db -= halved_db
        return True
