"""How much quantization noise a labelling makes, and how much it may make: the accuracy bound as a linear constraint.

The noise at an output is predicted as the sum of what each quantized value adds alone, times a factor learned from
models whose accuracy was really measured. The judge's verdicts, not the prediction, move the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from inlay.search.cut import Limit
from inlay.search.structure import State, Structure
from inlay.trial import Accuracy, Trial

_FACTOR = (0.1, 10.0)
_RECENT = 3
_TIGHTER = 0.96
_FORGET = 0.7  # of an earlier margin: it differs between models


class NoiseModel:
    """Predicted noise, relative to the signal, at each float output.

    Args:
        structure: units and values.
        noise: by value, its noise at each output alone.
        outputs: names of those outputs.
    """

    def __init__(self, structure: Structure, noise: Mapping[str, Sequence[float]], outputs: Sequence[str]) -> None:
        self._structure = structure
        self.outputs = tuple(outputs)
        zero = (0.0,) * len(self.outputs)
        rows = [noise.get(e.value, zero) for e in structure.edges]
        self.table = np.array(rows, np.float64).reshape(len(structure.edges), len(self.outputs))
        self._ratios: list[np.ndarray] = []

    @property
    def factor(self) -> np.ndarray:
        """Measured over predicted noise, lately; shape (outputs,)."""
        if not self._ratios:
            return np.ones(len(self.outputs))
        return np.asarray(np.exp(np.mean(np.log(self._ratios[-_RECENT:]), axis=0)))

    def predict(self, labels: np.ndarray) -> np.ndarray:
        """Noise at each output, shape (outputs,)."""
        touched = self._structure.states(labels) != int(State.FLOAT)
        return np.asarray(self.table[touched].sum(axis=0) * self.factor)

    def learn(self, labels: np.ndarray, accuracy: Accuracy) -> None:
        """Compare the prediction for ``labels`` with what was measured."""
        measured = {o.name: 10.0 ** (-o.sqnr_db / 10.0) for o in accuracy.outputs}
        predicted = self.predict(labels) / self.factor
        ratios = [
            np.clip(measured[o] / p, *_FACTOR) if o in measured and p > 0.0 else f
            for o, p, f in zip(self.outputs, predicted, self.factor, strict=True)
        ]
        self._ratios.append(np.array(ratios, np.float64))

    def limits(self, most: float, terms: int) -> list[Limit]:
        """The constraint that no output exceeds ``most``, for a problem of so many terms, those of values last."""
        table = np.zeros((terms, len(self.outputs)))
        table[terms - len(self.table) :] = self.table * self.factor
        none = np.zeros(len(self._structure.units))
        return [Limit(table[:, k], none, most) for k in range(len(self.outputs))]


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
        noise = 10.0 ** (-accuracy.sqnr_db / 10.0)
        self._margin_db = max(self._margin_db * _FORGET, accuracy.margin_db)
        if accuracy.feasible:
            self._feasible = max(self._feasible, noise)
        else:
            self._infeasible = min(self._infeasible, noise)

    @property
    def _asked(self) -> float:
        """Noise that the bound allows, less what the judge asks for the spread between samples."""
        return (self._bound or 0.0) * float(10.0 ** (-self._margin_db / 10.0))

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
