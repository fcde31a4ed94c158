"""A placement from what is known of the processor: costs by its table, noise by the target or a probe model.

The costs of all units and values come from the cost table (:mod:`inlay.search.cost_table`), and so does the choice
among selectable rewrites. The integer program that the search uses gives the fastest labeling, and the target tells
whether that keeps the bound. If it does not, one model with switches shows how much noise each source makes, for the
fastest labeling within the bound. Profiles of the few models that are built anyway correct the table. An anchor that
was not built yet and is expected to be hardly slower is preferred: in mixed placements operators are not fused that are
in uniform ones, and no table says where.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from inlay.data import Samples
from inlay.deadline import NEVER, Deadline
from inlay.errors import TargetError
from inlay.prepare.model import PreparedModel
from inlay.quant.fake_quant import NoiseProbe
from inlay.quant.parts import Parts
from inlay.quant.qparams import QParamsTable
from inlay.quant.sensitivity import Powers, ProbeBudget, Sensitivity, probe_budget, sensitivity
from inlay.run.instant.several import Several
from inlay.run.machine_costs import MachineCosts
from inlay.search import policy
from inlay.search.baselines import FULL_INT8, anchor_units
from inlay.search.cost_model import CostModel
from inlay.search.cost_prior import CostParameters
from inlay.search.cost_table import CostTable
from inlay.search.noise_model import NoiseAllowance
from inlay.search.rewrite_choice import RewriteChoice
from inlay.search.solver import Solver
from inlay.search.surrogate import with_rewrites
from inlay.search.unit_graph import build_unit_graph
from inlay.targets.base import KernelTime
from inlay.trial import decibels, noise_of
from inlay.types import Placement

_PROBING_S = 2.0  # seconds for probing every source, at most: of the ten that an answer may take
_PROBING_SHARE = 0.3
"""The same, of the time that is left: building the probe model and finding out its pace take as long again."""
_HEAVY = 0.1
"""Of all that low precision can gain, from which on the noise of a unit is asked for alone, and not in a group."""
_MOST_HEAVY = 4  # such units, at most: each has about three sources
_PATIENCE_S = 20.0
"""The most that asking the fewest questions may take, which leave out no source; where inferences are so long that it
takes more, anchors alone are asked about, by one question each."""
_TIMED = 0.01  # relative standard deviation of a latency from a few blocks
_MOST_OFF = 8.0  # by how much a table is taken to be off for another processor, because it is here
_SOLVING_S = 0.5  # seconds for one integer program, beside which there is a good labeling already: most take 0.1 to 0.3


@dataclass(frozen=True, eq=False)
class Choice:
    """A placement, and what is expected of it."""

    placement: Placement  # with the rewrites that are expected to pay
    labels: np.ndarray  # of its units
    ns: float  # nanoseconds per inference that are expected of it

    @property
    def low(self) -> bool:
        """Whether anything is quantized."""
        return bool(len(self.placement))


class Instant:
    """Placements by the table, and by profiles where some were taken in.

    Args:
        known: the processor's table, or those of several that one file is for; none where there is none.
        usual: all that the usual recipe quantizes.
        samples: on which noise is probed where there is a bound.
        bound_db: least SQNR of the worst output; None for no bound.
    """

    def __init__(
        self,
        prepared: PreparedModel,
        known: MachineCosts,
        table: QParamsTable,
        usual: Placement,
        samples: Samples,
        bound_db: float | None,
        *,
        deadline: Deadline = NEVER,
        parts: Parts | None = None,
    ) -> None:
        self._prepared, self._table, self._samples, self._deadline = prepared, table, samples, deadline
        self._graph = build_unit_graph(prepared.graph, prepared.units)
        parameters, offered = CostParameters(self._graph), prepared.selectable_rewrites
        self._tables = known.several or {"": known.table or CostTable()}
        chosen = [table.choose_rewrites(prepared.graph, parameters, offered) for table in self._tables.values()]
        self._rewrites = chosen[0] if len(chosen) == 1 else RewriteChoice()  # one that pays here may cost there
        self._here: CostModel | None = None
        self._price(np.ones(parameters.size))
        self._priced, self._usual = known.table is not None, usual
        self._bound_db = bound_db
        self._optimism_db: float | None = None
        self._parts = Parts() if parts is None else parts
        self._built: set[bytes] = set()
        self._noises: dict[bytes, Powers] = {}
        self._pace_s = 0.0  # of a question on one sample, once one was asked
        self._solver = Solver(
            self._graph,
            self._parts.of_each(prepared.graph.float_outputs),
            NoiseAllowance(None if self._bound_db is None else noise_of(self._bound_db)),
            self._sensitivity,
            self._noise,
            {},
            {},
            lambda: _SOLVING_S,
        )

    def choose(self) -> Choice:
        """The fastest placement that is expected to keep the bound; until one missed it, simply the fastest.

        For several processors it is the one with the least worst regret among what is best for each, and for means of
        them (:class:`~inlay.run.instant.several.Several`).
        """
        if self._several is None:
            return self._fastest()
        for model in self._several.models():
            self._model = model
            self._several.add(self._fastest().labels, *self._anchors.values())
        self._model = self._several.model
        maximum = self._maximum
        ranked = self._several.by_regret()
        quiet = (each for each in ranked if maximum is None or not each.any() or self._is_quiet(each, maximum))
        return self._choice(next(quiet))

    def several(self, labels: np.ndarray) -> dict[str, tuple[float, float]]:
        """Where a file is for several processors, for each: speed over float, and how much slower than its own best."""
        if self._several is None:
            return {}
        speedups, regrets = self._several.speedups(labels), self._several.regrets(labels)
        return {name: (speedups[name], regrets[name]) for name in regrets}

    def _fastest(self) -> Choice:
        problem = self._model.expected_problem()
        anchors = list(self._anchors.values())
        maximum = self._maximum
        labels = self._graph.fixed_point(self._solver.solve_unconstrained(problem, anchors))
        if maximum is not None and labels.any() and not self._is_quiet(labels, maximum):
            if self._is_slow:
                anchor = self._anchor_within(math.inf)
                return self.in_float() if anchor is None else self._choice(anchor)
            labels = self._graph.fixed_point(self._solver.solve(problem, maximum, exact=True))
        if not labels.any():
            return self._choice(labels)
        uniform = self._anchor_within(policy.UNIFORM_CREDIT * self.expected(labels))
        return self._choice(labels if uniform is None else uniform)

    def challenge(self, anyway: bool = False) -> Choice:
        """The anchor that keeps the bound and may gain most over float if the table is wrong; float where none may.

        Without a table nothing is known of low precision: then it is all that the usual recipe quantizes.

        Args:
            anyway: also where the table would have to be wrong by more than :data:`~inlay.search.policy.CHALLENGE`.
        """
        if not self._priced:
            return replace(self._choice(self._anchors[FULL_INT8]), placement=self._usual)
        float_ns = self.expected(np.zeros(len(self._graph.units), np.int8))
        in_float_ns = self._model.expected_problem().float_cost

        def at_best(labels: np.ndarray) -> float:
            return self.expected(labels) - (1.0 - 1.0 / policy.CHALLENGE) * float(in_float_ns[labels != 0].sum())

        anchor = self._anchor_within(math.inf if anyway else float_ns / policy.QUICK_GAIN, at_best)
        return self.in_float() if anchor is None else self._choice(anchor)

    def runner_up(self, ns: float) -> Choice:
        """The anchor that was not built and may be as fast as one of ``ns`` if the table is wrong; float for none."""
        anchor = self._anchor_within(policy.UNIFORM_CREDIT * ns)
        return self.in_float() if anchor is None else self._choice(anchor)

    def at_run_time(self) -> Choice:
        """The anchor whose activations are quantized in each inference, if it is expected to gain; else float.

        It loses the least: its ranges are those of the very values that are rounded.
        """
        names = {f.name for f in self._prepared.rules.forms if f.activation is not None and f.activation.dynamic}
        least_ns = self.expected(np.zeros(len(self._graph.units), np.int8)) / policy.QUICK_GAIN
        gaining = [each for name, each in self._anchors.items() if name in names and self.expected(each) <= least_ns]
        return self._choice(min(gaining, key=self.expected)) if gaining else self.in_float()

    def in_float(self) -> Choice:
        """Nothing in low precision."""
        return self._choice(np.zeros(len(self._graph.units), np.int8))

    def expected(self, labels: np.ndarray) -> float:
        """Nanoseconds per inference, by all that is known by now."""
        return self._model.predict(labels).mean

    def _price(self, off: np.ndarray) -> None:
        """Take the tables' costs times ``off``, which has the shape (parameters,)."""
        prices = {name: off * self._priced_by(table) for name, table in self._tables.items()}
        self._several = Several(self._graph, prices) if len(prices) > 1 else None
        first = next(iter(prices.values()))
        self._model = CostModel(self._graph, priced=first) if self._several is None else self._several.model

    def _priced_by(self, table: CostTable) -> np.ndarray:
        prices = table.price(self._prepared.graph, CostParameters(self._graph))
        return with_rewrites(prices, self._graph, self._rewrites)

    def learn_elsewhere(self, table: CostTable, labels: np.ndarray, kernels: Sequence[KernelTime], ns: float) -> None:
        """Correct the tables by how far another processor's ``table`` is off there, by a model that was timed there."""
        priced = self._priced_by(table)
        if self._here is None:
            self._here = CostModel(self._graph, priced=priced)
        self._here.update_from_profile(labels, kernels, ns)
        with np.errstate(divide="ignore", invalid="ignore"):
            off = self._here.costs().mean / priced
        usable = np.isfinite(off) & (priced > policy.COST_FLOOR_NS)
        self._price(np.where(usable, np.clip(off, 1.0 / _MOST_OFF, _MOST_OFF), 1.0))

    def learn(self, labels: np.ndarray, kernels: Sequence[KernelTime], ns: float) -> None:
        """Correct the table by a model that was timed: its kernels, and nanoseconds per inference.

        Without kernels nothing is learned: the time of one precision alone would favor the other one.
        """
        self._built.add(labels.tobytes())
        if not kernels:
            return
        self._model.update_from_profile(labels, kernels, ns)
        self._model.update_from_latency(labels, ns, _TIMED)

    @cached_property
    def _anchors(self) -> dict[str, np.ndarray]:
        units = anchor_units(self._prepared.graph, self._prepared.units)
        return {name: self._graph.labels(chosen) for name, chosen in units.items()}

    @property
    def _maximum(self) -> float | None:
        """Noise that probes may show; None for any: as long as nothing missed the bound, the target is asked at once.

        That costs as little as a probe model, and shows kernels that the table is corrected by.
        """
        missed = self._bound_db is not None and self._optimism_db is not None
        return noise_of((self._bound_db or 0.0) + (self._optimism_db or 0.0)) if missed else None

    def _anchor_within(self, ns: float, cost: Callable[[np.ndarray], float] | None = None) -> np.ndarray | None:
        """The new anchor of least ``cost`` up to ``ns`` that is expected to keep the bound; None where none is."""
        cost = cost or self.expected
        new = [each for each in self._anchors.values() if each.tobytes() not in self._built]
        ranked = sorted((each for each in new if cost(each) <= ns), key=cost)
        maximum = self._maximum
        quiet = (each for each in ranked if each.any() and (maximum is None or self._is_quiet(each, maximum)))
        return next(quiet, None)

    def _choice(self, labels: np.ndarray) -> Choice:
        return Choice(self._placement(labels), labels, self.expected(labels))

    def _is_quiet(self, labels: np.ndarray, maximum: float) -> bool:
        """Whether a probe shows at most ``maximum`` noise; also where none can tell, which the target's check does."""
        noise = self._noise(labels) if labels.any() else None
        return noise is None or max(noise, default=0.0) <= maximum

    def missed(self, labels: np.ndarray, sqnr_db: float) -> None:
        """Of these labels, the target had only ``sqnr_db``: from now on probes decide, which may be too hopeful."""
        noise = self._noise(labels)
        hopeful_db = 0.0 if noise is None else decibels(max(noise, default=0.0)) - sqnr_db
        self._optimism_db = max(self._optimism_db or 0.0, hopeful_db, 0.0)

    def _placement(self, labels: np.ndarray) -> Placement:
        return self._prepared.label(self._graph.precisions(labels)).with_rewrites(self._rewrites.rewrites)

    @cached_property
    def _probe(self) -> tuple[NoiseProbe, ProbeBudget] | None:
        """The probe model, and how often it may be asked; None where it does not run."""
        try:
            probe = self._prepared.probe(self._table, briefly=True)
            seconds = min(_PROBING_S, _PROBING_SHARE * self._deadline.left)
            feeds = self._samples.feeds
            budget = probe_budget(probe, feeds, seconds, self._deadline.clock)
            probe.use(feeds[: budget.ranked_samples], self._samples.mask, self._parts)
        except TargetError:
            return None
        return probe, budget

    @property
    def _is_slow(self) -> bool:
        """Whether there is no time to probe every source."""
        if self._probe is None:
            return False
        _, budget = self._probe
        return budget.questions * budget.source_samples * self._pace_s > _PATIENCE_S

    @property
    def _heavy(self) -> frozenset[str]:
        """The units that hold much of what low precision can gain, by all that is known by now."""
        problem = self._model.expected_problem()
        gains = np.where(problem.selectable, np.maximum(problem.float_cost - problem.low_cost, 0.0), 0.0)
        heavy = [i for i in np.argsort(-gains, kind="stable").tolist() if gains[i] > _HEAVY * gains.sum()]
        return frozenset(self._graph.units[i].name for i in heavy[:_MOST_HEAVY])

    def _sensitivity(self) -> Sensitivity:
        """Noise of every source alone, asked for only where the fastest labeling of all is too noisy; else of none."""
        if self._probe is None:
            return Sensitivity()
        probe, budget = self._probe
        units = [u for u in self._prepared.units if u.quantizable]
        ask = partial(probe.noises, samples=budget.source_samples)
        try:
            return sensitivity(probe.switches, units, ask, budget.questions, self._heavy)
        except TargetError:
            return Sensitivity()

    def _noise(self, labels: np.ndarray) -> Powers | None:
        """Noise of a labeling at each output; None where it cannot be probed."""
        key = labels.tobytes()
        if key not in self._noises and self._probe is not None:
            probe, budget = self._probe
            begun = self._deadline.clock()
            with suppress(TargetError):
                self._noises[key] = probe.noise(self._placement(labels), budget.placement_samples)
                self._pace_s = (self._deadline.clock() - begun) / budget.placement_samples
        return self._noises.get(key)
