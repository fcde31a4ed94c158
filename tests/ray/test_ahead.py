"""What builders are asked ahead of a device, and what a run takes of it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from inlay.errors import RunFailed
from inlay.measure.lab import Built, Search
from inlay.ray.ahead import BuiltAhead
from inlay.targets.base import Artifact, TargetSpec
from inlay.types import Placement, Port, QType


class Candidates:
    """Writes nothing but names; a placement's key is its digest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def key(self, placement: Placement) -> str:
        return placement.digest

    def write(self, placement: Placement) -> Artifact:
        path = self.folder / placement.digest
        path.touch()
        return Artifact(path, placement.digest)


class One:
    """One builder, which does what the test tells it to."""

    width = 1

    def __init__(self) -> None:
        self.asked: dict[str, Future[Built]] = {}

    def build(self, artifact: Artifact, feeds: Sequence[Path]) -> Future[Built]:
        self.asked[artifact.digest] = Future()
        return self.asked[artifact.digest]


PLACEMENTS = [Placement([(Port(f"n{i}", 0), QType.INT8)]) for i in range(6)]
A, B, C, D, E, F = (p.digest for p in PLACEMENTS)


def upcoming(*numbers: int) -> Any:
    return lambda count: [PLACEMENTS[i] for i in numbers][:count]


@pytest.fixture
def one() -> One:
    return One()


@pytest.fixture
def ahead(one: One, tmp_path: Path) -> BuiltAhead:
    candidates = Candidates(tmp_path)
    search = Search(
        spec=TargetSpec("null"),
        folder=tmp_path,
        limit=lambda: 1.0,
        key=candidates.key,
        write=candidates.write,
        feeds=[],
        patience_s=lambda: 0.01,
        judged=lambda key: False,
    )
    return BuiltAhead(one, search)


def test_one_more_waits_than_is_built(ahead: BuiltAhead, one: One) -> None:
    ahead.begin(A, upcoming(1, 2, 3))
    assert [*one.asked] == [B, C], "one is built, one waits"
    one.asked[B].set_result(Built("graph", []))
    ahead.begin(B, upcoming(2, 3, 4))
    assert [*one.asked] == [B, C, D]


def test_what_nobody_has_begun_with_is_not_waited_for(ahead: BuiltAhead, one: One) -> None:
    ahead.begin(A, upcoming(1, 2))
    one.asked[B].set_running_or_notify_cancel()
    assert ahead.take(C) is None
    assert one.asked[C].cancelled()
    assert ahead.take(B) is None, "it takes too long"
    assert (ahead.used, ahead.begun) == (0, 2)


def test_what_is_built_is_taken(ahead: BuiltAhead, one: One) -> None:
    built = Built("graph", [])
    ahead.begin(A, upcoming(1))
    one.asked[B].set_running_or_notify_cancel()
    one.asked[B].set_result(built)
    assert ahead.take(B) is built
    assert ahead.take(B) is None, "once"


def test_what_fails_is_left_to_the_device_and_mistakes_are_raised(ahead: BuiltAhead, one: One) -> None:
    ahead.begin(A, upcoming(1, 2))
    for key in (B, C):
        one.asked[key].set_running_or_notify_cancel()
    one.asked[B].set_exception(RunFailed("no such kernel"))
    one.asked[C].set_exception(AttributeError("'NoneType' object has no attribute 'run'"))
    assert ahead.take(B) is None
    with pytest.raises(AttributeError, match="NoneType"):
        ahead.take(C)


def test_what_is_not_likely_any_more_makes_room(ahead: BuiltAhead, one: One) -> None:
    ahead.begin(A, upcoming(1, 2))
    one.asked[B].set_running_or_notify_cancel()
    ahead.begin(D, upcoming(4, 5))
    assert one.asked[C].cancelled()
    assert not one.asked[B].cancelled(), "it is being built"
    assert [*one.asked] == [B, C, E]
