"""Readings of contenders in fresh processes: who fails there is given up, and the others are measured all the same."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from inlay.deadline import Deadline
from inlay.errors import Late, TargetError
from inlay.measure.client import Limit, StartWorker, Timing, joined
from inlay.measure.stats import MIN_PAIRS
from inlay.prepare.config import TuneConfig
from inlay.run.contenders import Entry

_RESERVE = 4.0
"""Times the seconds of one process that must be left for its preempted blocks to be measured again."""
_BUSY = 0.2
"""Share of blocks with preempted readings above which the faster half of the others may not outweigh them."""


@dataclass(frozen=True, eq=False)
class FreshReadings:
    """Measures contenders in fresh processes.

    Attributes:
        start: starts a process.
        limit: seconds that one call of the runtime may take.
        feed: file of the inputs that latency is measured on.
        config: settings.
        folder: for scratch files.
        rng: seeds the order of models within blocks.
        deadline: of the measuring.
        given_up: contenders that failed twice in a row, by key, with the reason.
        preempted: for each block that counts, whether other processes took a part of a reading.
    """

    start: StartWorker
    limit: Limit
    feed: Path
    config: TuneConfig
    folder: Path
    rng: np.random.Generator
    deadline: Deadline = field(default_factory=Deadline)
    given_up: dict[str, str] = field(default_factory=dict)
    preempted: list[bool] = field(default_factory=list)

    @property
    def is_busy(self) -> bool:
        """Whether the machine was never quiet for long enough."""
        return bool(self.preempted) and float(np.mean(self.preempted)) > _BUSY

    def of(self, entries: Sequence[Entry], processes: int, blocks: int) -> list[Entry]:
        """The contenders with new readings in place of theirs, without those that failed.

        Args:
            entries: the contenders, the given model first.
            processes: how many fresh processes; with none, they keep the readings that they have.
            blocks: in each of them.

        Raises:
            TargetError: no process could be started, or the given model gave too few readings to compare with.
            Late: there was no time left for any.
        """
        kept, readings = list(entries), list[Timing]()
        if not processes:
            return kept
        enough = min(MIN_PAIRS, processes * blocks)
        took_s = 0.0
        while len(readings) < processes and not (readings and not self.deadline.fits(took_s)):
            begun = self.deadline.clock()
            try:
                found, deterministic = self._one_process(kept, blocks)
            except TargetError as error:
                blamed = next((i for i, e in enumerate(kept) if i and e.file.digest == error.culprit), None)
                if blamed is not None:
                    self.given_up[kept.pop(blamed).key] = str(error)
                    readings = [r.without(blamed) for r in readings]
                    continue
                if sum(len(r.ns) for r in readings) >= enough:
                    break
                raise
            readings.append(found)
            took_s = self.deadline.clock() - begun
            if deterministic:
                break
        whole = joined(readings)
        each = [None if whole.by_feed is None else whole.by_feed[:, i] for i in range(len(kept))]
        return [e.with_readings(whole.ns[:, i], whole.taken[:, i], each[i]) for i, e in enumerate(kept)]

    def _one_process(self, entries: Sequence[Entry], most: int) -> tuple[Timing, bool]:
        """Readings of one process, and if they have no noise.

        Blocks in which a model was preempted are measured once more, where there is time; only where too few others
        remain do they count. Where the time ends, no further block is begun.
        """
        if not self.deadline.left:
            raise Late("the budget was spent before contenders could be measured in fresh processes")
        with self.start(self.config.target, self.folder, self.limit) as fresh:
            blocks = 1 if fresh.deterministic else most
            seed = int(self.rng.integers(2**31))
            files, slot_ns = [e.file for e in entries], self.config.protocol.slot_ns
            begun = self.deadline.clock()

            def left_s() -> float:
                return self.deadline.left

            found = fresh.time(files, self.feed, blocks, slot_ns, seed, left_s)
            took_s = self.deadline.clock() - begun
            if found.preempted.any() and not fresh.deterministic and self.deadline.fits(_RESERVE * took_s):
                with contextlib.suppress(TargetError):  # the first blocks count all the same
                    more = fresh.time(files, self.feed, int(found.preempted.sum()), slot_ns, seed + 1, left_s)
                    found = joined([found, more]).least_preempted(blocks)
            self.preempted.extend(map(bool, found.preempted))
            return found, fresh.deterministic
