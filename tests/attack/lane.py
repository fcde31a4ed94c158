"""A process that runs one case after the other: most of a short attack's time is the making and ending of processes.

What is found in a lane is no finding yet: the case is made again and judged in a process of its own, and so is a share
of all cases from the start. Between two cases a lane gets back its environment, import path and warnings; modules that
a case imported from its folder are forgotten; its child for native code stays. A lane ends after some tens of cases.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import socket
import sys
import tempfile
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.attack import sandbox, warm
from tests.attack.case import Case
from tests.attack.sandbox import Ended
from tests.attack.watch import POLL_S, Watch, children, family, kill

MOST_CASES = 64


class Lane:
    """The parent's side: starts the process when it is first needed, and a new one where it ended."""

    def __init__(self) -> None:
        self._pid = 0
        self._cases = 0
        self._cpu_s = 0.0
        self._wire: socket.socket | None = None

    @property
    def pids(self) -> frozenset[int]:
        """The process, while there is one."""
        return frozenset({self._pid} - {0})

    def run(self, case: Case, folder: Path) -> Ended:
        """As :func:`tests.attack.sandbox.run`. The lane ends wherever something is odd."""
        if self._wire is None or self._cases >= MOST_CASES:
            self.close()
            self._start()
        assert self._wire is not None
        self._cases += 1
        watch = Watch(self._pid, case.hang_s, case.rss_mb, self._cpu_s)
        self._wire.sendall(f"{folder}\n".encode())
        reason = ""
        while not reason and not select.select([self._wire], [], [], POLL_S)[0]:
            watch.look()
            reason = watch.reason
        answer = [] if reason else self._wire.recv(64).split()
        watch.look()
        guard = int(answer[1]) if answer else 0
        orphans = sum(bool(family(pid)) for pid in children(self._pid) if pid != guard)
        self._cpu_s += watch.cpu_s
        code = int(answer[0]) if answer else None
        if code is None:
            code = self._end(reason)
        if {*children(os.getpid())} - self.pids:
            orphans += sandbox.reap(POLL_S if reason else 2.0, self.pids)
        if orphans:
            self.close()
        return Ended(code, watch.seconds, watch.cpu_s, watch.rss_mb, reason, 0 if reason else orphans)

    def close(self) -> None:
        """End the process and what it started."""
        if self._pid:
            self._end("closed")
            sandbox.reap(POLL_S, self.pids)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            warm.behave(lambda: _serve(theirs.fileno()))
        theirs.close()
        self._pid, self._wire, self._cases, self._cpu_s = pid, ours, 0, 0.0

    def _end(self, reason: str) -> int | None:
        """End the process; its exit code where it had ended by itself."""
        if reason:
            kill(family(self._pid))
        _, status = os.waitpid(self._pid, 0)
        assert self._wire is not None
        self._wire.close()
        self._pid, self._wire = 0, None
        return None if reason else os.waitstatus_to_exitcode(status)


def _serve(wire: int) -> None:
    sandbox.new_process((wire,))
    import typer.main

    from inlay.cli import commands
    from inlay.model import guard

    vars(commands)["seconds_since_start"] = lambda: 0.0  # the lane's age is no part of a budget
    typer.main.get_command = cache(typer.main.get_command)  # the commands are the same from case to case
    with os.fdopen(wire, "rb", buffering=0, closefd=False) as told:
        for line in iter(told.readline, b""):
            folder = Path(line.decode().rstrip("\n"))
            with _as_before(folder):
                code = warm.outcome(lambda: sandbox.attack(Case.load(folder), folder))  # noqa: B023  (called at once)
            os.write(wire, f"{code} {guard.pid()}".encode())


@contextlib.contextmanager
def _as_before(folder: Path) -> Iterator[None]:
    """Undo what a case leaves in its process."""
    environment, path = dict(os.environ), list(sys.path)
    gc.disable()  # one collection behind each case is enough, and finalizers are done before it is judged
    with warnings.catch_warnings():
        yield
    os.chdir("/")
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    tempfile.tempdir = None
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(f"{folder}/"):
            del sys.modules[name]
    importlib.invalidate_caches()
    gc.collect(1)
