"""Processors that are not here, by the instructions that the runtime's kernels choose by: what `--for` names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from inlay.errors import UsageError
from inlay.targets.machine import is_x86
from inlay.types import ANY_INT8

_X86, _ARM = "x86_64", "aarch64"
PROCESSORS: Mapping[str, tuple[str, str]] = {
    "avx2": (_X86, "avx2"),
    "avx-vnni": (_X86, "avx2 avx_vnni"),
    "avx512-vnni": (_X86, "avx2 avx512f avx512_vnni"),
    "avx512-bf16": (_X86, "avx2 avx512f avx512_vnni avx512_bf16"),
    "amx": (_X86, "avx2 avx512f avx512_vnni avx_vnni avx512_bf16 amx_int8"),
    "armv8": (_ARM, ""),
    "armv8.2-dotprod": (_ARM, "asimddp"),
    "armv8.6-i8mm": (_ARM, "asimddp i8mm"),
}
"""Machine, as Python names it, and flags, as the kernel lists them, of each by its name. `avx512-bf16` are AMD's from
Zen 4 on, `armv8` boards such as the Raspberry Pi 4, `armv8.2-dotprod` the Raspberry Pi 5 and Graviton2."""
SEVERAL = "+"  # between names: a file that is to run on all of them


def named(processors: str) -> list[str]:
    """The names in ``processors``, each once. Raises UsageError where one is not in :data:`PROCESSORS`."""
    names = list(dict.fromkeys(processors.split(SEVERAL)))
    for name in names:
        if name not in PROCESSORS:
            raise UsageError(f"processor {name} is not known; known are {', '.join(PROCESSORS)}")
    return names


def facts_of(processors: str) -> dict[str, str]:
    """What a fingerprint says of them: of several the instructions that all have, and the machine of x86 if any is one.

    Raises:
        UsageError: one is not known.
    """
    names = named(processors)
    rows = [PROCESSORS[name] for name in names]
    machine = _X86 if any(is_x86(each) for each, _ in rows) else _ARM
    isa = " ".join(flag for flag in rows[0][1].split() if all(flag in flags.split() for _, flags in rows))
    return {"machine": machine, "processor": SEVERAL.join(names), "isa": isa}


def exact_limit(machine: str, flags: Iterable[str]) -> int:
    """Largest magnitude of int8 weights whose sums of products are exact.

    Without VNNI (AVX512 or AVX), x86 adds products of uint8 and int8 in pairs of 16 bits, which saturate unless weights
    have 7 bits. ARM64 without dot products adds products of int8 and int8 so, which fit unless all four numbers are
    -128: then they wrap around. With these instructions the sum is formed in 32 bits.
    """
    flags = set(flags)
    if is_x86(machine):
        return ANY_INT8 if {"avx512_vnni", "avx_vnni"} & flags else 63
    # 63 * 255 * 2 and 127 * 128 * 2 are below 1 << 15. macOS, which lists no flags, has another name for the machine.
    return 127 if machine == _ARM and "asimddp" not in flags else ANY_INT8


def exact_limit_of(processors: str) -> int:
    """The least of those of ``processors``. Raises UsageError where one is not known."""
    rows = map(PROCESSORS.__getitem__, named(processors))
    return min(exact_limit(machine, flags.split()) for machine, flags in rows)
