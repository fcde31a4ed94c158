"""What a process and all that it started use: processor time, memory, and how long they had to wait for a processor."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

POLL_S = 0.2
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(frozen=True)
class Process:
    """One process: processor time with that of its ended children, and resident memory."""

    cpu_s: float
    rss_mb: float


def children(pid: int) -> list[int]:
    """What a process started and has not waited for, and what it adopted; nothing where it has ended.

    The system tells this of each thread in microseconds. To look through all processes of a machine takes milliseconds,
    which is as much as many an attack.
    """
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def family(root: int) -> dict[int, Process]:
    """A process and all its descendants, as far as they have not ended: not those that nobody has waited for yet."""
    found: dict[int, Process] = {}
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            if fields[0] == b"Z":
                continue
            cpu = sum(int(f) for f in fields[11:15]) / _TICKS
            found[pid] = Process(cpu, int(fields[21]) * _PAGE_MB)
            waiting += children(pid)
    return found


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def kill(pids: Iterable[int]) -> None:
    """End processes, those that have ended already too."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@dataclass
class Watch:
    """One command under limits.

    Attributes:
        root: its process.
        hang_s: seconds that it may take, those aside in which its processes were ready and had no processor: a machine
            with other work makes no hang, and a deadlock on one is still seen.
        most_mb: memory of the whole tree.
        cpu_before_s: what the tree had used before the command began.
    """

    root: int
    hang_s: float
    most_mb: float
    cpu_before_s: float = 0.0
    cpu_s: float = 0.0
    rss_mb: float = 0.0
    begun: float = field(default_factory=time.monotonic)
    _waited: dict[int, tuple[float, float]] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Wall time so far."""
        return time.monotonic() - self.begun

    def look(self) -> dict[int, Process]:
        """Read the figures of the tree, and return them."""
        found = family(self.root)
        self.cpu_s = max(self.cpu_s, sum(p.cpu_s for p in found.values()) - self.cpu_before_s)
        self.rss_mb = max(self.rss_mb, sum(p.rss_mb for p in found.values()))
        for pid in found:
            waited = _waited_s(pid)
            first, last = self._waited.get(pid, (waited if pid == self.root else 0.0, waited))
            self._waited[pid] = first, max(last, waited)
        return found

    @property
    def reason(self) -> str:
        """Why it must be ended, by the figures that were read last: ``hang``, ``memory`` or nothing."""
        waited = sum(last - first for first, last in self._waited.values())
        if self.seconds - waited > self.hang_s:
            return "hang"
        return "memory" if self.rss_mb > self.most_mb else ""


def _waited_s(pid: int) -> float:
    """Seconds that the threads of a process were ready to run and did not."""
    total = 0
    with contextlib.suppress(OSError, IndexError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            total += int((thread / "schedstat").read_bytes().split()[1])
    return total * 1e-9
