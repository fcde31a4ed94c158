"""What comes with a speed-up, as text: other uses, size and memory, how far it is from what the processor can do."""

from __future__ import annotations

from collections.abc import Iterator

from inlay.run.ceiling.bound import Ceiling, Ceilings
from inlay.run.result import Best, TuneResult
from inlay.search.peaks import Peaks
from inlay.trial import shown_ratio, shown_size, shown_use

_MEANS = {
    "throughput": "times are those of many inferences at once, per inference",
    "cpu-time": "times are those of all cores together, per inference",
}
UNKNOWN = "Ceiling: not known before inlay calibrate-machine has measured this processor's peaks, once"


def use_lines(best: Best, objective: str) -> Iterator[str]:
    """What the times are where they are not those of one inference after another; how it compares in other uses."""
    if objective in _MEANS:
        yield f"  Objective: {objective}: {_MEANS[objective]}."
    others = [use for use in best.uses if use.name != objective]
    found = [f"{shown_ratio(u.speedup)} {shown_use(u.name, u.streams)}" for u in others]
    if found:
        yield f"  In other uses: {', '.join(found)}."
    for use in best.uses:
        if use.served is not None:
            given, delivered = use.served
            yield f"  As a server, {use.streams} at once: {delivered}; the given model {given}."


_NOTABLE = 1 / 3  # of the given model's size: what differs by less is not why anybody quantizes


def size_lines(result: TuneResult) -> Iterator[str]:
    """How large the file is and what a session takes, where one of them differs notably from the given model's."""
    best, found, notable = result.best, [], False
    for what, now, before in (
        ("File", best.size_bytes, result.baseline_bytes),
        ("Memory of a session", best.memory_bytes, result.baseline_memory),
    ):
        if now is not None and before:
            found.append(f"{what}: {beside(now, before)}")
            notable = notable or abs(now - before) > _NOTABLE * before
    if notable:
        yield f"  {'; '.join(found)}."


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
    """The peaks of a processor in one line, with what they say of low precision as a whole."""
    products = ", ".join(f"{precision} {rate:.0f}" for precision, rate in peaks.products.items())
    moved = ", ".join(f"{rate:.0f}{f' from {size / 2**20:.0f} MB on' if size else ''}" for size, rate in peaks.moved)
    said = f"Peaks: multiply-accumulates in a nanosecond: {products}; GB/s of what operators read and write: {moved}."
    return f"{said} Note: {peaks.remark}." if peaks.remark else said


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


def beside(size: int, given: int | None) -> str:
    """Megabytes, and those of the given model where they are known."""
    return shown_size(size) + ("" if given is None else f" (the given model {shown_size(given)})")
