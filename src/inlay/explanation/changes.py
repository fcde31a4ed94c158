"""What a repair changed: two explanations of one network, compared by operators and by values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from inlay.explanation.explanation import Change, ChangeKind, Explanation

_LEAST_MS = 1e-4  # of a change of kernel, whose precision is the same: below, it is the profile's own noise


def changes(before: Explanation, after: Explanation) -> tuple[Change, ...]:
    """Every change with what it brought, that which brought most first.

    Operators are known by their names, which normalization keeps; what has no counterpart is no change of its own.
    """
    found = [*_of_operators(before, after), *_of_conversions(before, after)]
    return tuple(sorted(found, key=lambda change: -change.gain_ms))


def _of_operators(before: Explanation, after: Explanation) -> Iterator[Change]:
    made = {o.name: o for o in after.operators}
    for old in before.operators:
        new = made.get(old.name)
        if new is None:
            continue
        kind: ChangeKind = "kernel"
        if (old.precision, new.precision) == ("float", "int8"):
            kind = "to-int8"
        elif (old.precision, new.precision) == ("int8", "float"):
            kind = "to-float"
        gain = old.cost_ms - new.cost_ms
        if kind != "kernel" or abs(gain) > _LEAST_MS:
            yield Change(kind, old.name, old.op_type, gain)


def _of_conversions(before: Explanation, after: Explanation) -> Iterator[Change]:
    old, new = _costs(before), _costs(after)
    for value in dict.fromkeys((*old, *new)):
        gain = old.get(value, 0.0) - new.get(value, 0.0)
        if abs(gain) > _LEAST_MS:
            yield Change("conversion-removed" if gain > 0 else "conversion-added", value, "", gain)


def _costs(found: Explanation) -> Mapping[str, float]:
    costs: defaultdict[str, float] = defaultdict(float)
    for row in found.waste:
        costs[row.value] += row.cost_ms
    return costs
