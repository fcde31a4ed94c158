"""Run one case in a process of its own, under limits, and watch it and everything that it starts."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inlay.model.guard import CALL_SECONDS
from tests.attack import warm
from tests.attack.case import Case
from tests.attack.loadable import check, times
from tests.attack.watch import POLL_S, Watch, children, family, kill

_MOST_ADDRESSES = 16 << 30  # bytes; one allocation beyond any machine's memory must not take this one down
_CALL_S = 1.0
"""Of one guarded call. A user's model may take a minute; that a limit holds shows as well in less."""
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
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        raise OSError("this kernel does not tell the children of a process (CONFIG_PROC_CHILDREN): orphans go unseen")
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run(case: Case, folder: Path, others: frozenset[int] = frozenset()) -> Ended:
    """Run ``case``, which lies in ``folder``; its output goes to ``folder/stdout`` and ``folder/stderr``.

    Args:
        case: the attack.
        folder: its folder.
        others: children of this process that are none of the case's.
    """
    pid = os.fork()
    if pid == 0:
        warm.behave(lambda: _alone(case, folder))
    longest_s = case.hang_s + (CALL_SECONDS if case.real else 0.0)  # a call there has the limit that users have
    watch = Watch(pid, longest_s, case.rss_mb)
    handle = os.pidfd_open(pid)
    reason = ""
    try:
        while not reason and not select.select([handle], [], [], POLL_S)[0]:
            known = watch.look()
            reason = watch.reason
            if reason:
                kill([pid, *known])
    finally:
        os.close(handle)
    _, status, usage = os.wait4(pid, 0)
    seconds = watch.seconds
    orphans = reap(POLL_S if reason else 2.0, others)
    return Ended(
        None if reason else os.waitstatus_to_exitcode(status),
        seconds,
        max(watch.cpu_s, usage.ru_utime + usage.ru_stime),
        max(watch.rss_mb, usage.ru_maxrss / 1024),
        reason,
        0 if reason else orphans,
    )


def _alone(case: Case, folder: Path) -> None:
    new_process()
    attack(case, folder)


def new_process(kept: Sequence[int] = ()) -> None:
    """The surroundings of a process of its own: a session, limits, no files of the parent's but ``kept``."""
    os.setsid()
    for number in range(3, 256):
        if number not in kept:
            with contextlib.suppress(OSError):
                os.close(number)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_ADDRESSES, _MOST_ADDRESSES))
    sys.path[:] = [p for p in sys.path if p]
    subprocess.Popen = warm.WarmPopen  # type: ignore[misc, assignment]


def attack(case: Case, folder: Path) -> None:
    """In a new process: surroundings as of a user's shell, then the command."""
    for number, path in enumerate((Path(os.devnull), folder / "stdout", folder / "stderr")):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.update(_environment(case, folder))
    os.chdir(folder / "current")
    arguments = case.arguments(folder)
    if case.real:
        program = shutil.which("inlay", path=str(Path(sys.executable).parent)) or "inlay"
        os.execv(program, ["inlay", *arguments])
    tempfile.tempdir = None
    sys.argv = ["inlay", *arguments]
    warm.reopen_streams(case.encoding)
    if ":" in arguments[0]:
        module, _, name = arguments[0].partition(":")
        getattr(importlib.import_module(module), name)(*arguments[1:])
    else:
        from inlay.cli.commands import main
        from inlay.errors import UNPROVEN

        held = times(folder)
        try:
            with _short_calls():
                main()
        except SystemExit as stop:
            if stop.code in (None, 0, UNPROVEN):
                check(folder, held if _writes_models(arguments) else times(folder))
            raise


def _writes_models(arguments: Sequence[str]) -> bool:
    """Whether what the command writes to a file called ``.onnx`` is a model: of exports, most are JSON or CSV."""
    return arguments[0] != "export" or "netron" in arguments


def _short_calls() -> contextlib.AbstractContextManager[None]:
    """Calls of native code may take :data:`_CALL_S` only, in the guarded process and in workers."""
    from inlay.measure import policy
    from inlay.model.guard import limited

    policy.MESSAGE_LIMIT_S = _CALL_S
    return limited(lambda: _CALL_S)


def _environment(case: Case, folder: Path) -> Mapping[str, str]:
    return {
        "HOME": str(folder / "home"),
        "INLAY_CACHE_DIR": str(folder / "cache"),
        "TMPDIR": str(folder / "tmp"),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "COLUMNS": "200",
        "INLAY_TRACEBACK": "1",  # an error that nobody foresaw is a finding, even where one line would have said so
        "PYTHONIOENCODING": case.encoding,
        **case.environment,
    }


def reap(patience_s: float, others: frozenset[int]) -> int:
    """Wait for what a case left behind; after ``patience_s`` end it. Returns how many had to be ended.

    Children of this process in ``others`` are none of the case's.
    """
    deadline, ended = time.monotonic() + patience_s, 0
    while True:
        left = [p for p in children(os.getpid()) if p not in others]
        if not left:
            return ended
        for pid in left:
            os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > deadline:
            below = [p for root in left for p in family(root)]
            ended += len(below)
            kill(below)
            deadline = time.monotonic() + patience_s
        time.sleep(0.01)
