"""The tree on graphs whose structure is known."""

from __future__ import annotations

import pytest
from benchmarks.generated_graphs import FAMILIES, GraphBuilder

from inlay.model.graph import Graph
from inlay.patterns.config import Config
from inlay.patterns.fork_join import MAX_NESTING, find_fork_joins, immediate_dominators
from inlay.patterns.tree import Region, RegionTree, RegionType, find_regions
from inlay.space.units import find_units
from inlay.targets.onnxruntime.rules import rules_for

RULES = rules_for("x86_64", frozenset({"avx512_vnni"}))


def tree_of(graph: Graph, longest: int = 10, least: int = 10) -> RegionTree:
    config = Config(maximum_sequence_region_size=longest, minimum_topdown_search_size=least)
    return find_regions(graph, find_units(graph, RULES), RULES, config)


def composites(tree: RegionTree) -> list[Region]:
    return [r for r in tree.regions if r.type is RegionType.COMPOSITE]


def ops(graph: Graph, region: Region) -> list[str]:
    return sorted(graph.node(n).op_type for n in region.nodes)


def test_dominators_of_a_diamond_with_a_tail() -> None:
    #  0 → 1 → {2, 3} → 4 → 5, and 3 → 5 besides
    assert immediate_dominators([[], [0], [1], [1], [2, 3], [4, 3]]) == [0, 0, 1, 1, 1, 1]


def test_residual_block_is_a_composite_and_keeps_its_skip_outside() -> None:
    b = GraphBuilder()
    x = b.relu(b.conv(b.input((1, 8, 4, 4)), 8))
    y = b.conv(b.relu(b.conv(x, 8, 3)), 8)
    out = b.relu(b.node("Add", [x, y]))
    graph = b.graph([b.conv(out, 8)])
    tree = tree_of(graph)
    (block,) = composites(tree)
    assert ops(graph, block) == ["Add", "Conv", "Conv", "Relu", "Relu"]
    assert block.inputs == (x,)
    assert block.outputs == (out,)
    assert [c.type for c in block.children] == [RegionType.LEAF] * 2


def test_residual_from_the_graph_input_is_recognized() -> None:
    b = GraphBuilder()
    x = b.input((1, 8, 4, 4))
    b.conv(b.node("Add", [x, b.conv(b.relu(b.conv(x, 8)), 8)]), 8)
    graph = b.graph()
    assert ["Add", "Conv", "Conv", "Relu"] in [ops(graph, r) for r in composites(tree_of(graph))]


def test_squeeze_excite_is_a_composite() -> None:
    b = GraphBuilder()
    x = b.relu(b.conv(b.input((1, 8, 4, 4)), 8))
    gate = b.node("GlobalAveragePool", [x], (1, 8, 1, 1))
    gate = b.node("Sigmoid", [b.conv(b.relu(b.conv(gate, 2)), 8)])
    b.conv(b.node("Mul", [x, gate], (1, 8, 4, 4)), 8)
    graph = b.graph()
    (block,) = composites(tree_of(graph))
    assert ops(graph, block) == ["Conv", "Conv", "GlobalAveragePool", "Mul", "Relu", "Sigmoid"]


def test_inception_module_is_a_composite_of_its_branches() -> None:
    graph = FAMILIES["inception"](30)
    blocks = composites(tree_of(graph))
    assert [len(r.children) for r in blocks] == [5] * len(blocks)
    assert all(ops(graph, r).count("Concat") == 1 for r in blocks)


def test_attention_and_feed_forward_are_composites() -> None:
    graph = FAMILIES["transformer"](31)
    blocks = [ops(graph, r) for r in composites(tree_of(graph)) if r.parent == 0]
    assert any("Softmax" in b and b.count("Transpose") == 4 for b in blocks)
    assert any("Sigmoid" in b and "Softmax" not in b for b in blocks)


def test_the_mask_does_not_hold_all_layers_together() -> None:
    """Negative control: counted as a fork, the mask makes one block of the whole network."""
    tree = tree_of(FAMILIES["transformer"](200))
    assert max(r.size for r in composites(tree)) < 40


