"""A session of ONNX Runtime, whichever provider it runs on: built, run and timed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from inlay.errors import CompileFailed, RunFailed
from inlay.model.native import runtime_message
from inlay.targets.base import Feed
from inlay.targets.machine import timed

WAITING = ("session.force_spinning_stop", "1")  # between inferences, threads sleep; within one they do not


def settings(threads: int) -> Any:
    """Options of a session with so many intra-op threads, which prints nothing."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    if threads != 1:
        # threads of a session wait for its next inference without giving their processors up: beside other sessions, as
        # where models are timed in turn, they take them from whichever runs: 1.65x was read as 0.95x to 2.74x
        options.add_session_config_entry(*WAITING)
    return options


@contextmanager
def building(path: Path) -> Iterator[None]:
    """Turn whatever the runtime raises while it builds the model at ``path`` into CompileFailed."""
    try:
        yield
    except Exception as error:  # the binding raises bare exceptions of several types
        raise CompileFailed(f"ONNX Runtime cannot build {path.name}: {runtime_message(error)}") from error


def infer(session: Any, feed: Feed) -> list[np.ndarray]:
    """All outputs in the model's order. Raises RunFailed."""
    try:
        return list(session.run(None, dict(feed)))
    except Exception as error:  # as in building
        raise RunFailed(f"ONNX Runtime cannot run the model: {runtime_message(error)}") from error


class SessionExecutable:
    """What executables of every provider share: all but the profile."""

    def __init__(self, session: Any) -> None:
        self._session: Any = session
        self._outputs = [o.name for o in session.get_outputs()]

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        """Outputs by name. Raises RunFailed."""
        return dict(zip(self._outputs, infer(self._open(), feed), strict=True))

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        """Nanoseconds of each inference with all transfers, shape (repeats,). Raises RunFailed."""
        session = self._open()
        return timed(lambda: infer(session, feed), repeats)

    def close(self) -> None:
        """Drop the session."""
        self._session = None

    def _open(self) -> Any:
        if self._session is None:
            raise RunFailed("the model was closed")
        return self._session
