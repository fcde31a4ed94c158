"""Points, schemes, and what a choice of ports amounts to."""

from __future__ import annotations

import pytest
from benchmarks.generated_graphs import GraphBuilder
from hypothesis import given
from hypothesis import strategies as st

from inlay.model.graph import Graph
from inlay.patterns.command import regions_json, regions_lines
from inlay.patterns.scheme_import import import_placement, scheme_of_ports, sites_of_values
from inlay.patterns.schemes import (
    ChildRegionInputInsertionPoint,
    InsertionPoint,
    InsertionScheme,
    NodeInputInsertionPoint,
    RegionOutputInsertionPoint,
    SchemeCompletion,
    from_data,
    to_data,
)
from inlay.patterns.search_space import SearchSpace, find_search_space
from inlay.patterns.tree import RegionType
from inlay.space.units import placement_from_labels
from inlay.targets.onnxruntime.rules import rules_for
from inlay.types import GRAPH_OUTPUT, Placement, Port, PortRewrite, QType
from tests.support.region_graphs import graphs, ports_of

RULES = rules_for("x86_64", frozenset({"avx512_vnni"}))
INDEX = st.integers(0, 5)
POINTS = st.one_of(
    st.builds(NodeInputInsertionPoint, INDEX, INDEX),
    st.builds(ChildRegionInputInsertionPoint, INDEX, INDEX),
    st.builds(lambda n, o: RegionOutputInsertionPoint(None, n, o), INDEX, INDEX),
    st.builds(lambda c, o: RegionOutputInsertionPoint(c, None, o), INDEX, INDEX),
)
SCHEMES = st.builds(InsertionScheme, st.frozensets(POINTS, max_size=6))


def concat_graph() -> Graph:
    b = GraphBuilder()
    x = b.input((1, 8, 4, 4))
    left, right = b.relu(b.conv(x, 8)), b.relu(b.conv(x, 16))  # n0 n1, n2 n3
    cat = b.node("Concat", [left, right], (1, 24, 4, 4), name="cat", axis=1)
    b.relu(b.conv(cat, 8))  # n5 n6
    return b.graph()


def space_of(graph: Graph) -> SearchSpace:
    return find_search_space(graph, RULES)


@given(POINTS)
def test_points_survive_the_way_through_plain_data(point: InsertionPoint) -> None:
    assert from_data(to_data(point)) == point


@pytest.mark.parametrize(
    "data",
    [None, [], ["node_input"], ["node_input", 0], ["node_input", -1, 0], ["node_input", None, 0], ["node", 0, 0],
     ["output", None, None, 0], ["output", 0, 0, 0], ["node_input", True, 0], ["output", 0, None, None], "node_input"],
)  # fmt: skip
def test_what_is_not_a_point_is_rejected(data: object) -> None:
    with pytest.raises(ValueError, match="not an insertion point"):
        from_data(data)


@given(SCHEMES, SCHEMES, SCHEMES)
def test_edit_distance_is_a_metric(a: InsertionScheme, b: InsertionScheme, c: InsertionScheme) -> None:
    assert (a.distance(b) == 0) == (a == b)
    assert a.distance(b) == b.distance(a)
    assert a.distance(c) <= a.distance(b) + b.distance(c)


@given(SCHEMES)
def test_schemes_survive_the_way_through_plain_data(scheme: InsertionScheme) -> None:
    assert InsertionScheme.from_data(scheme.to_data()) == scheme
    parts = (*scheme.node_inputs, *scheme.child_region_inputs, *scheme.region_outputs)
    assert frozenset(parts) == scheme.points
    assert len(parts) == len(scheme.points)


def test_composite_points_reach_into_children_and_outputs_reach_all_consumers() -> None:
    space = space_of(concat_graph())
    (block,) = [r for r in space.tree.regions if r.type is RegionType.COMPOSITE]
    table = space.tables[block.id]
    reached = {ports for point, ports in table.items() if isinstance(point, ChildRegionInputInsertionPoint)}
    assert (Port("n0", 0),) in reached
    assert (Port("cat", 0),) in reached
    outputs = [ports for point, ports in table.items() if isinstance(point, RegionOutputInsertionPoint)]
    assert all(p.child_index is not None for p in table if isinstance(p, RegionOutputInsertionPoint))
    assert len(outputs) == 1


