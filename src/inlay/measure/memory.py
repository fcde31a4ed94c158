"""How much memory a session takes: by how much this process grows from before it is built through its first inferences.

Resident memory, as the system counts it: weights and what the runtime makes of them, buffers of intermediate values,
and what building takes for a moment, where that is the most. Linux can begin its high-water mark anew; elsewhere the
mark of the whole process counts, so that a process that was larger before shows no growth.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # of proc(5): sets the peak to what is resident now; since Linux 4.0


class Growth:
    """The growth of this process's resident memory from the moment that it is made."""

    def __init__(self) -> None:
        self._is_reset = _reset_peak()
        self._before = _resident("VmRSS") if self._is_reset else _largest()

    def bytes(self) -> int | None:
        """At most so far; None where the system does not tell."""
        now = _resident("VmHWM") if self._is_reset else _largest()
        return None if now is None or self._before is None else max(0, now - self._before)


def _reset_peak() -> bool:
    try:
        _RESET.write_text(_RESET_PEAK, encoding="ascii")
    except OSError:
        return False
    return _resident("VmHWM") is not None


def _resident(name: str) -> int | None:
    """A line of this process's status, in bytes."""
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def _largest() -> int | None:
    """The most that was ever resident, in bytes."""
    if os.name != "posix":
        return None
    import resource  # there is none on Windows

    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)
