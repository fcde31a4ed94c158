"""The process of a command: how long it has run, and how it ends when it is told to.

A budget bounds the whole command, with the time that Python takes to load it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import time
from pathlib import Path


def seconds_since_start() -> float:
    """Seconds since this process began; where the system does not tell, those of the processor that it has used."""
    used_s = time.process_time()
    with contextlib.suppress(OSError, ValueError, IndexError):
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])  # proc(5): starttime
        up_s = float(Path("/proc/uptime").read_text().split()[0])
        return max(used_s, up_s - ticks / os.sysconf("SC_CLK_TCK"))
    return used_s


def end_in_order() -> None:
    """Leave no scratch files behind when the system or a closed terminal ends this process: unwind, then exit.

    An interruption from the keyboard is acknowledged at once: clearing up can take seconds. From either on, destructors
    complain in silence: what is interrupted half-way, such as an archive being written, cannot be closed properly.
    """
    atexit.register(gc.freeze)  # else Python looks for cycles among all that is alive before the system frees it

    def stop(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second one must not interrupt the clearing up
        sys.unraisablehook = _ignore
        _stopped_by.append(number)
        sys.exit(128 + number)

    def interrupt(number: int, frame: object) -> None:
        os.write(2, b"\ninlay: interrupted; clearing up, what was measured is kept\n")  # safe in a signal handler
        signal.signal(number, signal.default_int_handler)  # said once; a second one still interrupts
        sys.unraisablehook = _ignore
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:  # a shell's background job has it ignored
        signal.signal(signal.SIGINT, interrupt)
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:  # nohup has it ignored
            signal.signal(number, stop)


def code_of_stop() -> int | None:
    """The exit code where a signal has told this process to end, whatever error its clearing up ran into; else None."""
    return 128 + _stopped_by[0] if _stopped_by else None


def _ignore(_: object) -> None:
    """A hook for what destructors raise."""


_stopped_by: list[int] = []  # the signal, once it came
