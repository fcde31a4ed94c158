"""Compiled libraries in this process: their prints off standard output, and products of numpy in one thread.

With a thread for each core, every product waits for the slowest of them, and each of them spins for tens of
milliseconds behind it, in case of another. Beside two busy processes on two cores, evening out a BERT's outliers took
6 s, and 2 with one thread; on an idle machine a noise probe took 69 ms while they spun, and 33 without.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Redirect standard output to the null device, for compiled code too: the file descriptor itself is replaced."""
    try:
        sys.stdout.flush()
        kept = os.dup(1)
    except (OSError, ValueError):  # there is no standard output to keep clean
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).fflush(None)  # what C has buffered is discarded too
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


THREADS = "OPENBLAS_NUM_THREADS"
"""The variable by which people choose a number themselves, and by which processes that are started get one."""


@contextmanager
def in_one_thread() -> Iterator[None]:
    """Within this, unless a number was chosen. It holds for the whole process until the last of several calls ends."""
    if THREADS in os.environ:
        yield
        return
    _calls.begin()
    try:
        yield
    finally:
        _calls.end()


class _Calls:
    """Those that are at work, in any thread: the first one sets the limit, and the last one undoes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._limits: Any = None

    def begin(self) -> None:
        with self._lock:
            self._count += 1
            if self._limits is None:
                from threadpoolctl import threadpool_limits  # a board, which asks for no product, goes without

                self._limits = threadpool_limits(1, "blas")

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            if self._limits is not None and not self._count:
                self._limits.restore_original_limits()
                self._limits = None


_calls = _Calls()
