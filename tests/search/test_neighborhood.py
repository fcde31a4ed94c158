"""Neighborhood moves: each changes what it says and nothing else, none comes twice, and propagation holds behind it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.search.edges import FLOAT, LOW
from inlay.search.neighborhood import Move, chance_of_gain, describe_units, expected_gain, moves, neighbors
from inlay.search.unit_graph import UnitGraph
from tests.search.unit_graphs import chain, labelings, unit_graphs
from tests.support.examples import examples

ALL = 10_000


@settings(max_examples=examples(60), deadline=None)
@given(unit_graphs())
def test_moves_are_distinct_and_cover_units_values_and_runs(graph: UnitGraph) -> None:
    found = moves(graph)
    assert len(set(found)) == len(found)
    selectable = np.flatnonzero(graph.selectable).tolist()
    assert all(set(move.units) <= set(selectable) and list(move.units) == sorted(move.units) for move in found)
    assert {move._replace(label=1 - move.label) for move in found} == set(found), "both labels of the same units"
    assert {Move((i,), LOW) for i in selectable} <= set(found)
    for edge in graph.edges:
        members = {m for m in (edge.producer, *edge.consumers) if m in selectable}
        assert len(members) < 2 or Move(tuple(sorted(members)), FLOAT) in found
    for first, second in itertools.pairwise(selectable):
        assert len(selectable) < 3 or Move((first, second), LOW) in found


@settings(max_examples=examples(60), deadline=None)
@given(unit_graphs(), st.data())
def test_each_neighbor_is_its_move_and_no_other_change(graph: UnitGraph, data: st.DataObject) -> None:
    labels = data.draw(labelings(graph))
    before = labels.copy()
    found = list(neighbors(graph, labels, np.random.default_rng(0), ALL))
    assert (labels == before).all(), "the labeling itself is left alone"
    for changed, move in found:
        inside = np.isin(np.arange(len(labels)), move.units)
        assert (changed[inside] == move.label).all()
        assert (changed[~inside] == labels[~inside]).all()
        assert (changed != labels).any()
        assert not (changed & ~graph.selectable).any()
    effective = [m for m in moves(graph) if (labels[list(m.units)] != m.label).any()]
    assert [move for _, move in found] == effective, "every move that changes something, in order"


@settings(max_examples=examples(60), deadline=None)
@given(unit_graphs(), st.data())
def test_propagation_holds_behind_every_move(graph: UnitGraph, data: st.DataObject) -> None:
    labels = graph.fixed_point(data.draw(labelings(graph)))
    for changed, move in neighbors(graph, labels, np.random.default_rng(0), ALL):
        fixed = graph.fixed_point(changed)
        assert not (changed & ~fixed).any(), "what was labeled low stays low"
        assert (graph.propagate(fixed) == fixed).all()
        assert not move.label or fixed[list(move.units)].all()


@pytest.mark.parametrize("most", [1, 5, 17])
def test_more_moves_than_wanted_are_drawn_from(most: int) -> None:
    graph = chain(12)
    labels = np.arange(12) % 2 > 0

    def drawn(seed: int) -> list[Move]:
        return [move for _, move in neighbors(graph, labels, np.random.default_rng(seed), most)]

    assert len(drawn(1)) <= most < len(moves(graph))
    assert len(set(drawn(1))) == len(drawn(1))
    assert set(drawn(1)) <= set(moves(graph))
    assert drawn(1) == drawn(1), "the same seed draws the same moves"
    assert len({tuple(drawn(seed)) for seed in range(5)}) > 1


def test_a_move_says_what_it_does() -> None:
    graph = chain(4)
    assert Move((2,), True).describe(graph) == "flip: u2 to low precision"
    assert Move((1, 2), False).describe(graph) == "flip: 2 units from u1 to float"


def test_long_names_keep_their_two_ends() -> None:
    assert describe_units(["conv_1"]) == "conv_1"
    assert describe_units(["conv_1", "relu_1"]) == "2 units from conv_1"
    joined = ";".join(f"model/layer_{i}/Conv2D" for i in range(9))
    found = describe_units([joined])
    assert len(found) < 50 < len(joined)
    head, tail = found.split("…")
    assert joined.startswith(head)
    assert joined.endswith(tail)
    assert abs(len(head) - len(tail)) <= 1


def test_what_is_expected_is_the_mean_of_what_is_gained_and_never_more_than_is_spent() -> None:
    spent, mean, stddev = (np.array(x) for x in ([10.0, 5.0, 30.0, 10.0], [9.0, 5.0, 90.0, 9.0], [4.0, 2.0, 90.0, 0.0]))
    variance = np.log1p((stddev / mean) ** 2)
    samples = mean * np.exp(np.random.default_rng(0).normal(-variance / 2.0, np.sqrt(variance), (400_000, 4)))
    gained = spent - samples
    assert expected_gain(spent, mean, stddev) == pytest.approx(np.maximum(gained, 0.0).mean(axis=0), abs=0.03)
    found = chance_of_gain(spent, mean, stddev, 2.0)
    assert found[:3] == pytest.approx((gained > 2.0).mean(axis=0)[:3], abs=0.005)
    assert found[3] == 0.0, "what is certain gains less"
    assert chance_of_gain(spent, mean, stddev, 100.0) == pytest.approx(0.0), "nothing takes less than no time"
    wild = expected_gain(np.full(4, 5.0), np.full(4, 5.0), np.geomspace(1.0, 1e6, 4))
    assert (np.diff(wild) > 0.0).all(), "of equal means the less certain one promises more,"
    assert wild[-1] <= 5.0, "but no more than there is to gain"
    nothing = expected_gain(np.zeros(1), np.ones(1), np.ones(1))
    assert nothing == pytest.approx(0.0, abs=1e-6)
