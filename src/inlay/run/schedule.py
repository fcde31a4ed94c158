"""How the time of one command is shared, and what is done less thoroughly where a model is slow.

The shares of all phases of a tune stand here. The schedule knows when the command began and when its result must
be written; every phase asks it what it may use, by what steps were found to cost so far, and what one leaves goes to
those behind it. The confirmation comes last: exactly the time that the current finalists need is reserved for it, by
what steps cost lately. Without a limit everything is done as thoroughly as the settings say.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from inlay.deadline import Clock, Deadline
from inlay.errors import TooShort
from inlay.measure.costs import FREE, Costs
from inlay.measure.paired import MIN_PAIRS
from inlay.prepare.config import TuneConfig
from inlay.prepare.protocol import Protocol
from inlay.trial import counted, shown_seconds

# --- shares of the whole command -------------------------------------------------------------------------------------

PRECISION, PRECISION_S = 0.03, 2.0
"""The given model timed in float32 besides, where that is a choice; so many seconds where time is ample."""
JUDGING = 0.03  # the outputs of one model on all samples of a part
PROBING = 0.1  # the noise of every source alone
RACING = 0.05  # a race begins no further look after it
CONFIRMING = 0.3  # the confirmation, unless even the least one takes longer
CONFIRMING_AGAIN = 0.25
"""The same in a run that goes on: what earlier sessions found is of no use if it is not confirmed."""
CROSSING = 0.05  # the winner judged on the samples that are not unseen; beyond, only what time is left
EVALUATING = 0.35
"""The user's own evaluation of models besides the given one, all of them together; one is evaluated in any case."""
EVALUATING_AGAIN = 0.05  # a second evaluation of the given model, which tells whether scores repeat
PEAKS = 0.01  # the short form of measuring the processor's peaks
USES = 0.05  # the delivered model in other uses than the one that it was tuned for, each way to set the target up
WRITING, WRITING_S = 0.03, 2.0
"""Writing the result of a small model and ending the process; so many seconds where time is ample."""

# --- shares of what one recipe and the least confirmation leave when a phase before the search begins -----------------

SMOOTHING = 0.4
"""Looking for outliers to move into weights: transformers gain more by it than by ranges, others take none of it."""
CALIBRATING = 0.35  # choosing qparams: without them there is nothing to search

# --- shares of what the search has left -------------------------------------------------------------------------------

PROBING_LATE = 0.25  # probing noise: what it learns must be of use
SOLVING = 0.1  # one integer program
PROFILING = 0.05  # the inferences of one profile
FIRST_LOOK = 0.08  # the blocks of a race's first look
IDLE_TRIAL = 0.05  # a trial that is not expected to gain
ANCHORS = 0.5  # the anchors: where they took as much, what is outside the accuracy bound is not explored

# ----------------------------------------------------------------------------------------------------------------------

MOST_CONTENDERS = 5  # candidates of the search that are measured again, the given model aside
QUICK_CONTENDERS, QUICK_NS = 8, 20e6
"""Where the given model takes less than so many nanoseconds, more contenders cost little. The best of many noisy
readings owe their place to luck in part: the more are measured again, the likelier a sound one is among them."""
_PRECISION_MOST = 0.05  # of the whole time, beyond which a phase has no more seconds than its share
_WRITING_MOST = 0.1
"""Of the whole time, for writing on a busy machine, where starting a process took as long: both load libraries."""
_WRITTEN_BYTES_S = 16e6
"""Bytes of a model for which writing takes a second more: it is copied, its graph drawn, its memory freed."""
_LEAST_BLOCKS = 2  # of the first look of a race: it is undecided, and the confirmation decides
_DECIDING_BLOCKS = 10  # fewest blocks that can show a gain at the level of the confirmation: 2 / 2^10 < 0.002
LEAST_SAMPLES = 2  # in each part, where the model is slow
LATER_LOOK = 3  # times the processes of the first look that a second look takes
_SAFETY = 1.2
"""What estimates by the first inference are multiplied with: a machine's speed changes while a command runs."""
_LATE_SAFETY = 1.1  # the same for the confirmation: by the latest steps, and its blocks end with the time
_FINALISTS = 4  # the given model, float, the chosen model and the best anchor
_LEAST_MODELS = 3  # the given model, float, and one in low precision: fewer leave nothing to decide
_PREPARING = (8, 30)
"""Builds and inferences that normalizing, calibrating and two anchors take at least, besides their readings."""