def test_dense_blocks_nest_by_concat() -> None:
    b = GraphBuilder()
    x = b.relu(b.conv(b.input((1, 8, 4, 4)), 8))
    for width in (8, 16, 24):
        x = b.node("Concat", [x, b.conv(b.relu(b.conv(x, 8)), 8, 3)], (1, width + 8, 4, 4), axis=1)
    graph = b.graph()
    assert [ops(graph, r) for r in composites(tree_of(graph))] == [["Concat", "Conv", "Conv", "Relu"]] * 3


def test_nested_forks_are_nested_composites() -> None:
    b = GraphBuilder()
    x = b.relu(b.conv(b.input((1, 8, 4, 4)), 8))
    inner_in = b.relu(b.conv(x, 8))
    inner = b.node("Add", [inner_in, b.conv(inner_in, 8)])
    b.node("Add", [x, inner])
    tree = tree_of(b.graph())
    outer, nested = composites(tree)
    assert nested.parent == outer.id
    assert set(nested.nodes) < set(outer.nodes)
    assert (tree.root.level, outer.level, nested.level) == (3, 2, 1)


def test_very_deep_nesting_is_cut() -> None:
    b = GraphBuilder()
    skips = [b.relu(b.conv(b.input((1, 8, 4, 4)), 8))]
    for _ in range(3 * MAX_NESTING):
        skips.append(b.relu(b.conv(skips[-1], 8)))
    x = skips.pop()
    while skips:
        x = b.node("Add", [skips.pop(), x])
    graph = b.graph()
    tree = tree_of(graph)
    assert tree.root.level <= MAX_NESTING + 1
    assert len(find_fork_joins(graph).parents) == MAX_NESTING
    assert sorted(tree.root.nodes) == sorted(n.name for n in graph.nodes)


@pytest.mark.parametrize("longest", [1, 2, 4, 10, 100])
def test_leaves_hold_at_most_so_many_nodes(longest: int) -> None:
    tree = tree_of(FAMILIES["chain"](60), longest)
    sizes = [r.size for r in tree.regions if r.type is RegionType.LEAF]
    assert max(sizes) <= max(2, longest)  # Conv and the Relu folded into it are never parted
    assert max(sizes) == min(60, max(2, longest))


def test_long_sequences_become_composites_when_they_are_worth_it() -> None:
    b = GraphBuilder()
    x = b.relu(b.conv(b.input((1, 8, 4, 4)), 8))
    y = x
    for _ in range(8):
        y = b.relu(b.conv(y, 8))
    b.node("Add", [x, y])
    graph = b.graph()
    assert len(composites(tree_of(graph, 10, least=10))) == 2  # the block, and in it the sequence of two leaves
    assert len(composites(tree_of(graph, 10, least=17))) == 1
    assert len(composites(tree_of(graph, 100, least=10))) == 1  # one leaf holds the whole sequence


def test_folded_activation_is_never_parted_from_its_anchor() -> None:
    graph = FAMILIES["residual"](200)
    tree = tree_of(graph, 1)
    for node in graph.nodes:
        if node.op_type == "Relu":
            (before,) = {p.name for p in graph.predecessors(node)}
            assert tree.leaf_of[node.name] is tree.leaf_of[before]


def test_subgraph_reads_count_as_inputs_and_outputs() -> None:
    from dataclasses import replace

    b = GraphBuilder()
    x = b.relu(b.conv(b.input((1, 8, 4, 4)), 8))
    flag = b.input((), dtype=b.dtypes[x])
    b.node("If", [flag], (1, 8, 4, 4))
    b.nodes[-1] = replace(b.nodes[-1], captured=frozenset({x}))
    graph = b.graph()
    tree = tree_of(graph)
    assert x in tree.leaf_of["n2"].inputs
    assert x in tree.leaf_of["n1"].outputs


def test_empty_graph_has_a_root_only() -> None:
    b = GraphBuilder()
    x = b.input((1, 8))
    tree = tree_of(b.graph([x]))
    assert [(r.type, r.size) for r in tree.regions] == [(RegionType.ROOT, 0)]
