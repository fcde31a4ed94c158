"""What this machine's processor is and can do, as the operating system lists it."""

from __future__ import annotations

import contextlib
import platform
from functools import lru_cache
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


@lru_cache(maxsize=1)
def cpu_flags() -> frozenset[str]:
    """ISA flags of this machine's first processor, as the kernel lists them; empty where it lists none."""
    for name, text in _entries():
        if name in ("flags", "Features"):
            return frozenset(text.split())
    return frozenset()


def cpu_name() -> str:
    """The processor's name for people."""
    found = next((text for name, text in _entries() if name == "model name"), "")
    return found or platform.processor() or "unknown"


def _entries() -> list[tuple[str, str]]:
    with contextlib.suppress(OSError):
        lines = _CPUINFO.read_text(encoding="utf8").splitlines()
        return [(name.strip(), text.strip()) for name, colon, text in (x.partition(":") for x in lines) if colon]
    return []
