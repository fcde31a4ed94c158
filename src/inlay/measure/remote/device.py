"""The device's side: worker processes that answer messages from elsewhere, and a folder for what they read.

It runs where the device is, and knows nothing of how messages come there.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from inlay.errors import TargetError
from inlay.files import scratch_folder
from inlay.installed import __version__
from inlay.measure.process import Process, first_message
from inlay.measure.worker import PROTOCOL
from inlay.model.child import HERE, Python
from inlay.targets.base import TargetSpec

Answer = dict[str, Any]


def digest_of(data: bytes | np.ndarray) -> str:
    """Of what travels: 32 hexadecimal digits of SHA-256, which processors have instructions for.

    One processor digests 1.2 GB a second with them; of BLAKE2b, 0.5.
    """
    return hashlib.sha256(data).hexdigest()[:32]


def write_at(path: Path, offset: int, data: bytes | np.ndarray) -> None:
    """Write a piece of a file, which only this user can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.seek(offset)
        file.write(data)


class Device:
    """Worker processes by key. Every method takes and returns plain data; errors of a target are answers.

    Its folder is made in ``root``, by default the place for temporary files, where ``folder`` is not one that is
    there already.
    """

    def __init__(self, root: str | None = None, python: Python = HERE, folder: Path | None = None) -> None:
        self._folder = folder or scratch_folder(None if root is None else Path(root))
        self._python = python
        self._processes: dict[str, Process] = {}

    def hello(self) -> Answer:
        """Who answers here."""
        return {"version": __version__, "protocol": PROTOCOL, "host": platform.node(), "pid": os.getpid()}

    def start(self, key: str, name: str, options: dict[str, Any], limit_s: float) -> Answer:
        """A fresh process for a target. The answer is that to a worker's first message.

        An option that is ``{"file": name}`` stands for the file of that name in this folder.
        """
        self.end(key)
        folder = self._folder / f"scratch-{key}"
        folder.mkdir()
        there = {k: str(self._folder / v["file"]) if isinstance(v, dict) else v for k, v in options.items()}
        process = self._processes[key] = Process(folder, self._python)
        try:
            process.start()
        except TargetError as error:
            return _told(error)
        return self._answer(process, "target", first_message(TargetSpec(name, there)), limit_s)

    def put(self, name: str, offset: int, data: bytes | np.ndarray, digest: str) -> bool:
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
            answer = self._answer(process, do, given, limit_s)
            return answer, out.read_bytes() if "out" in given and "error" not in answer else b""
        finally:
            out.unlink(missing_ok=True)

    @staticmethod
    def _answer(process: Process, do: str, arguments: dict[str, Any], limit_s: float) -> Answer:
        """The process's answer, or ``{"error", "stage", "culprit"}``; ``alive`` says whether it is still there."""
        if process.child is None:
            return {"error": "the process is not there", "stage": "worker", "culprit": "", "alive": False}
        try:
            answer = process.ask(do, arguments, limit_s)
        except TargetError as error:
            answer = _told(error)
        return {**answer, "alive": process.child is not None}

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


def _told(error: TargetError) -> Answer:
    return {"error": str(error), "stage": error.stage, "culprit": error.culprit}
