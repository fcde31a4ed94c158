"""Partition, invariance and resolution on random graphs."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.model.graph import Graph
from inlay.patterns.config import Config
from inlay.patterns.point_filters import FilterContext, find_rejections
from inlay.patterns.search_space import SearchSpace, find_search_space
from inlay.patterns.tree import RegionType
from inlay.space.units import find_units
from inlay.targets.onnxruntime.rules import rules_for
from inlay.types import GRAPH_OUTPUT, Port
from tests.support.examples import examples
from tests.support.region_graphs import disguised, graphs

RULES = rules_for("x86_64", frozenset({"avx512_vnni"}))
SIZES = st.sampled_from([1, 3, 10])
MODERATE = settings(max_examples=examples(80), deadline=None)


def space_of(graph: Graph, size: int = 10) -> SearchSpace:
    return find_search_space(
        graph, RULES, config=Config(maximum_sequence_region_size=size, minimum_topdown_search_size=size)
    )


@MODERATE
@given(graphs(), SIZES)
def test_leaves_are_a_partition_of_all_nodes(graph: Graph, size: int) -> None:
    tree = space_of(graph, size).tree
    counted = Counter(n for r in tree.regions for n in r.direct_nodes)
    assert counted == Counter({n.name: 1 for n in graph.nodes})
    for region in tree.regions:
        assert bool(region.direct_nodes) == (region.type is RegionType.LEAF)
        assert region.size == len(region.nodes) == sum(c.size for c in region.children) + len(region.direct_nodes)
        assert all(c.parent == region.id and c.id > region.id for c in region.children)
        assert len(region.children) != 1 or region.type is RegionType.ROOT
    assert set(tree.root.nodes) == {n.name for n in graph.nodes}


@MODERATE
@given(graphs(), SIZES)
def test_boundaries_are_exact(graph: Graph, size: int) -> None:
    for region in space_of(graph, size).tree.regions:
        inside = set(region.nodes)
        nodes = [graph.node(n) for n in region.nodes]
        made = {v for n in nodes for v in n.outputs}
        read = {v for n in nodes for v in n.inputs if v and not graph.is_constant(v)}
        leaving = {v for v in made if any(p.node not in inside for p in graph.consumers(v))}
        assert len(region.inputs) == len(set(region.inputs))
        assert set(region.inputs) == read - made
        assert set(region.outputs) == leaving


@MODERATE
@given(graphs(), st.integers(0, 2**32 - 1))
def test_patterns_do_not_depend_on_names_or_order(graph: Graph, seed: int) -> None:
    other, names = disguised(graph, np.random.default_rng(seed))
    one, two = space_of(graph), space_of(other)
    by_nodes = {(r.type, frozenset(r.nodes)): two.pattern_of[r.id].signature for r in two.tree.regions}
    for region in one.tree.regions:
        there = (region.type, frozenset(names[n] for n in region.nodes))
        assert by_nodes[there] == one.pattern_of[region.id].signature


@MODERATE
@given(graphs(), st.integers(0, 2**32 - 1))
def test_slots_mean_the_same_in_every_instance(graph: Graph, seed: int) -> None:
    """Across the copy and the original, the canonical order is an isomorphism that maps ports to ports."""
    other, _ = disguised(graph, np.random.default_rng(seed))
    spaces = space_of(graph), space_of(other)
    instances: dict[str, list[tuple[SearchSpace, int]]] = {}
    for space in spaces:
        for region in space.tree.regions:
            instances.setdefault(space.pattern_of[region.id].signature, []).append((space, region.id))
    for found in instances.values():
        descriptions = [_described(space, region_id) for space, region_id in found]
        assert all(d == descriptions[0] for d in descriptions)


def _described(space: SearchSpace, region_id: int) -> list[object]:
    """A region in canonical indices only: edges between nodes, and for each point the ports inside the region."""
    graph = space.graph
    pattern = space.pattern_of[region_id]
    instance = next(i for i in pattern.instances if i.region.id == region_id)
    number = {name: i for i, name in enumerate(instance.nodes)}
    canonical = {
        Port(name, slot): (number[name], j)
        for name, order in zip(instance.nodes, instance.slots, strict=True)
        for j, slot in enumerate(order)
    }
    edges: list[object] = []
    first_read: dict[str, int] = {}
    for (name, order), _ in zip(zip(instance.nodes, instance.slots, strict=True), instance.nodes, strict=True):
        for slot in order:
            value = graph.node(name).inputs[slot]
            producer = graph.producer(value)
            if producer is not None and producer.name in number:
                edges.append((number[producer.name], producer.outputs.index(value)))
            elif graph.is_constant(value):
                edges.append(("const", graph.shapes[value]))
            else:
                edges.append(("outside", first_read.setdefault(value, len(first_read))))
    ports = [
        (str(point), sorted(canonical[p] for p in space.tables[region_id][point] if p in canonical))
        for point in pattern.points
    ]
    return [[graph.node(n).op_type for n in instance.nodes], edges, ports, [str(p) for p in space.tables[region_id]]]


@MODERATE
@given(graphs())
def test_points_stand_for_offered_ports_only(graph: Graph) -> None:
    space = space_of(graph)
    rejections = find_rejections(FilterContext(graph, RULES, find_units(graph, RULES)))
    for region in space.tree.regions:
        inside = set(region.nodes)
        for point, ports in space.tables[region.id].items():
            assert ports
            if str(point).startswith("output"):
                (value,) = {graph.value_of(p) for p in ports}
                assert rejections.outputs[value] is None
                assert set(ports) == set(graph.consumers(value))
            else:
                assert all(rejections.allows(p) and p.node in inside and p.node != GRAPH_OUTPUT for p in ports)


@MODERATE
@given(graphs())
def test_every_offered_port_is_reached_by_its_leaf(graph: Graph) -> None:
    space = space_of(graph)
    reached = {
        p
        for r in space.tree.regions
        if r.type is RegionType.LEAF
        for point, ports in space.tables[r.id].items()
        if not str(point).startswith("output")
        for p in ports
    }
    assert reached == {p for p, rejection in space.rejections.ports.items() if rejection is None}
