"""Readings of contenders in fresh processes: who fails there is given up, and the others are measured all the same.

Processes on equal devices measure at the same time. Each has all contenders in its blocks, so that figures are paired
on one device. Seeds are given out in the order of asking, and readings are taken in it, whichever device was quicker:
with one device or many, equal seeds give equal results on a target that repeats.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import numpy as np

from inlay.deadline import NEVER, Deadline
from inlay.errors import InlayError, Late, TargetError
from inlay.measure.client import Limit
from inlay.measure.lab import EqualDevices, StartWorker, no_others
from inlay.measure.paired import MIN_PAIRS, Timing, joined, read_again, speedup
from inlay.measure.policy import BUSY
from inlay.model.heard import doing
from inlay.prepare.config import TuneConfig
from inlay.run.confirm.contenders import Entry
from inlay.trial import counted, shown_ratio

_RESERVE = 4.0  # times the seconds of one process that must be left for its preempted blocks to be measured again


_Reading = tuple[int, Timing]  # which of the devices, and what one process measured there


class FreshReadings:
    """Measures contenders in fresh processes.

    Args:
        rng: seeds the order of models within blocks.
        equal: holds further devices that measure as that of ``start`` does.
    """

    def __init__(
        self,
        start: StartWorker,
        limit: Limit,
        feed: Path,
        config: TuneConfig,
        folder: Path,
        rng: np.random.Generator,
        deadline: Deadline = NEVER,
        equal: EqualDevices = no_others,
    ) -> None:
        self._start, self._limit, self._feed, self._config, self._folder = start, limit, feed, config, folder
        self.rng, self._deadline, self._equal = rng, deadline, equal
        self.given_up = dict[str, str]()  # contenders that failed twice in a row, by key, with the reason
        # contenders whose speed-ups on equal devices have intervals apart from each other, by key, with them
        self.disagreed = dict[str, str]()
        self.preempted = list[bool]()  # for each block that counts, whether other processes took a part of a reading
        self.counts = list[int]()  # processes that each call of `of` read
        self._builds_s = list[float]()  # that models took in the last process
        self._failed_s = list[float]()  # that processes took which failed
        self._seeds = deque[int]()  # drawn for processes that were not needed after all

    @property
    def is_busy(self) -> bool:
        """Whether the machine was never quiet for long enough."""
        return bool(self.preempted) and float(np.mean(self.preempted)) > BUSY

    def of(self, entries: Sequence[Entry], processes: int, blocks: int, later: int = 0) -> list[Entry]:
        """The contenders that did not fail, with new readings; those that they had become the earlier ones.

        Args:
            processes: how many fresh processes; with none, they keep the readings that they have.
            later: models in the processes behind these, all counted. By what the first one took, no other is begun
                that would leave no time for them.

        Raises:
            TargetError: no process could be started, or the given model gave too few readings to compare with.
            Late: there was no time left for any.
        """
        kept, readings = list(entries), list[_Reading]()
        if not processes:
            self.counts.append(0)
            return kept
        enough = min(MIN_PAIRS, processes * blocks)
        took_s = 0.0
        with self._equal(self._config.target, processes - 1) as others:
            places = dict(enumerate([self._start, *others]))
            while len(readings) < processes and not (readings and not self._deadline.fits(took_s * _with(later, kept))):
                begun = self._deadline.clock()
                doing(f"{counted(len(kept), 'model')} in process {len(readings) + 1} of {processes}")
                try:
                    found = self._at_once(kept, blocks, places, processes - len(readings), later)
                except TargetError as error:
                    blamed = next((i for i, e in enumerate(kept) if i and e.file.digest == error.culprit), None)
                    if blamed is not None:
                        self.given_up[kept.pop(blamed).key] = str(error)
                        readings = [(place, timing.without([blamed])) for place, timing in readings]
                        continue
                    if sum(len(timing.ns) for _, timing in readings) >= enough:
                        break
                    raise
                readings += found
                took_s = self._deadline.clock() - begun
                if found[0][1].is_exact:
                    break
        self.preempted.extend(bool(p) for _, timing in readings for p in timing.preempted)
        self.counts.append(len(readings))
        self._compare_places(kept, readings)
        whole = joined([timing for _, timing in readings], apart=True)
        return [replace(e, readings=model.after(e.readings)) for e, model in zip(kept, whole.models, strict=True)]

    def _at_once(
        self, entries: Sequence[Entry], blocks: int, places: dict[int, StartWorker], most: int, later: int
    ) -> list[_Reading]:
        """Readings of one process on each device, in the order of their seeds, up to the first that is missing.

        What fails on an equal device is measured on the first one instead, whose word on a contender counts, and the
        device is left out from then on.
        """
        numbers = list(places)[:most]
        self._seeds.extend(int(self.rng.integers(2**31)) for _ in range(len(numbers) - len(self._seeds)))
        seeds = [self._seeds.popleft() for _ in numbers]
        pool = ThreadPoolExecutor(max(1, len(numbers) - 1))
        try:
            beside = [
                pool.submit(self._one_process, n, places[n], entries, blocks, seed, later)
                for n, seed in zip(numbers[1:], seeds[1:], strict=True)
            ]
            try:
                found = [self._one_process(0, places[0], entries, blocks, seeds[0], later)]
            except TargetError:
                wait(beside)  # the next processes must not run beside them
                self._seeds.extendleft(reversed(seeds[1:]))
                raise
            for at, each in enumerate(beside, 1):
                try:
                    found.append(each.result())
                except InlayError:
                    wait(beside)
                    del places[numbers[at]]
                    self._seeds.extendleft(reversed(seeds[at:]))
                    break
            return found
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # where it is interrupted, devices are let go first

    def _compare_places(self, entries: Sequence[Entry], readings: Sequence[_Reading]) -> None:
        """Note whose speed-up depends on which of several equal devices measured it."""
        of_place: dict[int, list[Timing]] = {}
        for place, timing in readings:
            of_place.setdefault(place, []).append(timing)
        each = [joined(timings, apart=True) for timings in of_place.values()]
        for i, entry in enumerate(entries):
            gains = [speedup(t.models[0], t.models[i]) for t in each if i]
            if gains and max(g.low for g in gains) > min(g.high for g in gains):
                self.disagreed[entry.key] = ", ".join(map(shown_ratio, gains))

    def _one_process(
        self, place: int, start: StartWorker, entries: Sequence[Entry], most: int, seed: int, later: int
    ) -> _Reading:
        """Readings of one process on a device.

        Blocks in which a model was preempted are measured once more, where there is time; only where too few others
        remain do they count. Where the time ends, no further block is begun.
        """
        expected_s = self._failed_s[-1] if len(self._failed_s) > 1 else 0.0  # again and again: it will be so once more
        expected_s = max(expected_s, len(entries) * max(self._builds_s, default=0.0))
        if not self._deadline.left or not self._deadline.fits(expected_s):
            raise Late("the budget was spent before contenders could be measured in fresh processes")
        begun = self._deadline.clock()
        try:
            return self._read(place, start, entries, most, seed, later)
        except TargetError:
            self._failed_s.append(self._deadline.clock() - begun)
            raise

    def _read(
        self, place: int, start: StartWorker, entries: Sequence[Entry], blocks: int, seed: int, later: int
    ) -> _Reading:
        with start(self._config.target, self._folder, self._limit) as fresh:
            files, slot_ns = [e.file for e in entries], self._config.protocol.slot_ns
            begun = self._deadline.clock()

            def left_s() -> float:
                return self._deadline.left

            try:
                found = fresh.time(files, self._feed, blocks, slot_ns, seed, left_s)
            finally:
                self._builds_s[:] = fresh.took["load"]
            took_s = self._deadline.clock() - begun
            reserve_s = max(_RESERVE, _with(later, entries)) * took_s

            def again(count: int) -> Timing:
                if self._deadline.fits(reserve_s):
                    with contextlib.suppress(TargetError):  # the first blocks count all the same
                        return joined([found, fresh.time(files, self._feed, count, slot_ns, seed + 1, left_s)])
                return found

            return place, read_again(found, blocks, again)


def _with(later: int, entries: Sequence[Entry]) -> float:
    """What a process that measures ``entries`` and later ones take, as a multiple of that one."""
    return 1.0 + later / len(entries)
