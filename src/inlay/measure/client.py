"""The parent's side of a worker: start it, send messages, enforce time limits, and restart it after a crash."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from inlay.data import load_feed
from inlay.errors import CompileFailed, RunFailed, TargetError, TimedOut
from inlay.measure import policy
from inlay.targets.base import Artifact, Fingerprint, KernelTime, TargetSpec

_BOOT = "import sys; sys.path[:] = filter(None, sys.path); from inlay.measure.worker import main; main()"
"""Starts a worker without the working directory (the empty entry) on the import path: files beside a model are data."""

_ERRORS: dict[str, type[TargetError]] = {"compile": CompileFailed, "run": RunFailed}


@dataclass(frozen=True, eq=False)
class Timing:
    """Readings of interleaved blocks.

    Attributes:
        ns: nanoseconds per inference, shape (blocks, models).
        drift: absolute log-ratio of the two passes through each block, the mean over models, shape (blocks,).
    """

    ns: np.ndarray
    drift: np.ndarray


def kernel_times(rows: Sequence[Sequence[Any]]) -> list[KernelTime]:
    """Kernels from plain data, as a worker sends them and a journal keeps them."""
    return [KernelTime(n, o, ns, p, tuple(nodes), tuple(values), kind) for n, o, ns, p, nodes, values, kind in rows]


def checked(answer: dict[str, Any]) -> dict[str, Any]:
    """A worker's answer, unless it is an error. Raises that TargetError."""
    if "error" in answer:
        kind = _ERRORS.get(answer["stage"], TargetError)
        raise kind(answer["error"])
    return answer


class Worker:
    """A worker process for one target. Models stay resident until they are dropped or the process dies.

    Args:
        spec: the target.
        folder: for outputs.
        limit_s: seconds that one message may take before the worker is killed.

    Attributes:
        busy_s: seconds that messages took so far.
        builds: models built so far, including those of profiles.
        fingerprint: of the target.
        deterministic: whether the target measures the same each time.

    Raises:
        TargetError: the target cannot be created.
    """

    def __init__(self, spec: TargetSpec, folder: Path, limit_s: float = policy.MESSAGE_LIMIT_S) -> None:
        self._spec = spec
        self._folder = folder
        self._limit = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._resident: set[str] = set()
        self._graphs: dict[str, str] = {}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (it lives as long as the worker)
        self._buffer = b""
        self.busy_s = 0.0
        self.builds = 0
        self.fingerprint: Fingerprint
        self.deterministic: bool
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def load(self, artifact: Artifact, identify: bool = False) -> str:
        """Build a model, unless it is resident.

        Args:
            artifact: the model.
            identify: also get the digest of the runtime's optimized graph.

        Returns:
            That digest; empty where it is not known.

        Raises:
            TargetError: it cannot be built.
        """
        if artifact.digest not in self._resident or not self._alive:
            self.builds += 1
            more = {"identify": True} if identify else {}
            answer = self._ask("load", key=artifact.digest, path=str(artifact.path), digest=artifact.digest, **more)
            self._resident.add(artifact.digest)
            self._graphs[artifact.digest] = str(answer.get("graph", "")) or self._graphs.get(artifact.digest, "")
        return self._graphs.get(artifact.digest, "")

    def drop(self, artifact: Artifact) -> None:
        """Free a model."""
        if artifact.digest in self._resident:
            self._resident.discard(artifact.digest)
            if self._alive:
                self._ask("unload", key=artifact.digest)

    def run(self, artifact: Artifact, feeds: Sequence[Path]) -> list[dict[str, np.ndarray]]:
        """Outputs by name for every feed. Raises TargetError."""
        self.load(artifact)
        out = self._folder / f"outputs-{uuid.uuid4().hex}.npz"
        try:
            self._ask("run", key=artifact.digest, feeds=[str(f) for f in feeds], out=str(out))
            results: list[dict[str, np.ndarray]] = [{} for _ in feeds]
            for key, array in load_feed(out).items():
                index, _, name = key.partition("/")
                results[int(index)][name] = array
        finally:
            out.unlink(missing_ok=True)
        return results

    def time(self, artifacts: Sequence[Artifact], feed: Path, blocks: int, slot_ns: int, seed: int) -> Timing:
        """Time models in interleaved blocks. Raises TargetError."""
        for artifact in artifacts:
            self.load(artifact)
        keys = [a.digest for a in artifacts]
        answer = self._ask("time", keys=keys, feed=str(feed), blocks=blocks, slot_ns=slot_ns, seed=seed)
        return Timing(np.asarray(answer["ns"], float).reshape(-1, len(keys)), np.asarray(answer["drift"], float))

    def profile(self, artifact: Artifact, feed: Path, repeats: int) -> list[KernelTime]:
        """Kernel times of a model. Raises TargetError."""
        self.load(artifact)
        self.builds += 1
        answer = self._ask("profile", key=artifact.digest, feed=str(feed), repeats=repeats)
        return kernel_times(answer["kernels"])

    def close(self) -> None:
        """End the process."""
        self._kill()
        self._log.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _alive(self) -> bool:
        return self._process is not None

    def _start(self) -> None:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,  # Ctrl+C goes to the parent alone, which then ends the worker
        )
        self._buffer = b""
        self._choose_target()

    def _choose_target(self) -> None:
        self._resident.clear()
        answer = self._ask("target", name=self._spec.name, options=dict(self._spec.options))
        self.fingerprint = Fingerprint(answer["target"], answer["facts"])
        self.deterministic = bool(answer["deterministic"])

    def _kill(self) -> None:
        process, self._process = self._process, None
        self._resident.clear()
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        if self._process is None:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        begun = time.monotonic()
        try:
            process.stdin.write((json.dumps({"do": do, "with": arguments}) + "\n").encode())
            process.stdin.flush()
            line = self._read_line(process, time.monotonic() + self._limit)
        except (BrokenPipeError, EOFError):
            raise RunFailed(self._death_message(process, do)) from None
        except KeyboardInterrupt:
            self._kill()  # its answer would be read as that to the next message
            raise
        finally:
            self.busy_s += time.monotonic() - begun
        if line is None:
            self._kill()
            raise TimedOut(f"the runtime did not finish {do} within {self._limit:.0f} s and was ended")
        return checked(json.loads(line))

    def _read_line(self, process: subprocess.Popen[bytes], deadline: float) -> bytes | None:
        """The next line, or None when the deadline passes first."""
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                chunk = os.read(process.stdout.fileno(), 1 << 16)
                if not chunk:
                    raise EOFError
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _death_message(self, process: subprocess.Popen[bytes], do: str) -> str:
        code = process.wait()
        self._kill()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self._log.seek(0)
        lines = [t for t in self._log.read().decode(errors="replace").splitlines() if t.strip()]
        self._log.truncate(0)
        return f"the runtime's process died in {do} ({how})" + (f": {lines[-1]}" if lines else "")


StartWorker = Callable[[TargetSpec, Path, float], Worker]
"""Starts a worker for a target, with a folder for scratch files and a time limit in seconds."""


@dataclass(frozen=True)
class Lab:
    """Where a run measures, and by which clock: processes on this machine, or a simulation.

    Attributes:
        start: starts a worker.
        clock: returns seconds.
        sleep: waits for a number of seconds of that clock.
    """

    start: StartWorker = Worker
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
