"""A process for code that may crash, hang or exhaust the memory: messages, limits, and an end with its parent.

It runs Inlay's own functions, isolated from the working directory: files beside a model are data.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from io import FileIO
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Union

import numpy as np

from inlay.model.heard import WAITING_S, doing
from inlay.model.libraries import THREADS

ORPHAN_POLL_S = 0.5  # seconds between a child's looks whether its parent is still there, where no signal tells it
MEMORY_POLL_S = 0.05  # the same at its own memory, where the system does not limit that
_BOOT = "import sys; sys.path[:] = filter(None, [{first!r}, *sys.path]); from {module} import {name}; {name}()"
"""Starts a child without the working directory (the empty entry) on the import path."""
_LONG = 1 << 14  # bytes from which a part goes through the shared file
_KEPT_BYTES = 1 << 28  # of that file between two messages
_LOG_BYTES = 1 << 16  # from the end of what a dead child printed: where its last words are
_LINUX = sys.platform.startswith("linux")
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has no other
_OUT_OF_MEMORY = 77  # exit code of a child that went beyond its memory limit
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_KEEPER = 'read -r _; kill -s KILL -- "-$0"'
Part = Union[bytes, bytearray, memoryview]  # noqa: UP007  (boards may have Python 3.9)


class Python(NamedTuple):
    """How Python is started.

    Attributes:
        words: the program, with arguments.
        first: where it looks first for what it imports; empty for its usual places.
    """

    words: Sequence[str]
    first: str = ""


HERE = Python((sys.executable,))
"""As this process was."""


class ChildDied(Exception):
    """The process ended before it answered; the message says how.

    Args:
        how: the signal, the exit code, or what else was wrong.
        words: the last line that it printed.
    """

    def __init__(self, how: str, words: str = "") -> None:
        self.how, self.words = how, words
        super().__init__(how + (f": {words}" if words else ""))


class Child:
    """A child process, from the parent's side. It answers one message at a time, in order.

    Args:
        entry: ``module:function`` of the function that the process runs; that calls :func:`serve`.
        files: descriptors of open files that it gets too, as further arguments.
        environment: variables that it gets besides this process's own.
        starts_others: processes, that is: they end with this one, however it ends.
        python: how it is started.

    Attributes:
        pid: its process number.

    Raises:
        OSError: no process can be started.
    """

    def __init__(
        self,
        entry: str,
        files: Sequence[int] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
        starts_others: bool = False,
        python: Python = HERE,
    ) -> None:
        module, _, name = entry.partition(":")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (it lives as long as the child)
        ours, theirs = socket.socketpair()
        shared = _anonymous_file()
        log, passed = self._log.fileno(), [shared.fileno(), *files]
        boot = _BOOT.format(first=python.first, module=module, name=name)
        with theirs:
            self._process = subprocess.Popen(
                [*python.words, "-u", "-c", boot, str(os.getpid()), *map(str, passed)],
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                pass_fds=passed,
                env={THREADS: "1", **os.environ, **environment},
                start_new_session=True,  # Ctrl+C goes to the parent alone, which then ends the child
            )
        self._wire = _Wire(ours, shared, lasting=True)
        self._closed = False
        self._said = 0  # bytes of the log before the latest message
        self.pid = self._process.pid
        self._keeper = Keeper(self.pid) if starts_others else None

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def ask(self, message: Sequence[Part], limit_s: float) -> list[Part]:
        """The answer to ``message``. Whenever there is none, the process is ended.

        Raises:
            ChildDied: it ended, or its answer is none.
            TimeoutError: it took more than ``limit_s`` seconds.
        """
        self._wire.limit(limit_s)
        self._said = os.fstat(self._log.fileno()).st_size
        try:
            self._wire.forget()
            self._wire.send(message)
            self._wire.wait(limit_s)
            return self._wire.receive()
        except (ConnectionError, EOFError, MemoryError, OverflowError):
            raise self._death() from None
        except BaseException:  # its answer would be read as that to the next message
            self.close()
            raise

    def close(self) -> None:
        """End the process, with all that it started and left in its session; twice is fine."""
        if self._closed:
            return
        self._closed = True
        end_group(self._process)
        if self._keeper is not None:
            self._keeper.close()
        self._wire.close()
        self._log.close()

    def _death(self) -> ChildDied:
        try:
            code = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self.close()
            return ChildDied("it printed into the channel of its answers")
        # what it printed before the message that it died on, such as a library's greeting, is no reason
        self._log.seek(max(self._said, self._log.seek(0, os.SEEK_END) - _LOG_BYTES))
        lines = [t for t in self._log.read().decode(errors="replace").splitlines() if t.strip()]
        self.close()
        if code == _OUT_OF_MEMORY:
            return ChildDied("out of memory")
        return ChildDied(f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}", *lines[-1:])


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that has a session of its own, with all that is left in that; wait for it.

    It was not waited for before: until then its number is its group's. Without process groups (Windows), it ends alone.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, _KILL)
        else:
            process.kill()
    process.wait()


class Keeper:
    """Ends a group of processes as soon as this process is gone: it may be killed at any moment.

    Without process groups, there is nothing to keep.
    """

    def __init__(self, group: int) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if not hasattr(os, "killpg"):
            return
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, str(group)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        """Once the group has ended, and its number may be another's: end nothing more."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


def serve(answer: Callable[[list[Part]], Sequence[Part]]) -> None:
    """Answer messages until the parent closes the connection, or ends: the child's side.

    The connection is standard input; the arguments are the parent's process number, the shared file, and the files that
    the parent gave.
    """
    die_with_parent(int(sys.argv[1]))
    shared = FileIO(int(sys.argv[2]), "r+")
    wire = _Wire(socket.socket(fileno=os.dup(0)), shared, lasting=False)
    with open(os.devnull, "rb") as nowhere:
        os.dup2(nowhere.fileno(), 0)
    while True:
        try:
            message = wire.receive()
        except EOFError:
            return
        wire.send(answer(message))


