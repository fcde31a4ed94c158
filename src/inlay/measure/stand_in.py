"""The device's runtime in another process, which runs models in its place where only outputs are asked for."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from inlay.data import Feed, save_feeds
from inlay.errors import TargetError
from inlay.measure.client import Worker
from inlay.model.hands import HandLost
from inlay.targets.base import Artifact, TargetSpec

_workers: dict[str, Worker] = {}  # the last one that was asked for, by its target: starting one takes a second


def stand_in(
    spec: TargetSpec, fingerprint: str, artifact: Artifact, feeds: Sequence[Feed]
) -> list[dict[str, np.ndarray]]:
    """Outputs by name of a model for every feed, where this machine's runtime is like the device's.

    Args:
        spec: the target.
        fingerprint: digest of the device's: another processor may round otherwise.
        artifact: the model.
        feeds: its inputs.

    Raises:
        HandLost: it is not like the device's, or cannot be had here.
        TargetError: the model cannot be built, or does not run.
    """
    worker = _worker(spec, artifact.path.parent)
    if worker.fingerprint.digest != fingerprint:
        raise HandLost(f"the runtime here is {worker.fingerprint.digest}, the device's {fingerprint}")
    with tempfile.TemporaryDirectory(dir=artifact.path.parent) as folder:
        try:
            return worker.run(artifact, save_feeds(Path(folder) / "feeds", feeds))
        finally:
            worker.drop(artifact)


def _worker(spec: TargetSpec, folder: Path) -> Worker:
    key = repr((spec.name, sorted(spec.options.items())))
    if key not in _workers:
        while _workers:
            _workers.popitem()[1].close()
        try:
            _workers[key] = Worker(spec, folder)
        except TargetError as error:
            raise HandLost(str(error)) from None
    return _workers[key]
