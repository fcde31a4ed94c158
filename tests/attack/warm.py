"""Python processes that start in milliseconds: forks of a process that has imported everything and run nothing.

A new interpreter that imports Inlay takes two seconds of processor time, which would be nearly all of an attack. The
processes here are as separate as any: their crashes, leaks and limits are their own.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import io
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

_BASE = subprocess.Popen._execute_child  # type: ignore[attr-defined]


def be_warm(modules: Sequence[str]) -> None:
    """Import ``modules``, and keep the collector from copying what the forks share."""
    for name in sorted({*modules} - {*sys.modules}):
        with contextlib.suppress(ImportError):  # some are made while others are imported
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def behave(body: Callable[[], object]) -> NoReturn:
    """Run ``body`` as if it were the program of this process, and end the process as the interpreter would."""
    code = 1
    try:
        code = outcome(body)
    finally:
        os._exit(code)


def outcome(body: Callable[[], object]) -> int:
    """The exit code of a program that does ``body``; what it raises is printed as the interpreter would."""
    code = 1
    try:
        body()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120  # as the interpreter itself
    return code


def reopen_streams(encoding: str) -> None:
    """``sys.stdin``, ``stdout`` and ``stderr`` on the file descriptors 0 to 2."""
    sys.stdin = io.TextIOWrapper(os.fdopen(0, "rb", closefd=False), encoding=encoding)
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), encoding=encoding)
    sys.stderr = io.TextIOWrapper(
        os.fdopen(2, "wb", closefd=False), encoding=encoding, errors="backslashreplace", line_buffering=True
    )


class WarmPopen(subprocess.Popen[bytes]):
    """Starts ``python -c CODE …`` as a fork of this process; everything else, and forks of threads, as usual."""

    def _execute_child(self, *given: Any) -> None:
        asked = inspect.signature(_BASE).bind(self, *given).arguments
        program = _program(asked["args"])
        if program is None or asked["shell"] or len(os.listdir("/proc/self/task")) > 1:
            _BASE(self, *given)
            return
        code, argv = program
        pid = os.fork()
        if pid == 0:
            behave(lambda: _become(code, argv, asked))
        self.pid: int = pid
        self._child_created = True
        close: Any = self._close_pipe_fds  # type: ignore[attr-defined]
        close(*(asked[n] for n in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")))


def _program(args: object) -> tuple[str, list[str]] | None:
    """Code and arguments of ``python [flags] -c CODE …``."""
    if not isinstance(args, (list, tuple)) or not args or str(args[0]) != sys.executable:
        return None
    rest = [str(a) for a in args[1:]]
    while rest and rest[0].startswith("-") and rest[0] != "-c":
        if rest.pop(0) in ("-m", "-W", "-X"):
            return None
    return (rest[1], ["-c", *rest[2:]]) if len(rest) > 1 and rest[0] == "-c" else None


def _become(code: str, argv: list[str], asked: dict[str, Any]) -> None:
    ends = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
    lifted = [os.dup(end) if end >= 0 else -1 for end in ends]  # none of them is 0, 1 or 2 any more
    for number, end in enumerate(lifted):
        if end >= 0:
            os.dup2(end, number)
    kept = {int(fd) for fd in asked.get("pass_fds") or ()}
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if fd > 2 and fd not in kept:
            with contextlib.suppress(OSError):  # one of them was the listing itself
                os.close(fd)
    if asked.get("start_new_session"):
        os.setsid()
    if asked.get("cwd") is not None:
        os.chdir(asked["cwd"])
    if asked.get("env") is not None:
        os.environ.clear()
        os.environ.update(asked["env"])
    if asked.get("preexec_fn") is not None:
        asked["preexec_fn"]()
    sys.argv = argv
    reopen_streams("utf8")
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
