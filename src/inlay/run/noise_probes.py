"""Noise probes of a run: answered from the journal where they can be, and within their share of the budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from inlay.data import Feed
from inlay.errors import TargetError
from inlay.measure.journal import Journal
from inlay.prepare.model import PreparedModel
from inlay.quant.noise_probe import NoiseProbe
from inlay.quant.qparams import QParamsTable
from inlay.quant.sensitivity import Plan, Powers, Sensitivity, plan, sensitivity
from inlay.run.facts import NOISE, PROBE_PLAN, SENSITIVITY
from inlay.types import Placement

SHARE = 0.1
"""Of the budget, for probing every source."""

_BUILD_SHARE = 0.5  # of those seconds that building the probe model uses up at most, in the reckoning


@dataclass
class Probes:
    """What noise placements make, by a model with switches that is built when it is first needed.

    How many samples and questions fit into the time is decided once and journaled, and so is every answer: a resumed
    run asks the same questions and hears the same.

    Attributes:
        prepared: the model.
        table: numbers.
        feeds: the selection samples.
        journal: keeps the answers.
        seconds: time for probing every source.
        clock: tells seconds.
        spent: seconds of each call that ran the model.
    """

    prepared: PreparedModel
    table: QParamsTable
    feeds: Sequence[Feed]
    journal: Journal
    seconds: float
    clock: Callable[[], float] = time.monotonic
    spent: list[float] = field(default_factory=list)
    _probe: NoiseProbe | None = None
    _broken: bool = False

    def noise(self, placement: Placement) -> Powers | None:
        """Noise of a placement at each float output, or None where the probe model does not run."""
        return self.journal.once(NOISE.of(placement.digest), lambda: self._noise(placement)) or None

    def _noise(self, placement: Placement) -> Powers:
        begun = self.clock()
        try:
            return self._built().noise(placement, self._fits.whole)
        except TargetError:
            return ()
        finally:
            self.spent.append(self.clock() - begun)

    def sensitivity(self) -> Sensitivity:
        """Noise of every source alone; of none where the probe model does not run."""
        return self.journal.once(SENSITIVITY, self._sensitivity)

    def _sensitivity(self) -> Sensitivity:
        begun = self.clock()
        try:
            probe = self._built()
            units = [u for u in self.prepared.units if u.selectable]
            ask = partial(probe.noise, samples=self._fits.loud)
            return sensitivity(probe.switches, units, ask, self._fits.questions)
        except TargetError:
            return Sensitivity()
        finally:
            self.spent.append(self.clock() - begun)

    @property
    def _fits(self) -> Plan:
        decided = self.journal.fact(PROBE_PLAN)
        assert decided is not None, "it is decided when the probe model is built"
        return decided

    def _built(self) -> NoiseProbe:
        """The probe model. Raises TargetError where it does not run."""
        if self._broken:
            raise TargetError("the probe model does not run")
        if self._probe is None:
            self._broken = True
            begun = self.clock()
            prepared = self.prepared
            probe = NoiseProbe(
                prepared.emitter.base,
                prepared.store,
                prepared.graph,
                prepared.units,
                prepared.rules,
                self.table,
            )
            decided = self.journal.once(PROBE_PLAN, lambda: self._plan(probe, self.clock() - begun))
            probe.use(self.feeds[: decided.samples])
            self._probe, self._broken = probe, False
        return self._probe

    def _plan(self, probe: NoiseProbe, built: float) -> Plan:
        """Samples and questions for the time that building leaves."""
        seconds = max(self.seconds - built, (1.0 - _BUILD_SHARE) * self.seconds)
        return plan(probe, self.feeds, seconds, self.clock)