@dataclass(frozen=True)
class Effort:
    """How thoroughly contenders are confirmed."""

    contenders: int  # that are measured again, the given model aside
    first: int  # processes of the round that chooses among them; 0 where the readings of the search choose
    second: int  # processes of the round that decides
    blocks: int  # in each process

    def seconds(self, costs: Costs, contenders: int) -> float:
        """What it takes by ``costs``, where there are so many contenders."""
        contenders, finalists = min(self.contenders, contenders), self.finalists(contenders)
        most, blocks = (1, 1) if costs.deterministic else (max(self.first, self.second), self.blocks)
        first = min(self.first, most) * costs.process_s(1 + contenders, blocks)
        second = min(self.second, most) * costs.process_s(finalists, blocks)
        writing = contenders * costs.candidate_build_s + costs.float_more_s
        ending = costs.ending
        judged = ending.unseen + ending.crossed
        verifying = finalists * costs.judge_s(judged) + costs.float_more_s if judged else 0.0
        evaluating = ending.evaluating_s + (ending.evaluating_more_s if self.first else 0.0)
        return _LATE_SAFETY * (first + second + writing + verifying + costs.crossed_s + evaluating)

    def finalists(self, contenders: int) -> int:
        """Models of the round that decides at most, the given one among them, where there are so many contenders."""
        return min(_FINALISTS, 1 + self.contenders, 1 + contenders)

    def done(self, first: int, deciding: int) -> Effort:
        """What was done of it, by the processes of the first round and the deciding blocks that there were."""
        enough = deciding >= self.second * self.blocks
        decided = self if enough else replace(self, second=1, blocks=deciding)
        return replace(decided, first=min(first, self.first))

    def cut_from(self, full: Effort) -> str:
        """What it leaves out of a full effort; empty where it is one."""
        if self == full:
            return ""
        contenders = counted(self.contenders, "contender")
        chosen = f"{contenders} chosen in {counted(self.first, 'fresh process', 'fresh processes')}"
        by_search = f"{contenders} chosen by the search's readings"
        counts = f"{self.second * self.blocks} of {full.second * full.blocks} deciding blocks"
        return f"{chosen if self.first else by_search}, {counts}"


def efforts(config: TuneConfig, inference_s: float) -> tuple[Effort, ...]:
    """From what ``config`` asks for down to the least."""
    quick = inference_s * 1e9 < QUICK_NS
    processes, blocks = max(1, config.confirm_processes), config.confirm_blocks
    single = max(blocks, _DECIDING_BLOCKS)
    return (
        Effort(QUICK_CONTENDERS if quick else MOST_CONTENDERS, 3 if quick else 1, processes, blocks),
        Effort(MOST_CONTENDERS, 1, processes, blocks),
        Effort(MOST_CONTENDERS - 1, 1, min(2, processes), blocks),
        Effort(MOST_CONTENDERS - 2, 1, 1, single),
        Effort(_LEAST_MODELS - 1, 0, 1, single),
    )


