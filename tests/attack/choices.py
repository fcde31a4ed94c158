"""Where an attack gets its choices from: a seed, or hypothesis, which then shrinks what it found.

Generators ask for nothing but numbers below a bound, so one generator serves both. Simple things stand first in every
list, because hypothesis shrinks towards 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from hypothesis import strategies as st

T = TypeVar("T")


class Choices(ABC):
    """A source of choices."""

    @abstractmethod
    def below(self, bound: int) -> int:
        """A number from 0 to ``bound`` - 1."""

    def one_in(self, n: int) -> bool:
        """True once in ``n`` times."""
        return self.below(n) == n - 1

    def among(self, things: Sequence[T]) -> T:
        """One of ``things``."""
        return things[self.below(len(things))]

    def weighted(self, things: Sequence[tuple[int, T]]) -> T:
        """One of ``things``, each as often as its weight says."""
        at = self.below(sum(weight for weight, _ in things))
        for weight, thing in things:
            if at < weight:
                return thing
            at -= weight
        raise AssertionError("the weights add up")

    def bytes(self, count: int) -> bytes:
        """``count`` bytes."""
        return bytes(self.below(256) for _ in range(count))


class Seeded(Choices):
    """Choices that follow from numbers alone: the same on every machine."""

    def __init__(self, *seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def below(self, bound: int) -> int:
        return int(self._rng.integers(bound))


class Drawn(Choices):
    """Choices that hypothesis draws, and shrinks."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def below(self, bound: int) -> int:
        return self._data.draw(st.integers(0, bound - 1))
