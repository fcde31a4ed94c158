"""The parameters of the cost model, and what profiles say of them: a cost for each unit and each value.

A unit in float or low precision has two *contexts*: whether its layout source is in low precision. With another label
(one of the graph's forms) it has one parameter. A value has the four states of :class:`~inlay.search.edges.State`. The
latency of a labeling is the sum of one parameter for each unit and each value.

A profile shows the parameters that its labeling pays, one by one. Of the others, in this order: those of the same
signature in this run, in earlier runs, the same unit in another form, and the trend over the size of values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from inlay.search import policy
from inlay.search.edges import FIRST_FORM, LOW, State
from inlay.search.labeling import BoundaryCost, FusionPenalty, LabelingProblem
from inlay.search.unit_graph import UnitGraph
from inlay.space.rules import WEIGHT_ONLY
from inlay.targets.base import KernelTime

STATES = len(State)
CASES = 4  # of a unit that is float or low: 2 * (it is low) + (its layout source is low)


class CostParameters:
    """Which parameters there are, which a labeling pays, and the labeling problem that they make."""

    def __init__(self, graph: UnitGraph) -> None:
        self.graph = graph
        self.first_edge = CASES * len(graph.units)  # parameters before are those of units
        self.first_form = self.first_edge + STATES * len(graph.edges)  # and those from here on, of units with a form
        self.size = self.first_form + graph.has_form.size

    def paid(self, labels: np.ndarray) -> np.ndarray:
        """Indices of the parameters that propagated labels pay: of units, then of edges; shape (units + edges,)."""
        graph = self.graph
        index, cases = np.arange(len(graph.units)), 2 * (labels == LOW) + graph.layout_contexts(labels)
        forms = self.first_form + index * len(graph.forms) + labels.astype(np.int64) - FIRST_FORM
        units = np.where(labels < FIRST_FORM, index * CASES + cases, forms)
        edges = self.first_edge + np.arange(len(graph.edges)) * STATES + graph.states(labels)
        return np.concatenate([units, edges])

    def cause(self, kernel: KernelTime, paid: np.ndarray) -> int | None:
        """The one of the ``paid`` parameters that a kernel's time belongs to; None where it serves none of them."""
        for value in kernel.values:
            k = self.graph.edge_of.get(value)
            if k is not None:
                return int(paid[len(self.graph.units) + k])
        owner = self.graph.owner(kernel.nodes)
        return None if owner is None else int(paid[owner])

    def shares(self, paid: np.ndarray, kernels: Sequence[KernelTime]) -> tuple[dict[int, float], float]:
        """Nanoseconds of a profile by each of the ``paid`` parameters, and those that belong to none."""
        costs: dict[int, float] = dict.fromkeys(paid.tolist(), 0.0)
        outside = 0.0
        for kernel in kernels:
            at = self.cause(kernel, paid)
            if at is None:
                outside += kernel.ns
            else:
                costs[at] += kernel.ns
        return costs, outside

    @cached_property
    def signatures(self) -> tuple[str, ...]:
        """Of each parameter: parameters with equal signatures have equal costs, in any model on one target."""
        units = (str(("unit", s, case)) for s in self.graph.signatures for case in range(CASES))
        values = (str(("value", e.signature, state)) for e in self.graph.edges for state in range(STATES))
        forms = (str(("unit", s, form)) for s in self.graph.signatures for form in self.graph.forms)
        return (*units, *values, *forms)

    def problem(self, costs: np.ndarray) -> LabelingProblem:
        """The labeling problem under given costs of the parameters, nanoseconds.

        A cost ``(a, b, c, d)`` by the labels (00, 01, 10, 11) of a producer ``p`` and its consumer ``u`` is
        ``a + (c - a) p + (d - c) u + (b + c - a - d) (1 - p) u``: unit costs, and one boundary cost. That is exact; the
        boundary cost is negative where equal labels cost more than different ones, which a cut cannot express. Labels
        that do not propagate to themselves cost more than what they propagate to. A unit's form has no context; that it
        pays what the context changes for a float one is the one thing that is not exact.
        """
        graph, propagation = self.graph, self.graph.propagation
        cases = costs[: self.first_edge].reshape(-1, 2, 2)
        edges = costs[self.first_edge : self.first_form].reshape(-1, STATES)
        float_cost, low_cost = cases[:, 0, 0].copy(), cases[:, 1, 0].copy()
        form_cost = np.where(graph.has_form, costs[self.first_form :].reshape(graph.has_form.shape), np.inf)
        boundaries = []
        # what runs low whatever its label must not look cheap in float: this is more than all units can gain
        prohibitive = 2.0 * float(np.abs(np.concatenate([float_cost, low_cost])).sum())
        for producer, consumer, implied in propagation.implications:
            quantize, dequantize = (0.0, prohibitive) if implied == consumer else (prohibitive, 0.0)
            boundaries.append(BoundaryCost(producer, (consumer,), quantize=quantize, dequantize=dequantize))
        for unit, source in enumerate(graph.layout_source.tolist()):
            if source >= 0 and graph.selectable[source]:
                (a, b), (c, d) = cases[unit].T  # by the label of the source, then by its own
                low_cost[source] += c - a
                low_cost[unit] = a + d - c
                if graph.selectable[unit]:
                    boundaries.append(BoundaryCost(source, (unit,), quantize=float(b + c - a - d)))
        for edge, (in_float, quantize, dequantize, low) in zip(graph.edges, edges, strict=True):
            ends = edge.producer, edge.consumers, edge.float_reader
            if edge.producer < 0:
                boundaries.append(BoundaryCost(*ends, quantize=float(quantize - in_float)))
                continue
            float_cost[edge.producer] += in_float
            form_cost[edge.producer] += in_float
            low_cost[edge.producer] += low
            boundaries.append(BoundaryCost(*ends, float(quantize - in_float), float(dequantize - low)))
        if graph.tables:  # a smaller file at equal speed
            form_cost -= policy.TABLE_WORTH * float_cost.sum() * np.array(graph.tables)[:, None]
        penalties = [FusionPenalty(unit, neighbors, prohibitive) for unit, neighbors in propagation.fusions]
        return LabelingProblem(float_cost, low_cost, boundaries, graph.selectable, penalties, form_cost)