def deadline_of(budget_s: float | None, spent_s: float, begun: float, clock: Clock) -> Deadline:
    """Of a command that began at ``begun``, when earlier sessions of its run had spent ``spent_s``."""
    return Deadline(math.inf if budget_s is None else begun + max(0.0, budget_s - spent_s), clock)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When the command began, when it must be done, and when each phase must be."""

    begun: float  # on the clock of `deadline`
    deadline: Deadline  # the result is written, and the process about to end
    config: TuneConfig = field(default_factory=TuneConfig)  # the settings
    costs: Callable[[], Costs] = lambda: FREE  # what steps take, by what is known at the time
    size: int = 0  # of the given model, in bytes
    started_s: float = 0.0  # seconds that starting a process took

    def with_time_to_confirm(self) -> Schedule:
        """The same with time from now on to confirm what earlier sessions found, if need be beyond the budget."""
        until = self.deadline.clock() + CONFIRMING_AGAIN * (self.config.budget_s or 0.0)
        return replace(self, deadline=replace(self.deadline, at=max(self.deadline.at, until)))

    @property
    def seconds(self) -> float:
        """Of the whole command; infinite without a limit."""
        return self.deadline.at - self.begun

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return not math.isinf(self.seconds)

    @property
    def efforts(self) -> tuple[Effort, ...]:
        """How thoroughly may be confirmed: from what the settings ask for down to the least."""
        return efforts(self.config, self.costs().inference_s)

    def require(self, costs: Costs, spent_s: float, more: bool = False) -> None:
        """Raise TooShort where the budget is too short for the fewest readings of the fewest models.

        Args:
            costs: after the first timed inference.
            spent_s: by earlier sessions.
            more: the first inference was not over by then.
        """
        costs = replace(costs, turn_s=costs.turn_s / costs.feeds)  # of several shapes, there are fewer blocks
        builds, inferences = _PREPARING
        ahead_s = builds * costs.candidate_build_s + inferences * costs.inference_s
        ahead_s += 2 * _LEAST_BLOCKS * costs.block_s(_LEAST_MODELS)
        least = efforts(self.config, costs.inference_s)[-1]
        ahead_s = _SAFETY * ahead_s + self._reserve(least, costs, least.contenders)
        if self.deadline.fits(ahead_s):
            return
        least_s = (spent_s + self.deadline.clock() - self.begun + ahead_s) / (1.0 - WRITING)
        needed_s = math.ceil(_SAFETY * least_s)
        raise TooShort(
            f"--budget {self.config.budget_s:.0f}s is too short: one inference takes {'more than ' * more}"
            f"{shown_seconds(costs.inference_s)} here, a build {shown_seconds(costs.build_s, 2)} and a process "
            f"{shown_seconds(costs.worker_s, 2)}: give {needed_s}s or more",
            needed_s,
        )

    def samples(self, count: int) -> int:
        """How many of ``count`` samples of a part models are judged on."""
        if not self.is_limited:
            return count
        most = int(min(JUDGING * self.seconds / max(self.costs().inference_s, 1e-9), count))
        return min(count, max(LEAST_SAMPLES, most))

    @property
    def precision_s(self) -> float:
        """Seconds that timing the given model in a second precision may take."""
        return max(PRECISION * self.seconds, min(PRECISION_S, _PRECISION_MOST * self.seconds))

    def preparing(self, share: float) -> Deadline:
        """When a phase before the search with this ``share`` of the time must be over.

        It leaves time for one recipe: better ranges are no use to what is never timed.
        """
        if not self.is_limited:
            return self.deadline
        one_recipe_s = _SAFETY * self.costs().trial_s(LEAST_SAMPLES, MIN_PAIRS)
        return self.deadline.within(share * self.least_search().earlier(one_recipe_s).left)

    def search(self, contenders: int = MOST_CONTENDERS) -> Deadline:
        """When the search must end, so that confirming the contenders is as thorough as its share of the time allows.

        It moves while the search goes on, with what steps cost and how many contenders there are.
        """
        costs, wanted, share_s = self.costs(), self.efforts, CONFIRMING * self.seconds
        effort = next((e for e in wanted if e.seconds(costs, contenders) <= share_s), wanted[-1])
        return self.deadline.earlier(self._reserve(effort, costs, contenders))

    def least_search(self, contenders: int = MOST_CONTENDERS) -> Deadline:
        """Deadline for mandatory trials; after it only the least confirmation still fits."""
        return self.deadline.earlier(self._reserve(self.efforts[-1], self.costs(), contenders))

    def protocol(self) -> Protocol:
        """How latency is measured, with as few blocks at first, and as short races, as the time asks for.

        There are no fewer than an interval needs, where these take no longer than a race may.
        """
        protocol, block_s, race_s = self.config.protocol, self.costs().block_s(3), RACING * self.seconds
        if not self.is_limited:
            return protocol
        blocks = FIRST_LOOK * self.search().left / max(block_s, 1e-9)
        least = MIN_PAIRS if MIN_PAIRS * block_s <= race_s else _LEAST_BLOCKS
        first = int(np.clip(blocks, min(least, protocol.first_blocks), protocol.first_blocks))
        return replace(protocol, first_blocks=first, race_s=min(protocol.race_s, race_s))

    def confirmation(self, contenders: int) -> Effort:
        """The most thorough confirmation of so many contenders that there is time for.

        The round that decides gets as many processes, or a single one as many blocks, as there is time for, up to all.
        """
        costs, wanted, left_s = self.costs(), self.efforts, self.before_writing.left
        found = next((e for e in wanted if e.seconds(costs, contenders) <= left_s), wanted[-1])
        full = wanted[0].second * wanted[0].blocks
        longer = [replace(found, second=second) for second in range(wanted[0].second, found.second, -1)]
        if found.second == 1:
            longer += [replace(found, blocks=blocks) for blocks in range(full, found.blocks, -1)]
        return next((e for e in longer if e.seconds(costs, contenders) <= left_s), found)

    def readings(self, effort: Effort, contenders: int) -> Deadline:
        """When a confirmation's readings end, so that the delivered model is judged on all samples behind them.

        Where there is no time for both, readings go first.
        """
        costs = self.costs()
        if not self.before_writing.fits(effort.seconds(costs, contenders)):
            return self.deadline
        return self.before_writing.earlier(costs.crossed_s)

    def weighing(self, effort: Effort, contenders: int) -> Deadline:
        """When it must be known what samples say of contenders, so that the round that decides has its time.

        Where the user's own evaluation does, it goes before all but the fewest readings: without it, nothing is shown.
        """
        if not self.is_limited:
            return self.deadline
        costs = self.costs()
        second, blocks = (1, 1) if costs.deterministic else (effort.second, effort.blocks)
        if costs.ending.evaluating_s:
            second, blocks = 1, min(blocks, MIN_PAIRS)
        return self.before_writing.earlier(_SAFETY * second * costs.process_s(effort.finalists(contenders), blocks))

    def later_look(self, models: int, effort: Effort) -> int:
        """Processes that measure open cases once more: the interval shrinks to half, as far as there is time."""
        costs, wanted = self.costs(), LATER_LOOK * effort.second
        if not self.is_limited:
            return wanted
        left_s = max(0.0, self.before_writing.left - costs.crossed_s)
        return min(wanted, int(left_s / (_SAFETY * costs.process_s(models, effort.blocks))))

    def longer_s(self, more_s: float, effort: Effort, full: Effort) -> int:
        """Seconds of a budget of which the confirmation's share is ``more_s`` seconds more, in steps of 5 s."""
        more_s = _LATE_SAFETY * more_s + (0.0 if effort.first else 1.0) * (full.first + full.second)
        return 5 * math.ceil((self.seconds + more_s / CONFIRMING) / 5)

    @property
    def before_writing(self) -> Deadline:
        """When everything must be known that is to be written."""
        return self.deadline.earlier(self._writing_s)

    @property
    def _writing_s(self) -> float:
        if not self.is_limited:
            return 0.0
        return min(WRITING_S + self.size / _WRITTEN_BYTES_S, max(WRITING * self.seconds, self._loading_s))

    @property
    def before_report(self) -> Deadline:
        """When the report must begin, which is written behind everything else."""
        return self.deadline.earlier(self._loading_s)

    @property
    def _loading_s(self) -> float:
        return min(WRITING_S, self.started_s, _WRITING_MOST * self.seconds)

    def _reserve(self, effort: Effort, costs: Costs, contenders: int) -> float:
        return effort.seconds(costs, contenders) + self._writing_s if self.is_limited else 0.0
