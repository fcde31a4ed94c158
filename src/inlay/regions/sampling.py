"""How new schemes of one pattern are drawn: single flips, mutations, crossovers, Concat groups, and plain chance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inlay.regions.config import Config
from inlay.regions.points import InsertionPoint
from inlay.regions.schemes import ConcatGroup, InsertionScheme

_FLIP, _MUTATE, _CROSS = 0.6, 0.85, 0.95
"""Upper ends of the shares of single flips, mutations and crossovers; the rest is drawn by chance."""

_LEAST_GROUP_SHARE = 0.05


class SchemeSampler:
    """Draws schemes of one pattern.

    Args:
        points: the pattern's points, in order.
        groups: its Concat groups.
        config: settings.
        rng: source of all random choices.
    """

    def __init__(
        self,
        points: Sequence[InsertionPoint],
        groups: Sequence[ConcatGroup],
        config: Config,
        rng: np.random.Generator,
    ) -> None:
        self._points = tuple(points)
        self._groups = tuple(groups)
        self._config = config
        self._rng = rng
        self._flips: list[InsertionPoint] = []
        self._flipped_from: InsertionScheme | None = None
        self._grouped = 0

    @property
    def group_samples(self) -> int:
        """How many schemes were made by moving a Concat group."""
        return self._grouped

    def group_probability(self, drawn: int) -> float:
        """Probability that the next scheme moves a Concat group, after ``drawn`` schemes were drawn.

        What is still missing of ``concat_group_min_samples`` is spread evenly over the schemes left, between 0.05 and
        1; 0 where the pattern has no group.
        """
        if not self._groups:
            return 0.0
        left = max(1, self._config.schemes_per_region - drawn)
        missing = self._config.concat_group_min_samples - self._grouped
        return min(1.0, max(_LEAST_GROUP_SHARE, missing / left))

    def draw(
        self, incumbent: InsertionScheme, ranked: Sequence[InsertionScheme], drawn: int
    ) -> tuple[InsertionScheme, str]:
        """A scheme, which may be one that is known already, and how it was made.

        Args:
            incumbent: the scheme in force.
            ranked: schemes measured so far, best first.
            drawn: how many schemes were drawn for this pattern.
        """
        if self._rng.random() < self.group_probability(drawn):
            return self._move_group(self._seed(ranked, incumbent)), "Concat group"
        kind = self._rng.random()
        if kind < _FLIP:
            point = self._next_flip(incumbent)
            return InsertionScheme(incumbent.points ^ {point}), "flip"
        if kind < _MUTATE:
            return self._mutate(self._seed(ranked, incumbent)), "mutation"
        if kind < _CROSS and len(ranked) > 1:
            return self._cross(self._seed(ranked, incumbent), self._seed(ranked, incumbent)), "crossover"
        density = self._rng.random()
        chosen = self._rng.random(len(self._points)) < density
        return InsertionScheme(frozenset(p for p, c in zip(self._points, chosen, strict=True) if c)), "random"

    def took(self, how: str) -> None:
        """Note that a drawn scheme is going to be measured: only then does it count."""
        self._grouped += how == "Concat group"

    def _seed(self, ranked: Sequence[InsertionScheme], incumbent: InsertionScheme) -> InsertionScheme:
        """One of the best schemes so far: the top percent, at least so many."""
        if not ranked:
            return incumbent
        share = round(len(ranked) * self._config.top_percent_to_mutate)
        count = min(len(ranked), max(self._config.minimum_schemes_to_mutate, share))
        return ranked[int(self._rng.integers(count))]

    def _next_flip(self, incumbent: InsertionScheme) -> InsertionPoint:
        """Points in random order, each once before any comes again; a new incumbent does not start the round anew."""
        if not self._flips:
            self._flips = [self._points[i] for i in self._rng.permutation(len(self._points))]
        return self._flips.pop()

    def _mutate(self, seed: InsertionScheme) -> InsertionScheme:
        most = min(self._config.maximum_mutations, len(self._points))
        count = int(self._rng.integers(1, most + 1))
        chosen = self._rng.choice(len(self._points), size=count, replace=False)
        return InsertionScheme(seed.points ^ {self._points[i] for i in chosen})

    def _cross(self, one: InsertionScheme, two: InsertionScheme) -> InsertionScheme:
        differing = sorted(one.points ^ two.points, key=self._points.index)
        chosen = self._rng.random(len(differing)) < 0.5
        return InsertionScheme(one.points ^ {p for p, c in zip(differing, chosen, strict=True) if c})

    def _move_group(self, seed: InsertionScheme) -> InsertionScheme:
        """Set or clear all inputs of one Concat; chosen among the moves that change something."""
        moves = [
            (group.points, add)
            for group in self._groups
            for add in (True, False)
            if (group.points - seed.points if add else group.points & seed.points)
        ]
        points, add = moves[int(self._rng.integers(len(moves)))]
        return InsertionScheme(seed.points | points if add else seed.points - points)
