"""Neighborhood moves: changes of a labeling, and what to expect of trying one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from inlay.search import policy
from inlay.search.edges import FIRST_FORM, FLOAT, LOW
from inlay.search.unit_graph import UnitGraph

_LEAST_NS = 1e-9


class Move(NamedTuple):
    """Give some units one label."""

    units: tuple[int, ...]  # their indices, all selectable, in topological order
    label: int  # that they get; all of them have it

    def apply(self, labels: np.ndarray) -> np.ndarray:
        """``labels`` after the move."""
        changed = labels.copy()
        changed[list(self.units)] = self.label
        return changed

    def describe(self, graph: UnitGraph) -> str:
        """The move in words."""
        what = describe_units([graph.units[i].name for i in self.units])
        return f"flip: {what} to {('float', 'low precision', *graph.forms)[self.label]}"


def moves(graph: UnitGraph) -> list[Move]:
    """Every move of the neighborhood, once.

    They label a single unit, a run of 2, 4, 8, … units in topological order (runs of one length overlap by half), or
    all selectable units around a value.
    """
    found: dict[Move, None] = {}
    for edge in graph.edges:
        members = tuple(sorted(m for m in {edge.producer, *edge.consumers} if m >= 0 and graph.selectable[m]))
        if len(members) > 1:
            found.update({Move(members, FLOAT): None, Move(members, LOW): None})
    found.update({Move(run, label): None for run in _runs(graph.selectable) for label in (FLOAT, LOW)})
    for k in range(len(graph.forms)):
        found.update(
            {Move(run, label): None for run in _runs(graph.has_form[:, k]) for label in (FLOAT, FIRST_FORM + k)}
        )
    return list(found)


def _runs(members: np.ndarray) -> Iterator[tuple[int, ...]]:
    """Runs of 1, 2, 4, … of the units that ``members`` marks."""
    units, length = np.flatnonzero(members), 1
    while length <= len(units) // 2 + 1:
        for start in range(0, len(units), max(1, length // 2)):
            yield tuple(units[start : start + length].tolist())
        length *= 2


def neighbors(
    graph: UnitGraph, labels: np.ndarray, rng: np.random.Generator, most: int
) -> Iterator[tuple[np.ndarray, Move]]:
    """Labelings one move away from ``labels``, each with its move; different moves may lead to the same labeling.

    Where there are more than ``most`` moves, ``rng`` draws that many; those that change nothing are left out then.
    """
    drawn = moves(graph)
    if len(drawn) > most:
        drawn = [drawn[i] for i in rng.choice(len(drawn), most, replace=False)]
    for move in drawn:
        changed = move.apply(labels)
        if (changed != labels).any():
            yield changed, move


def describe_units(names: Sequence[str]) -> str:
    """The units for a line of text. A long name keeps its two ends, as converters join many names into one."""
    name = names[0]
    if len(name) > policy.NAME_LENGTH:
        half = (policy.NAME_LENGTH - 1) // 2
        name = f"{name[:half]}…{name[-half:]}"
    return name if len(names) == 1 else f"{len(names)} units from {name}"


def expected_gain(spent: np.ndarray, mean: np.ndarray, stddev: np.ndarray) -> np.ndarray:
    """Expected improvement, nanoseconds, where what took ``spent`` takes a log-normal time of this mean and deviation.

    Nothing takes less than no time, however uncertain it is: no more than ``spent`` is gained. (As the price of a put
    option, Black and Scholes 1973; with normal predictions it were Jones, Schonlau and Welch's of 1998.)
    """
    from scipy.special import ndtr  # takes long to load: what is refused or fails before is so at once

    mean, sigma = _log_normal(mean, stddev)
    at = np.log(np.maximum(spent, _LEAST_NS) / mean) / sigma + sigma / 2.0
    return np.asarray(np.maximum(spent, _LEAST_NS) * ndtr(at) - mean * ndtr(at - sigma))


def chance_of_gain(spent: np.ndarray, mean: np.ndarray, stddev: np.ndarray, least: float) -> np.ndarray:
    """Probability that at least so many nanoseconds are gained there."""
    from scipy.special import ndtr  # as above

    mean, sigma = _log_normal(mean, stddev)
    left = np.maximum(spent - least, _LEAST_NS)
    return np.asarray(np.where(spent > least, ndtr(np.log(left / mean) / sigma + sigma / 2.0), 0.0))


def _log_normal(mean: np.ndarray, stddev: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean, as far as it is positive, and the deviation of the logarithm."""
    mean = np.maximum(mean, _LEAST_NS)
    return mean, np.maximum(np.sqrt(np.log1p((stddev / mean) ** 2)), _LEAST_NS)
