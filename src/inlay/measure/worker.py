"""The process that makes all runtime calls: it can crash, hang or run out of memory without ending the run.

It reads one JSON message per line from standard input and answers each with one line. Messages are plain data, with
models and feeds by path, so that a worker could run on another machine with the same files. The client
(:mod:`inlay.measure.client`) starts it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, astuple
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from inlay.data import load_feed, save_feed
from inlay.errors import InlayError, TargetError
from inlay.measure import policy
from inlay.measure.blocks import run_block, slot_repeats
from inlay.measure.checked import Checked
from inlay.targets.base import Artifact, Feed, Target, TargetSpec
from inlay.targets.registry import create

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Service:
    """Holds the target, the resident executables and the feeds of one worker.

    Args:
        target: used in place of the target that is named in messages: a simulation in the caller's process.
        announce: hears the key of each model before the runtime works on it: if it never returns, that one is to blame.
    """

    def __init__(self, target: Target | None = None, announce: Callable[[str], None] = lambda key: None) -> None:
        self._given = target
        self._announce = announce
        self._target: Target | None = None
        self._resident: dict[str, Checked] = {}
        self._feeds: dict[str, Feed] = {}
        self._repeats: dict[str, int] = {}

    def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        """The answer to one message; InlayErrors become ``{"error", "stage"}``."""
        try:
            answer: dict[str, Any] = getattr(self, f"on_{message['do']}")(**message.get("with", {}))
        except TargetError as error:
            return {"error": str(error), "stage": error.stage}
        except InlayError as error:
            return {"error": str(error), "stage": "worker"}
        except Exception as error:  # a runtime may raise anything: it is an answer, not the end of the worker
            return {"error": f"{type(error).__name__}: {error}"[: policy.MESSAGE_LENGTH], "stage": "worker"}
        return answer

    def on_target(self, name: str, options: dict[str, Any]) -> dict[str, Any]:
        """Choose the target."""
        self._target = self._given or create(TargetSpec(name, options))
        found = self._target.fingerprint()
        return {"target": found.target, "facts": dict(found.facts), "deterministic": self._target.deterministic}

    def on_load(self, key: str, path: str, digest: str, identify: bool = False) -> dict[str, Any]:
        """Build a model and keep it. The answer holds the digest of its optimized graph, where that is known."""
        assert self._target is not None
        graph = ""
        if key not in self._resident:
            artifact = Artifact(Path(path), digest)
            identified = getattr(self._target, "compile_identified", None) if identify else None
            self._announce(key)
            executable, graph = (self._target.compile(artifact), "") if identified is None else identified(artifact)
            self._resident[key] = Checked(executable, partial(self._announce, key))
        return {"graph": graph}

    def on_unload(self, key: str) -> dict[str, Any]:
        """Free a model."""
        executable = self._resident.pop(key, None)
        self._repeats.pop(key, None)
        if executable is not None:
            executable.close()
        return {}

    def on_run(self, key: str, feeds: list[str], out: str) -> dict[str, Any]:
        """Run a model on every feed; outputs go to ``out`` (.npz) as ``<index of the feed>/<output>``."""
        arrays = {}
        for number, path in enumerate(feeds):
            for name, array in self._resident[key].run(self._feed(path)).items():
                arrays[f"{number}/{name}"] = array
        save_feed(Path(out), arrays)
        return {}

    def on_time(self, keys: list[str], feed: str, slot_ns: int, seed: int) -> dict[str, Any]:
        """Time models in one interleaved block: every model's nanoseconds, and the drift."""
        arrays = self._feed(feed)
        executables = [self._resident[k] for k in keys]
        for key, executable in zip(keys, executables, strict=True):
            if key not in self._repeats:
                self._repeats[key] = slot_repeats(executable, arrays, slot_ns)
        repeats = [self._repeats[k] for k in keys]
        for executable in executables:
            executable.reseed(seed)
        return asdict(run_block(executables, repeats, arrays, np.random.default_rng(seed)))

    def on_profile(self, key: str, feed: str, repeats: int) -> dict[str, Any]:
        """Kernel times of a model."""
        kernels = self._resident[key].profile(self._feed(feed), repeats)
        return {"kernels": [list(astuple(k)) for k in kernels]}

    def _feed(self, path: str) -> Feed:
        if path not in self._feeds:
            feed = load_feed(Path(path))
            if len(self._feeds) >= policy.RESIDENT_FEEDS:
                return feed
            self._feeds[path] = feed
        return self._feeds[path]


def die_with_parent(parent: int) -> None:
    """End this process as soon as ``parent`` ends, also in the middle of a long native call.

    Linux delivers a signal; elsewhere, and where the parent had ended already, a thread looks every half second, which
    works as long as the runtime releases the interpreter lock during its calls.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(policy.ORPHAN_POLL_S)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def write_marker(file: int, key: str) -> None:
    """Replace what the file holds by ``key``."""
    os.pwrite(file, key.encode()[: policy.MARKER_BYTES].ljust(policy.MARKER_BYTES), 0)


def main() -> None:
    """Answer messages until standard input ends.

    Arguments: the parent's process number, and a file descriptor to which the key of the model at work is written.
    """
    die_with_parent(int(sys.argv[1]))
    marker = int(sys.argv[2])
    messages = os.fdopen(os.dup(0), encoding="utf8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf8")
    os.dup2(2, 1)  # what a runtime prints must not mix with the answers,
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # nor must it read messages
    os.close(nothing)
    service = Service(announce=lambda key: write_marker(marker, key))
    for line in messages:
        answers.write(json.dumps(service.handle(json.loads(line))) + "\n")
        answers.flush()
