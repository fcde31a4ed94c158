"""Run one case in a process of its own, under limits, and watch it and everything that it starts."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.attack import warm
from tests.attack.case import Case
from tests.attack.loadable import check

BUSY_FACTOR = 4.0
"""So many times its limit may a case take on a machine with other work, as long as it used less processor time."""
_MOST_ADDRESSES = 16 << 30  # bytes; one allocation beyond any machine's memory must not take this one down
_CALL_S = 3.0
"""Of one guarded call. A user's model may take a minute; that a limit holds shows as well in less."""
_POLL_S = 0.2
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


@dataclass(frozen=True)
class Ended:
    """How the process of a case ended.

    Attributes:
        code: its exit code, negative for a signal; None where it was killed for ``reason``.
        seconds: wall time.
        cpu_s: processor time of its whole tree.
        rss_mb: the largest resident set of the whole tree that was seen.
        reason: why it was killed: ``hang``, ``memory`` or nothing.
        orphans: processes that outlived it.
    """

    code: int | None
    seconds: float
    cpu_s: float
    rss_mb: float
    reason: str = ""
    orphans: int = 0


def adopt_orphans() -> None:
    """Make this process the parent of what its descendants leave behind, so that it is found."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run(case: Case, folder: Path) -> Ended:
    """Run ``case``, which lies in ``folder``; its output goes to ``folder/stdout`` and ``folder/stderr``."""
    begun = time.monotonic()
    pid = os.fork()
    if pid == 0:
        warm.behave(lambda: _attack(case, folder))
    handle = os.pidfd_open(pid)
    rss_mb, cpu_s, reason = 0.0, 0.0, ""
    try:
        while not select.select([handle], [], [], _POLL_S)[0]:
            tree = _tree(pid)
            rss_mb = max(rss_mb, sum(p.rss_mb for p in tree.values()))
            cpu_s = sum(p.cpu_s for p in tree.values())
            seconds = time.monotonic() - begun
            if seconds > case.hang_s and (cpu_s > case.hang_s or seconds > BUSY_FACTOR * case.hang_s):
                reason = "hang"
            elif rss_mb > case.rss_mb:
                reason = "memory"
            if reason:
                _kill([pid, *tree])
                break
    finally:
        os.close(handle)
    _, status, usage = os.wait4(pid, 0)
    seconds = time.monotonic() - begun
    orphans = _reap(_POLL_S if reason else 2.0)
    return Ended(
        None if reason else os.waitstatus_to_exitcode(status),
        seconds,
        max(cpu_s, usage.ru_utime + usage.ru_stime),
        max(rss_mb, usage.ru_maxrss / 1024),
        reason,
        0 if reason else orphans,
    )


def _attack(case: Case, folder: Path) -> None:
    """In the new process: surroundings as of a user's shell, then the command."""
    os.setsid()
    for number, path in enumerate((Path(os.devnull), folder / "stdout", folder / "stderr")):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY, 0o644), number)
    os.closerange(3, 256)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_ADDRESSES, _MOST_ADDRESSES))
    os.environ.update(_environment(case, folder))
    os.chdir(folder / "current")
    arguments = case.arguments(folder)
    if case.real:
        program = shutil.which("inlay", path=str(Path(sys.executable).parent)) or "inlay"
        os.execv(program, ["inlay", *arguments])
    tempfile.tempdir = None
    sys.path[:] = [p for p in sys.path if p]
    sys.argv = ["inlay", *arguments]
    warm.reopen_streams(case.encoding)
    subprocess.Popen = warm.WarmPopen  # type: ignore[misc, assignment]
    if ":" in arguments[0]:
        module, _, name = arguments[0].partition(":")
        getattr(importlib.import_module(module), name)(*arguments[1:])
    else:
        from inlay.cli.commands import main

        try:
            with _short_calls():
                main()
        except SystemExit as stop:
            if not stop.code:
                check(folder)
            raise


def _short_calls() -> contextlib.AbstractContextManager[None]:
    """Calls of native code may take :data:`_CALL_S` only, where they are guarded."""
    if importlib.util.find_spec("inlay.model.guard") is None:
        return contextlib.nullcontext()
    limited: Callable[[float], contextlib.AbstractContextManager[None]]
    limited = importlib.import_module("inlay.model.guard").limited
    return limited(_CALL_S)


def _environment(case: Case, folder: Path) -> Mapping[str, str]:
    return {
        "HOME": str(folder / "cache"),
        "INLAY_CACHE_DIR": str(folder / "cache"),
        "TMPDIR": str(folder / "tmp"),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "COLUMNS": "200",
        "INLAY_TRACEBACK": "1",  # an error that nobody foresaw is a finding, even where one line would have said so
        "PYTHONIOENCODING": case.encoding,
        **case.environment,
    }


@dataclass(frozen=True)
class _Process:
    parent: int
    cpu_s: float
    rss_mb: float


def _tree(root: int) -> dict[int, _Process]:
    """A process and all its descendants."""
    known: dict[int, _Process] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            cpu = sum(int(f) for f in fields[11:15]) / _TICKS
            known[int(entry.name)] = _Process(int(fields[1]), cpu, int(fields[21]) * _PAGE_MB)
    found = {root: known[root]} if root in known else {}
    more = True
    while more:
        new = {pid: p for pid, p in known.items() if p.parent in found and pid not in found}
        found.update(new)
        more = bool(new)
    return found


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _reap(patience_s: float) -> int:
    """Wait for what the case left behind; after ``patience_s`` end it. Returns how many had to be ended."""
    deadline, ended = time.monotonic() + patience_s, 0
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            if time.monotonic() > deadline:
                left = [p for p in _tree(os.getpid()) if p != os.getpid()]
                ended += len(left)
                _kill(left)
                deadline = time.monotonic() + patience_s
            time.sleep(0.01)
