"""How the time of one command is shared, and what is done less thoroughly where a model is slow.

A plan knows when the command began and when its result must be written. Every phase asks it what it may use, by what
steps were found to cost; what one phase leaves goes to those behind it. The confirmation comes last, so its share is
kept free from the beginning. Without a limit everything is done as thoroughly as the settings say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from inlay.deadline import Clock, Deadline
from inlay.errors import UsageError
from inlay.measure import policy
from inlay.measure.race import Protocol
from inlay.prepare.config import TuneConfig
from inlay.run.contenders import MOST_CONTENDERS, QUICK_CONTENDERS, QUICK_NS

_CALIBRATION_SHARE = 0.35
"""Of the time that the least confirmation leaves: without qparams there is nothing to search."""
_CONFIRMATION_SHARE = 0.3
"""Of the whole time, at most, unless even the least confirmation takes longer."""
_RACE_SHARES = (0.05, 0.08)
"""Of the whole time, after which a race begins no further look; of the search, for its first look."""
_ACCURACY_SHARE = 0.03
"""Of the whole time, for the outputs of one model on all samples of a part."""
_WRITING_SHARE = 0.03
"""Of the whole time, for writing the result and ending the process."""
_LEAST_BLOCKS = 2
"""Of the first look of a race: it is undecided, and the confirmation decides."""
_DECIDING_BLOCKS = 10
"""Fewest blocks that can show a gain at the level of the confirmation: 2 / 2^10 < 0.002."""
LEAST_SAMPLES = 2
"""In each part, where the model is slow."""
LATER_LOOK = 3
"""Times the processes of the first look that a second look takes."""
_SAFETY = 1.2
"""What estimates are multiplied with: a machine's speed changes while a command runs."""
_QUANTIZED_BUILD = 2.0
"""Times the build of the given model that the build of a candidate takes."""
_FINALISTS = 4
"""The given model, float, the chosen model and the best anchor."""
_LEAST_MODELS = 3
"""The given model, float, and one in low precision: fewer leave nothing to decide."""
_PREPARING = (8, 30)
"""Builds and inferences that normalizing, calibrating and two anchors take at least, besides their readings."""


@dataclass(frozen=True)
class Costs:
    """Seconds that steps take here, as this run found out.

    Attributes:
        worker_s: starting a process for the runtime.
        build_s: building the given model in it.
        inference_s: one inference of the given model.
        slot_ns: nanoseconds that one reading takes at least.
        deterministic: one block in one process tells all.
    """

    worker_s: float = 0.0
    build_s: float = 0.0
    inference_s: float = 0.0
    slot_ns: int = 0
    deterministic: bool = False

    @property
    def candidate_build_s(self) -> float:
        """Building a candidate."""
        return _QUANTIZED_BUILD * self.build_s

    def block_s(self, models: int) -> float:
        """One block of so many models."""
        slot_s = self.slot_ns * 1e-9
        is_long = self.inference_s > policy.LONG_INFERENCE_SLOTS * slot_s
        reading_s = self.inference_s if is_long else max(slot_s, 2.0 * self.inference_s) + self.inference_s
        return 2 * models * reading_s

    def trial_s(self, samples: int, blocks: int) -> float:
        """Judging a candidate on so many samples, and so many blocks of a race."""
        return self.candidate_build_s + samples * self.inference_s + blocks * self.block_s(3)

    def profile_s(self, models: int, repeats: int) -> float:
        """Profiles of so many candidates: each is built twice."""
        return models * (2 * self.candidate_build_s + repeats * self.inference_s)

    def process_s(self, models: int, blocks: int) -> float:
        """So many blocks in a fresh process."""
        ready_s = self.candidate_build_s + 5 * self.inference_s  # which tell how many inferences fill a slot
        return self.worker_s + models * ready_s + blocks * self.block_s(models)


@dataclass(frozen=True)
class Effort:
    """How thoroughly contenders are confirmed.

    Attributes:
        contenders: that are measured again, the given model aside.
        first: processes of the round that chooses among them; 0 where the readings of the search choose.
        second: processes of the round that decides.
        blocks: in each process.
    """

    contenders: int
    first: int
    second: int
    blocks: int

    def seconds(self, costs: Costs) -> float:
        """What it takes, by ``costs``."""
        most, blocks = (1, 1) if costs.deterministic else (max(self.first, self.second), self.blocks)
        first = min(self.first, most) * costs.process_s(1 + self.contenders, blocks)
        second = min(self.second, most) * costs.process_s(min(_FINALISTS, 1 + self.contenders), blocks)
        return _SAFETY * (first + second + self.contenders * costs.candidate_build_s)

    def cut_from(self, full: Effort) -> str:
        """What it leaves out of a full effort; empty where it is one."""
        if self == full:
            return ""
        chosen = f"{self.contenders} contenders chosen in {self.first} fresh processes"
        by_search = f"{self.contenders} contenders chosen by the search's readings"
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


