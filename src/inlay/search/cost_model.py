"""What a labelling costs: unit costs by label, value costs by state, learned from profiles, corrected by whole models.

The latency of a labelling is modelled as a sum of independent normal parameters: one for each unit, its label and that
of the unit before it, and one for each value and state. A profile observes the parameters that it covers, one by one;
what no profile covered is taken from units or values of the same signature, else from the trend over size. Whole-model
times then condition all parameters jointly (Bayesian linear regression; with few observations and many parameters it is
cheapest in observation space, and a draw from it takes Matheron's rule: *Wilson et al., Efficiently sampling functions
from Gaussian process posteriors*, 2020). Nothing here is larger than parameters times observations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from inlay.search.labeling import FusionPenalty, Problem, Term
from inlay.search.unit_graph import State, UnitGraph
from inlay.targets.base import KernelTime

_STATES = len(State)
_FORMS = 4  # of a unit: 2 * (it is low) + (the unit before it is low)
_SEEN = 0.05  # relative deviation of a cost that was seen, between one labelling and the next
_ALIKE = 0.25  # of one that was seen at another unit or value of the same signature
_ELSEWHERE = (0.15, 0.5)  # of a unit's cost that was seen behind the other kind of unit: in float, in low precision
_DOUBT = 2.0  # readings that the table counts for against what was seen at other units of an operator
_GUESSED = 1.0  # of one that follows the trend over size
_LEAST = 0.25  # no cost is corrected below this part of what profiles say
_FLOOR_NS = 300.0
_TOTAL = 0.03  # relative error of a profile's total
_LEAST_SD = 0.002  # relative deviation of a forecast, whatever is known
_WHOLE = 0.01  # relative error of a whole-model time, beyond its interval
_NEWEST = 0.5  # weight of the newest reading of a cost: it comes from the neighbourhood that matters now


@dataclass(frozen=True)
class Prediction:
    """Expected nanoseconds per inference, and their standard deviation."""

    ns: float
    sd: float


@dataclass(frozen=True, eq=False)
class Observation:
    """One measured labelling: its parameters' indices, whole-model nanoseconds, and their standard deviation."""

    parameters: np.ndarray
    ns: float
    sd: float


