"""Every strategy keeps the ask/tell contract."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from inlay.search.base import Chain, Dialogue, Scripted, Strategy
from inlay.search.baselines import CONV_MATMUL, FLOAT, FULL_INT8, Anchors, anchor_placements
from inlay.search.refine import Refine
from inlay.targets.base import Capabilities
from inlay.targets.onnxruntime.target import capabilities_for
from inlay.targets.openvino.rules import rules_for as openvino_rules
from inlay.testing import Builder, StrategyTestCase, small_model
from inlay.trial import Accuracy, Infeasible, Interval, Latency, Measured, Proposal
from inlay.types import Placement, Port, QType
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


def test_what_comes_next_is_known_where_nothing_is_accepted() -> None:
    strategy = TestAnchorsThenRefine().strategy()
    guessed, right = list[Placement](), 0
    asked = list[Proposal]()
    while (proposal := strategy.ask()) is not None:
        right += proposal.placement in guessed[:1]
        asked.append(proposal)
        guessed = [*strategy.upcoming(2)]
        trial = StrategyTestCase().answer(proposal, len(asked))
        strategy.tell(replace(trial, accepted=False))
    starts = 2 + sum(p.origin.startswith(("probe", "repair")) for p in asked)  # those depend on what was found
    assert right >= len(asked) - 2 * starts > 0


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


def test_where_products_hold_the_weights_they_come_before_everything(tmp_path: Path) -> None:
    """The control is the convolutional model of the others."""
    b = Builder()
    value = b.node("first", "MatMul", [b.input("x", (1, 64, 32)), b.constant("w", b.rng.standard_normal((32, 32)))])
    value = b.node("second", "MatMul", [b.node("gate", "Sigmoid", [value]), b.constant("v", np.ones((32, 8)))])
    b.output(b.node("sum", "Add", [value, value]))
    prepared = Workspace(b.model(), tmp_path).prepared
    strategy = Anchors(prepared.graph, prepared.units, prepared.rules)
    asked, guessed = list[str](), list[Placement]()
    while (proposal := strategy.ask()) is not None:
        assert [proposal.placement] == guessed or len(asked) not in (1, 2)
        asked.append(proposal.origin)
        guessed = [*strategy.upcoming(1)]
        strategy.tell(StrategyTestCase().answer(proposal, len(asked)))
    assert asked[:3] == ["float", "conv-matmul", "full-int8"]


@pytest.mark.parametrize(
    ("outside", "rewritten", "first"),
    [(None, False, FULL_INT8), (None, True, FULL_INT8), (FULL_INT8, False, CONV_MATMUL), (FULL_INT8, True, FLOAT)],
)
def test_where_there_is_time_for_one_it_is_none_that_an_evaluation_refused(
    outside: str | None, rewritten: bool, first: str
) -> None:
    prepared = space().prepared
    usual = dict(anchor_placements(prepared.graph, prepared.units, prepared.rules))
    refused = [] if outside is None else [usual[outside]]
    space_of = prepared.graph, prepared.units, prepared.rules
    strategy = Anchors(*space_of, hurries=lambda: True, outside=refused.__contains__, rewritten=rewritten)
    asked: list[str] = []
    while (proposal := strategy.ask()) is not None:
        asked.append(proposal.origin)
        strategy.tell(StrategyTestCase().answer(proposal, len(asked)))
    assert asked[0] == first
    if first != FLOAT:
        assert asked.index(FLOAT) > asked.index(CONV_MATMUL), "float comes behind all that may gain more"


@pytest.mark.parametrize("rewritten", [True, False])
def test_in_a_hurry_what_rewrites_made_of_float_follows_the_first_that_is_outside(rewritten: bool) -> None:
    prepared = space().prepared
    strategy = Anchors(prepared.graph, prepared.units, prepared.rules, hurries=lambda: True, rewritten=rewritten)
    asked: list[str] = []
    while (proposal := strategy.ask()) is not None:
        asked.append(proposal.origin)
        trial = StrategyTestCase().answer(proposal, len(asked))
        strategy.tell(
            trial
            if proposal.origin == FLOAT
            else replace(trial, outcome=Infeasible(Accuracy(feasible=False, sqnr_db=1.0)))
        )
    after = [FLOAT, CONV_MATMUL] if rewritten else [CONV_MATMUL, FLOAT]
    assert asked[:3] == [FULL_INT8, *after]
    assert len(asked) == len({*asked})


def test_what_is_expected_to_be_fast_comes_first_behind_float() -> None:
    for expected, order in (
        ({}, ["float", "full-int8", "conv-matmul"]),
        ({"full-int8": 3.0, "conv-matmul": 2.0, "float": 4.0}, ["float", "conv-matmul", "full-int8"]),
        ({"conv-matmul": 9.0}, ["float", "conv-matmul", "full-int8"]),
    ):
        strategy, asked = anchors(), list[str]()
        strategy.expect(expected)
        while (proposal := strategy.ask()) is not None:
            asked.append(proposal.origin)
            strategy.tell(StrategyTestCase().answer(proposal, len(asked)))
        assert asked == order


@pytest.mark.parametrize("spare", [True, False])
def test_weights_alone_are_tried_last_and_only_where_there_is_time(spare: bool, tmp_path: Path) -> None:
    b = Builder()
    weight = b.constant("w", b.rng.standard_normal((128, 8)))
    b.output(b.node("product", "MatMul", [b.input("x", (1, 64, 128)), weight]))
    prepared = Workspace(b.model(), tmp_path, capabilities_for("x86_64")).prepared
    imported = Placement([(Port("product", 0), QType.UINT8)])
    strategy = Anchors(prepared.graph, prepared.units, prepared.rules, [("imported", imported)], lambda: spare)
    asked: list[str] = []
    while (proposal := strategy.ask()) is not None:
        asked.append(proposal.origin)
        strategy.tell(StrategyTestCase().answer(proposal, len(asked)))
    usual = ["float", "full-int8", "dynamic", "imported"]
    assert asked[:4] == usual
    assert bool(asked[4:]) is spare
    assert all(name.startswith("weight-only") for name in asked[4:])
    assert bool(strategy.left_out) is not spare
    assert all(name.startswith("weight-only") for name in strategy.left_out)  # conv-matmul is full-int8 here


@pytest.mark.parametrize(("speed", "finer"), [(0.7, False), (2.0, True)])
def test_smaller_blocks_are_tried_only_where_larger_ones_gain(speed: float, finer: bool, tmp_path: Path) -> None:
    """Their kernels multiply by more scales: what is slow in blocks of 128 is no faster in blocks of 32."""
    b = Builder()
    weight = b.constant("w", b.rng.standard_normal((128, 8)))
    b.output(b.node("product", "MatMul", [b.input("x", (1, 64, 128)), weight]))
    prepared = Workspace(b.model(), tmp_path, capabilities_for("x86_64")).prepared
    strategy = Anchors(prepared.graph, prepared.units, prepared.rules)
    asked: list[str] = []
    while (proposal := strategy.ask()) is not None:
        asked.append(proposal.origin)
        trial = StrategyTestCase().answer(proposal, len(asked))
        value = speed if "int8" in proposal.origin and "/" in proposal.origin else 1.0
        latency = Latency(1e6 / value, Interval(value, value, value), 6)
        strategy.tell(replace(trial, outcome=Measured(latency, Accuracy(True, 30.0))))
    assert asked[3:] == ["weight-only int4/128", "weight-only int8/128", *(["weight-only int8/32"] if finer else [])]
    assert strategy.left_out == ()


@pytest.mark.parametrize(("rows", "tried"), [(1, True), (4, True), (64, False)])
def test_weights_alone_are_tried_in_any_case_where_products_have_few_rows(
    rows: int, tried: bool, tmp_path: Path
) -> None:
    """A decoder's step reads its weights for one row: small weights are fast ones there."""
    b = Builder()
    value = b.node("product", "MatMul", [b.input("x", (1, rows, 128)), b.constant("w", np.ones((128, 256)))])
    many = b.node("many", "MatMul", [b.input("y", (1, 64, 128)), b.constant("v", np.ones((128, 8)))])
    b.output(value)
    b.output(many)
    prepared = Workspace(b.model(), tmp_path, capabilities_for("x86_64")).prepared
    strategy = Anchors(prepared.graph, prepared.units, prepared.rules, spare=lambda: False)
    asked: list[str] = []
    while (proposal := strategy.ask()) is not None:
        asked.append(proposal.origin)
        strategy.tell(StrategyTestCase().answer(proposal, len(asked)))
    assert any(name.startswith("weight-only") for name in asked) is tried