def test_graph_outputs_are_reached_by_region_outputs() -> None:
    space = space_of(concat_graph())
    assert (Port(GRAPH_OUTPUT, 0),) in space.tables[space.tree.root.id].values()


def test_quantizing_the_data_of_a_conv_implies_weight_and_bias() -> None:
    space = space_of(concat_graph())
    placement = SchemeCompletion(space.graph, space.units, RULES).placement([Port("n0", 0)])
    assert dict(placement) == {
        Port("n0", 0): QType.UINT8,
        Port("n0", 1): QType.INT8,
        Port("n0", 2): QType.INT32,
    }


def test_rewrites_are_selected_where_their_ports_are_quantized() -> None:
    graph = concat_graph()
    units = space_of(graph).units
    full = placement_from_labels(graph, units, RULES, lambda u: True)
    rewrites = frozenset(PortRewrite(p, "off zero") for u in units for p in u.weights)
    assert len(rewrites) == 3
    first = min(rewrites)
    for completion, expected in (
        (SchemeCompletion(graph, units, RULES, full, rewrites), rewrites),
        (SchemeCompletion(graph, units, RULES, full.with_rewrites([first])), {first}),
        (SchemeCompletion(graph, units, RULES, full), frozenset()),
    ):
        assert completion.placement(completion.activations(full)).rewrites == expected
        assert completion.placement(completion.activations(Placement())).rewrites == frozenset()


def test_constant_operand_follows_only_when_all_computed_operands_are_covered() -> None:
    b = GraphBuilder()
    x, y = b.input((1, 8)), b.input((1, 8))
    b.node("Mul", [x, b.const((8,))], name="scale")
    b.node("Add", [x, y], name="add")
    graph = b.graph()
    completion = SchemeCompletion(graph, space_of(graph).units, RULES)
    assert Port("scale", 1) in completion.placement([Port("scale", 0)])
    assert set(dict(completion.placement([Port("add", 0)]))) == {Port("add", 0)}


def test_value_is_promoted_when_only_concats_lack_it() -> None:
    b = GraphBuilder()
    x = b.relu(b.conv(b.input((1, 8, 4, 4)), 8))
    b.conv(x, 8, 3)  # n2
    b.node("Concat", [x, x], (1, 16, 4, 4), name="cat", axis=1)
    graph = b.graph()
    completion = SchemeCompletion(graph, space_of(graph).units, RULES)
    assert Port("cat", 0) in completion.placement([Port("n2", 0)])
    assert Port("cat", 1) in completion.placement([Port("n2", 0)])


def test_value_is_not_promoted_when_another_consumer_lacks_it_or_none_has_it() -> None:
    b = GraphBuilder()
    x = b.relu(b.conv(b.input((1, 8, 4, 4)), 8))
    b.conv(x, 8, 3)  # n2
    b.node("Tanh", [x], name="tanh")
    b.node("Concat", [x, x], (1, 16, 4, 4), name="cat", axis=1)
    graph = b.graph()
    completion = SchemeCompletion(graph, space_of(graph).units, RULES)
    assert Port("cat", 0) not in completion.placement([Port("n2", 0)])
    assert len(completion.placement([])) == 0


def test_base_placement_keeps_its_types_and_its_weight_only_sites() -> None:
    space = space_of(concat_graph())
    base = Placement([(Port("n0", 0), QType.INT16), (Port("n5", 1), QType.INT4)])
    completion = SchemeCompletion(space.graph, space.units, RULES, base)
    placement = completion.placement(completion.activations(base))
    assert placement.qtype(Port("n0", 0)) is QType.INT16
    assert placement.qtype(Port("n5", 1)) is QType.INT4
    assert Port("n0", 1) in placement
    assert len(SchemeCompletion(space.graph, space.units, RULES).placement([])) == 0


@given(graphs())
def test_selecting_everything_covers_what_units_at_large_imply(graph: Graph) -> None:
    """With every point of every leaf set, each unit that ``place`` runs in low precision has all the ports it needs,
    but for those that a rule refuses by name."""
    space = space_of(graph)
    chosen = {
        p
        for r in space.tree.regions
        if r.type is RegionType.LEAF
        for ports in space.tables[r.id].values()
        for p in ports
    }
    placement = SchemeCompletion(graph, space.units, RULES).placement(chosen)
    missing = [p for p, _ in placement_from_labels(graph, space.units, RULES, lambda _: True) if p not in placement]
    for port in missing:
        value = graph.value_of(port)
        rejection = space.rejections.ports.get(port) if port.node else space.rejections.outputs.get(value)
        constant_follows = graph.is_constant(value) and any(
            space.rejections.ports.get(Port(port.node, i)) is not None
            for i, v in enumerate(graph.node(port.node).inputs)
            if v and not graph.is_constant(v)
        )
        assert rejection is not None or constant_follows


