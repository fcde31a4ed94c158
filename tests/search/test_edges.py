"""Values as arrays: what they say of each value is what a loop over the values says."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.search.edges import State
from inlay.search.unit_graph import UnitGraph
from tests.search.unit_graphs import labelings, unit_graphs
from tests.support.examples import examples


@settings(max_examples=examples(100), deadline=None)
@given(unit_graphs(), st.data())
def test_states_are_those_of_each_value_alone(graph: UnitGraph, data: st.DataObject) -> None:
    labels = data.draw(labelings(graph))
    for edge, state in zip(graph.edges, graph.states(labels), strict=True):
        low_producer = edge.producer >= 0 and bool(labels[edge.producer])
        readers = [bool(labels[c]) for c in edge.consumers] + [False] * edge.float_reader
        if low_producer:
            assert state == (State.LOW if all(readers) else State.DEQUANTIZE)
        else:
            assert state == (State.QUANTIZE if any(readers) else State.FLOAT)


@settings(max_examples=examples(100), deadline=None)
@given(unit_graphs(), st.data())
def test_propagation_adds_labels_and_comes_to_rest(graph: UnitGraph, data: st.DataObject) -> None:
    labels = data.draw(labelings(graph))
    propagated, fixed = graph.propagate(labels), graph.fixed_point(labels)
    assert not (labels & ~propagated).any()
    assert not (propagated & ~fixed).any()
    assert not (fixed & ~graph.selectable).any()
    assert (graph.propagate(fixed) == fixed).all()
    for unit, neighbors in graph.propagation.fusions:
        assert not labels[list(neighbors)].all() or propagated[unit]
