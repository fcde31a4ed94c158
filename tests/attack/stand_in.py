"""A stand-in for Ray where it is not installed: nodes and actors as real processes that can be killed.

It has the few names of Ray that a run uses, and what Ray promises of them: an actor starts on a node that has its
resource free, and is waited for until there is one; its calls are answered in order; it dies with its node, and with
the command that made it; calls of a dead one raise :class:`RayError`. A node is
``python -m tests.attack.stand_in SOCKET RESOURCES``; an address is the folder with the sockets of all nodes.

It is no test of Ray itself: what Ray does at a loss is taken from its documentation.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_LOOK_S = 0.05
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class RayError(Exception):
    """An actor died."""


class GetTimeoutError(Exception):
    """No answer in time."""


class RayTaskError(Exception):
    """A method raised ``cause``."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(repr(cause))
        self.cause = cause


# --- the command's side: names as in Ray ------------------------------------------------------------------------------

exceptions = SimpleNamespace(RayError=RayError, GetTimeoutError=GetTimeoutError, RayTaskError=RayTaskError)
_private = SimpleNamespace(worker=SimpleNamespace())
_joined: list[Path] = []


def is_initialized() -> bool:
    """Whether the command joined a cluster."""
    return bool(_joined)


def init(address: str, **_: Any) -> None:
    """Join the cluster of a folder."""
    if not any(_nodes(Path(address))):
        raise ConnectionError(f"no node answers in {address}")
    _joined.append(Path(address))


def shutdown() -> None:
    """Leave the cluster."""
    _joined.clear()


def cluster_resources() -> dict[str, float]:
    """What the nodes announce."""
    return _resources("all")


def available_resources() -> dict[str, float]:
    """What no living actor holds."""
    return _resources("free")


def remote(kind: type[Any]) -> Any:
    """A class whose objects live in actors."""

    def options(resources: Mapping[str, float], **_: Any) -> Any:
        (name,) = resources
        return SimpleNamespace(remote=lambda *arguments: _Actor(_joined[0], name, kind, arguments))

    return SimpleNamespace(options=options)


def get(answer: Future[Any], timeout: float) -> Any:
    """An answer."""
    try:
        return answer.result(timeout)
    except TimeoutError:
        raise GetTimeoutError from None


def wait(answers: Sequence[Future[Any]], timeout: float) -> tuple[list[Any], list[Any]]:
    """Those that are there within the time, and the others."""
    with contextlib.suppress(Exception):
        answers[0].exception(timeout)
    return [a for a in answers if a.done()], [a for a in answers if not a.done()]


def kill(actor: _Actor) -> None:
    """End an actor, or the wait for a node."""
    actor._end()


class _Actor:
    """An actor: a thread that waits for a node, and passes messages on."""

    def __init__(self, folder: Path, resource: str, kind: type[Any], arguments: Sequence[Any]) -> None:
        self._calls: queue.Queue[tuple[str, Sequence[Any], Future[Any]]] = queue.Queue()
        self._given = folder, resource, kind, arguments
        self._ended, self.pid = threading.Event(), 0
        threading.Thread(target=self._serve, daemon=True).start()

    def __getattr__(self, method: str) -> Any:
        def ask(*arguments: Any) -> Future[Any]:
            answer: Future[Any] = Future()
            self._calls.put((method, arguments, answer))
            return answer

        return SimpleNamespace(remote=ask)

    def _end(self) -> None:
        """Kill it."""
        self._ended.set()
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _serve(self) -> None:
        line = self._placed()
        dead = line is None
        while not (dead and self._ended.is_set() and self._calls.empty()):
            try:
                method, arguments, answer = self._calls.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            if line is not None and not dead:
                try:
                    line.send((method, arguments))
                    good, found = line.recv()
                    (answer.set_result if good else answer.set_exception)(found if good else RayTaskError(found))
                    continue
                except (EOFError, OSError):
                    dead = True
                    self._ended.set()
            answer.set_exception(RayError("the actor died"))

    def _placed(self) -> Connection | None:
        folder, resource, kind, arguments = self._given
        while not self._ended.is_set():
            for line in _nodes(folder):
                with contextlib.suppress(EOFError, OSError):
                    line.send(("actor", resource, kind, arguments))
                    if pid := line.recv():
                        self.pid = pid
                        return line
            time.sleep(_LOOK_S)
        return None


def _nodes(folder: Path) -> Iterator[Connection]:
    """A line to each node that answers."""
    for path in sorted(folder.glob("*.socket")):
        with contextlib.suppress(OSError, EOFError):
            yield Client(str(path), "AF_UNIX")


def _resources(which: str) -> dict[str, float]:
    found: Counter[str] = Counter()
    for line in _nodes(_joined[0]):
        with contextlib.suppress(EOFError, OSError), line:
            line.send((which,))
            found.update(line.recv())
    return {name: float(count) for name, count in found.items()}


# --- a node -----------------------------------------------------------------------------------------------------------


def serve_node(path: Path, resources: Mapping[str, int]) -> None:
    """Be a node, until the process is killed."""
    __import__("inlay.measure.remote.device")  # actors are forks: they start at once
    held: dict[int, str] = {}
    path.unlink(missing_ok=True)  # of a node that was killed
    with Listener(str(path), "AF_UNIX") as listener:
        while True:
            with contextlib.suppress(EOFError, OSError), listener.accept() as line:
                what, *more = line.recv()
                for pid in list(held):
                    if os.waitpid(pid, os.WNOHANG)[0]:
                        del held[pid]
                free = {name: count - [*held.values()].count(name) for name, count in resources.items()}
                if what != "actor":
                    line.send(resources if what == "all" else free)
                    continue
                name, kind, arguments = more
                if free.get(name, 0) < 1:
                    line.send(0)
                    continue
                node, pid = os.getpid(), os.fork()
                if not pid:
                    listener.close()
                    _serve_actor(line, node, partial(kind, *arguments))
                held[pid] = name


def _serve_actor(line: Connection, node: int, make: Callable[[], Any]) -> None:
    """Be an actor, in a fork of its node, until the command or the node is gone: this does not return."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != node:
            return
        line.send(os.getpid())
        held = make()
        while True:
            method, arguments = line.recv()
            try:
                answer = True, getattr(held, method)(*arguments)
            except Exception as error:
                answer = False, error
            line.send(answer)
    except (EOFError, OSError):
        pass
    finally:
        os._exit(0)


if __name__ == "__main__":
    serve_node(Path(sys.argv[1]), json.loads(sys.argv[2]))
