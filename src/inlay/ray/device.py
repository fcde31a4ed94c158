"""The actor of a device: worker processes that answer messages from elsewhere, and a folder for what they read.

It runs where the device is. It knows nothing of Ray, which makes it an actor (:mod:`inlay.ray.remote`).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from inlay.errors import TargetError
from inlay.files import scratch_folder
from inlay.installed import __version__
from inlay.measure.client import Worker
from inlay.measure.worker import PROTOCOL
from inlay.ray.transfer import digest_of, write_at
from inlay.targets.base import TargetSpec

Answer = dict[str, Any]


class _Process(Worker):
    """A worker process, message by message: what is resident and what is tried again is the asking side's business."""

    def __init__(self, spec: TargetSpec, folder: Path, limit_s: float) -> None:
        self.limit_s = limit_s
        super().__init__(spec, folder, lambda: self.limit_s)

    def answer(self, do: str, arguments: dict[str, Any], limit_s: float) -> Answer:
        """The process's answer, or ``{"error", "stage", "culprit"}``; ``alive`` says whether it is still there."""
        self.limit_s = limit_s
        if not self._alive:
            return {"error": "the process is not there", "stage": "worker", "culprit": "", "alive": False}
        try:
            return {**self._ask(do, **arguments), "alive": self._alive}
        except TargetError as error:
            return {"error": str(error), "stage": error.stage, "culprit": error.culprit, "alive": self._alive}


class Device:
    """Worker processes by key. Every method takes and returns plain data; errors of a target are answers.

    Its folder is made in ``root``, by default the system's place for temporary files.
    """

    def __init__(self, root: str | None = None) -> None:
        self._folder = scratch_folder(None if root is None else Path(root))
        self._processes: dict[str, _Process] = {}

    def hello(self) -> Answer:
        """Who answers here."""
        return {"version": __version__, "protocol": PROTOCOL, "host": os.uname().nodename, "pid": os.getpid()}

    def start(self, key: str, name: str, options: dict[str, Any], limit_s: float) -> Answer:
        """A fresh process for a target. The answer is that to a worker's first message."""
        self.end(key)
        folder = self._folder / f"scratch-{key}"
        folder.mkdir()
        try:
            process = self._processes[key] = _Process(TargetSpec(name, options), folder, limit_s)
        except TargetError as error:
            return {"error": str(error), "stage": error.stage, "culprit": error.culprit}
        found = process.fingerprint
        return {
            "target": found.target,
            "facts": dict(found.facts),
            "deterministic": process.deterministic,
            "lacks": sorted(process.lacks),
        }

    def put(self, name: str, offset: int, data: np.ndarray, digest: str) -> bool:
        """Write a piece of a file; whether it arrived as it was sent. ``name`` stays inside the device's folder."""
        path = (self._folder / name).resolve()
        if digest_of(data) != digest or not path.is_relative_to(self._folder.resolve()):
            return False
        write_at(path, offset, data)
        return True

    def ask(self, key: str, do: str, arguments: dict[str, Any], limit_s: float) -> tuple[Answer, bytes]:
        """The answer to a message, and what the process wrote to ``out``. Paths are relative to the device's folder."""
        process = self._processes[key]
        given = dict(arguments)
        for name in ("path", "feed"):
            if name in given:
                given[name] = str(self._folder / given[name])
        if "feeds" in given:
            given["feeds"] = [str(self._folder / each) for each in given["feeds"]]
        out = self._folder / f"outputs-{key}.npz"
        if "out" in given:
            given["out"] = str(out)
        try:
            answer = process.answer(do, given, limit_s)
            return answer, out.read_bytes() if "out" in given and "error" not in answer else b""
        finally:
            out.unlink(missing_ok=True)

    def end(self, key: str) -> None:
        """End a process."""
        process = self._processes.pop(key, None)
        if process is not None:
            process.close()
        shutil.rmtree(self._folder / f"scratch-{key}", ignore_errors=True)

    def close(self) -> None:
        """End all processes and remove the folder."""
        for key in list(self._processes):
            self.end(key)
        shutil.rmtree(self._folder, ignore_errors=True)
