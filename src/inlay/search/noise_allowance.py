"""How much quantization noise a labeling may make, as the trials so far tell."""

from __future__ import annotations

import math

from inlay.search import policy
from inlay.trial import Trial, noise_of


class NoiseAllowance:
    """Noise power over signal power that the search aims at.

    Args:
        bound: noise that the SQNR bound allows, or None where another metric decides.
    """

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
