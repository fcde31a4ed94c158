"""How long other processes kept this one from running: on all of its threads, since runtimes have pools of them.

Linux counts for each thread how long it ran and how long it was ready to run but did not (``schedstat``). Where one
thread computes alone, what it waited is what the inference lost, neither more nor less. With several threads it is not
known which of them the others waited for. Two bounds hold all the same: what the waits took of an inference is no more
than their sum, and the inference needs no less time than the processor time of its busiest thread.

Elsewhere (macOS) there are only involuntary context switches of the process (``getrusage``): with any, all the time in
which the calling thread did not run may have been taken; without, none was.
Where nothing is told (Windows), all of it may have been.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

try:
    import resource
except ImportError:  # Windows tells nothing of the kind
    resource = None  # type: ignore[assignment]

_TASKS = "/proc/self/task"
_ALONE = 0.02  # of the busiest thread's processor time: what others run meanwhile where it computes alone


@dataclass(frozen=True)
class Preempted:
    """What other processes took of a span of time, in nanoseconds: ``least`` for certain, and no more than ``most``.

    A span is longer than what was timed in it: what was taken of the rest is in both bounds. But no inference took less
    than its own thread ``ran``.
    """

    least: float = 0.0
    most: float = 0.0
    ran: float = 0.0


@dataclass(frozen=True)
class Moment:
    """What the system has counted for this process so far."""

    clock_ns: int  # of the wall
    own_ns: int  # processor time of the calling thread, in nanoseconds, before the system was asked for the others
    since_ns: int  # the same after it was asked
    # for each thread, nanoseconds that it ran and that it waited for a processor; empty where the system does not tell
    threads: Mapping[str, tuple[int, int]]
    switches: int  # how often threads were interrupted in favour of others


def moment() -> Moment:
    """The present one."""
    switches = 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    clock_ns, own_ns, threads = time.perf_counter_ns(), time.thread_time_ns(), _threads()
    return Moment(clock_ns, own_ns, time.thread_time_ns(), threads, switches)


def preempted(since: Moment, now: Moment) -> Preempted:
    """What other processes took between two moments."""
    wall, own = now.clock_ns - since.clock_ns, float(now.own_ns - since.since_ns)
    if not now.threads:
        idle = max(0.0, wall - (now.own_ns - since.own_ns))
        untold = resource is None or now.switches > since.switches
        return Preempted(0.0, idle if untold else 0.0, own)
    threads = [(t, since.threads.get(name, (0, 0))) for name, t in now.threads.items()]
    spent = [(after[0] - before[0], after[1] - before[1]) for after, before in threads]  # ran, waited
    busiest, waited = max(spent)
    most = float(max(0, min(sum(w for _, w in spent), wall - busiest)))
    is_alone = sum(ran for ran, _ in spent) - busiest <= _ALONE * busiest
    return Preempted(min(float(waited), most) if is_alone else 0.0, most, own)


def _threads() -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    try:
        names = os.listdir(_TASKS)
    except OSError:
        return found
    for name in names:
        try:
            with open(f"{_TASKS}/{name}/schedstat", "rb", buffering=0) as file:
                ran, waited, *_ = file.read().split()
            found[name] = int(ran), int(waited)
        except (OSError, ValueError):  # the thread has ended
            continue
    return found
