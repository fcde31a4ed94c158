"""Changes around a labelling, and what to expect of trying one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.special import ndtr

from inlay.search.unit_graph import UnitGraph

_LONGEST = 49  # characters of a name


def neighbours(
    structure: UnitGraph, labels: np.ndarray, rng: np.random.Generator, most: int
) -> Iterator[tuple[np.ndarray, str]]:
    """Single flips, flips of runs of units in topological order, and flips of both sides of a value.

    Args:
        structure: units and values.
        labels: what to change.
        rng: draws from the changes, where there are more than ``most``.
        most: changes to give.
    """
    free = np.flatnonzero(structure.free)
    changes: dict[tuple[int, ...], bool] = {}
    for edge in structure.edges:
        members = tuple(sorted(m for m in {edge.producer, *edge.consumers} if m >= 0 and structure.free[m]))
        for label in (False, True):
            if len(members) > 1:
                changes[(*members, int(label))] = label
    size = 1
    while size <= len(free) // 2 + 1:
        for start in range(0, len(free), max(1, size // 2)):
            run = tuple(free[start : start + size].tolist())
            for label in (False, True):
                changes[(*run, int(label))] = label
        size *= 2
    keys = list(changes)
    if len(keys) > most:
        keys = [keys[i] for i in rng.choice(len(keys), most, replace=False)]
    for key in keys:
        changed = labels.copy()
        changed[list(key[:-1])] = changes[key]
        if (changed != labels).any():
            what = named([structure.units[i].name for i in key[:-1]])
            yield changed, f"flip: {what} to {'low precision' if changes[key] else 'float'}"


def named(units: Sequence[str]) -> str:
    """Units for a line that people read. A long name keeps its two ends: converters join many into one."""
    name = units[0]
    if len(name) > _LONGEST:
        half = (_LONGEST - 1) // 2
        name = f"{name[:half]}…{name[-half:]}"
    return name if len(units) == 1 else f"{len(units)} units from {name}"


def expected_gains(ns: np.ndarray, sd: np.ndarray, best_ns: float) -> np.ndarray:
    """Expected improvement over ``best_ns`` of normal forecasts, nanoseconds: ``sd (z cdf(z) + pdf(z))``."""
    sd = np.maximum(sd, 1e-9)
    z = (best_ns - ns) / sd
    return np.asarray(sd * (z * ndtr(z) + np.exp(-z * z / 2.0) / np.sqrt(2.0 * np.pi)))
