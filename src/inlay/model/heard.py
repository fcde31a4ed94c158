"""How far long work is: said where it is done, heard by whoever listens, and handed down to nobody in between."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

Hears = Callable[[str], None]  # is told what is being done now; with an empty text, that it still is
WAITING_S = 1.0  # seconds of waiting after which whoever listens is told that the work goes on


def _nobody(text: str) -> None:
    """Nobody listens."""


_hears: ContextVar[Hears] = ContextVar("hears", default=_nobody)


@contextlib.contextmanager
def hearing(hears: Hears) -> Iterator[None]:
    """Within this, ``hears`` is told how far the work is; in the same thread only."""
    token = _hears.set(hears)
    try:
        yield
    finally:
        _hears.reset(token)


def doing(text: str = "") -> None:
    """Say what is done now; without a text, that it still is."""
    _hears.get()(text)


def counting(items: Sequence[T], what: str) -> Iterator[T]:
    """``items`` in turn; before each it is said which one it is: ``what 2 of 5``."""
    for number, item in enumerate(items, 1):
        doing(f"{what} {number} of {len(items)}")
        yield item
