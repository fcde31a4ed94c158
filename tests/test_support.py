"""The tools of the tests find what they are there to find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import work
from tests.support.work import bytecodes, growth


def pairs_below(n: int) -> int:
    return sum(1 for i in range(n) for j in range(n) if i < j)


def test_work_is_counted_not_timed() -> None:
    assert bytecodes(lambda: pairs_below(20)) == bytecodes(lambda: pairs_below(20)) > 400


def test_linear_and_quadratic_work_are_told_apart() -> None:
    def linear(n: int) -> Callable[[], object]:
        return lambda: sum(i * i for i in range(n))

    def quadratic(n: int) -> Callable[[], object]:
        return lambda: pairs_below(n)

    assert growth(linear, 200) < 2.1
    assert growth(quadratic, 50) > 3.5


def test_counting_ends_where_work_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MOST_BYTECODES", 10_000)
    with pytest.raises(AssertionError, match="more than 10,000"):
        bytecodes(lambda: pairs_below(10_000))
