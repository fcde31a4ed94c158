"""Calls have the same outcomes in the same order, whoever answers them and whoever is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.deadline import NEVER, Deadline
from inlay.errors import InlayError, RunFailed
from inlay.model.guard import left_s, limited
from inlay.model.pool import each, may_have_pool, pool_for, pooled
from tests.support.pool import PoolHere


def halved(number: int) -> int:
    """Of even numbers alone."""
    if number % 2:
        raise RunFailed(f"{number} is odd")
    return number // 2


def found(numbers: list[int]) -> list[Any]:
    """The outcome of each."""
    outcomes = each(halved, ((n,) for n in numbers))
    return [str(o.exception()) if o.exception() else o.result() for o in outcomes]


@given(st.lists(st.integers(0, 99), max_size=12), st.integers(1, 4), st.integers(0, 12))
def test_outcomes_are_those_of_this_process(numbers: list[int], width: int, sound: int) -> None:
    alone = found(numbers)
    pool = PoolHere(width, sound)
    with pooled(pool.open_pool):
        assert pool_for(1e9) is pool
        assert found(numbers) == alone
    assert pool.asked.total() == (len(numbers) if width > 1 else 0), "one worker alone gains nothing"
    assert pool.let_go


def test_nobody_is_looked_for_where_it_is_not_worth_it() -> None:
    pool = PoolHere(2)
    assert not may_have_pool()
    with pooled(pool.open_pool):
        assert may_have_pool()
        assert pool_for(0.1) is None
        assert found([2, 4]) == [1, 2]
    assert not pool.asked
    assert not pool.let_go, "it was never held"
    with pooled(None):
        assert pool_for(1e9) is None


@pytest.mark.parametrize("width", [0, 2])
def test_what_making_a_call_raises_is_raised_in_its_turn(width: int) -> None:
    def calls() -> Iterator[tuple[int]]:
        yield from ((2,), (4,))
        raise InlayError("no third one")

    with pooled(PoolHere(width).open_pool if width else None, 1e9):
        outcomes = each(halved, calls())
        assert [next(outcomes).result() for _ in range(2)] == [1, 2]
        with pytest.raises(InlayError, match="no third one"):
            next(outcomes)


def test_alone_nothing_is_done_before_it_is_asked_for() -> None:
    made: list[int] = []

    def calls() -> Iterator[tuple[int]]:
        for number in (2, 4, 6):
            made.append(number)
            yield (number,)

    outcomes = each(halved, calls())
    assert next(outcomes).result() == 1
    assert made == [2]


def test_here_may_be_done_otherwise_than_there() -> None:
    pool = PoolHere(2, sound=1)
    with pooled(pool.open_pool, 1e9):
        outcomes = [o.result() for o in each(halved, [(8,), (8,)], lambda number: -number)]
    assert outcomes == [4, -8]


def test_a_deadline_travels_as_what_is_left_of_it() -> None:
    import pickle

    moved = pickle.loads(pickle.dumps(Deadline(1005.0, lambda: 1000.0)))
    assert 4.0 < moved.left <= 5.0
    assert pickle.loads(pickle.dumps(NEVER)).left == float("inf")
    with limited(lambda: 3.0):
        assert left_s() == 3.0
    assert left_s() == float("inf")