@dataclass(frozen=True)
class Plan:
    """When the command began, and when it must be done.

    Attributes:
        begun: on the clock of ``deadline``.
        deadline: the result is written, and the process about to end.
    """

    begun: float
    deadline: Deadline

    @classmethod
    def of(cls, budget_s: float | None, spent_s: float, begun: float, clock: Clock) -> Plan:
        """The plan of a command that began at ``begun``, when earlier sessions of its run had spent ``spent_s``."""
        return cls(begun, Deadline(math.inf if budget_s is None else begun + max(0.0, budget_s - spent_s), clock))

    @property
    def seconds(self) -> float:
        """Of the whole command; infinite without a limit."""
        return self.deadline.at - self.begun

    def require(self, costs: Costs, config: TuneConfig, spent_s: float) -> None:
        """Raise UsageError where the budget is too short for the fewest readings of the fewest models.

        Args:
            costs: after the first timed inference.
            config: the settings.
            spent_s: by earlier sessions.
        """
        builds, inferences = _PREPARING
        ahead_s = builds * costs.candidate_build_s + inferences * costs.inference_s
        ahead_s += 2 * _LEAST_BLOCKS * costs.block_s(_LEAST_MODELS)
        ahead_s = _SAFETY * ahead_s + self._reserve(efforts(config, costs.inference_s)[-1], costs)
        if self.deadline.fits(ahead_s):
            return
        least_s = (spent_s + self.deadline.clock() - self.begun + ahead_s) / (1.0 - _WRITING_SHARE)
        raise UsageError(
            f"--budget {config.budget_s:.0f}s is too short: one inference takes {costs.inference_s * 1e3:.3g} ms here, "
            f"a build {costs.build_s:.2g} s and a process {costs.worker_s:.2g} s: give {math.ceil(_SAFETY * least_s)}s "
            "or more"
        )

    def samples(self, count: int, costs: Costs) -> int:
        """How many of ``count`` samples of a part models are judged on."""
        if math.isinf(self.seconds):
            return count
        most = int(min(_ACCURACY_SHARE * self.seconds / max(costs.inference_s, 1e-9), count))
        return min(count, max(LEAST_SAMPLES, most))

    def calibration(self, costs: Costs, config: TuneConfig) -> Deadline:
        """When qparams must be known."""
        if math.isinf(self.seconds):
            return self.deadline
        free_s = self.least_search(costs, config).left
        return self.deadline.within(_CALIBRATION_SHARE * free_s)

    def search(self, costs: Costs, config: TuneConfig) -> Deadline:
        """When the search must end, so that the confirmation is as thorough as its share of the time allows."""
        wanted = efforts(config, costs.inference_s)
        share_s = _CONFIRMATION_SHARE * self.seconds
        effort = next((e for e in wanted if e.seconds(costs) <= share_s), wanted[-1])
        return self.deadline.earlier(self._reserve(effort, costs))

    def least_search(self, costs: Costs, config: TuneConfig) -> Deadline:
        """When the anchors must be known: behind it there is time for the least confirmation only."""
        return self.deadline.earlier(self._reserve(efforts(config, costs.inference_s)[-1], costs))

    def protocol(self, protocol: Protocol, costs: Costs, search: Deadline) -> Protocol:
        """``protocol`` with as few blocks in the first look of a race, and as short races, as the time asks for."""
        if math.isinf(self.seconds):
            return protocol
        race_share, look_share = _RACE_SHARES
        blocks = look_share * search.left / max(costs.block_s(3), 1e-9)
        first = int(np.clip(blocks, min(_LEAST_BLOCKS, protocol.first_blocks), protocol.first_blocks))
        return replace(protocol, first_blocks=first, race_s=min(protocol.race_s, race_share * self.seconds))

    def confirmation(self, costs: Costs, config: TuneConfig) -> Effort:
        """The most thorough confirmation that there is time for."""
        wanted = efforts(config, costs.inference_s)
        left_s = self.before_writing.left
        return next((e for e in wanted if e.seconds(costs) <= left_s), wanted[-1])

    def later_look(self, costs: Costs, models: int, effort: Effort) -> int:
        """Processes that measure open cases once more: the interval shrinks to half, as far as there is time."""
        wanted, left_s = LATER_LOOK * effort.second, self.before_writing.left
        return (
            wanted
            if math.isinf(left_s)
            else min(wanted, int(left_s / (_SAFETY * costs.process_s(models, effort.blocks))))
        )

    @property
    def before_writing(self) -> Deadline:
        """When everything must be known that is to be written."""
        return self.deadline if math.isinf(self.seconds) else self.deadline.earlier(_WRITING_SHARE * self.seconds)

    def _reserve(self, effort: Effort, costs: Costs) -> float:
        if math.isinf(self.seconds):
            return 0.0
        return effort.seconds(costs) + _WRITING_SHARE * self.seconds + costs.build_s
