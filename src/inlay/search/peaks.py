"""How fast a processor is at best, as measured: multiply-accumulates by precision, and bytes by how many are moved."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from inlay.targets.base import KernelTime

_STEPS = (0.0, *(float(1 << shift) for shift in (20, 22, 24, 26)))
"""Bytes that an operator moves, from which on rates are kept: up to 1, 4, 16 and 64 MB, and more."""
CLOCKS = 1.05
"""By so much a bound takes a processor to be faster than its measured peaks: clocks differ from moment to moment."""
_NEAR = 0.6
_HARDLY = 1.2  # times the peak of floats, up to which the one of integers is no reason to quantize
_LARGEST = 1e9  # operations or bytes in a nanosecond: no processor is near that, and sums of such numbers stay finite


class Reached(NamedTuple):
    """What one kernel did, in how many nanoseconds."""

    precision: str
    products: float
    bytes: float
    ns: float


@dataclass(frozen=True)
class Peaks:
    """The best that was measured of a processor, on a target with its number of threads."""

    products: Mapping[str, float]  # multiply-accumulates in a nanosecond, by precision (``int8``, ``float``, …)
    # bytes in a nanosecond, of operators that move at least so many bytes; the more they move, the slower
    moved: tuple[tuple[float, float], ...]

    def products_per_ns(self, precision: str) -> float:
        """The peak of a precision; the highest of all where it was not measured."""
        return self.products.get(precision) or max(self.products.values())

    def bytes_per_ns(self, moved: float) -> float:
        """The best rate of operators that move so many bytes."""
        return next((rate for size, rate in reversed(self.moved) if size <= moved), self.moved[0][1])

    def least_ns(self, precision: str, products: float, moved: float) -> float:
        """What products and moved bytes take at least, each done while the other is, :data:`CLOCKS` faster."""
        return max(products / self.products_per_ns(precision), moved / self.bytes_per_ns(moved)) / CLOCKS

    @property
    def remark(self) -> str:
        """That integers are multiplied hardly faster than floats, for people; empty where they are, or not measured."""
        low, high = self.products.get("int8"), self.products.get("float")
        if not low or not high or low > _HARDLY * high:
            return ""
        return (
            f"this processor multiplies 8-bit integers {'hardly' if low > high else 'no'} faster than floats "
            f"({low:.0f} and {high:.0f} multiply-accumulates in a nanosecond): what 8 bits gain here, they gain by "
            "moving fewer bytes, and by operators outside products"
        )

    def is_near(self, reached: Reached) -> bool:
        """Whether a kernel came near a peak, and might reach more at another moment."""
        if not reached.products and not reached.bytes:
            return False
        peak = self.products.get(reached.precision, 0.0)
        near = reached.bytes >= _NEAR * self.bytes_per_ns(reached.bytes) * reached.ns
        return near or reached.products >= _NEAR * peak * reached.ns > 0.0

    def raised(self, reached: Iterable[Reached]) -> Peaks:
        """These, or what kernels reached where that is more, at the sizes that were measured."""
        found = [each for each in reached if each.ns > 0.0]
        products = dict(self.products)
        for each in found:
            if each.products / each.ns > products.get(each.precision, 0.0):
                products[each.precision] = each.products / each.ns
        rates = [(each.bytes, each.bytes / each.ns) for each in found]
        moved = ((size, max([rate, *(r for moved, r in rates if moved >= size)])) for size, rate in self.moved)
        return Peaks(products, tuple(moved))

    def as_json(self) -> dict[str, Any]:
        """As plain data; see :meth:`from_json`."""
        return {"products_per_ns": dict(self.products), "bytes_per_ns": [list(row) for row in self.moved]}

    @classmethod
    def from_json(cls, data: object) -> Peaks:
        """The peaks that gave ``data``. Raises ValueError where it is none."""
        try:
            products = {str(p): float(rate) for p, rate in data["products_per_ns"].items()}  # type: ignore[index]
            moved = tuple((float(size), float(rate)) for size, rate in data["bytes_per_ns"])  # type: ignore[index]
        except (TypeError, LookupError, ValueError, AttributeError) as error:
            raise ValueError("its peaks are not made of rates") from error
        rates = [*products.values(), *(rate for _, rate in moved)]
        sizes = [size for size, _ in moved]
        if not products or not moved or not all(0.0 < rate <= _LARGEST for rate in rates) or sizes != sorted(sizes):
            raise ValueError("its peaks are not made of rates that a processor can have")
        return cls(products, moved)


def precision_of(kernel: KernelTime) -> str:
    """What the peak of a kernel's products is kept by: ``int8`` for any integers, else its type."""
    return "int8" if kernel.family == "int8" else kernel.precision


def peaks_of(reached: Iterable[Reached]) -> Peaks | None:
    """The best of all; None where there were no products, or nothing was moved."""
    products: defaultdict[str, float] = defaultdict(float)
    found = [each for each in reached if each.ns > 0.0]
    for each in found:
        if each.products:
            products[each.precision] = max(products[each.precision], each.products / each.ns)
    moved = _envelope([(each.bytes, each.bytes / each.ns) for each in found if each.bytes])
    return Peaks(dict(sorted(products.items())), moved) if products and moved else None


def _envelope(rates: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The best rate from each of :data:`_STEPS` on, of bytes with their rates."""
    rows: list[tuple[float, float]] = []
    for step in _STEPS:
        best = max((rate for size, rate in rates if size >= step), default=math.nan)
        if best > 0.0:
            rows.append((step, best))
    return tuple(rows)
