"""Changes around a labelling, and what to expect of trying one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.special import ndtr

from inlay.search.structure import Structure


def neighbours(
    structure: Structure, labels: np.ndarray, rng: np.random.Generator, most: int
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
            name = structure.units[key[0]].name
            what = name if len(key) == 2 else f"{len(key) - 1} units from {name}"
            yield changed, f"flip: {what} to {'low precision' if changes[key] else 'float'}"


def expected_gains(ns: np.ndarray, sd: np.ndarray, best_ns: float) -> np.ndarray:
    """Expected improvement over ``best_ns`` of normal forecasts, nanoseconds: ``sd (z cdf(z) + pdf(z))``."""
    sd = np.maximum(sd, 1e-9)
    z = (best_ns - ns) / sd
    return np.asarray(sd * (z * ndtr(z) + np.exp(-z * z / 2.0) / np.sqrt(2.0 * np.pi)))
