"""Every strategy keeps the ask/tell contract."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from inlay.search.base import Chain, Dialogue, Scripted, Strategy
from inlay.search.baselines import Anchors
from inlay.search.refine import Refine
from inlay.testing import StrategyTestCase, small_model
from inlay.types import Placement
from tests.support.workspace import Workspace


@cache
def space() -> Workspace:
    with tempfile.TemporaryDirectory() as folder:
        return Workspace(small_model(), Path(folder))


def anchors() -> Anchors:
    prepared = space().prepared
    return Anchors(prepared.graph, prepared.units, prepared.rules, [("imported", Placement())])


class TestAnchors(StrategyTestCase):
    def strategy(self) -> Strategy:
        return anchors()


class TestAnchorsThenRefine(StrategyTestCase):
    def strategy(self) -> Strategy:
        first = anchors()
        units = space().prepared.selectable
        everything = frozenset(u.name for u in units)
        second = Refine(units, space().prepared.label, first.trials, {"full-int8": everything})
        return Chain([first, second])


def nothing() -> Dialogue:
    yield from ()


class TestNothingToAsk(StrategyTestCase):
    def strategy(self) -> Strategy:
        return Scripted("nothing", nothing)


def test_anchors_are_float_full_and_weighted_without_repetition() -> None:
    strategy = anchors()
    asked = []
    while (proposal := strategy.ask()) is not None:
        asked.append(proposal)
        strategy.tell(StrategyTestCase().answer(proposal, len(asked)))
    assert [p.origin for p in asked] == ["float", "full-int8", "conv-matmul"]
    assert all(p.anchor for p in asked)
    assert asked[0].placement == Placement()
    assert len({p.placement for p in asked}) == 3
    assert strategy.trials.keys() == {p.origin for p in asked}
