"""A simulated target that computes the given model itself in fewer bits than float32."""

from __future__ import annotations

import numpy as np

from inlay.targets.base import Artifact, Feed, OwnPrecision
from inlay.targets.null import NullExecutable, NullTarget


class Rounding(NullTarget):
    """Known costs, and outputs with noise as many dB below them as ``own_db`` says; none with ``effect=0.9``."""

    own_db = 30.0

    @property
    def own_precision(self) -> OwnPrecision | None:
        return OwnPrecision("halves", {"effect": 0.9}) if self.effect == 1.0 else None

    def compile(self, model: Artifact) -> NullExecutable:
        share = 0.0 if self.own_precision is None else 10.0 ** (-self.own_db / 20.0)
        return Rounded(model, self, share)


class Rounded(NullExecutable):
    def __init__(self, model: Artifact, target: NullTarget, share: float) -> None:
        super().__init__(model, target)
        self._share = share

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        return {name: self._rounded(array) for name, array in super().run(feed).items()}

    def _rounded(self, array: np.ndarray) -> np.ndarray:
        signs = np.where(np.arange(array.size) % 2, 1.0, -1.0).reshape(array.shape)
        rms = np.sqrt(np.mean(np.square(array, dtype=np.float64)))
        rounded: np.ndarray = (array + self._share * rms * signs).astype(np.float32)
        return rounded


def rounding(own_db: float) -> type[Rounding]:
    """With so much noise."""
    return type("Rounding", (Rounding,), {"own_db": own_db})
