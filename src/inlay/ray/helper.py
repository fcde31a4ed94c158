"""The actor of a helper: it answers calls on any node with a processor to spare, and measures nothing."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import onnxruntime

from inlay.data import Feed, save_feeds
from inlay.errors import TargetError
from inlay.files import scratch_folder
from inlay.installed import __version__
from inlay.measure.client import Worker
from inlay.measure.remote.device import write_at
from inlay.model.guard import limited
from inlay.model.pool import Stored, TaskLost
from inlay.model.store import WeightStore
from inlay.targets.base import Artifact, TargetSpec

T = TypeVar("T")
VERSIONS = (__version__, str(onnxruntime.__version__))
"""What must agree, so that it does not matter where something is computed."""

_KEPT = 2  # models that stay loaded: calls that share one follow one another


@dataclass(frozen=True)
class Piece:
    """A range of a file."""

    name: str  # of the file, in a helper's folder
    offset: int  # where the range begins, in bytes
    length: int  # in bytes
    data: Sequence[tuple[int, Any]]  # references to it in the object store, each with its offset


@dataclass(frozen=True)
class Sent:
    """A model on its way."""

    name: str  # in a helper's folder
    pieces: Sequence[Piece]  # all that it consists of
    digest: str = ""  # of an artifact; empty where it stands for a stored model


class Helper:
    """Answers calls of functions of Inlay's own.

    It is made anew where its process or node is lost; all that a call needs comes with it.

    Args:
        root: where its folder is made; the system's place for temporary files by default.
    """

    def __init__(self, root: str | None) -> None:
        os.environ["OMP_NUM_THREADS"] = "1"  # of all processes that it starts: it is one processor
        self._folder = scratch_folder(None if root is None else Path(root))
        self._held: set[tuple[str, int, int]] = set()
        self._stored: OrderedDict[str, Stored] = OrderedDict()

    def hello(self) -> tuple[str, str]:
        """What answers here."""
        return VERSIONS

    def call(self, seconds: float, function: Callable[..., T], arguments: Sequence[Any]) -> T:
        """What a function of Inlay's own returns within ``seconds``, with models in place of what was sent of them."""
        until = time.monotonic() + seconds
        here = [self._model(each) if isinstance(each, Sent) else each for each in arguments]
        with limited(lambda: until - time.monotonic()):
            return function(*here)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _model(self, sent: Sent) -> Stored | Artifact:
        import ray

        for piece in sent.pieces:
            key = (piece.name, piece.offset, piece.length)
            if key not in self._held:
                for offset, data in piece.data:  # one at a time: a model may be larger than what is left of memory
                    write_at(self._folder / piece.name, offset, ray.get(data))
                self._held.add(key)
        path = self._folder / sent.name
        if sent.digest:
            return Artifact(path, sent.digest)
        if sent.name not in self._stored:
            store = WeightStore.copied(path.parent)
            self._stored[sent.name] = Stored(onnx.load(path, load_external_data=False), store)
            if len(self._stored) > _KEPT:
                self._stored.popitem(last=False)
        return self._stored[sent.name]


# --- the runtime of a device, where only outputs are asked for ------------------------------------------------------

_workers: dict[str, Worker] = {}  # the last one that was asked for, by its target: starting one takes a second


def stand_in(
    spec: TargetSpec, fingerprint: str, artifact: Artifact, feeds: Sequence[Feed]
) -> list[dict[str, np.ndarray]]:
    """Outputs by name of a model for every feed, where this machine's runtime is like the device's.

    ``fingerprint`` is the digest of the device's: another processor may round otherwise.

    Raises:
        TaskLost: it is not like the device's, or cannot be had here.
        TargetError: the model cannot be built, or does not run.
    """
    worker = _worker(spec, artifact.path.parent)
    if worker.fingerprint.digest != fingerprint:
        raise TaskLost(f"the runtime here is {worker.fingerprint.digest}, the device's {fingerprint}")
    with tempfile.TemporaryDirectory(dir=artifact.path.parent) as folder:
        try:
            return worker.run(artifact, save_feeds(Path(folder) / "feeds", feeds))
        finally:
            worker.drop(artifact)


@atexit.register
def let_go() -> None:
    """End the process of the runtime that is kept, if any."""
    while _workers:
        _workers.popitem()[1].close()


def _worker(spec: TargetSpec, folder: Path) -> Worker:
    key = repr((spec.name, sorted(spec.options.items())))
    if key not in _workers:
        let_go()
        try:
            _workers[key] = Worker(spec, folder)
        except TargetError as error:
            raise TaskLost(str(error)) from None
    return _workers[key]
