"""What a machine says of its processor's clock and heat: whether it was held back while a block was timed.

Linux tells it in ``/sys``: x86 counts how often heat held a core or package back, boards have cooling devices that
lower the clock, and the firmware of a Raspberry Pi says what it does now, for want of voltage, too. What a system does
not tell (most virtual machines tell nothing) is taken for cool.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COUNTS = (
    "devices/system/cpu/cpu0/thermal_throttle/*_throttle_count",
    "devices/system/cpu/cpu*/thermal_throttle/core_*",
)
_MOST_COUNTS = 32  # files that are read around each block: of large machines the first cores
_COOLING = "class/thermal/cooling_device*"
_LOWERS_CLOCK = ("thermal-cpufreq", "cpufreq", "Processor", "intel_powerclamp")
"""Beginnings of the types of cooling devices that slow a processor down; fans do not."""
_FIRMWARE = ("devices/platform/soc/soc:firmware/get_throttled", "devices/platform/soc*/soc*:firmware/get_throttled")
_NOW = 0b1111  # of the firmware's bits: too little voltage, clock capped, throttled, near the limit of heat


@dataclass(frozen=True)
class Heat:
    """What was counted so far, and whether the clock is held down at the moment."""

    counts: tuple[int, ...] = ()
    held: bool = False

    def since(self, before: Heat) -> bool:
        """Whether the processor was held back between two moments, as far as the system tells."""
        return self.held or before.held or self.counts != before.counts


class Thermometer:
    """Reads a system's files; which of them there are is found out once.

    Args:
        root: where the system tells.
    """

    def __init__(self, root: Path = Path("/sys")) -> None:
        self._root = root
        self._counts = list(dict.fromkeys(f for p in _COUNTS for f in sorted(root.glob(p))))[:_MOST_COUNTS]
        devices = [d for d in sorted(root.glob(_COOLING)) if _text(d / "type").startswith(_LOWERS_CLOCK)]
        self._cooling = [d / "cur_state" for d in devices]
        self._firmware = list(dict.fromkeys(f for p in _FIRMWARE for f in root.glob(p)))

    def heat(self) -> Heat:
        """At this moment."""
        held = any(_number(f) > 0 for f in self._cooling) or any(_number(f, 16) & _NOW for f in self._firmware)
        return Heat(tuple(map(_number, self._counts)), held)

    def state(self) -> dict[str, str]:
        """Clock, governor and temperature, as far as the system tells."""
        return dict(self._told())

    def _told(self) -> Iterator[tuple[str, str]]:
        policies = sorted(self._root.glob("devices/system/cpu/cpufreq/policy*"))
        clocks = [(_number(p / "scaling_cur_freq"), _number(p / "cpuinfo_max_freq")) for p in policies]
        if any(now for now, _ in clocks):
            now, most = max(clocks)
            yield "clock", f"{now / 1e6:.2f} of {most / 1e6:.2f} GHz"
        governors = sorted({g for p in policies if (g := _text(p / "scaling_governor"))})
        if governors:
            yield "governor", ", ".join(governors)
        zones = [_number(f) for f in self._root.glob("class/thermal/thermal_zone*/temp")]
        if any(zones):
            yield "temperature", f"{max(zones) / 1000:.0f} °C"


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf8", errors="replace").strip()
    return ""


def _number(path: Path, base: int = 10) -> int:
    with contextlib.suppress(ValueError):
        return int(_text(path), base)
    return 0