@pytest.mark.parametrize(("size", "tried"), [(4, True), (96, False)])
def test_products_that_do_next_to_nothing_have_no_anchor_of_their_own(size: int, tried: bool, tmp_path: Path) -> None:
    """Behind convolutions of many elements, a product of one row gains nothing however it is written."""
    b = Builder()
    image = b.input("x", (1, 8, size, size))
    value = b.node("conv", "Conv", [image, b.constant("k", b.rng.standard_normal((16, 8, 3, 3)))], pads=[1, 1, 1, 1])
    value = b.node("flat", "Flatten", [b.node("pool", "GlobalAveragePool", [value])])
    for name in ("first", "second"):
        value = b.node(name, "MatMul", [value, b.constant(f"w {name}", b.rng.standard_normal((16, 16)))])
    b.output(value)
    prepared = Workspace(b.model(), tmp_path, capabilities_for("x86_64")).prepared
    strategy = Anchors(prepared.graph, prepared.units, prepared.rules)
    asked: list[str] = []
    while (proposal := strategy.ask()) is not None:
        asked.append(proposal.origin)
        strategy.tell(StrategyTestCase().answer(proposal, len(asked)))
    assert {"float", "full-int8"} < set(asked)
    assert ("dynamic" in asked) is tried
    assert not strategy.left_out


def test_weights_alone_are_tried_in_any_case_where_they_usually_gain(tmp_path: Path) -> None:
    b = Builder()
    weight = b.constant("w", b.rng.standard_normal((128, 8)))
    b.output(b.node("product", "MatMul", [b.input("x", (1, 64, 128)), weight]))
    target = Capabilities(openvino_rules("x86_64", frozenset({"avx512_vnni"})))
    prepared = Workspace(b.model(), tmp_path, target).prepared
    strategy = Anchors(prepared.graph, prepared.units, prepared.rules, spare=lambda: False)
    asked: list[str] = []
    while (proposal := strategy.ask()) is not None:
        asked.append(proposal.origin)
        strategy.tell(StrategyTestCase().answer(proposal, len(asked)))
    assert asked == ["float", "full-int8", "weight-only", "int8"]  # and the products without zero points