def test_concat_groups_need_every_input_to_be_selectable() -> None:
    space = space_of(concat_graph())
    leaf = space.tree.leaf_of["cat"]
    (group,) = space.pattern_of[leaf.id].groups
    assert ports_of(space, InsertionScheme(group.points), leaf.id) == {Port("cat", 0), Port("cat", 1)}
    restricted = find_search_space(concat_graph(), RULES, nodes=["n*"])  # not "cat"
    assert all(not p.groups for p in restricted.patterns.values())


def test_composites_have_groups_too() -> None:
    space = space_of(concat_graph())
    (block,) = [r for r in space.tree.regions if r.type is RegionType.COMPOSITE]
    (group,) = space.pattern_of[block.id].groups
    assert Port("cat", 0) in ports_of(space, InsertionScheme(group.points), block.id)


@given(graphs())
def test_import_accounts_for_every_site(graph: Graph) -> None:
    space = space_of(graph)
    sites = [(p, QType.UINT8) for n in graph.nodes for p, _ in n.input_ports()]
    sites += [(Port(GRAPH_OUTPUT, i), QType.UINT8) for i in range(len(graph.outputs))]
    sites += [(Port("gone", 0), QType.UINT8), (Port(graph.nodes[0].name, 99), QType.UINT8)]
    report = import_placement(space, sites)
    listed = [*report.points, *report.implied, *(p for p, _ in report.kept), *(p for p, _ in report.unknown)]
    assert sorted(listed) == sorted(p for p, _ in sites)
    assert all(reason for _, reason in (*report.kept, *report.unknown))
    assert {p for p, _ in report.placement} == {*report.points, *report.implied}
    assert len(report.unknown) == 2


def test_import_of_a_scheme_gives_the_scheme_back() -> None:
    space = space_of(concat_graph())
    leaf = space.tree.leaf_of["cat"]
    pattern = space.pattern_of[leaf.id]
    wanted = InsertionScheme(frozenset(pattern.points[:1]))
    ports = ports_of(space, wanted, leaf.id)
    report = import_placement(space, [(p, QType.UINT8) for p in ports])
    assert report.schemes[pattern.signature] == wanted == scheme_of_ports(space, pattern, ports)


def test_values_stand_for_all_their_consumers() -> None:
    graph = concat_graph()
    assert sites_of_values(graph, ["in0", "?"], QType.INT8) == [
        (Port("n0", 0), QType.INT8),
        (Port("n2", 0), QType.INT8),
        (Port("?", 0), QType.INT8),
    ]


def test_json_has_the_stable_keys() -> None:
    space = space_of(concat_graph())
    data = regions_json(space)
    assert data["nodes"] == len(space.graph.nodes)
    keys = {"id", "type", "level", "parent", "children", "nodes", "inputs", "outputs", "pattern", "points"}
    assert all(set(r) == keys for r in data["regions"])
    for region in data["regions"]:
        assert data["patterns"][region["pattern"]]["points"] == len(region["points"])
    leaves = [n for r in data["regions"] if r["type"] == "LEAF" for n in r["nodes"]]
    assert sorted(leaves) == sorted(n.name for n in space.graph.nodes)
    assert all(r["reason"] and r["rule"] for r in data["refused"])


def test_text_names_patterns_counts_and_reasons() -> None:
    space = space_of(concat_graph())
    short, full = ("\n".join(regions_lines(space, every)) for every in (False, True))
    assert "ROOT" in short
    assert "COMPOSITE" in short
    assert "not offered, folded-activation: 3 ports" in short
    assert "n1[0]: Relu is folded into n0" in full
    assert len(full) > len(short)


def test_text_draws_a_repeated_pattern_once() -> None:
    from benchmarks.generated_graphs import residual

    space = space_of(residual(200))
    short, full = ("\n".join(regions_lines(space, every)) for every in (False, True))
    assert short.count("as before") >= 20
    assert "as before" not in full
    assert len(short.splitlines()) < len(space.tree.regions) < len(full.splitlines())
