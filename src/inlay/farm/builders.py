"""Processors of machines that do not measure: they build and run what a device may be asked to measure next.

A node offers them as a resource whose name holds the target and the fingerprint that its runtime has there. Only those
of the device's own fingerprint are asked: another processor may round otherwise, and accuracy would be another's.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from inlay.errors import InlayError, NoDevice
from inlay.farm import policy
from inlay.farm.remote import RemoteDevice, RemoteWorker, Tell
from inlay.measure.ahead import Built
from inlay.measure.client import Limit
from inlay.targets.base import Artifact, TargetSpec


class Crowd:
    """Builders, each asked by a thread of its own; while they start, what they are asked waits, and nobody else does.

    Args:
        starts: make workers on machines that do not measure; one that raises an InlayError is done without.
        tell: hears how many there are, once that is known.

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
        """As of :class:`~inlay.measure.ahead.Builders`."""
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


@contextlib.contextmanager
def builders(
    ray: Any,
    name: str,
    root: str | None,
    spec: TargetSpec,
    expected: str | None,
    folder: Path,
    limit: Limit,
    tell: Tell,
) -> Iterator[Crowd | None]:
    """Builders for a target, as many as are free now; None where there are none.

    Args:
        ray: the connected module.
        name: of the resource by which nodes offer them (:func:`~inlay.farm.lab.builder_of`).
        root: where actors make their folders, if not in their system's usual place.
        spec: the target.
        expected: digest of the fingerprint that it must have there; None for whatever it has.
        folder: for outputs, here.
        limit: seconds that one message may take.
        tell: hears how many there are.
    """
    free = min(policy.MOST_BUILDERS, int(ray.available_resources().get(name, 0)))
    devices = [RemoteDevice(ray, name, root, wait_s=policy.EQUAL_WAIT_S) for _ in range(free)]

    def start(device: RemoteDevice) -> RemoteWorker:
        return RemoteWorker(spec, folder, limit, device=device, expected=expected)

    def release() -> None:
        for device in devices:
            device.close()

    crowd = Crowd([partial(start, device) for device in devices], tell) if devices else None
    try:
        yield crowd
    finally:
        if crowd is not None:
            crowd.close(release)
