"""What kernels of a processor cost: throughput and time per call by kind and precision, fitted to measured ones.

The time of a kernel is taken as linear in its workload: so much for the call, for each multiply-accumulate, each moved
element, and each constant. None of these is negative. A kind that was not measured costs what its family does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from inlay.model.graph import Graph
from inlay.search import policy
from inlay.search.cost_prior import CostParameters
from inlay.search.rewrite_choice import RewriteChoice
from inlay.search.workload import CASE_NAMES, Workload, unit_workload, workloads
from inlay.types import PortRewrite

_LARGEST = 1e15  # of any number in a table: eleven days in nanoseconds; sums of such numbers stay finite
_MOST_FITS = 100_000
_OTHERWISE = {"float behind low": "float", "low behind float": "low"}


class Reading(NamedTuple):
    """A measured kernel: what it had to do, in which state, and nanoseconds."""

    work: Workload
    state: str
    ns: float


@dataclass(frozen=True)
class Fit:
    """Times that are linear in the workload."""

    # per call, per multiply-accumulate, per moved element, per constant; none is negative
    ns: tuple[float, float, float, float]
    error: float  # median relative error at the readings
    readings: int  # how many it rests on

    def predict(self, work: Workload) -> float:
        """Nanoseconds."""
        return float(np.dot(self.ns, work.features))


@dataclass(frozen=True)
class CostTable:
    """Fits by kind and state: float, low, behind a unit of the other precision, in a form, or with a rewrite."""

    fits: Mapping[tuple[str, str], Fit] = field(default_factory=dict)  # by `(kind, state)`

    def ns(self, work: Workload, state: str) -> float | None:
        """Nanoseconds of ``work`` in a state, by the most specific kind that was measured; None where none was."""
        for kind in work.kinds:
            for each in (state, _OTHERWISE.get(state)):
                found = self.fits.get((kind, each)) if each else None
                if found is not None:
                    return found.predict(work)
        return None

    def price(self, graph: Graph, parameters: CostParameters) -> np.ndarray:
        """Nanoseconds of each parameter of a cost model, NaN where unknown; shape (parameters,)."""
        found = [self.ns(work, state) for work, state in workloads(graph, parameters)]
        return np.array([np.nan if ns is None else ns for ns in found], np.float64)

    def choose_rewrites(
        self, graph: Graph, parameters: CostParameters, offered: Iterable[PortRewrite]
    ) -> RewriteChoice:
        """Those of ``offered`` that make their operators faster; for each unit the fastest."""
        units = {u.name: u for u in parameters.graph.units}
        found = RewriteChoice()
        for rewrite in sorted(offered, key=lambda r: (r.name, r.port)):
            unit = units.get(rewrite.port.node)
            if unit is None:
                continue
            work = unit_workload(graph, unit)
            plain, rewritten = (self.ns(work, s) for s in (CASE_NAMES[-1], rewritten_state(CASE_NAMES[-1], rewrite)))
            if plain and rewritten is not None and rewritten < (1.0 - policy.PRICED_REWRITE_GAIN) * plain:
                found |= RewriteChoice(frozenset({rewrite}), {unit.name: rewritten / plain})
        return found

    def with_products(self, times: float) -> CostTable:
        """The same where multiply-accumulates in low precision take so many times as long."""
        fits = {
            (kind, state): replace(fit, ns=(fit.ns[0], fit.ns[1] * times, *fit.ns[2:])) if "low" in state else fit
            for (kind, state), fit in self.fits.items()
        }
        return CostTable(fits)

    def as_json(self) -> list[list[Any]]:
        """As plain data; see :meth:`from_json`."""
        return [[*key, list(fit.ns), fit.error, fit.readings] for key, fit in sorted(self.fits.items())]

    @classmethod
    def from_json(cls, data: object) -> CostTable:
        """The table that gave ``data``. Raises ValueError where it is none."""
        if not isinstance(data, list) or len(data) > _MOST_FITS:
            raise ValueError("its fits are no list of a reasonable length")
        fits: dict[tuple[str, str], Fit] = {}
        for row in data:
            if not isinstance(row, list) or len(row) != 5 or not all(isinstance(text, str) for text in row[:2]):
                raise ValueError("a fit is not [kind, state, ns, error, readings]")
            kind, state, ns, error, readings = row
            numbers = [*(ns if isinstance(ns, list) else ()), error, readings]
            if len(numbers) != 6 or not all(_is_amount(n) for n in numbers):
                raise ValueError(f"the fit of {kind[:60]} ({state[:60]}) is not made of numbers that costs can have")
            fits[kind, state] = Fit((ns[0], ns[1], ns[2], ns[3]), float(error), int(readings))
        return cls(fits)


def rewritten_state(state: str, rewrite: PortRewrite) -> str:
    """The state of a unit to which a rewrite is applied."""
    return f"{state} with {rewrite.name}"


def fit_table(readings: Sequence[Reading]) -> CostTable:
    """The table that explains ``readings``, by each kind that they have."""
    found: defaultdict[tuple[str, str], list[Reading]] = defaultdict(list)
    for reading in readings:
        for kind in reading.work.kinds:
            found[kind, reading.state].append(reading)
    # readings of few sizes say nothing of others, and the family counts
    several = {key: mine for key, mine in found.items() if len({r.work.features for r in mine}) >= policy.FIT_SIZES}
    return CostTable({key: _fit(mine) for key, mine in several.items()})


def _fit(readings: Sequence[Reading]) -> Fit:
    """Least absolute relative errors, by least squares that are weighted anew a few times; no part is negative."""
    from scipy.optimize import nnls  # commands that fit nothing do not wait for it

    features = np.array([r.work.features for r in readings], np.float64)
    ns = np.array([r.ns for r in readings], np.float64)
    paid = ns > policy.COST_FLOOR_NS
    size = np.maximum(ns, np.median(ns[paid]) if paid.any() else policy.COST_FLOOR_NS)
    scale = np.maximum(features.max(axis=0), 1.0)
    weights, often = np.ones(len(ns)), bool(np.mean(~paid) <= policy.SOMETIMES_FREE)
    for _ in range(policy.FIT_REPEATS if often else 1):  # what is fused in many places costs its mean, not its median
        rows = (weights / size)[:, None] * features / scale
        parts, _ = nnls(rows, weights * ns / size)
        predicted = features / scale @ parts
        size = np.maximum(np.maximum(ns, predicted), policy.COST_FLOOR_NS) if often else size
        error = np.abs(predicted - ns) / size
        weights = 1.0 / np.sqrt(np.maximum(error, policy.SEEN))
    a, b, c, d = (float(f"{part:.4g}") for part in parts / scale)  # more digits would say nothing
    return Fit((a, b, c, d), float(f"{np.median(error):.2g}"), len(readings))


def _is_amount(number: object) -> bool:
    return isinstance(number, (int, float)) and not isinstance(number, bool) and 0.0 <= number <= _LARGEST
