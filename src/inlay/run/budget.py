"""How long a search goes on: seconds, measurements, builds."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inlay.deadline import Deadline
from inlay.measure.client import Worker
from inlay.measure.journal import Journal
from inlay.run.evaluate import Candidate, Evaluator
from inlay.run.facts import HURRIED, HURRIES, SPARE
from inlay.run.schedule import ANCHORS, IDLE_TRIAL, Schedule
from inlay.trial import Measured, Proposal, counted

_BUILDS_OF_A_TRIAL = 3  # at most: one build to judge it, and a second one with a profile beside it
_GAIN = 1.02  # speed-up from which on a quantized model is worth a thorough confirmation: others are as good as none
_HALF = 0.5
"""Of the logarithm of the fastest model's speed-up, whatever its accuracy: where what keeps the bound gains less, a mix
of both is worth more than confirming that thoroughly."""
_FEW = 8
"""Trials that are too few for what is outside the bound: three solutions within it, and what leads to the best one."""
_RECENT = 3
"""Trials whose longest tells what the next one takes outside the runtime, for writing its model and comparing."""


@dataclass(frozen=True, eq=False)
class SearchTime:
    """How long the search may go on: asked anew each time, as steps get faster or slower and contenders more."""

    plan: Schedule  # of the command
    judged: Callable[[], Sequence[Candidate]]  # every candidate so far, the given model first
    contenders: Callable[[], int]  # how many models would be confirmed at the time
    samples: int  # that a candidate is judged on
    blocks: int  # of the first look of a race

    def end(self) -> Deadline:
        """When the search must end, with one more contender: as planned, or later while there is little to confirm."""
        return self.planned() if has_enough(self.judged()) else self.least()

    def planned(self) -> Deadline:
        """When it must end so that the confirmation has its share."""
        return self.plan.search(1 + self.contenders())

    def least(self) -> Deadline:
        """Deadline for mandatory trials; after it only the least confirmation still fits."""
        return self.plan.least_search(1 + self.contenders())

    @property
    def hurries(self) -> bool:
        """Whether there may be no time for two trials before the least confirmation."""
        return not self.least().fits(2.0 * self.trial_s)

    @property
    def trial_s(self) -> float:
        """Seconds that a trial takes in the runtime."""
        return self.plan.costs().trial_s(self.samples, self.blocks)


@dataclass(frozen=True)
class Turn:
    """The time of a trial that is not refused."""

    until: Deadline  # when it must be over: some have more time than the search
    begun: tuple[float, float] | None = None  # on the clock, and busy_s by then; None if an earlier session judged it


def has_enough(judged: Sequence[Candidate]) -> bool:
    """Whether the search has found what is worth a thorough confirmation.

    While no quantized model keeps the bound and gains, or those that do gain little of what others show to be there,
    finding another is worth more: there is only the float one to confirm, or hardly more.
    """
    gains = [(c.trial.feasible, math.log(c.speedup)) for c in judged[1:] if c.placement and c.speedup > 0.0]
    best = max((gain for feasible, gain in gains if feasible), default=0.0)
    return best > math.log(_GAIN) and best >= _HALF * max(gain for _, gain in gains)


class TimeLimit:
    """The time of a search. A trial whose first look would not be over in time is not begun.

    Where it has not found enough (:func:`has_enough`), all trials have as much time as anchors.

    Args:
        time: of the search. Anchors come first and have more of it: the result must not be slower than the best of
            them.
        journal: knows what earlier sessions judged; that costs nothing and is never refused.
        necessary: whether all trials have as much time as anchors.
    """

    def __init__(self, time: SearchTime, journal: Journal, worker: Worker, necessary: bool = False) -> None:
        self.time, self._journal, self._worker, self._necessary = time, journal, worker, necessary
        self._outside_s = deque([0.0], maxlen=_RECENT)

    @property
    def left_s(self) -> float:
        """Seconds that are left; infinite without a limit."""
        return self.time.end().left

    @property
    def trial_s(self) -> float:
        """Seconds that a trial takes, about: in the runtime and outside."""
        return self.time.trial_s + max(self._outside_s)

    def turn(self, proposal: Proposal, key: str, evaluator: Evaluator) -> Turn | str:
        """The time of ``proposal``, or why it is not judged any more."""
        if self._journal.trial(key) is not None:
            return Turn(self.time.end())
        more = proposal.anchor or self._necessary or not has_enough(evaluator.judged)
        deadline = self.time.least() if more else self.time.end()
        if proposal.anchor and proposal.placement and not any(map(_is_worth_confirming, evaluator.judged[1:])):
            deadline = self.time.plan.before_writing  # whatever else is cut, one recipe that keeps the bound is timed
        if not deadline.fits(self.trial_s):
            return f"the rest of the budget of {self.time.plan.config.budget_s:.0f} s is reserved for confirming"
        return Turn(deadline, (deadline.clock(), self._worker.busy_s))

    def judged(self, turn: Turn) -> None:
        """The trial of ``turn`` is judged."""
        if turn.begun is not None:
            begun, busy_s = turn.begun
            self._outside_s.append(max(0.0, turn.until.clock() - begun - (self._worker.busy_s - busy_s)))


def _is_worth_confirming(candidate: Candidate) -> bool:
    """Whether there is anything to confirm: a model that keeps the bound in low precision, or float that gains."""
    outcome = candidate.trial.outcome
    gains = isinstance(outcome, Measured) and outcome.latency.speedup.low > _GAIN
    return candidate.trial.feasible and (bool(candidate.placement) or gains)


class Budget(TimeLimit):
    """The limits of the main search: its time; measurements; builds."""

    def __init__(self, time: SearchTime, journal: Journal, worker: Worker) -> None:
        super().__init__(time, journal, worker)
        end = time.planned()
        self._half_time = end.earlier((1.0 - ANCHORS) * end.left)

    def hurried(self) -> bool:
        """Whether half of the time was spent when this was asked first, or only a few trials fit into what was left.

        A resumed run gets the same answer.
        """
        few_s = _FEW * self.trial_s
        return self._journal.once(HURRIED, lambda: not self._half_time.left or not self.time.planned().fits(few_s))

    def hurries(self) -> bool:
        """See :class:`SearchTime`; a resumed run gets the same answer."""
        return self._journal.once(HURRIES, lambda: self.time.hurries)

    def spare(self) -> bool:
        """Whether a trial takes a small share of the time that is left; a resumed run gets the same answer."""
        return self._journal.once(SPARE, lambda: self.trial_s <= IDLE_TRIAL * self.time.planned().left)

    def turn(self, proposal: Proposal, key: str, evaluator: Evaluator) -> Turn | str:
        """See :class:`TimeLimit`."""
        turn, config = super().turn(proposal, key, evaluator), self.time.plan.config
        if isinstance(turn, str) or proposal.anchor or turn.begun is None:
            return turn
        most = config.max_measurements
        timed = sum(isinstance(c.trial.outcome, Measured) for c in evaluator.judged)
        if most is not None and timed >= most:
            return f"the limit of {counted(most, 'measurement')} is reached"
        builds = config.max_builds
        if builds is not None and self._worker.builds + _BUILDS_OF_A_TRIAL > builds:
            return f"the limit of {counted(builds, 'build')} leaves no room for another candidate"
        return turn
