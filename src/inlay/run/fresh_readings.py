"""Readings of contenders in fresh processes: who fails there is given up, and the others are measured all the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from inlay.errors import TargetError
from inlay.measure.client import Limit, StartWorker
from inlay.measure.stats import MIN_PAIRS
from inlay.prepare.config import TuneConfig
from inlay.run.contenders import Entry


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
        given_up: contenders that failed twice in a row, by key, with the reason.
    """

    start: StartWorker
    limit: Limit
    feed: Path
    config: TuneConfig
    folder: Path
    rng: np.random.Generator
    given_up: dict[str, str] = field(default_factory=dict)

    def of(self, entries: Sequence[Entry], processes: int, blocks: int) -> list[Entry]:
        """The contenders with new readings in place of theirs, without those that failed.

        Args:
            entries: the contenders, the given model first.
            processes: how many fresh processes; with none, they keep the readings that they have.
            blocks: in each of them.

        Raises:
            TargetError: no process could be started, or the given model gave too few readings to compare with.
        """
        kept, readings = list(entries), list[np.ndarray]()
        if not processes:
            return kept
        enough = min(MIN_PAIRS, processes * blocks)
        while len(readings) < processes:
            try:
                ns, deterministic = self._one_process(kept, blocks)
            except TargetError as error:
                blamed = next((i for i, e in enumerate(kept) if i and e.file.digest == error.culprit), None)
                if blamed is not None:
                    self.given_up[kept.pop(blamed).key] = str(error)
                    readings = [np.delete(r, blamed, axis=1) for r in readings]
                    continue
                if sum(map(len, readings)) >= enough:
                    break
                raise
            readings.append(ns)
            if deterministic:
                break
        ns = np.concatenate(readings)
        return [e.with_readings(ns[:, i]) for i, e in enumerate(kept)]

    def _one_process(self, entries: Sequence[Entry], most: int) -> tuple[np.ndarray, bool]:
        """Readings of one process, shape (blocks, models), fewer where it fails later on; and if they have no noise."""
        with self.start(self.config.target, self.folder, self.limit) as fresh:
            blocks = 1 if fresh.deterministic else most
            seed = int(self.rng.integers(2**31))
            files = [e.file for e in entries]
            return fresh.time(files, self.feed, blocks, self.config.protocol.slot_ns, seed).ns, fresh.deterministic