class CostModel:
    """Learned costs of one model on one target.

    Args:
        structure: units and values.
        known: costs by signature and label or state, from earlier runs; see :meth:`summary`.
    """

    def __init__(self, structure: UnitGraph, known: Mapping[str, float] | None = None) -> None:
        self.structure = structure
        self._known = dict(known or {})
        units, edges = len(structure.units), len(structure.edges)
        self._edges_at = _FORMS * units
        size = self._edges_at + _STATES * edges
        self._mean = np.full(size, np.nan)
        self._count = np.zeros(size, np.int64)
        self._spread = np.zeros(size)
        self._observations: list[Observation] = []
        self._ratios: list[float] = []
        self._prior: tuple[np.ndarray, np.ndarray] | None = None
        self._posterior: _Posterior | None = None
        self.outside = 0.0  # nanoseconds of kernels that belong to no unit and no value, in the last profile
        self.unattributed: list[float] = []  # share of each profile's time in kernels without a known cause

    @property
    def profiled(self) -> bool:
        """Whether any profile was taken in."""
        return bool(self._count.any())

    def parameters(self, settled: np.ndarray) -> np.ndarray:
        """Indices of the parameters that settled labels pay; shape (units + edges,)."""
        forms = 2 * settled.astype(np.int64) + self.structure.contexts(settled)
        units = np.arange(len(self.structure.units)) * _FORMS + forms
        edges = self._edges_at + np.arange(len(self.structure.edges)) * _STATES + self.structure.states(settled)
        return np.concatenate([units, edges])

    def learn(self, labels: np.ndarray, kernels: Sequence[KernelTime], ns: float, relative_sd: float = 0.0) -> None:
        """Take in the profile of a labelling whose whole-model time is ``ns``.

        Kernel times are scaled to add up to it: profiling slows a model down. Where the whole-model time is uncertain,
        the sum of the kernels, scaled as in the other profiles, has its say too.
        """
        labels = self.structure.settled(labels)
        total = sum(k.ns for k in kernels)
        if not total > 0.0:
            return
        ratio = float(np.log(ns / total))
        weight = _TOTAL**2 / (relative_sd**2 + _TOTAL**2) if self._ratios else 1.0
        usual = float(np.median(self._ratios)) if self._ratios else ratio
        self._ratios.append(ratio)
        scale = float(np.exp(weight * ratio + (1.0 - weight) * usual))
        seen: dict[int, float] = dict.fromkeys(self.parameters(labels).tolist(), 0.0)
        states, contexts = self.structure.states(labels), self.structure.contexts(labels)
        outside = 0.0
        for kernel in kernels:
            at = self._cause(kernel, labels, contexts, states)
            if at is None:
                outside += kernel.ns * scale
            else:
                seen[at] = seen.get(at, 0.0) + kernel.ns * scale
        self.outside = outside
        self.unattributed.append(sum(k.ns for k in kernels if not k.attributed) / total)
        for at, value in seen.items():
            self._see(at, value)
        self._prior = self._posterior = None

    def observe(self, labels: np.ndarray, ns: float, relative_sd: float) -> None:
        """Take in a whole-model time."""
        sd = ns * float(np.hypot(relative_sd, _WHOLE))
        self._observations.append(Observation(self.parameters(self.structure.settled(labels)), ns, sd))
        self._posterior = None

    def predict(self, labels: np.ndarray) -> Prediction:
        """Latency of a labelling."""
        (ns,), (sd,) = self.predict_all(self.parameters(self.structure.settled(labels))[None])
        return Prediction(float(ns), float(sd))

    def predict_all(self, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Expected nanoseconds of labellings, and their standard deviations.

        Args:
            parameters: a row of :meth:`parameters` for each; shape (labellings, units + edges).
        """
        known = self._known_now()
        ns = (known.mean + known.correction)[parameters].sum(axis=1) + self.outside
        variance = known.variance[parameters].sum(axis=1)
        if known.gain is not None:
            # what each has in common with each observation: that of the first, and what the others differ by
            first, rows = parameters[0], known.observed
            which, where = np.nonzero(parameters != first)
            own, base = parameters[which, where], first[where]
            common = np.where(rows[:, where] == own, known.variance[own], 0.0)
            common -= np.where(rows[:, where] == base, known.variance[base], 0.0)
            cross = np.where(rows == first, known.variance[first], 0.0).sum(axis=1)[:, None]
            cross = cross + np.array([np.bincount(which, row, len(parameters)) for row in common])
            variance = variance - np.einsum("ib,ij,jb->b", cross, known.gain, cross)
        return ns, np.sqrt(np.maximum(variance, (_LEAST_SD * ns) ** 2))

    def mean(self) -> np.ndarray:
        """Expected parameters given everything; shape (parameters,), ns."""
        known = self._known_now()
        return np.asarray(np.maximum(known.mean + known.correction, _LEAST * known.mean))

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """One draw of all parameters from what is known of them (Thompson sampling); ns."""
        known = self._known_now()
        drawn = known.mean + np.sqrt(known.variance) * rng.standard_normal(known.mean.size)
        if known.gain is not None:
            noise = [o.sd * rng.standard_normal() for o in self._observations]
            times = np.array([o.ns - e for o, e in zip(self._observations, noise, strict=True)])
            drawn += known.explain(times - self.outside - drawn[known.observed].sum(axis=1))
        return np.asarray(np.maximum(drawn, _LEAST * known.mean))

    def problem(self, parameters: np.ndarray) -> Problem:
        """The labelling problem under these costs.

        A cost ``(a, b, c, d)`` by the labels (00, 01, 10, 11) of a producer and its consumer is
        ``a + (c - a) p + (d - c) u + (b + c - a - d) (1 - p) u``: unit costs, and one boundary cost. It is exact; the
        boundary cost is negative where equal labels cost more than different ones, which a cut cannot take. Labels that
        are not settled cost more than what they settle to.
        """
        forms = parameters[: self._edges_at].reshape(-1, 2, 2)
        edges = parameters[self._edges_at :].reshape(-1, _STATES)
        float_cost, low_cost = forms[:, 0, 0].copy(), forms[:, 1, 0].copy()
        terms = []
        # what the runtime makes low whatever its label must not look cheap in float: more than all units can gain
        ruin = 2.0 * float(np.abs(np.concatenate([float_cost, low_cost])).sum())
        for producer, consumer, which in self.structure.forced:
            down = which == consumer
            terms.append(Term(producer, (consumer,), up=0.0 if down else ruin, down=ruin if down else 0.0))
        for unit, before in enumerate(self.structure.before.tolist()):
            if before >= 0 and self.structure.free[before]:
                (a, b), (c, d) = forms[unit].T  # by the label before, then by its own
                low_cost[before] += c - a
                low_cost[unit] = a + d - c
                if self.structure.free[unit]:
                    terms.append(Term(before, (unit,), up=float(b + c - a - d)))
        for edge, (none, up, down, low) in zip(self.structure.edges, edges, strict=True):
            if edge.producer < 0:
                terms.append(Term(-1, edge.consumers, edge.float_reader, up=float(up - none)))
                continue
            float_cost[edge.producer] += none
            low_cost[edge.producer] += low
            terms.append(Term(edge.producer, edge.consumers, edge.float_reader, float(up - none), float(down - low)))
        traps = [FusionPenalty(unit, around, ruin) for unit, around in self.structure.fused]
        return Problem(float_cost, low_cost, terms, self.structure.free, traps=traps)

    def signatures(self) -> set[str]:
        """Keys of :meth:`summary` that this model may ask for."""
        return {_text(self._signature(at)) for at in range(self._mean.size)}

    def summary(self) -> dict[str, float]:
        """Mean cost by signature and label or state, of everything that was seen: for a later run."""
        sums: defaultdict[str, list[float]] = defaultdict(list)
        for at in np.flatnonzero(self._count):
            sums[_text(self._signature(int(at)))].append(float(self._mean[at]))
        return {key: float(np.mean(values)) for key, values in sums.items()}

    def _cause(self, kernel: KernelTime, labels: np.ndarray, contexts: np.ndarray, states: np.ndarray) -> int | None:
        """The parameter that a kernel's time belongs to."""
        for value in kernel.values:
            k = self.structure.edge_of.get(value)
            if k is not None:
                return self._edges_at + k * _STATES + int(states[k])
        owner = self.structure.owner(kernel.nodes)
        if owner is None:
            return None
        return _FORMS * owner + 2 * int(labels[owner]) + int(contexts[owner])

    def _see(self, at: int, value: float) -> None:
        if self._count[at] == 0:
            self._mean[at] = value
        else:
            gap = value - self._mean[at]
            self._spread[at] = max(self._spread[at] * 0.7, abs(gap))
            self._mean[at] += _NEWEST * gap
        self._count[at] += 1

    def _signature(self, at: int) -> Hashable:
        if at < self._edges_at:
            return ("unit", self.structure.signatures[at // _FORMS], at % _FORMS)
        edge, state = divmod(at - self._edges_at, _STATES)
        return ("value", self.structure.edges[edge].signature, state)

    def _base(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of every parameter before whole-model times."""
        if self._prior is None:
            self._prior = self._pool()
        return self._prior

    def _pool(self) -> tuple[np.ndarray, np.ndarray]:
        mean, seen = self._mean.copy(), self._count > 0
        relative = np.where(seen, _SEEN, _GUESSED)
        pools: defaultdict[Hashable, list[float]] = defaultdict(list)
        for at in np.flatnonzero(seen):
            pools[self._signature(int(at))].append(float(mean[at]))
        ratio, changes = self._low_over_float(), self._changes()
        trend, rates, pace = self._trends(), self._rates(), self._pace()
        for at in np.flatnonzero(~seen):
            signature = self._signature(int(at))
            pool = pools.get(signature)
            known = self._known.get(_text(signature))
            if pool:
                mean[at], relative[at] = float(np.mean(pool)), _ALIKE
            elif known is not None:
                mean[at], relative[at] = known * pace, _ALIKE
            elif at < self._edges_at:
                mean[at], relative[at] = self._other_form(int(at), ratio, changes)
            else:
                k, state = divmod(int(at) - self._edges_at, _STATES)
                base, slope = trend[state]
                edge = self.structure.edges[k]
                like = rates.get((edge.kind, state))
                mean[at] = base + slope * edge.size if like is None else like * edge.size
        spread = np.maximum(self._spread * 0.7, 0.0)
        return mean, (relative * np.abs(mean) + _FLOOR_NS) ** 2 + spread**2

    def _pace(self) -> float:
        """Typical ratio of this run's costs and those of earlier runs: a machine's speed differs from hour to hour."""
        if not self._known:
            return 1.0
        known = {at: self._known.get(_text(self._signature(int(at)))) for at in np.flatnonzero(self._count)}
        logs = [np.log(self._mean[at] / ns) for at, ns in known.items() if ns and self._mean[at] > 0.0]
        return float(np.exp(np.median(logs))) if logs else 1.0

    def _low_over_float(self) -> float:
        """Typical ratio of a unit's low-precision and float costs, where both were seen."""
        forms = self._mean[: self._edges_at].reshape(-1, 2, 2)
        costs = np.fmin(forms[:, :, 0], forms[:, :, 1])  # whichever was seen
        both = self.structure.free & (np.nan_to_num(costs, nan=0.0) > 0.0).all(axis=1)
        return (
            float(np.clip(np.exp(np.median(np.log(costs[both, 1] / costs[both, 0]))), 0.2, 3.0)) if both.any() else 0.6
        )

    def _other_form(self, at: int, ratio: float, changes: Mapping[tuple[str, int], float]) -> tuple[float, float]:
        """Cost of a unit's form, and its relative deviation, from the forms that were seen."""
        elsewhere = self._mean[at ^ 1]
        if np.isfinite(elsewhere):
            unit = self.structure.units[at // _FORMS]
            usual = changes.get((unit.op_type, at % _FORMS), self._usual(at))
            return float(elsewhere) * usual, _ELSEWHERE[at // 2 % 2]
        factor = ratio * self._usual(at) if at & 2 else 1.0 / ratio
        others = [self._mean[at ^ 2], self._mean[at ^ 3]]
        seen = [float(v) * factor for v in others if np.isfinite(v)]
        return (seen[0], _GUESSED) if seen else (_FLOOR_NS, _GUESSED)

    def _usual(self, at: int) -> float:
        """What the target's table says of a unit's form, over the same label behind the other kind of unit."""
        rule = self.structure.units[at // _FORMS].rule
        slower = 1.0 if rule is None else rule.slowdown_after_float
        return {2: slower, 3: 1.0 / slower}.get(at % _FORMS, 1.0)

    def _changes(self) -> dict[tuple[str, int], float]:
        """By operator and form: typical cost over that behind the other kind of unit, where both were seen.

        Few readings are drawn towards what the target's table says: one odd unit must not speak for all of its kind.
        """
        found: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        usual: dict[tuple[str, int], float] = {}
        for at in np.flatnonzero(self._count[: self._edges_at]):
            here, there = self._mean[at], self._mean[at ^ 1]
            if self._count[at ^ 1] and here > _FLOOR_NS and there > _FLOOR_NS:
                key = self.structure.units[at // _FORMS].op_type, int(at) % _FORMS
                found[key].append(float(np.log(here / there)))
                usual[key] = float(np.log(self._usual(int(at))))
        return {
            key: float(np.exp((len(logs) * np.median(logs) + _DOUBT * usual[key]) / (len(logs) + _DOUBT)))
            for key, logs in found.items()
        }

    def _rates(self) -> dict[tuple[str, int], float]:
        """By kind of value and state: typical nanoseconds per element, where some were seen."""
        found: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        for at in np.flatnonzero(self._count[self._edges_at :]):
            k, state = divmod(int(at), _STATES)
            edge = self.structure.edges[k]
            if edge.size:
                found[edge.kind, state].append(float(self._mean[self._edges_at + at]) / edge.size)
        return {key: float(np.median(rates)) for key, rates in found.items()}

    def _trends(self) -> dict[int, tuple[float, float]]:
        """For each state nanoseconds per value and per element, fitted to what was seen; both non-negative."""
        default = {State.FLOAT: (0.0, 0.0), State.UP: (1500.0, 0.1), State.DOWN: (1500.0, 0.15), State.LOW: (0.0, 0.0)}
        found: dict[int, tuple[float, float]] = {}
        costs = self._mean[self._edges_at :].reshape(-1, _STATES)
        sizes = np.array([e.size for e in self.structure.edges], float)
        for state in State:
            seen = np.isfinite(costs[:, state]) if len(costs) else np.zeros(0, bool)
            if state in (State.FLOAT, State.LOW) or seen.sum() < 4 or sizes[seen].sum() == 0:
                found[state] = default[state]
                continue
            slope = float(np.median(costs[seen, state] / np.maximum(sizes[seen], 1.0)))
            base = float(np.median(np.maximum(costs[seen, state] - slope * sizes[seen], 0.0)))
            found[state] = (base, max(slope, 0.0))
        return found

    def _known_now(self) -> _Posterior:
        """What profiles and whole-model times say together."""
        if self._posterior is None:
            mean, variance = self._base()
            paid = len(self.structure.units) + len(self.structure.edges)
            rows = np.array([o.parameters for o in self._observations], np.int64).reshape(-1, paid)
            gain = None
            if len(rows):
                shared = [np.where(rows == row, variance[row], 0.0).sum(axis=1) for row in rows]
                gain = np.linalg.inv(np.array(shared) + np.diag([o.sd**2 for o in self._observations]))
            bare = _Posterior(mean, variance, np.zeros_like(mean), rows, gain)
            times = np.array([o.ns for o in self._observations])
            self._posterior = replace(bare, correction=bare.explain(times - self.outside - mean[rows].sum(axis=1)))
        return self._posterior


@dataclass(frozen=True, eq=False)
class _Posterior:
    """Parameters given profiles, and what whole-model times add.

    Attributes:
        mean: by the profiles alone, shape (parameters,).
        variance: of that, shape (parameters,).
        correction: of the mean, by whole-model times; shape (parameters,).
        observed: parameters of each whole-model time, shape (observations, units + edges).
        gain: inverse of the covariance of whole-model times; None where there are none.
    """

    mean: np.ndarray
    variance: np.ndarray
    correction: np.ndarray
    observed: np.ndarray
    gain: np.ndarray | None

    def explain(self, gaps: np.ndarray) -> np.ndarray:
        """What to add to the parameters, so that whole-model times change by ``gaps``; shape (parameters,)."""
        added = np.zeros_like(self.mean)
        if self.gain is not None:
            for weight, row in zip(self.gain @ gaps, self.observed, strict=True):
                added[row] += self.variance[row] * weight
        return added


def _text(signature: Hashable) -> str:
    return str(signature)
