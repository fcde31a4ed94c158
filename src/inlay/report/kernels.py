"""What ran in which precision and for how long, by the kernels of a profile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inlay.report.folder import FinishedRun
from inlay.run.outcome.evidence import FLOAT, Evidence, UnitFacts
from inlay.space.units import STATIC
from inlay.targets.base import KernelTime

INTEGER, FLOATING, OTHER, MIXED, NONE = "int8", "float", "other", "mixed", "none"
"""How a node ran: in quantized integers, in floating point, in neither, in both, or in no kernel that is known to be
its own; the first three are the families of kernels."""
KINDS = ("integer kernels", "float kernels", "other kernels", "Q/DQ", "layout")
"""Where kernel time goes, in the order in which bars are stacked."""


def spent(kernels: Sequence[KernelTime]) -> dict[str, float]:
    """Nanoseconds of one inference by :data:`KINDS`."""
    found = dict.fromkeys(KINDS, 0.0)
    names = {INTEGER: "integer kernels", FLOATING: "float kernels", OTHER: "other kernels"}
    for kernel in kernels:
        if kernel.kind == "compute":
            found[names[kernel.family]] += kernel.ns
        else:
            found["layout" if kernel.kind == "layout" else "Q/DQ"] += kernel.ns
    return found


def scale(run: FinishedRun, key: str) -> float | None:
    """The measured latency of a model over its kernel time by the profile; None where one of them is not known.

    A profile is of one moment, and slows the model down: beside latencies of others it would tell another story.
    """
    speed, total = run.speeds.get(key), sum(k.ns for k in run.profiles.get(key, ()))
    if speed is None or not speed.is_told or not total > 0.0:
        return None
    return run.baseline_ms * 1e6 / speed.value / total


def prices(kernels: Sequence[KernelTime]) -> dict[str, float]:
    """Nanoseconds that Q, DQ, reorders and transposes take, by the value whose boundary they serve."""
    found: defaultdict[str, float] = defaultdict(float)
    for kernel in kernels:
        if kernel.kind != "compute" and kernel.values:
            found[kernel.values[0]] += kernel.ns
    return dict(found)


@dataclass(frozen=True)
class UnitRow:
    """One unit of the table."""

    facts: UnitFacts  # what the run left of it
    executed: str  # how it ran: one of the words at the top of this file
    ns: float | None  # of its kernels in the delivered model; None where none is known
    saved_ns: float | None  # by how much less that is than in the float model; None where either is unknown
    why: str  # why it is not in low precision, or what is odd; empty where there is nothing to say


def unit_rows(run: FinishedRun, evidence: Evidence) -> list[UnitRow]:
    """Every unit, in topological order."""
    owner = {node: i for i, unit in enumerate(evidence.units) for node in unit.nodes}
    after, families = _of_units(run, evidence.delivered, owner)
    before, _ = _of_units(run, evidence.floats, owner)
    rows = []
    for i, unit in enumerate(evidence.units):
        known = families.get(i, frozenset())
        executed = NONE if not known else MIXED if len(known) > 1 else next(iter(known))
        saved = before[i] - after[i] if i in before and i in after else None
        rows.append(UnitRow(unit, executed, after.get(i), saved, _why(unit, executed, saved)))
    return rows


def _of_units(
    run: FinishedRun, key: str, owner: Mapping[str, int]
) -> tuple[dict[int, float], dict[int, frozenset[str]]]:
    """Nanoseconds and families of the kernels of each unit in the model ``key``, by its index, scaled."""
    kernels, factor = run.profiles.get(key, ()), scale(run, key) or 1.0
    ns: defaultdict[int, float] = defaultdict(float)
    families: defaultdict[int, set[str]] = defaultdict(set)
    for kernel in kernels:
        at = next((owner[n] for n in kernel.nodes if n in owner), None)
        if at is not None and kernel.kind == "compute":
            ns[at] += factor * kernel.ns
            families[at] |= {kernel.family} - {OTHER}
    return dict(ns), {at: frozenset(found) for at, found in families.items() if found}


def _why(unit: UnitFacts, executed: str, saved_ns: float | None) -> str:
    if unit.rejection:
        return unit.rejection
    if unit.precision != FLOAT:
        if executed == FLOATING and unit.precision == STATIC:
            return "quantized, but its kernel computes in float"
        if saved_ns is None or saved_ns >= 0.0:
            return ""
        hoped = (
            ""
            if unit.gain_ns is None or unit.gain_ns <= 0.0
            else f", where it was expected to take {unit.gain_ns / 1e3:.1f} us less"
        )
        return f"by its profile {-saved_ns / 1e3:.1f} us slower than in float{hoped}"
    if executed == INTEGER:
        return "it runs on its neighbors' integers"
    parts = []
    if unit.gain_ns is not None:
        parts.append(f"INT8 was expected to {'save' if unit.gain_ns > 0 else 'cost'} {abs(unit.gain_ns) / 1e3:.1f} us")
    if unit.noise_db is not None:
        parts.append(f"alone it would leave {unit.noise_db:.1f} dB")
    return f"left in float by the search{': ' if parts else ''}{', '.join(parts)}"
