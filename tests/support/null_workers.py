"""Workers of the simulated target ``null`` in the process of a test, where processes prove nothing more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.simulated import InProcessWorker

from inlay.measure.client import Limit, Worker
from inlay.measure.lab import HERE
from inlay.targets.base import TargetSpec
from inlay.targets.registry import create


def _start(spec: TargetSpec, folder: Path, limit: Limit) -> Worker:
    if spec.name != "null":
        return Worker(spec, folder, limit)
    return InProcessWorker(spec, folder, limit, target=create(spec), clock=time.monotonic)


@contextmanager
def null_in_this_process() -> Iterator[None]:
    """Runs on this machine start no process for ``null``."""
    start = HERE.start
    object.__setattr__(HERE, "start", _start)
    try:
        yield
    finally:
        object.__setattr__(HERE, "start", start)
