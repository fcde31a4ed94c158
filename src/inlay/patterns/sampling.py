"""How new schemes of one pattern are drawn: flips, mutations, crossovers, Concat groups, and far from all known.

Flips and mutations stay close to what is good already. What is drawn far away keeps the schemes of a pattern diverse
from the beginning: a cache of near copies of one scheme has little to offer to another model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inlay.patterns.config import Config
from inlay.patterns.schemes import ConcatGroup, InsertionPoint, InsertionScheme

_FLIP, _MUTATE, _CROSS = 0.55, 0.77, 0.87
"""Cumulative shares of single flips, mutations and crossovers; the rest, four of 30, is drawn far from all known.

Single flips of the incumbent have the largest share, since most points pay independently of one another."""

_LEAST_GROUP_SHARE = 0.05  # least share of Concat group moves in a pattern with groups, so that they never die out
_FAR_TRIES = 8  # uniform samples from which one that is far from all known schemes is taken

GROUP_MOVE = "Concat group"


class SchemeSampler:
    """Draws schemes of one pattern, by its points and its Concat groups."""

    def __init__(
        self, points: Sequence[InsertionPoint], groups: Sequence[ConcatGroup], config: Config, rng: np.random.Generator
    ) -> None:
        self._points = tuple(points)
        self._groups = tuple(groups)
        self._config = config
        self._rng = rng
        self._flips: list[InsertionPoint] = []
        self.group_samples = 0  # number of recorded schemes that set or cleared a Concat group

    def group_probability(self, drawn: int) -> float:
        """Probability that the next scheme sets or clears a Concat group, after ``drawn`` schemes.

        What is missing of ``concat_group_min_samples`` is distributed evenly over the schemes left, within 0.05..1; 0
        for a pattern without groups.
        """
        if not self._groups:
            return 0.0
        left = max(1, self._config.schemes_per_region - drawn)
        missing = self._config.concat_group_min_samples - self.group_samples
        return min(1.0, max(_LEAST_GROUP_SHARE, missing / left))

    def draw(
        self, incumbent: InsertionScheme, ranked: Sequence[InsertionScheme], drawn: int
    ) -> tuple[InsertionScheme, str]:
        """A scheme, which may be known already, and how it was made.

        ``incumbent`` is the pattern's current scheme, ``ranked`` those measured so far, best first, and ``drawn`` the
        number of schemes drawn.
        """
        if self._rng.random() < self.group_probability(drawn):
            return self._toggle_group(self._parent(ranked, incumbent)), GROUP_MOVE
        kind = self._rng.random()
        if kind < _FLIP:
            return InsertionScheme(incumbent.points ^ {self._next_flip()}), "flip"
        if kind < _MUTATE:
            return self._mutate(self._parent(ranked, incumbent)), "mutation"
        if kind < _CROSS and len(ranked) > 1:
            return self._cross(self._parent(ranked, incumbent), self._parent(ranked, incumbent)), "crossover"
        return self._far_from([*ranked, incumbent]), "far"

    def record(self, how: str) -> None:
        """Count a drawn scheme that is going to be measured, by how it was made."""
        self.group_samples += how == GROUP_MOVE

    def _parent(self, ranked: Sequence[InsertionScheme], incumbent: InsertionScheme) -> InsertionScheme:
        """One of the best schemes so far: of the top percent, or of the ``minimum_schemes_to_mutate`` best."""
        if not ranked:
            return incumbent
        share = round(len(ranked) * self._config.top_percent_to_mutate)
        count = min(len(ranked), max(self._config.minimum_schemes_to_mutate, share))
        return ranked[int(self._rng.integers(count))]

    def _next_flip(self) -> InsertionPoint:
        """Points in random order, each once before any is repeated."""
        if not self._flips:
            self._flips = [self._points[i] for i in self._rng.permutation(len(self._points))]
        return self._flips.pop()

    def _mutate(self, parent: InsertionScheme) -> InsertionScheme:
        most = min(self._config.maximum_mutations, len(self._points))
        count = int(self._rng.integers(1, most + 1))
        chosen = self._rng.choice(len(self._points), size=count, replace=False)
        return InsertionScheme(parent.points ^ {self._points[i] for i in chosen})

    def _cross(self, one: InsertionScheme, two: InsertionScheme) -> InsertionScheme:
        differing = sorted(one.points ^ two.points, key=self._points.index)
        chosen = self._rng.random(len(differing)) < 0.5
        return InsertionScheme(one.points ^ {p for p, c in zip(differing, chosen, strict=True) if c})

    def _far_from(self, known: Sequence[InsertionScheme]) -> InsertionScheme:
        """A uniform sample as far from ``known`` as two schemes in a cache are apart; else the farthest of some.

        In a pattern with few points half of them will do.
        """
        wanted = min(self._config.pattern_cache_minimum_distance, (len(self._points) + 1) // 2)
        best, farthest = InsertionScheme(), -1
        for _ in range(_FAR_TRIES):
            chosen = self._rng.random(len(self._points)) < self._rng.random()
            drawn = InsertionScheme(frozenset(p for p, c in zip(self._points, chosen, strict=True) if c))
            distance = min(drawn.distance(k) for k in known)
            if distance > farthest:
                best, farthest = drawn, distance
            if farthest >= wanted:
                break
        return best

    def _toggle_group(self, parent: InsertionScheme) -> InsertionScheme:
        """Set or clear all inputs of one Concat, wherever that changes something."""
        changes = [
            (group.points, add)
            for group in self._groups
            for add in (True, False)
            if (group.points - parent.points if add else group.points & parent.points)
        ]
        points, add = changes[int(self._rng.integers(len(changes)))]
        return InsertionScheme(parent.points | points if add else parent.points - points)
