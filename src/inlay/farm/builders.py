"""Processors of machines that do not measure: they build and run what a device may be asked to measure next.

A node offers them as a resource whose name holds the target and the fingerprint that its runtime has there. Only those
of the device's own fingerprint are asked: another processor may round otherwise, and accuracy would be another's.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from inlay.errors import InlayError
from inlay.farm import policy
from inlay.farm.remote import RemoteDevice, RemoteWorker, Tell
from inlay.measure.ahead import Built
from inlay.measure.client import Limit
from inlay.targets.base import Artifact, TargetSpec


class Crowd:
    """Builders that answered; each is asked by a thread of its own.

    Args:
        workers: on machines that do not measure.
    """

    def __init__(self, workers: Sequence[RemoteWorker]) -> None:
        self.width = len(workers)
        self._idle: queue.SimpleQueue[RemoteWorker] = queue.SimpleQueue()
        for worker in workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(self.width, "builder")

    def build(self, artifact: Artifact, feeds: Sequence[Path]) -> Future[Built]:
        """As of :class:`~inlay.measure.ahead.Builders`."""
        return self._threads.submit(self._built, artifact, feeds)

    def close(self, release: Callable[[], None]) -> None:
        """Begin nothing more, wait a little for what is under way, then ``release`` the processes with the rest."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        until = time.monotonic() + policy.END_LIMIT_S
        with contextlib.suppress(queue.Empty):
            for _ in range(self.width):
                self._idle.get(timeout=max(0.0, until - time.monotonic()))
        release()
        self._threads.shutdown()

    def _built(self, artifact: Artifact, feeds: Sequence[Path]) -> Built:
        worker = self._idle.get()
        try:
            graph = worker.load(artifact, identify=True)
            try:
                return Built(graph, worker.run(artifact, feeds))
            finally:
                worker.drop(artifact)
        finally:
            self._idle.put(worker)


@contextlib.contextmanager
def builders(
    ray: Any, name: str, root: str | None, spec: TargetSpec, folder: Path, limit: Limit, tell: Tell
) -> Iterator[Crowd | None]:
    """Builders for a target, as many as are free now; None where there are none.

    Args:
        ray: the connected module.
        name: of the resource by which nodes offer them (:func:`~inlay.farm.lab.builder_of`).
        root: where actors make their folders, if not in their system's usual place.
        spec: the target.
        folder: for outputs, here.
        limit: seconds that one message may take.
        tell: hears how many there are.
    """
    free = min(policy.MOST_BUILDERS, int(ray.available_resources().get(name, 0)))
    devices = [RemoteDevice(ray, name, root, wait_s=policy.EQUAL_WAIT_S) for _ in range(free)]
    workers, crowd = list[RemoteWorker](), None
    try:
        for device in devices:
            with contextlib.suppress(InlayError):  # it went to another run, or its node is gone
                expected = device.resource.rpartition(":")[2]
                workers.append(RemoteWorker(spec, folder, limit, device=device, expected=expected))
        if workers:
            crowd = Crowd(workers)
            tell(f"{crowd.width} builders of the cluster build ahead of the device")
        yield crowd
    finally:

        def release() -> None:
            for device in devices:
                device.close()

        (release if crowd is None else partial(crowd.close, release))()
        for worker in workers:
            worker.close()
