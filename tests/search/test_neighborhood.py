"""Neighborhood moves: each changes what it says and nothing else, none comes twice, and propagation holds behind it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.search.edges import FLOAT, LOW
from inlay.search.neighborhood import Move, describe_units, expected_improvement, moves, neighbors
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


def test_expected_improvement_is_the_mean_of_what_is_gained() -> None:
    mean, stddev = np.array([90.0, 100.0, 120.0, 100.0]), np.array([5.0, 10.0, 15.0, 0.0])
    found = expected_improvement(mean, stddev, 100.0)
    samples = np.random.default_rng(0).normal(mean, stddev, (400_000, 4))
    assert found == pytest.approx(np.maximum(100.0 - samples, 0.0).mean(axis=0), abs=0.05)
    certain = expected_improvement(np.array([90.0, 110.0]), np.zeros(2), 100.0)
    assert certain == pytest.approx([10.0, 0.0])
    wider = expected_improvement(np.full(5, 105.0), np.linspace(1.0, 20.0, 5), 100.0)
    assert (np.diff(wider) > 0.0).all(), "of equal means the less certain one promises more"