@dataclass(frozen=True, eq=False)
class NormalCosts:
    """Independent normal distributions of all parameters; both of shape (parameters,), ns and ns²."""

    mean: np.ndarray
    variance: np.ndarray


class CostPrior:
    """Costs before whole-model times are taken into account.

    Args:
        known: costs of earlier runs, by signature.
        priced: costs by the processor's table, NaN where it has none, shape (parameters,); None without a table.
    """

    def __init__(
        self, parameters: CostParameters, known: Mapping[str, float], priced: np.ndarray | None = None
    ) -> None:
        self._parameters = parameters
        self._graph = parameters.graph
        self._known = dict(known)
        self._priced = np.full(parameters.size, np.nan) if priced is None else priced
        self._mean = np.full(parameters.size, np.nan)
        self._count = np.zeros(parameters.size, np.int64)
        self._jump = np.zeros(parameters.size)  # largest difference between readings, decaying

    @property
    def empty(self) -> bool:
        """Whether no profile was taken in yet."""
        return not self._count.any()

    def update(self, at: int, ns: float) -> None:
        """Take in one reading of a parameter."""
        if self._count[at] == 0:
            self._mean[at] = ns
        else:
            change = ns - self._mean[at]
            self._jump[at] = max(self._jump[at] * policy.SPREAD_DECAY, abs(change))
            self._mean[at] += policy.NEWEST_WEIGHT * change
        self._count[at] += 1

    def summary(self) -> dict[str, float]:
        """Mean cost by signature of everything that was profiled, nanoseconds."""
        return {signature: float(np.mean(costs)) for signature, costs in self._by_signature().items()}

    def costs(self) -> NormalCosts:
        """Mean and variance of every parameter."""
        mean, seen = self._mean.copy(), self._count > 0
        relative = np.where(seen, policy.SEEN, policy.GUESSED)
        same, pace = self._by_signature(), self._pace()
        ratio, context_ratios = self._low_over_float(), self._context_ratios()
        trends, rates, form_ratios = self._trends(), self._rates(), self._form_ratios()
        price_ratios = self._price_ratios()
        for at in np.flatnonzero(~seen).tolist():
            signature = self._parameters.signatures[at]
            if signature in same:
                mean[at], relative[at] = float(np.mean(same[signature])), policy.SAME_SIGNATURE
            elif signature in self._known:
                mean[at], relative[at] = self._known[signature] * pace, policy.SAME_SIGNATURE
            elif np.isfinite(self._priced[at]):
                mean[at], relative[at] = self._priced[at] * price_ratios[self._sort(at)], policy.SAME_SIGNATURE
            elif at < self._parameters.first_edge:
                mean[at], relative[at] = self._from_other_case(at, ratio, context_ratios)
            elif at >= self._parameters.first_form:
                mean[at], relative[at] = self._from_float(at, form_ratios), policy.GUESSED
            else:
                k, state = divmod(at - self._parameters.first_edge, STATES)
                edge = self._graph.edges[k]
                base, slope = trends[state]
                rate = rates.get((edge.kind, state))
                mean[at] = base + slope * edge.size if rate is None else rate * edge.size
        spread = np.maximum(self._jump * policy.SPREAD_DECAY, 0.0)
        return NormalCosts(mean, (relative * np.abs(mean) + policy.COST_FLOOR_NS) ** 2 + spread**2)

    def _by_signature(self) -> Mapping[str, list[float]]:
        found: defaultdict[str, list[float]] = defaultdict(list)
        for at in np.flatnonzero(self._count).tolist():
            found[self._parameters.signatures[at]].append(float(self._mean[at]))
        return found

    def _pace(self) -> float:
        """Typical ratio of this run's costs to those of earlier runs: a machine's speed differs from hour to hour."""
        seen = np.flatnonzero(self._count).tolist() if self._known else []
        pairs = [(self._mean[at], self._known.get(self._parameters.signatures[at])) for at in seen]
        logs = [np.log(now / earlier) for now, earlier in pairs if earlier and now > 0.0]
        return float(np.exp(np.median(logs))) if logs else 1.0

    def _sort(self, at: int) -> tuple[str, int]:
        """What a parameter shares the errors of the processor's table with: its operator or value, and its label."""
        if at < self._parameters.first_edge:
            return self._graph.units[at // CASES].op_type, at % CASES // 2
        if at < self._parameters.first_form:
            return "value", (at - self._parameters.first_edge) % STATES
        unit, form = divmod(at - self._parameters.first_form, len(self._graph.forms))
        return self._graph.units[unit].op_type, CASES + form

    def _price_ratios(self) -> Mapping[tuple[str, int], float]:
        """By sort: profiled over priced costs. A machine's speed differs from hour to hour, and a table is no model.

        The ratio of all that was profiled, drawn towards that of the same sort by as many readings as there are.
        """
        found: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        seen = np.flatnonzero((self._count > 0) & np.isfinite(self._priced))
        for at in seen.tolist():
            found[self._sort(at)].append(at)
        overall = self._log_price_ratio(seen)
        ratios: defaultdict[tuple[str, int], float] = defaultdict(lambda: float(np.exp(overall)))
        for sort, those in found.items():
            weight = len(those) / (len(those) + policy.PRIOR_READINGS)
            ratios[sort] = float(np.exp(weight * self._log_price_ratio(those) + (1.0 - weight) * overall))
        return ratios

    def _log_price_ratio(self, those: Sequence[int] | np.ndarray) -> float:
        """Weighted median by what was profiled: a price that is far off, or next to nothing, says little of others."""
        if not len(those):
            return 0.0
        profiled, priced = self._mean[those] + policy.COST_FLOOR_NS, self._priced[those] + policy.COST_FLOOR_NS
        limit = np.log(policy.MOST_OFF_PRICE)
        logs = np.clip(np.log(profiled / priced), -limit, limit)
        order = np.argsort(logs)
        total = np.cumsum(profiled[order])
        return float(logs[order][np.searchsorted(total, total[-1] / 2.0)])

    def _low_over_float(self) -> float:
        """Typical ratio of a unit's low-precision cost to its float cost, where both were profiled."""
        cases = self._mean[: self._parameters.first_edge].reshape(-1, 2, 2)
        costs = np.fmin(cases[:, :, 0], cases[:, :, 1])  # whichever context was profiled
        both = self._graph.selectable & (np.nan_to_num(costs, nan=0.0) > 0.0).all(axis=1)
        if not both.any():
            return policy.LOW_OVER_FLOAT
        ratio = np.exp(np.median(np.log(costs[both, 1] / costs[both, 0])))
        return float(np.clip(ratio, *policy.LOW_OVER_FLOAT_RANGE))

    def _form_ratios(self) -> np.ndarray:
        """By form: typical ratio of a unit's cost to that in float, where both were profiled; shape (forms,)."""
        shape = self._graph.has_form.shape
        cases = self._mean[: self._parameters.first_edge].reshape(-1, CASES)
        in_float, forms = np.fmin(cases[:, 0], cases[:, 1]), self._mean[self._parameters.first_form :].reshape(shape)
        # where weights alone are quantized, what is computed stays the same: only a profile shows a gain
        ratios = [1.0 if form.startswith(WEIGHT_ONLY) else policy.LOW_OVER_FLOAT for form in self._graph.forms]
        found = np.array(ratios, float)
        for k in range(shape[1]):
            seen = (np.nan_to_num(forms[:, k], nan=0.0) > 0.0) & (np.nan_to_num(in_float, nan=0.0) > 0.0)
            if seen.any():
                found[k] = np.clip(np.median(forms[seen, k] / in_float[seen]), *policy.LOW_OVER_FLOAT_RANGE)
        return found

    def _from_float(self, at: int, ratios: np.ndarray) -> float:
        """Cost of a unit in a form, from that in float."""
        unit, form = divmod(at - self._parameters.first_form, len(self._graph.forms))
        cases = self._mean[unit * CASES : unit * CASES + 2]
        seen = cases[np.isfinite(cases)]
        return float(seen[0] * ratios[form]) if seen.size else policy.COST_FLOOR_NS

    def _from_other_case(
        self, at: int, ratio: float, context_ratios: Mapping[tuple[str, int], float]
    ) -> tuple[float, float]:
        """Cost of a unit that is float or low, and its relative deviation, from the cases that were profiled.

        Neighboring indices (``at ^ 1``) are the same label in the other context.
        """
        other_context = self._mean[at ^ 1]
        if np.isfinite(other_context):
            unit = self._graph.units[at // CASES]
            context_ratio = context_ratios.get((unit.op_type, at % CASES), self._table_ratio(at))
            return float(other_context) * context_ratio, policy.OTHER_CONTEXT[at // 2 % 2]
        factor = ratio * self._table_ratio(at) if at & 2 else 1.0 / ratio
        other_label = [float(v) * factor for v in (self._mean[at ^ 2], self._mean[at ^ 3]) if np.isfinite(v)]
        return (other_label[0] if other_label else policy.COST_FLOOR_NS), policy.GUESSED

    def _table_ratio(self, at: int) -> float:
        """Cost of a unit over that in the other context, by the target's table."""
        rule = self._graph.units[at // CASES].rule
        behind_float = 1.0 if rule is None else rule.slowdown_after_float
        return {2: behind_float, 3: 1.0 / behind_float}.get(at % CASES, 1.0)

    def _context_ratios(self) -> dict[tuple[str, int], float]:
        """By operator and case: typical cost over that in the other context, where both were profiled.

        Few readings are drawn towards the target's table: one odd unit must not speak for all of its kind.
        """
        found: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        table: dict[tuple[str, int], float] = {}
        for at in np.flatnonzero(self._count[: self._parameters.first_edge]).tolist():
            here, there = self._mean[at], self._mean[at ^ 1]
            if self._count[at ^ 1] and here > policy.COST_FLOOR_NS and there > policy.COST_FLOOR_NS:
                key = self._graph.units[at // CASES].op_type, at % CASES
                found[key].append(float(np.log(here / there)))
                table[key] = float(np.log(self._table_ratio(at)))
        prior = policy.PRIOR_READINGS
        return {
            key: float(np.exp((len(logs) * np.median(logs) + prior * table[key]) / (len(logs) + prior)))
            for key, logs in found.items()
        }

    def _rates(self) -> dict[tuple[str, int], float]:
        """By kind of value and state: typical nanoseconds per element, where some were profiled."""
        found: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        first = self._parameters.first_edge
        for at in np.flatnonzero(self._count[first : self._parameters.first_form]).tolist():
            k, state = divmod(at, STATES)
            edge = self._graph.edges[k]
            if edge.size:
                found[edge.kind, state].append(float(self._mean[first + at]) / edge.size)
        return {key: float(np.median(rates)) for key, rates in found.items()}

    def _trends(self) -> dict[int, tuple[float, float]]:
        """By state: nanoseconds per value and per element, fitted to what was profiled; both non-negative."""
        found: dict[int, tuple[float, float]] = {State.FLOAT: (0.0, 0.0), State.LOW: (0.0, 0.0)}
        costs = self._mean[self._parameters.first_edge : self._parameters.first_form].reshape(-1, STATES)
        sizes = np.array([e.size for e in self._graph.edges], float)
        for state, default in ((State.QUANTIZE, policy.QUANTIZE_NS), (State.DEQUANTIZE, policy.DEQUANTIZE_NS)):
            seen = np.isfinite(costs[:, state]) if len(costs) else np.zeros(0, bool)
            if seen.sum() < policy.TREND_READINGS or sizes[seen].sum() == 0:
                found[state] = default
                continue
            slope = float(np.median(costs[seen, state] / np.maximum(sizes[seen], 1.0)))
            base = float(np.median(np.maximum(costs[seen, state] - slope * sizes[seen], 0.0)))
            found[state] = (base, max(slope, 0.0))
        return found
