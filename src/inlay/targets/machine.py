"""What this machine's processor is and can do, as the operating system lists it, and its clock."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import lru_cache
from pathlib import Path

import numpy as np

from inlay.errors import UsageError

_CPUINFO = Path("/proc/cpuinfo")
_CPU0 = Path("/sys/devices/system/cpu/cpu0")
_THREADS_PER_CORE = 4
"""More of them are no wish of anybody's, and a runtime that starts them does not answer for a long time."""
USUAL_LEVEL2 = 1 << 20
"""Bytes of a second-level cache of which nothing is known: the least of the server processors of this decade. Blocks
that fit it fit larger ones."""
_USUAL_LAST, _MOST_LAST = 32 << 20, 256 << 20
"""The same of the last cache: of which nothing is known, and the most that other work is taken to fill."""
_VECTOR = {"asimddp": (16, 20), "sve": (16, 22), "i8mm": (26, 13)}
"""Entry and bit of flags of ARM64: AT_HWCAP and AT_HWCAP2 of Linux's ``arch/arm64/include/uapi/asm/hwcap.h``."""
_UNITS = {"K": 1 << 10, "M": 1 << 20}


@lru_cache(maxsize=1)
def cpu_flags() -> frozenset[str]:
    """ISA flags of this machine's first processor, as the kernel lists them; empty where it lists none.

    What runs under a translator of instructions, such as a container for another architecture, sees the list of the
    processor that translates: on ARM64 the translated one is then asked itself.
    """
    machine = platform.machine()
    listed = "flags" if is_x86(machine) else "Features"
    found = next((text for name, text in _entries() if name == listed), None)
    if found is None and machine == "aarch64":
        return _told_by_vector()
    return frozenset((found or "").split())


def _told_by_vector() -> frozenset[str]:
    """Of the flags in :data:`_VECTOR`, those in the auxiliary vector that the kernel hands to each process."""
    ask = getattr(ctypes.CDLL(None), "getauxval", None)
    if ask is None:
        return frozenset()
    ask.restype, ask.argtypes = ctypes.c_ulong, (ctypes.c_ulong,)
    return frozenset(flag for flag, (entry, bit) in _VECTOR.items() if ask(entry) >> bit & 1)


def is_x86(machine: str) -> bool:
    """Whether a machine, as :func:`platform.machine` names it, is an x86 one."""
    return machine.lower() in ("x86_64", "amd64", "i686")


def cpu_name() -> str:
    """The processor's name for people."""
    found = next((text for name, text in _entries() if name == "model name"), "")
    return found or platform.processor() or "unknown"


def cpu_facts(isa: Sequence[str] = ()) -> dict[str, str]:
    """What a fingerprint says of the processor; of its ISA flags those in ``isa``, that kernels choose by."""
    told = {"isa": " ".join(f for f in isa if f in cpu_flags())} if isa else {}
    return {"machine": platform.machine(), "cpu": cpu_name(), **told, "cores": str(os.cpu_count())}


def processor_of(facts: Mapping[str, str] | None) -> tuple[str, frozenset[str]]:
    """Machine and ISA flags by the facts of a fingerprint (:func:`cpu_facts`); by default those here."""
    if facts is None:
        return platform.machine(), cpu_flags()
    return facts["machine"], frozenset(facts["isa"].split())


def require_threads(threads: int) -> None:
    """Raise UsageError for less than no threads; 0 lets a runtime choose."""
    if threads < 0:
        raise UsageError(f"threads must be 0 (the runtime chooses) or more, not {threads}")


def require_streams(streams: int) -> None:
    """Raise UsageError for less than one stream."""
    if streams < 1:
        raise UsageError(f"streams must be 1 or more, not {streams}")


def streams_for(threads: int) -> int:
    """How many inferences at once keep this machine busy, each with so many ``threads``; 0 is all of them."""
    return max(1, (os.cpu_count() or 1) // threads) if threads else 1


def refuse_idle_threads(threads: int) -> None:
    """Raise UsageError for many times as many threads as this machine has cores: only where it measures is that so."""
    cores = os.cpu_count() or threads
    if threads > _THREADS_PER_CORE * cores:
        raise UsageError(f"threads={threads}: the machine that measures has {cores} cores; give {cores} or fewer")


@lru_cache(maxsize=1)
def level2_bytes(cpu: Path = _CPU0) -> int:
    """Bytes of the first processor's second-level cache, as the kernel lists them; the usual ones where it does not."""
    return _caches(cpu).get("2", USUAL_LEVEL2)


@lru_cache(maxsize=1)
def last_level_bytes(cpu: Path = _CPU0) -> int:
    """The same of the largest cache that it uses, within what is worth emptying."""
    return min(max(_caches(cpu).values(), default=_USUAL_LAST), _MOST_LAST)


def _caches(cpu: Path) -> dict[str, int]:
    """Bytes of its caches by level, as far as the kernel lists them."""
    found: dict[str, int] = {}
    for cache in sorted((cpu / "cache").glob("index*")):
        with contextlib.suppress(OSError, ValueError):
            level, size = ((cache / name).read_text(encoding="utf8").strip() for name in ("level", "size"))
            if size[-1:] in _UNITS and 0 < int(size[:-1]) < 1 << 20:
                found.setdefault(level, int(size[:-1]) * _UNITS[size[-1]])
    return found


def _entries() -> list[tuple[str, str]]:
    with contextlib.suppress(OSError):
        lines = _CPUINFO.read_text(encoding="utf8").splitlines()
        return [(name.strip(), text.strip()) for name, colon, text in (x.partition(":") for x in lines) if colon]
    return []


def timed_at_once(infer: Callable[[], object], repeats: int, others: Executor, streams: int) -> np.ndarray:
    """Nanoseconds of each of ``repeats`` rounds of ``streams`` calls at once, per call, shape (repeats,), float64.

    Streams do not wait for one another between rounds, as those of a server do not, so that all rounds are alike.

    Args:
        infer: is called by several threads at once.
        others: runs all streams but one.
    """
    begun = list[int]()
    together = threading.Barrier(streams, lambda: begun.append(time.perf_counter_ns()))

    def stream() -> None:
        together.wait()
        for _ in range(repeats):
            infer()

    running = [others.submit(stream) for _ in range(streams - 1)]
    stream()
    for each in running:
        each.result()
    return np.full(repeats, (time.perf_counter_ns() - begun[0]) / (repeats * streams))


def timed(infer: Callable[[], object], repeats: int) -> np.ndarray:
    """Nanoseconds of each call, shape (repeats,), int64."""
    times = np.empty(repeats, np.int64)
    for i in range(repeats):
        start = time.perf_counter_ns()
        infer()
        times[i] = time.perf_counter_ns() - start
    return times
