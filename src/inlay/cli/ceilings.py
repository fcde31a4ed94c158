"""How far models are from what their processor can do, as text."""

from __future__ import annotations

from collections.abc import Iterator

from inlay.run.ceiling.bound import Ceiling, Ceilings
from inlay.search.peaks import Peaks

UNKNOWN = "Ceiling: not known before inlay calibrate-machine has measured this processor's peaks, once"


def verdict_lines(known: Ceilings) -> Iterator[str]:
    """In two lines at most: the bound of the delivered model and of the one in float, and the largest gaps."""
    said = known.said()
    if known.unmeasured:
        yield f"  {UNKNOWN}."
    if said is None:
        return
    what = f"{_bounded(said)}{'' if known.delivered else ', in float'}"
    if known.delivered is not None and known.in_float is not None and not (said.beaten or known.in_float.beaten):
        what += f"; in float {known.in_float.bound_ms:.3f} of {known.in_float.now_ms:.3f} ms"
    yield f"  {what}."
    if said.gaps:
        yield f"  Largest gaps: {'; '.join(f'{g.ms:.3f} ms in {g.name} ({g.why})' for g in said.gaps)}."


def ceiling_lines(said: Ceiling) -> Iterator[str]:
    """The bound of one model, and a line for each of the largest gaps."""
    yield f"  {_bounded(said)}."
    for gap in said.gaps:
        yield f"    {gap.ms:8.3f} ms more than at the peaks in {gap.name}, {_share(gap.now_ms, said)}: {gap.why}"


def peaks_line(peaks: Peaks) -> str:
    """The peaks of a processor in one line."""
    products = ", ".join(f"{precision} {rate:.0f}" for precision, rate in peaks.products.items())
    moved = ", ".join(f"{rate:.0f}{f' from {size / 2**20:.0f} MB on' if size else ''}" for size, rate in peaks.moved)
    return f"Peaks: multiply-accumulates in a nanosecond: {products}; GB/s of what operators read and write: {moved}."


def _bounded(said: Ceiling) -> str:
    outside = f"{said.outside:.0%} of its time is outside products"
    if said.beaten:
        again = "inlay calibrate-machine measures again, best on an idle machine"
        return f"Ceiling: none is claimed, since {said.beaten}; {again}; {outside}"
    rates = ", ".join(f"{precision} products run at {share:.0%}" for precision, share in said.reached.items())
    peak = f"; {rates} of this processor's peak" if rates else ""
    return (
        f"Ceiling: {said.bound_ms:.3f} of {said.now_ms:.3f} ms if each operator ran at measured peaks; {outside}{peak}"
    )


def _share(ms: float, said: Ceiling) -> str:
    return f"{ms / said.now_ms:.0%} of the time" if said.now_ms > 0.0 else "of the time"
