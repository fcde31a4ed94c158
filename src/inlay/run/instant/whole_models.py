"""Costs of kernels from times of whole models, for targets that give no profiles.

A model takes the sum of what its operators and the values between them take, each linear in its workload, and
something for the call. Models that hold few kinds, in several precisions, sizes and numbers, are equations enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inlay.search.cost_table import Reading
from inlay.search.workload import Workload

_BEHIND = " behind "
_PLAIN = {"float behind low": "float", "low behind float": "low"}
"""States in which a unit costs what it does elsewhere, as far as whole models can tell."""
_NO_KERNEL = ("float", "low")
"""States of a value in which it is handed on as it is."""


@dataclass(frozen=True, eq=False)
class Total:
    """A model that was timed.

    Attributes:
        parts: workload and state of each of its units and values.
        ns: nanoseconds of an inference.
    """

    parts: Sequence[tuple[Workload, str]]
    ns: float


def kernel_readings(totals: Sequence[Total]) -> list[Reading]:
    """What each part of each model takes, by the costs that explain all totals best; none is negative.

    Relative errors of totals are what is least, so that models of any size count alike.
    """
    from scipy.optimize import nnls  # commands that fit nothing do not wait for it

    parts = [[(work, key) for work, state in total.parts if (key := _key(work, state)) is not None] for total in totals]
    keys = {key: number for number, key in enumerate(dict.fromkeys(key for each in parts for _, key in each))}
    rows = np.zeros((len(totals), len(keys), len(Workload(()).features)))
    for row, each in zip(rows, parts, strict=True):
        for work, key in each:
            row[keys[key]] += work.features
    scale = np.maximum(rows.max(axis=0), 1.0)
    ns = np.array([total.ns for total in totals])
    relative = (rows / scale / ns[:, None, None]).reshape(len(totals), -1)
    found, _ = nnls(np.concatenate([relative, 1.0 / ns[:, None]], axis=1), np.ones(len(totals)))
    costs = found[:-1].reshape(scale.shape) / scale
    readings = []
    for total in totals:
        for work, state in total.parts:
            key = _key(work, state)
            cost = 0.0 if key is None else float(costs[keys[key]] @ work.features)
            readings.append(Reading(_alike(work), _PLAIN.get(state, state), cost))
    return readings


def _key(work: Workload, state: str) -> tuple[str, str] | None:
    """What has costs of its own: a sort of operators or values in a state; None for a value without a kernel."""
    kind = _alike(work).kinds[0]
    if kind.startswith("value"):
        return None if state in _NO_KERNEL else (work.kinds[-1], state)
    return kind, _PLAIN.get(state, state)


def _alike(work: Workload) -> Workload:
    """Without the kinds that say what stands before: what is removed or fused there, no total tells."""
    return Workload(tuple(k for k in work.kinds if _BEHIND not in k), work.products, work.moved, work.constants)
