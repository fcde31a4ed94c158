"""Noise probes of a run: answered from the journal where they can be, and within their share of the budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from inlay.calibrate.scorer import in_process
from inlay.data import Feed, Samples
from inlay.deadline import NEVER, Deadline
from inlay.errors import Late, TargetError
from inlay.measure.costs import FREE, Costs
from inlay.measure.journal import Fact, Journal
from inlay.model.pool import OpenPool, pooled
from inlay.prepare.model import PreparedModel
from inlay.quant.accuracy import Judge
from inlay.quant.fake_quant import NoiseProbe
from inlay.quant.parts import Parts
from inlay.quant.qparams import QParamsTable
from inlay.quant.sensitivity import Powers, ProbeBudget, Sensitivity, probe_budget, sensitivity
from inlay.run.facts import NOISE, PROBE_BUDGET, SENSITIVITY
from inlay.run.schedule import PROBING_LATE
from inlay.trial import noise_of
from inlay.types import Placement

T = TypeVar("T")

_LEAST_INFERENCES = 40  # of a probe model, which is slower than the given one, for the fewest questions
_MAX_BUILD_SHARE = 0.5  # of those seconds, that building the probe model is counted with: the rest is for probing


@dataclass
class Probes:
    """How much noise placements make, by a model with switches that is built when it is first needed.

    How many samples and questions fit into the time is decided once and journaled, and so is every answer: a resumed
    run asks the same questions and gets the same answers.
    """

    prepared: PreparedModel  # the model
    table: QParamsTable  # qparams
    samples: Samples  # those of the selection
    journal: Journal  # keeps the answers
    seconds: float  # for probing every source
    clock: Callable[[], float] = time.monotonic  # returns seconds
    spent: list[float] = field(default_factory=list)  # seconds of each call that ran the model
    # when the search must end, by what is known at the time; what does not fit is not asked, and not journaled either
    search_end: Callable[[], Deadline] = lambda: NEVER
    costs: Callable[[], Costs] = lambda: FREE  # what steps take, by what is known at the time
    # for the noise of every source; the samples and questions that fit are found out here
    open_pool: OpenPool | None = None
    parts: Parts = field(default_factory=Parts)  # how outputs are divided
    _probe: NoiseProbe | TargetError | None = None  # the model, or that it does not run

    def noise(self, placement: Placement) -> Powers | None:
        """Noise of a placement at each float output, or None where the probe model does not run."""
        ask = partial(self._noise, placement)
        return self._answer(NOISE.of(placement.digest), len(self.samples), ask, ()) or None

    def _fits(self, inferences: int) -> bool:
        costs = self.costs()
        build_s = 0.0 if isinstance(self._probe, NoiseProbe) else costs.candidate_build_s + costs.float_more_s
        return self.search_end().fits(build_s + inferences * costs.sample_s)

    def _noise(self, placement: Placement) -> Powers:
        return self._built().noise(placement, self._budget.placement_samples)

    def _answer(self, fact: Fact[T], inferences: int, ask: Callable[[], T], nothing: T) -> T:
        """What ``ask`` gives, once in a run; ``nothing``, which is not kept, where there is no time for it.

        Where the probe model does not run, that is the answer. The time of asking counts as spent.
        """

        def asked() -> T:
            begun = self.clock()
            try:
                return ask()
            except Late:
                raise
            except TargetError:
                return nothing
            finally:
                self.spent.append(self.clock() - begun)

        if self.journal.fact(fact) is None and not self._fits(inferences):
            return nothing
        try:
            return self.journal.once(fact, asked)
        except Late:
            return nothing

    def sensitivity(self) -> Sensitivity:
        """Noise of every source alone; of none where the probe model does not run."""
        return self._answer(SENSITIVITY, _LEAST_INFERENCES, self._sensitivity, Sensitivity())

    def _sensitivity(self) -> Sensitivity:
        probe = self._built()
        units = [u for u in self.prepared.units if u.quantizable]
        samples, questions = self._budget.source_samples, self._budget.questions
        with pooled(self.open_pool, samples * questions * self.costs().sample_s):
            return sensitivity(probe.switches, units, partial(probe.noises, samples=samples), questions)

    @property
    def _budget(self) -> ProbeBudget:
        decided = self.journal.fact(PROBE_BUDGET)
        assert decided is not None, "it is decided when the probe model is built"
        return decided

    def _built(self) -> NoiseProbe:
        """The probe model. Raises TargetError where it does not run."""
        if isinstance(self._probe, TargetError):
            raise self._probe
        if self._probe is None:
            self._probe = TargetError("the probe model does not run")  # until it did
            begun = self.clock()
            probe = self.prepared.probe(self.table)
            budget = self.journal.once(PROBE_BUDGET, lambda: self._fitting(probe, self.clock() - begun))
            probe.use(self.samples.feeds[: budget.ranked_samples], self.samples.mask, self.parts)
            self._probe = probe
        return self._probe

    def _fitting(self, probe: NoiseProbe, build_seconds: float) -> ProbeBudget:
        """What fits into the time that building leaves."""
        whole = min(self.seconds, PROBING_LATE * self.search_end().left)
        seconds = max(whole - build_seconds, (1.0 - _MAX_BUILD_SHARE) * whole)
        return probe_budget(probe, self.samples.feeds, seconds, self.clock)


def computed_noise(
    prepared: PreparedModel, table: QParamsTable, placement: Placement, feeds: Sequence[Feed], judge: Judge
) -> dict[str, float]:
    """Noise of a placement at each output, by name, as the numeric reference computes it; none where it does not run.

    Args:
        feeds: the samples of ``judge``, all of which are run: what probes of a few tell of the others is an estimate.
    """
    (outcome,) = in_process(prepared, feeds)([(table, placement)])
    try:
        return {o.name: noise_of(o.sqnr_db) for o in judge.judge(outcome.result()).outputs}
    except Late:
        raise
    except TargetError:
        return {}
