"""How much quantization noise a labelling makes, and how much it may make: the accuracy bound as a linear constraint.

The noise at an output is modelled as a sum: what quantizing a value adds behind a float producer, and what running a
unit in low precision adds to inputs that are quantized already. It is not one sum over quantized values: an operator
that only moves elements hands on numbers that lie on the grid, so that quantizing them again adds nothing. Each source
alone gives the first guess. It overstates: saturating operators swallow noise, and rounding twice is not twice as bad.
So every labelling whose noise is known corrects the sources that it is made of.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inlay.quant.sensitivity import Powers, Sensitivity
from inlay.search.labeling import Limit
from inlay.search.unit_graph import State, UnitGraph
from inlay.trial import Accuracy, Trial, noise_of

_FACTOR = (0.1, 10.0)
_RECENT = 3
_TIGHTER = 0.96
_FORGET = 0.7  # of an earlier margin: it differs between models
_ROUNDS = 60  # of fitting
_STEP = 0.5
_TRUST = 0.3  # how many labellings that a source is the only part of weigh as much as its first guess
_PULL = 0.2
_LEAST = 1e-30
_MOST = 100.0  # noise of a source that ruins everything: how much is of no interest


class NoiseModel:
    """Noise at each float output, relative to the signal, as a sum over units and values.

    Args:
        structure: units and values.
        alone: noise of each source alone.
        outputs: names of the outputs.
    """

    def __init__(self, structure: UnitGraph, alone: Sensitivity, outputs: Sequence[str]) -> None:
        self._structure = structure
        self.outputs = tuple(outputs)
        none = (0.0,) * len(self.outputs)
        shape = (-1, len(self.outputs))
        ups = np.array([alone.values.get(e.value, none) for e in structure.edges], np.float64).reshape(shape)
        units = np.array([alone.constants.get(u.name, none) for u in structure.units], np.float64).reshape(shape)
        for k, edge in enumerate(structure.edges):
            if edge.producer >= 0 and structure.free[edge.producer] and not structure.units[edge.producer].moves_data:
                units[edge.producer] += ups[k]
        self._prior: np.ndarray = np.clip(np.concatenate([units, ups]), _LEAST, _MOST)
        self._fitted: np.ndarray | None = None
        self._known: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}
        self._ratios: list[np.ndarray] = []

    def sources(self, labels: np.ndarray) -> np.ndarray:
        """Which sources a labelling is made of: units in low precision, then values quantized behind float ones."""
        return np.concatenate([labels & self._structure.free, self._structure.states(labels) == int(State.UP)])

    @property
    def table(self) -> np.ndarray:
        """Noise of each source, shape (units + values, outputs)."""
        if self._fitted is None:
            self._fitted = self._fit()
        return self._fitted

    @property
    def factor(self) -> np.ndarray:
        """Measured noise over that of the probes, lately; shape (outputs,)."""
        if not self._ratios:
            return np.ones(len(self.outputs))
        return np.asarray(np.exp(np.mean(np.log(self._ratios[-_RECENT:]), axis=0)))

    def predict(self, labels: np.ndarray) -> np.ndarray:
        """Noise at each output, shape (outputs,): known where it was learned, else by the sum."""
        known = self._known.get(np.packbits(labels).tobytes())
        noise = self.table[self.sources(labels)].sum(axis=0) if known is None else known[1]
        return np.asarray(noise * self.factor)

    def knows(self, labels: np.ndarray) -> bool:
        """Whether the noise of ``labels`` was learned."""
        return np.packbits(labels).tobytes() in self._known

    def learn(self, labels: np.ndarray, noise: Powers) -> None:
        """Take in the noise of a labelling, as probed."""
        self._known[np.packbits(labels).tobytes()] = (
            self.sources(labels),
            np.minimum(np.asarray(noise, np.float64), _MOST),
        )
        self._fitted = None

    def compare(self, labels: np.ndarray, accuracy: Accuracy) -> None:
        """Take in the judge's verdict: real kernels and all samples make a little more or less noise than probes."""
        measured = {o.name: noise_of(o.sqnr_db) for o in accuracy.outputs}
        predicted = self.predict(labels) / self.factor
        ratios = [
            np.clip(measured[o] / p, *_FACTOR) if o in measured and p > _LEAST else f
            for o, p, f in zip(self.outputs, predicted, self.factor, strict=True)
        ]
        self._ratios.append(np.array(ratios, np.float64))

    def _fit(self) -> np.ndarray:
        """Sources that explain what was learned, near the first guesses.

        Each labelling's logarithmic error is shared out among its sources by their part of its noise, as in
        expectation maximization for sums of positive parts; relative errors count alike, whatever the noise. Sources
        that were not seen follow those that were: what is common to all errors is a property of the model.
        """
        known = [(x, n) for x, n in self._known.values() if x.any()]
        if not known:
            return self._prior
        rows = np.array([x for x, _ in known], np.float64)
        wanted = np.log(np.maximum([n for _, n in known], _LEAST))
        fitted: np.ndarray = np.empty_like(self._prior)
        for k in range(len(self.outputs)):
            first = np.log(self._prior[:, k])
            log = first.copy()
            for _ in range(_ROUNDS):
                parts = rows * np.exp(log)
                total = np.maximum(parts.sum(axis=1), _LEAST)
                parts /= total[:, None]
                seen = parts.sum(axis=0)
                common = _middle(log - first, seen)
                error = parts.T @ (wanted[:, k] - np.log(total))
                log += _STEP * (error + _PULL * _TRUST * (first + common - log)) / (seen + _TRUST)
            fitted[:, k] = np.exp(log)
        return fitted

    def limits(self, most: float, terms: int) -> list[Limit]:
        """The constraint that no output exceeds ``most``, for a problem of so many terms, those of values last."""
        units, ups = self._split(terms)
        return [Limit(ups[:, k], units[:, k], most) for k in range(len(self.outputs))]

    def _split(self, terms: int) -> tuple[np.ndarray, np.ndarray]:
        """Weights of units, and of terms, shape (…, outputs)."""
        table = self.table * self.factor
        n = len(self._structure.units)
        ups = np.zeros((terms, len(self.outputs)))
        ups[terms - len(self._structure.edges) :] = table[n:]
        return table[:n], ups


