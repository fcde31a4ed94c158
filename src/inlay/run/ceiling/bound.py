"""A lower bound of a model's time by measured peaks, and the largest gaps between it and what the model takes.

A roofline (Williams, Waterman and Patterson, 2009) for each kernel of a profile. Operators run one after another; each
takes the longer of its products at the peak of the precision that it computed in, and of the bytes that it reads and
writes at the best rate for so many bytes; nothing else costs anything. What only moves or converts elements counts at
most with the time that it took, as a runtime may hand on a view.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from inlay.model.graph import Graph
from inlay.run.ceiling.counts import Counter, Work, depth_and_columns
from inlay.search.peaks import Peaks, Reached, precision_of
from inlay.search.workload import sort_of
from inlay.targets.base import KernelTime
from inlay.trial import counted, shown_seconds

_SURE_NS = 20_000.0
"""Nanoseconds of a kernel from which on one that beats its bound shows that a peak is none: clocks are no finer."""
_ROUNDING = 1e-3  # relative: what sums of rounded numbers differ by
_GAPS = 3
_NARROW = 64  # products in a sum, or sums of the same data, below which a processor's units for products are not filled
_NEAR = 3.0  # times its bound that a product takes at most, to be called bound by reading and writing
_SMALL_NS = 2_000.0  # nanoseconds that a product takes at its peak, below which the call around it takes longer
_SHOWN = 0.01  # share of the time below which a gap is not worth a name
_SORTS = {
    "depthwise": "depthwise, so that a sum has few products",
    "grouped": "its groups have few channels",
    "of an image": "it reads few channels",
    "of few rows": "few rows: every weight is read for a few products",
    "of activations": "both factors are activations, which no layout is made for beforehand",
}


@dataclass(frozen=True)
class Gap:
    """What separates a model from its bound in one kind of operators."""

    name: str  # which operators, with their number
    ms: float  # what they take longer than at the peaks
    now_ms: float  # what they take
    why: str  # what is known of the reason


@dataclass(frozen=True)
class Ceiling:
    """How far a model is from what its processor can do."""

    now_ms: float  # an inference, as measured
    bound_ms: float  # what it takes at least if every operator runs at the measured peak of its precision
    outside: float  # share of the time that is not spent in products
    reached: Mapping[str, float]  # by precision, what share of its peak the products run at, all together
    gaps: tuple[Gap, ...]  # the largest, the first ones first
    # a kernel that was faster than its bound, as text: the peaks are none, and ``bound_ms`` no bound; else empty
    beaten: str = ""

    @property
    def at_most(self) -> float:
        """The speed-up that these operators in these precisions leave."""
        return self.now_ms / max(self.bound_ms, 1e-9)

    def as_json(self) -> dict[str, Any]:
        """As in ``result.json``; no bound where a peak was beaten."""
        found = {**asdict(self), "bound_ms": None if self.beaten else self.bound_ms}
        return {**found, "at_most": None if self.beaten else self.at_most}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Ceiling:
        """The one that gave ``data``."""
        gaps = tuple(Gap(**gap) for gap in data["gaps"])
        bound_ms = data["bound_ms"]
        kept = {key: data[key] for key in ("now_ms", "outside", "reached", "beaten")}
        return cls(bound_ms=0.0 if bound_ms is None else bound_ms, gaps=gaps, **kept)


@dataclass(frozen=True)
class Ceilings:
    """What is known of the ceiling of a run's models."""

    peaks: Peaks | None = None  # of the processor; None where they are not known
    delivered: Ceiling | None = None  # of the delivered model; None where it has no profile
    in_float: Ceiling | None = None  # of the normalized model in float
    unmeasured: bool = False  # the processor's peaks could be measured, and were not

    def as_json(self) -> dict[str, Any] | None:
        """As in ``result.json``."""
        if self.peaks is None:
            return None
        found = {"delivered": self.delivered, "float": self.in_float}
        return {"peaks": self.peaks.as_json(), **{k: None if c is None else c.as_json() for k, c in found.items()}}

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the peaks say of low precision as a whole, for people."""
        return () if self.peaks is None or not self.peaks.remark else (self.peaks.remark,)

    def said(self) -> Ceiling | None:
        """That of the delivered model, or where it has none, of the one in float."""
        return self.delivered or self.in_float


NO_CEILINGS = Ceilings()  # nothing is known


@dataclass(frozen=True)
class _Part:
    """One kernel: what it took, has to do, and would take at the peaks, in nanoseconds."""

    kernel: KernelTime
    work: Work
    ns: float
    least_ns: float

    @property
    def precision(self) -> str:
        return precision_of(self.kernel)


def ceiling(kernels: Sequence[KernelTime], graph: Graph, peaks: Peaks, now_ns: float) -> Ceiling:
    """The bound of a model, and its gaps.

    Args:
        graph: of the model that was profiled, or of its float form, with sizes.
        now_ns: an inference, measured without a profiler, which takes time of its own.
    """
    total = sum(k.ns for k in kernels)
    now_ns = now_ns or total
    factor = min(1.0, now_ns / total) if total > 0.0 else 1.0
    counter = Counter(graph, kernels)
    parts = [_part(kernel, counter.work(kernel), peaks, factor) for kernel in kernels]
    between = max(0.0, now_ns - factor * total)
    least = sum(p.least_ns for p in parts)
    products = [p for p in parts if p.work.products]
    calls = f"calls of {counted(len(parts), 'kernel')}, and what the profile does not show"
    gaps = [*_gaps(parts, graph, peaks), Gap("between kernels", between / 1e6, between / 1e6, calls)]
    gaps = sorted((g for g in gaps if g.ms * 1e6 >= _SHOWN * now_ns), key=lambda g: -g.ms)
    return Ceiling(
        now_ms=now_ns / 1e6,
        bound_ms=least / 1e6,
        outside=1.0 - sum(p.ns for p in products) / now_ns if now_ns > 0.0 else 0.0,
        reached=_reached(products, peaks),
        gaps=tuple(gaps[:_GAPS]),
        beaten=_beaten(parts, least, now_ns),
    )


def reached_by(kernels: Sequence[KernelTime], graph: Graph) -> Iterator[Reached]:
    """What the longer kernels of a profile reached: as profiled, since what a profiler adds is little beside them."""
    counter = Counter(graph, kernels)
    for kernel in kernels:
        work = counter.work(kernel)
        if kernel.ns >= _SURE_NS and not work.moves:
            yield Reached(precision_of(kernel), work.products, work.bytes, kernel.ns)


def _part(kernel: KernelTime, work: Work, peaks: Peaks, factor: float) -> _Part:
    ns = factor * kernel.ns
    least = peaks.least_ns(precision_of(kernel), work.products, work.bytes)
    return _Part(kernel, work, ns, min(least, ns) if work.moves else least)


def _beaten(parts: Sequence[_Part], least_ns: float, now_ns: float) -> str:
    """Which kernel was faster than its bound, and by how much; empty where none was."""
    sure = [p for p in parts if p.kernel.ns >= _SURE_NS and p.least_ns > (1.0 + _ROUNDING) * p.kernel.ns]
    if sure:
        worst = max(sure, key=lambda p: p.least_ns / p.kernel.ns)
        named = worst.kernel.op_type if worst.work.node is None else f"{worst.work.node.op_type} {worst.work.node.name}"
        return f"{named} ran at {worst.least_ns / worst.kernel.ns:.0%} of what was measured as the peak"
    if least_ns > (1.0 + _ROUNDING) * now_ns:
        return f"the whole model ran at {least_ns / now_ns:.0%} of what was measured as the peak"
    return ""


def _reached(products: Sequence[_Part], peaks: Peaks) -> dict[str, float]:
    """By precision, which share of the peak products run at together."""
    found: defaultdict[str, list[_Part]] = defaultdict(list)
    for part in products:
        found[part.precision].append(part)
    return {
        precision: sum(p.work.products for p in mine) / peaks.products_per_ns(precision) / sum(p.ns for p in mine)
        for precision, mine in sorted(found.items())
        if sum(p.ns for p in mine) > 0.0
    }


def _gaps(parts: Sequence[_Part], graph: Graph, peaks: Peaks) -> Iterator[Gap]:
    groups: defaultdict[tuple[str, str], list[_Part]] = defaultdict(list)
    for part in parts:
        groups[_group(part, graph, peaks)].append(part)
    for (name, reason), mine in groups.items():
        now, least = sum(p.ns for p in mine), sum(p.least_ns for p in mine)
        said = counted(len(mine), name) if name in _COUNTED else f"{len(mine)} {name}"
        yield Gap(said, (now - least) / 1e6, now / 1e6, _why(mine, reason, graph, peaks))


_COUNTED = ("reorder", "Q/DQ conversion")


def _group(part: _Part, graph: Graph, peaks: Peaks) -> tuple[str, str]:
    """Which kind of operators a kernel belongs to, and why its products, if any, are slow."""
    kernel, node = part.kernel, part.work.node
    if kernel.kind == "layout":
        return _COUNTED[0], ""
    if kernel.kind != "compute":
        return _COUNTED[1], ""
    if node is None:
        return kernel.op_type, ""
    if not part.work.products:
        return node.op_type, ""
    return f"{node.op_type} in {part.precision or 'unknown precision'}", _reason(part, graph, peaks)


def _reason(part: _Part, graph: Graph, peaks: Peaks) -> str:
    assert part.work.node is not None
    sort = sort_of(graph, part.work.node)
    if sort in _SORTS:
        return sort
    products = part.work.products / peaks.products_per_ns(part.precision)
    if part.work.bytes / peaks.bytes_per_ns(part.work.bytes) > products and part.ns < _NEAR * part.least_ns:
        return "bytes"
    depth, columns = depth_and_columns(graph, part.work.node)
    if 0 < columns < _NARROW:
        return "columns"
    if 0 < depth < _NARROW:
        return "depth"
    return "small" if part.least_ns < _SMALL_NS else ""


def _why(parts: Sequence[_Part], reason: str, graph: Graph, peaks: Peaks) -> str:
    now, least = sum(p.ns for p in parts), sum(p.least_ns for p in parts)
    if not any(p.work.products for p in parts):
        if parts[0].kernel.kind != "compute":
            return "converting or rearranging values between precisions and layouts"
        moving = f"; reading and writing its values takes {shown_seconds(least / 1e9)} at least" if least else ""
        return f"outside products{moving}"
    rate = sum(p.work.products for p in parts) / peaks.products_per_ns(parts[0].precision) / now if now > 0.0 else 0.0
    at = f"at {rate:.0%} of the {parts[0].precision} peak"
    spans: Mapping[str, Callable[[], str]] = {
        "bytes": lambda: f"bound by reading and writing, which takes {shown_seconds(least / 1e9)} at least",
        "columns": lambda: (
            f"{'few output channels:' if _is_conv(parts) else 'rows are'} {_span(parts, graph, 1)}"
            f"{'' if _is_conv(parts) else ' wide'}"
        ),
        "depth": lambda: f"few products in a sum: {_span(parts, graph, 0)}",
        "small": lambda: f"small: {now / len(parts) / 1e3:.0f} us each, much of it for the call",
        "": lambda: "large enough, so that kernel and layout decide",
    }
    return f"{at}: {_SORTS[reason] if reason in _SORTS else spans[reason]()}"


def _is_conv(parts: Sequence[_Part]) -> bool:
    return parts[0].work.node is not None and "Conv" in parts[0].work.node.op_type


def _span(parts: Sequence[_Part], graph: Graph, which: int) -> str:
    found = sorted({depth_and_columns(graph, p.work.node)[which] for p in parts if p.work.node is not None})
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"
