"""A placement from what is known of the processor: costs by its table, noise by one probe model.

The costs of all units and values come from the cost table (:mod:`inlay.search.cost_table`), and so does the choice
among selectable rewrites. One model with switches tells how much noise each source makes. The integer program that the
search uses gives the fastest labeling within the bound; a labeling that turned out too noisy on the target is followed
by one that may make as much less as was missing. Profiles of the few models that are built anyway correct the table.
An anchor that was not built yet and is expected to be hardly slower is preferred: in mixed placements operators are not
fused that are in uniform ones, and no table says where.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from inlay.data import Feed
from inlay.deadline import NEVER, Deadline
from inlay.errors import TargetError
from inlay.prepare.model import PreparedModel
from inlay.quant.noise_probe import NoiseProbe
from inlay.quant.qparams import QParamsTable
from inlay.quant.sensitivity import Powers, Sensitivity, probe_budget, sensitivity
from inlay.search import policy
from inlay.search.baselines import anchor_units
from inlay.search.cost_model import CostModel
from inlay.search.cost_prior import CostParameters
from inlay.search.cost_table import CostTable
from inlay.search.noise_model import NoiseAllowance
from inlay.search.rewrite_choice import RewriteChoice
from inlay.search.solver import Solver
from inlay.search.surrogate import with_rewrites
from inlay.search.unit_graph import UnitGraph, build_unit_graph
from inlay.targets.base import KernelTime
from inlay.trial import noise_of
from inlay.types import Placement

_PROBING_S = 2.0
"""Seconds for probing every source, at most: of the ten that an answer may take."""
_PROBING_SHARE = 0.3
"""The same, of the time that is left: building the probe model and finding out its pace take as long again."""
_TIMED = 0.01
"""Relative standard deviation of a latency from a few blocks."""
_SOLVING_S = 1.0
"""Seconds for one integer program."""


@dataclass(frozen=True, eq=False)
class Choice:
    """A placement, and what is expected of it.

    Attributes:
        placement: with the rewrites that are expected to pay.
        labels: of its units.
        ns: nanoseconds per inference that are expected of it.
        float_ns: the same for the model without Q/DQ nodes.
        anchors_ns: the same for each anchor, by name.
    """

    placement: Placement
    labels: np.ndarray
    ns: float
    float_ns: float
    anchors_ns: dict[str, float]

    @property
    def speedup(self) -> float:
        """Predicted: over the float model."""
        return self.float_ns / self.ns if self.ns > 0.0 else 1.0


def priced_model(prepared: PreparedModel, graph: UnitGraph, table: CostTable) -> tuple[CostModel, RewriteChoice]:
    """A cost model that knows the processor's table and nothing else, and the selectable rewrites that pay by it."""
    parameters = CostParameters(graph)
    prices = table.price(prepared.graph, parameters)
    rewrites = table.choose_rewrites(prepared.graph, parameters, prepared.selectable_rewrites)
    return CostModel(graph, priced=with_rewrites(prices, graph, rewrites)), rewrites