def _middle(values: np.ndarray, weights: np.ndarray) -> float:
    """The weighted median: a few sources that are off by orders of magnitude do not move it."""
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order[int(np.searchsorted(total, total[-1] / 2.0))]]) if total[-1] > 0.0 else 0.0


class Allowance:
    """How much noise is allowed, judging by the verdicts so far.

    Args:
        bound: noise that the SQNR bound allows, or None where another metric decides.
    """

    def __init__(self, bound: float | None) -> None:
        self._bound = bound
        self._feasible = 0.0
        self._infeasible = float("inf")
        self._margin_db = 0.0

    def tell(self, trial: Trial) -> None:
        """Take in a verdict."""
        accuracy = trial.accuracy
        if accuracy is None:
            return
        noise = noise_of(accuracy.sqnr_db)
        self._margin_db = max(self._margin_db * _FORGET, accuracy.margin_db)
        if accuracy.feasible:
            self._feasible = max(self._feasible, noise)
        else:
            self._infeasible = min(self._infeasible, noise)

    @property
    def _asked(self) -> float:
        """Noise that the bound allows, less what the judge asks for the spread between samples."""
        return (self._bound or 0.0) * noise_of(self._margin_db)

    @property
    def active(self) -> bool:
        """Whether anything was outside the bound yet."""
        return self._infeasible < float("inf")

    @property
    def most(self) -> float:
        """Noise to aim at: just inside the bound, or, for a metric, between the best good and the least bad."""
        if not self.active:
            return float("inf") if self._bound is None else self._asked * _TIGHTER
        if self._bound is not None:
            return min(self._asked, self._infeasible) * _TIGHTER
        low = self._feasible if 0.0 < self._feasible < self._infeasible else self._infeasible / 16.0
        return float(np.sqrt(low * self._infeasible))
