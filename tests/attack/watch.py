"""What a process and all that it started use: processor time, memory, and how long they had to wait for a processor."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

POLL_S = 0.2
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(frozen=True)
class Process:
    """One process: its parent, processor time with that of its ended children, and resident memory."""

    parent: int
    cpu_s: float
    rss_mb: float


def everything() -> dict[int, Process]:
    """Every process of the machine; reading them takes milliseconds."""
    known: dict[int, Process] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue  # it has ended
            cpu = sum(int(f) for f in fields[11:15]) / _TICKS
            known[int(entry)] = Process(int(fields[1]), cpu, int(fields[21]) * _PAGE_MB)
    return known


def tree(root: int, known: Mapping[int, Process]) -> dict[int, Process]:
    """A process of ``known`` and all its descendants."""
    found = {root: known[root]} if root in known else {}
    more = True
    while more:
        new = {pid: p for pid, p in known.items() if p.parent in found and pid not in found}
        found.update(new)
        more = bool(new)
    return found


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
        """Read the figures of the tree; returns all processes."""
        known = everything()
        found = tree(self.root, known)
        self.cpu_s = max(self.cpu_s, sum(p.cpu_s for p in found.values()) - self.cpu_before_s)
        self.rss_mb = max(self.rss_mb, sum(p.rss_mb for p in found.values()))
        for pid in found:
            waited = _waited_s(pid)
            first, last = self._waited.get(pid, (waited if pid == self.root else 0.0, waited))
            self._waited[pid] = first, max(last, waited)
        return known

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