class _Wire:
    """Messages over a connection; long parts through a file that both processes have mapped.

    A connection holds a few hundred kilobytes, so that sending megabytes would switch between the processes many times.

    Args:
        connection: to the other process.
        shared: the file, open in both.
        lasting: whether received parts stay as they are; otherwise they change with the next message.
    """

    def __init__(self, connection: socket.socket, shared: FileIO, lasting: bool) -> None:
        self._connection, self._shared, self._lasting = connection, shared, lasting
        self._reader = connection.makefile("rb")
        self._pages: mmap.mmap | None = None

    def limit(self, seconds: float) -> None:
        self._connection.settimeout(seconds)

    def wait(self, seconds: float) -> None:
        """Wait until something arrives; meanwhile whoever listens is told that the work goes on.

        Raises:
            TimeoutError: nothing arrived within ``seconds``.
        """
        end = time.monotonic() + seconds
        while True:
            left = max(0.0, end - time.monotonic())
            with selectors.DefaultSelector() as selector:
                selector.register(self._connection, selectors.EVENT_READ)
                if selector.select(min(left, WAITING_S)):
                    return
            if not left:
                raise TimeoutError
            doing()

    def send(self, parts: Sequence[Part]) -> None:
        """Number of parts, their lengths, and those that are short; the others lie one after the other in the file."""
        views = [memoryview(part) for part in parts]
        long = [view for view in views if view.nbytes >= _LONG]
        long = [memoryview(bytes(view)) if self._holds(view) else view for view in long]
        pages, at = self._mapped(sum(view.nbytes for view in long)), 0
        for view in long:
            pages[at : at + view.nbytes] = view
            at += view.nbytes
        head = struct.pack(f"<I{len(views)}Q", len(views), *(view.nbytes for view in views))
        self._connection.sendall(b"".join([head, *(view for view in views if view.nbytes < _LONG)]))

    def _holds(self, view: memoryview) -> bool:
        """Whether ``view`` is of the file: a received part that is sent back, maybe to another place in it."""
        if self._pages is None:
            return False
        return np.may_share_memory(np.frombuffer(view, np.uint8), np.frombuffer(self._pages, np.uint8))

    def receive(self) -> list[Part]:
        """The parts of the next message. Raises EOFError where the other side has closed the connection."""
        (count,) = struct.unpack("<I", self._read(4))
        lengths = struct.unpack(f"<{count}Q", self._read(8 * count))
        pages, at = self._mapped(sum(length for length in lengths if length >= _LONG)), 0
        parts: list[Part] = []
        for length in lengths:
            if length < _LONG:
                parts.append(bytearray(self._read(length)))
                continue
            parts.append(bytearray(pages[at : at + length]) if self._lasting else pages[at : at + length])
            at += length
        return parts

    def forget(self) -> None:
        """Free what an unusually long message took."""
        if os.fstat(self._shared.fileno()).st_size > _KEPT_BYTES:
            self._pages = None
            self._shared.truncate(0)

    def close(self) -> None:
        self._reader.close()
        self._connection.close()
        self._shared.close()

    def _read(self, length: int) -> bytes:
        data = self._reader.read(length)
        if len(data) < length:
            raise EOFError
        return data

    def _mapped(self, size: int) -> memoryview:
        """The file's first ``size`` bytes or more."""
        if os.fstat(self._shared.fileno()).st_size < size:
            self._shared.truncate(size)
        if size and (self._pages is None or len(self._pages) < size):
            self._pages = mmap.mmap(self._shared.fileno(), size)
        return memoryview(self._pages or b"")


def _anonymous_file() -> FileIO:
    """A file without a name: in memory where the system offers that."""
    if hasattr(os, "memfd_create"):
        return FileIO(os.memfd_create("inlay"), "r+")
    with tempfile.TemporaryFile() as file:
        return FileIO(os.dup(file.fileno()), "r+")


def die_with_parent(parent: int) -> None:
    """End this process as soon as ``parent`` ends, also in the middle of a long native call.

    Linux delivers a signal; elsewhere, and where the parent had ended already, a thread looks every moment, which works
    as long as native code releases the interpreter lock during its calls.
    """
    if _LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _KILL)

    def gone() -> int | None:
        return None if os.getppid() == parent else -_KILL

    _watch(gone, ORPHAN_POLL_S)


def limit_memory(more: int) -> None:
    """Let this process take at most ``more`` bytes beyond what it has now; a larger request fails.

    On Linux the system refuses the request. Elsewhere a thread looks at the largest size so far, and ends the process;
    Windows has no such figure, and no limit here.
    """
    try:
        import resource
    except ImportError:
        return

    if _LINUX:
        used = int(Path("/proc/self/statm").read_bytes().split()[5]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = used + more
        resource.setrlimit(resource.RLIMIT_DATA, (wanted if most < 0 else min(wanted, most), most))
        return

    def size() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    global _ceiling
    if not _ceiling:
        _watch(lambda: _OUT_OF_MEMORY if size() > _ceiling else None, MEMORY_POLL_S)
    _ceiling = size() + more


_ceiling = 0  # bytes; 0 before the first limit


def _watch(ending: Callable[[], int | None], every_s: float) -> None:
    """End this process as soon as ``ending`` gives an exit code; a negative one is a signal."""

    def look() -> None:
        while (code := ending()) is None:
            time.sleep(every_s)
        if code < 0:
            os.kill(os.getpid(), -code)
        os._exit(code)

    threading.Thread(target=look, daemon=True).start()
