"""The labelling problem: which units to run in low precision, what that costs, and what it may use up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Term:
    """Costs of one value.

    Attributes:
        producer: unit, or -1 for one that is always float.
        consumers: units.
        float_reader: some reader is always float.
        up: paid when the producer is float and some consumer is low.
        down: paid when the producer is low and some reader is float.
        touched: paid when the producer or any consumer is low.
    """

    producer: int
    consumers: tuple[int, ...]
    float_reader: bool = False
    up: float = 0.0
    down: float = 0.0
    touched: float = 0.0


@dataclass(frozen=True)
class FusionPenalty:
    """A cost that is paid where a unit is float although all ``causes`` are low."""

    unit: int
    causes: tuple[int, ...]
    cost: float

    def sprung(self, labels: np.ndarray | Sequence[bool]) -> bool:
        """Whether it is paid."""
        return not labels[self.unit] and all(labels[c] for c in self.causes)


@dataclass(frozen=True, eq=False)
class Problem:
    """Which of ``n`` units to run in low precision.

    Attributes:
        float_cost: cost of each unit in float, shape (n,).
        low_cost: cost of each unit in low precision, shape (n,).
        terms: costs of values.
        free: units that may be low; the others are float. Shape (n,).
        ties: groups of units that must have the same label.
        traps: costs of units that do not stay in float between others.
    """

    float_cost: np.ndarray
    low_cost: np.ndarray
    terms: Sequence[Term]
    free: np.ndarray
    ties: Sequence[Sequence[int]] = ()
    traps: Sequence[FusionPenalty] = ()

    @cached_property
    def weights(self) -> np.ndarray:
        """What each term costs in each case: rows ``up``, ``down``, ``touched``; shape (3, terms)."""
        return np.array([[t.up, t.down, t.touched] for t in self.terms], np.float64).reshape(-1, 3).T

    @property
    def negative(self) -> float:
        """Sum of the negative boundary costs: nothing, where a cut is exact."""
        return float(np.minimum(self.weights, 0.0).sum())

    def cost(self, labels: np.ndarray) -> float:
        """Total cost of a labelling; infinite where it breaks a tie or labels a unit that is not free."""
        if bool((labels & ~self.free).any()) or any(len({bool(labels[i]) for i in tie}) > 1 for tie in self.ties):
            return float("inf")
        total = float(np.where(labels, self.low_cost, self.float_cost).sum())
        total += sum(trap.cost for trap in self.traps if trap.sprung(labels))
        return total + float((self.weights * self.cases(labels)).sum())

    def cases(self, labels: np.ndarray) -> np.ndarray:
        """Which costs of each term a labelling pays: rows as in :attr:`weights`, booleans of shape (3, terms)."""
        made, lows = self.state(labels)
        return self.paid(made, lows)

    def state(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Whether each term's producer is low, and how many of its consumers are; both of shape (terms,)."""
        flat = self.flat
        made = (flat.producer >= 0) & labels[flat.producer] if len(labels) else flat.producer >= 0
        return made, np.bincount(flat.owner, labels[flat.consumer], len(self.terms)).astype(np.int64)

    def paid(self, made: np.ndarray, lows: np.ndarray, which: np.ndarray | slice = slice(None)) -> np.ndarray:
        """:meth:`cases` of the terms ``which`` in given states; shape (3, len(made))."""
        flat = self.flat
        some = lows > 0
        return np.stack([~made & some, made & (flat.float_reader[which] | (lows < flat.readers[which])), made | some])

    @cached_property
    def near(self) -> Sequence[Sequence[int]]:
        """Terms that each unit takes part in."""
        found: list[list[int]] = [[] for _ in self.float_cost]
        for k, term in enumerate(self.terms):
            for member in {term.producer, *term.consumers} - {-1}:
                found[member].append(k)
        return found

    @cached_property
    def caught(self) -> Sequence[Sequence[int]]:
        """Traps that each unit takes part in."""
        found: list[list[int]] = [[] for _ in self.float_cost]
        for k, trap in enumerate(self.traps):
            for member in (trap.unit, *trap.causes):
                found[member].append(k)
        return found

    @cached_property
    def flat(self) -> Flat:
        """The terms as arrays."""
        return Flat(
            np.array([t.producer for t in self.terms], np.int64),
            np.array([t.float_reader for t in self.terms], bool),
            np.array([len(t.consumers) for t in self.terms], np.int64),
            np.array([k for k, t in enumerate(self.terms) for _ in t.consumers], np.int64),
            np.array([c for t in self.terms for c in t.consumers], np.int64),
        )


@dataclass(frozen=True, eq=False)
class Flat:
    """Terms as arrays.

    Attributes:
        producer: of each, shape (terms,).
        float_reader: of each, shape (terms,).
        readers: number of consumers of each, shape (terms,).
        owner: term of each reading, shape (readings,).
        consumer: unit of each reading, shape (readings,).
    """

    producer: np.ndarray
    float_reader: np.ndarray
    readers: np.ndarray
    owner: np.ndarray
    consumer: np.ndarray


@dataclass(frozen=True, eq=False)
class Limit:
    """A further constraint: a weighted sum is at most ``most``. Weights are not negative.

    Attributes:
        up: weight of each term's value where its producer is float and some consumer is low, shape (terms,).
        units: weight of each unit where it is low, shape (n,).
        most: the limit.
    """

    up: np.ndarray
    units: np.ndarray
    most: float

    def used(self, problem: Problem, labels: np.ndarray) -> float:
        """Part of the limit that a labelling uses up: it is kept up to 1."""
        return float(self.units[labels].sum() + self.up[problem.cases(labels)[0]].sum()) / max(self.most, 1e-300)
