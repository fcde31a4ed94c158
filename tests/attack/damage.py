"""Damage to bytes and to plain data, whatever they mean."""

from __future__ import annotations

from typing import Any

from tests.attack.choices import Choices
from tests.attack.protos import FLOATS, NUMBERS, TEXTS

_ODD = (b"\0", b"\xff", b"\n", b"\x1b", b"\x80", b"/", b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff")


def damaged(raw: bytes, choose: Choices, other: bytes = b"") -> bytes:
    """``raw`` with one to four flips, cuts, insertions, repetitions, or pieces of ``other``."""
    for _ in range(1 + min(choose.below(4), choose.below(4))):
        raw = _once(raw, choose, other)
    return raw


def _once(raw: bytes, choose: Choices, other: bytes) -> bytes:
    at = choose.below(len(raw) + 1)
    end = min(len(raw), at + choose.among((1, 1, 2, 4, 16, 100, 4096)))
    action = choose.below(8)
    if action == 0:
        return raw[:at] + bytes(b ^ (1 << choose.below(8)) for b in raw[at : at + 1]) + raw[at + 1 :]
    if action == 1:
        return raw[:at] + choose.bytes(1) + raw[at + 1 :]
    if action == 2:
        return raw[:at]
    if action == 3:
        return raw[:at] + choose.among(_ODD) + raw[at:]
    if action == 4:
        return raw[:at] + raw[end:]
    if action == 5:
        return raw[:at] + raw[at:end] * 2 + raw[end:]
    if action == 6:
        return raw[:at] + bytes(end - at) + raw[end:]
    source = other or raw
    start = choose.below(len(source) + 1)
    return raw[:at] + source[start : start + end - at] + raw[end:]


def changed(data: Any, choose: Choices) -> Any:
    """Plain data with one place changed: another value, type or key; missing, repeated, or nested deeply."""
    if isinstance(data, dict) and data and not choose.one_in(5):
        keys = list(data)
        key = choose.among(keys)
        action = choose.below(6)
        if action == 0:
            return {k: v for k, v in data.items() if k != key}
        if action == 1:
            return {(odd(choose) if k == key else k): v for k, v in data.items()}
        if action == 2:
            return {**data, choose.among(TEXTS): odd(choose)}
        return {k: changed(v, choose) if k == key else v for k, v in data.items()}
    if isinstance(data, list) and data and not choose.one_in(5):
        at = choose.below(len(data))
        action = choose.below(5)
        if action == 0:
            return [*data[:at], *data[at + 1 :]]
        if action == 1:
            return [*data, data[at]]
        return [changed(v, choose) if i == at else v for i, v in enumerate(data)]
    return odd(choose)


def odd(choose: Choices) -> Any:
    """A value that is seldom expected; hashable."""
    return choose.weighted(
        (
            (3, None),
            (2, True),
            (4, choose.among(NUMBERS)),
            (4, choose.among(FLOATS)),
            (4, choose.among(TEXTS)),
            (1, 10**400),
        )
    )


def deep(choose: Choices) -> str:
    """Lists in lists, or mappings in mappings, as YAML or JSON."""
    levels = choose.among((2, 50, 500, 20_000))
    opening, closing = choose.among((("[", "]"), ('{"a": ', "}")))
    return opening * levels + "1" + closing * levels
