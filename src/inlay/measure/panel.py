"""Models on several targets side by side on one machine, timed in turn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from inlay.deadline import Clock
from inlay.errors import Late, TargetError
from inlay.measure.client import Worker
from inlay.measure.paired import Series, Timing, joined, read_again, speedup
from inlay.targets.base import Artifact
from inlay.trial import Interval

Rows = Mapping[str, Artifact]  # files by row of the table, the given model first


@dataclass(frozen=True, eq=False)
class Readings:
    """Readings of files on targets, in blocks that all of them share."""

    cells: tuple[tuple[str, str], ...]  # row and column of each model in a block
    timing: Timing  # of the blocks
    failed: Mapping[tuple[str, str], str] = field(default_factory=dict)  # cells that failed, with the reason

    @property
    def blocks(self) -> int:
        """How many there are."""
        return len(self.timing.ns)

    def latency_ms(self, cell: tuple[str, str]) -> float:
        """Median of one inference, without what other processes took."""
        return self._of(cell).median_ns / 1e6

    def ratio(self, over: tuple[str, str], of: tuple[str, str]) -> Interval:
        """Latency of ``over`` divided by that of ``of``: how much faster ``of`` is, paired by block."""
        return speedup(self._of(over), self._of(of))

    def gain(self, before: Mapping[tuple[str, str], float], after: Mapping[tuple[str, str], float]) -> Interval:
        """How much faster a job is that runs the cells of ``after`` so often, one behind the other, than ``before``."""
        return speedup(self.total(before), self.total(after))

    def total(self, runs: Mapping[tuple[str, str], float]) -> Series:
        """Readings of a job that runs each of these cells so often, one behind the other."""
        parts = [(self._of(cell), times) for cell, times in runs.items()]
        ns = np.sum([times * each.ns for each, times in parts], axis=0)
        taken = np.sum([times * each.ns * each.taken for each, times in parts], axis=0) / ns
        exact, busy = all(each.exact for each, _ in parts), any(each.busy for each, _ in parts)
        return Series(ns, taken, None, exact, self.timing.processes, busy=busy)

    def _of(self, cell: tuple[str, str]) -> Series:
        return self.timing.models[self.cells.index(cell)]


def time_in_turn(
    workers: Mapping[str, Worker],
    rows: Mapping[str, Rows],
    feed: Path | Mapping[str, Path],
    blocks: int,
    slot_ns: int,
    rng: np.random.Generator,
    left_s: Callable[[], float],
    clock: Clock,
) -> Readings:
    """Time files on their targets: a block is each target's own interleaved block, targets in a random order.

    A file that fails is left out of all blocks. Blocks in which other processes took a part of a reading are measured
    once more, where there is time.

    Args:
        workers: a process for each target, by label; models stay resident in it.
        rows: the files of each target, by label; a target whose first file fails has no readings at all.
        feed: file of their inputs, or one for each label.
        left_s: seconds that are left; no block but the first is begun that would take longer.

    Raises:
        Late: there was no time for a single block.
    """
    turns = {label: _Turns(workers[label], dict(files)) for label, files in rows.items()}
    found: list[Timing] = []
    took_s = 0.0

    def more(count: int) -> Timing:
        nonlocal took_s
        for _ in range(count):
            if found and left_s() < took_s:
                break
            begun = clock()
            try:
                _block(turns, found, feed, slot_ns, rng)
            except Late:
                if not found or not any(each.files for each in turns.values()):
                    raise
                break  # what was read before stands
            took_s = clock() - begun
        return joined(found)

    blocks = 1 if all(workers[label].deterministic for label in turns) else blocks
    timing = read_again(more(blocks), blocks, more)
    cells = tuple((row, label) for label, each in turns.items() for row in each.files)
    failed = {(row, label): why for label, each in turns.items() for row, why in each.failed.items()}
    return Readings(cells, timing, failed)


def _block(
    turns: Mapping[str, _Turns],
    found: list[Timing],
    feed: Path | Mapping[str, Path],
    slot_ns: int,
    rng: np.random.Generator,
) -> None:
    """Append a block to ``found``; what fails in it is taken out of the earlier ones, and the block begun anew."""
    labels = list(turns)
    while any(turns[label].files for label in labels):
        parts: dict[str, Timing] = {}
        for index in rng.permutation(len(labels)):
            label = labels[int(index)]
            if not turns[label].files:
                continue
            own = feed if isinstance(feed, Path) else feed[label]
            gone = turns[label].block(parts, label, own, slot_ns, int(rng.integers(2**31)))
            if gone:
                at = sum(len(turns[each].files) for each in labels[: labels.index(label)])
                found[:] = [earlier.without([at + i for i in gone]) for earlier in found]
                turns[label].forget(gone)
                break
        else:
            found.append(_beside([parts[label] for label in labels if label in parts]))
            return
    raise Late("nothing ran in fresh processes")


class _Turns:
    """The files that one target is timed with, and those that failed."""

    def __init__(self, worker: Worker, files: dict[str, Artifact]) -> None:
        self.worker, self.files = worker, files
        self.failed: dict[str, str] = {}

    def block(self, parts: dict[str, Timing], label: str, feed: Path, slot_ns: int, seed: int) -> list[int]:
        """One block into ``parts``, or the indices of what failed."""
        try:
            parts[label] = self.worker.time(list(self.files.values()), feed, 1, slot_ns, seed)
            return []
        except Late:  # no file is to blame
            raise
        except TargetError as error:
            rows = list(self.files)
            blamed = next((i for i, r in enumerate(rows) if i and self.files[r].digest == error.culprit), 0)
            gone = [blamed] if blamed else [*range(len(rows))]
            self.failed.update((rows[i], str(error)) for i in gone)
            return gone

    def forget(self, gone: Sequence[int]) -> None:
        """Take files out."""
        rows = list(self.files)
        for index in gone:
            with contextlib.suppress(TargetError):
                self.worker.drop(self.files[rows[index]])
            del self.files[rows[index]]


def _beside(parts: Sequence[Timing]) -> Timing:
    """One block of all targets from one of each: it has drifted as much as the one that has most."""
    ns, taken, hit = (np.hstack([getattr(p, name) for p in parts]) for name in ("ns", "taken", "hit"))
    exact = np.hstack([np.broadcast_to(p.exact, p.ns.shape[1]) for p in parts])
    return Timing(ns, np.max([p.drift for p in parts], axis=0), taken, hit, exact=exact)
