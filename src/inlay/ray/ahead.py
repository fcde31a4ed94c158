"""Processors of machines that do not measure: they build and run what a device may be asked to measure next.

A node offers them as a resource whose name holds the target and the fingerprint that its runtime has there. Only those
of the device's own fingerprint are asked: another processor may round otherwise, and accuracy would be another's.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NoAnswer  # the built-in one from Python 3.11 on
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from inlay.errors import InlayError, NoDevice
from inlay.measure.lab import Ahead, Built, Search
from inlay.measure.remote.held import Tell
from inlay.measure.remote.worker import RemoteWorker
from inlay.ray import policy
from inlay.ray.remote import RayDevice
from inlay.targets.base import Artifact
from inlay.types import Placement

_LOOKED_AT = 3
"""Placements that a strategy is asked for, for each builder: some of them were built before."""
_WAITING = 1
"""Models that wait for a builder: one that is done would have nothing to do until the device is asked for the next."""


class Builders(Protocol):
    """Processes of the device's runtime, with the device's fingerprint, on machines that do not measure."""

    width: int  # how many models they build at a time

    def build(self, artifact: Artifact, feeds: Sequence[Path]) -> Future[Built]:
        """Build a model and run it on ``feeds``, some time. The future raises whatever went wrong, of any kind."""
        ...


class BuilderPool:
    """Builders, each asked by a thread of its own; while they start, what they are asked waits, and nobody else does.

    Args:
        starts: make workers on machines that do not measure; one that raises an InlayError is done without.

    Attributes:
        workers: that started.
        started: done when each has, or cannot.
    """

    def __init__(self, starts: Sequence[Callable[[], RemoteWorker]], tell: Tell) -> None:
        self.width = len(starts)
        self.workers: list[RemoteWorker] = []
        self._tell, self._pending, self._lock = tell, self.width, threading.Lock()
        self._idle: queue.SimpleQueue[RemoteWorker | None] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(self.width, "builder")
        self.started = [self._threads.submit(self._start, each) for each in starts]

    def build(self, artifact: Artifact, feeds: Sequence[Path]) -> Future[Built]:
        """As of :class:`Builders`."""
        return self._threads.submit(self._built, artifact, feeds)

    def close(self, release: Callable[[], None]) -> None:
        """Begin nothing more, wait a little for what is under way, then ``release`` the processes with the rest."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        until = time.monotonic() + policy.END_LIMIT_S
        with contextlib.suppress(queue.Empty):
            for _ in range(len(self.workers)):
                self._idle.get(timeout=max(0.0, until - time.monotonic()))
        release()
        self._idle.put(None)  # whoever waits for a builder: there will be none
        self._threads.shutdown()
        for worker in self.workers:
            worker.close()

    def _start(self, start: Callable[[], RemoteWorker]) -> None:
        worker = None
        try:
            with contextlib.suppress(InlayError):  # it went to another run, or its node no longer exists
                worker = start()
        finally:
            with self._lock:
                self._pending -= 1
                self.workers += [worker] if worker else []
                last = not self._pending
            if worker or (last and not self.workers):
                self._idle.put(worker)
        if last and self.workers:
            self._tell(f"{len(self.workers)} builders of the cluster build ahead of the device")

    def _built(self, artifact: Artifact, feeds: Sequence[Path]) -> Built:
        worker = self._idle.get()
        try:
            if worker is None:
                raise NoDevice("there is no builder")
            graph = worker.load(artifact, identify=True)
            try:
                return Built(graph, worker.run(artifact, feeds))
            finally:
                worker.drop(artifact)
        finally:
            self._idle.put(worker)


class BuiltAhead(Ahead):
    """What builders are at, by the keys of models. A wrong guess costs nothing but a builder's time.

    Attributes:
        used: models that the device did not have to build and run.
        begun: models that builders were asked for.
    """

    def __init__(self, builders: Builders, search: Search) -> None:
        self._builders, self._search = builders, search
        self._under_way: dict[str, tuple[Artifact, Future[Built]]] = {}
        self._asked: set[str] = set()
        self.used = self.begun = 0

    def begin(self, now: str, upcoming: Callable[[int], Sequence[Placement]]) -> None:
        """Have builders begin with what is likely next, as far as they have little to do."""
        self._asked.add(now)
        wanted, search = self._builders.width + _WAITING, self._search
        likely = {search.key(p): p for p in upcoming(_LOOKED_AT * wanted)}
        self._forget({now, *likely})
        free = wanted - sum(not each.done() for _, each in self._under_way.values())
        for key in [k for k in likely if k not in self._asked and not search.judged(k)][: max(0, free)]:
            self._asked.add(key)
            with contextlib.suppress(InlayError, OSError, ValueError):  # the search will find out, should it ask for it
                artifact = search.write(likely[key])
                self._under_way[key] = artifact, self._builders.build(artifact, search.feeds)
                self.begun += 1

    def _forget(self, but: Collection[str]) -> None:
        """Let go what is not likely any more, and is built (outputs may be large) or waits."""
        for key, (artifact, built) in list(self._under_way.items()):
            if key not in but and (built.done() or built.cancel()):
                del self._under_way[key]
                artifact.path.unlink(missing_ok=True)

    def take(self, key: str) -> Built | None:
        """As of :class:`~inlay.measure.lab.Ahead`."""
        self._asked.add(key)
        if key not in self._under_way:
            return None
        _, asked = self._under_way.pop(key)
        if asked.cancel():  # no builder has begun with it
            return None
        try:
            found = asked.result(self._search.patience_s())
        except (InlayError, OSError, NoAnswer, CancelledError):  # the device finds out
            asked.cancel()
            return None
        self.used += 1
        return found

    def __str__(self) -> str:
        return f"{self.used} of {self.begun} models that were built ahead were asked for"


@contextlib.contextmanager
def building_ahead(
    ray: Any, name: str, root: str | None, expected: str | None, search: Search, tell: Tell
) -> Iterator[Ahead]:
    """Builders for a search, as many as are free now, until it has ended; how many models they spared it is told.

    Args:
        name: of the resource by which nodes offer them (:func:`~inlay.ray.lab.builder_of`).
        expected: digest of the fingerprint that the target must have there; None for whatever it has.
    """
    free = min(policy.MOST_BUILDERS, int(ray.available_resources().get(name, 0)))
    if not free:
        yield Ahead()
        return
    devices = [RayDevice(ray, name, root, wait_s=policy.EQUAL_WAIT_S) for _ in range(free)]
    folder = search.folder / "ahead"
    folder.mkdir()

    def start(device: RayDevice) -> RemoteWorker:
        return RemoteWorker(search.spec, folder, search.limit, device=device, expected=expected)

    def release() -> None:
        for device in devices:
            device.close()

    pool = BuilderPool([partial(start, device) for device in devices], tell)
    try:
        ahead = BuiltAhead(pool, search)
        yield ahead
        if ahead.begun:
            tell(str(ahead))
    finally:
        pool.close(release)