class Instant:
    """Placements by the table, and by profiles where some were taken in.

    Args:
        prepared: the model.
        costs: the processor's table.
        table: qparams.
        feeds: samples on which noise is probed; none where noise does not matter.
        bound_db: least SQNR of the worst output; None for no bound.
        deadline: when a placement must be there.
    """

    def __init__(
        self,
        prepared: PreparedModel,
        costs: CostTable,
        table: QParamsTable,
        feeds: Sequence[Feed],
        bound_db: float | None,
        deadline: Deadline = NEVER,
    ) -> None:
        self._prepared, self._table, self._feeds, self._deadline = prepared, table, feeds, deadline
        self._graph = build_unit_graph(prepared.graph, prepared.units)
        self._model, self._rewrites = priced_model(prepared, self._graph, costs)
        self._bound_db = bound_db if feeds else None
        self._lacking_db = 0.0
        self._built: set[bytes] = set()
        self._probe: NoiseProbe | None = None
        self._samples = 1
        self._solver = Solver(
            self._graph,
            prepared.graph.float_outputs,
            NoiseAllowance(None if self._bound_db is None else noise_of(self._bound_db)),
            self._sensitivity,
            self._noise,
            {},
            {},
            lambda: _SOLVING_S,
        )

    def choose(self) -> Choice:
        """The fastest placement that is expected to keep the bound."""
        problem = self._model.expected_problem()
        anchors = self._anchors
        maximum = self._maximum
        if maximum is None:
            labels = self._solver.solve_unconstrained(problem, list(anchors.values()))
        else:
            labels = self._solver.solve(problem, maximum, known=list(anchors.values()), exact=True)
        labels = self._graph.fixed_point(labels)
        if labels.any():
            labels = self._anchor_within(policy.UNIFORM_CREDIT * self.expected(labels), labels)
        return self._choice(labels)

    def challenge(self) -> Choice:
        """The anchor that keeps the bound and may gain most over float if the table is wrong; float where none may."""
        float_ns, in_float_ns = self._ns_in_float, self._model.expected_problem().float_cost

        def at_best(labels: np.ndarray) -> float:
            return self.expected(labels) - (1.0 - 1.0 / policy.CHALLENGE) * float(in_float_ns[labels != 0].sum())

        nothing = np.zeros(len(self._graph.units), np.int8)
        return self._choice(self._anchor_within(float_ns / policy.QUICK_GAIN, nothing, at_best))

    def in_float(self) -> Choice:
        """Nothing in low precision."""
        return self._choice(np.zeros(len(self._graph.units), np.int8))

    def expected(self, labels: np.ndarray) -> float:
        """Nanoseconds per inference, by all that is known by now."""
        return self._model.predict(labels).mean

    def learn(self, labels: np.ndarray, kernels: Sequence[KernelTime], ns: float) -> None:
        """Correct the table by a model that was timed: its kernels, and nanoseconds per inference.

        Without kernels nothing is learned: the time of one precision alone would favor the other one.
        """
        self._built.add(labels.tobytes())
        if not kernels:
            return
        self._model.update_from_profile(labels, kernels, ns)
        self._model.update_from_latency(labels, ns, _TIMED)

    @property
    def _anchors(self) -> dict[str, np.ndarray]:
        return {name: self._graph.labels(chosen) for name, chosen in anchor_units(self._prepared.units).items()}

    @property
    def _maximum(self) -> float | None:
        return None if self._bound_db is None else noise_of(self._bound_db + self._lacking_db)

    def _anchor_within(
        self, ns: float, otherwise: np.ndarray, cost: Callable[[np.ndarray], float] | None = None
    ) -> np.ndarray:
        """The new anchor of least ``cost`` up to ``ns`` that is expected to keep the bound."""
        cost = cost or self.expected
        new = [each for each in self._anchors.values() if each.tobytes() not in self._built]
        ranked = sorted((each for each in new if cost(each) <= ns), key=cost)
        return next((each for each in ranked if self._keeps(each, self._maximum)), otherwise)

    def _choice(self, labels: np.ndarray) -> Choice:
        costs = {name: self._model.predict(each).mean for name, each in self._anchors.items()}
        return Choice(self._placement(labels), labels, self._model.predict(labels).mean, self._ns_in_float, costs)

    def _keeps(self, labels: np.ndarray, maximum: float | None) -> bool:
        """Whether a labeling is quantized, and its noise within the bound as far as a probe can tell."""
        if maximum is not None:
            self._solver.probe(labels)
        return bool(labels.any()) and (maximum is None or self._solver.within_allowance(labels, maximum))

    def lacks(self, missing_db: float) -> None:
        """The last choice missed the bound by so much on the target: the next one may make that much less noise."""
        self._lacking_db += missing_db

    @property
    def _ns_in_float(self) -> float:
        return self._model.predict(np.zeros(len(self._graph.units), np.int8)).mean

    def _placement(self, labels: np.ndarray) -> Placement:
        plain = self._prepared.label(self._graph.precisions(labels))
        return plain.with_rewrites(self._rewrites.rewrites)

    def _sensitivity(self) -> Sensitivity:
        """Noise of every source alone; of none where the probe model does not run, which leaves the target's check."""
        prepared = self._prepared
        try:
            probe = NoiseProbe(
                prepared.probe_base, prepared.store, prepared.graph, prepared.units, prepared.rules, self._table
            )
            seconds = min(_PROBING_S, _PROBING_SHARE * self._deadline.left)
            budget = probe_budget(probe, self._feeds, seconds, self._deadline.clock)
            probe.use(self._feeds[: budget.ranked_samples])
            units = [u for u in prepared.units if u.quantizable]
            ask = partial(probe.noise, samples=budget.source_samples)
            found = sensitivity(probe.switches, units, ask, budget.questions)
        except TargetError:
            return Sensitivity()
        self._probe, self._samples = probe, budget.placement_samples
        return found

    def _noise(self, labels: np.ndarray) -> Powers | None:
        if self._probe is None:
            return None
        try:
            return self._probe.noise(self._placement(labels), self._samples)
        except TargetError:
            return None
