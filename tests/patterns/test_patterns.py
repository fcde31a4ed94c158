"""What makes two regions the same, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from benchmarks.generated_graphs import FAMILIES, GraphBuilder

from inlay.patterns.canonical import canonical_order
from inlay.patterns.search_space import find_search_space
from inlay.targets.onnxruntime.rules import rules_for

RULES = rules_for("x86_64", frozenset({"avx512_vnni"}))
Build = Callable[[GraphBuilder], None]


def root_of(build: Build) -> str:
    b = GraphBuilder()
    build(b)
    space = find_search_space(b.graph(), RULES)
    return space.pattern_of[0].signature


def block(
    *, size: int = 8, kernel: int = 3, swap: bool = False, op: str = "Add", bias: bool = True, mid: int = 8
) -> Build:
    def build(b: GraphBuilder) -> None:
        x = b.relu(b.conv(b.input((1, 8, size, size)), 8))
        y = b.conv(b.relu(b.conv(x, mid, kernel, bias=bias)), 8)
        b.relu(b.node(op, [y, x] if swap else [x, y]))

    return build


@pytest.mark.parametrize(
    "other",
    [block(size=16), block(kernel=1), block(op="Mul"), block(bias=False), block(mid=4)],
    ids=["shape", "attribute", "operator", "bias", "width"],
)
def test_shapes_attributes_operators_and_operands_tell_patterns_apart(other: Build) -> None:
    assert root_of(block()) != root_of(other)


def test_inputs_that_may_be_exchanged_do_not() -> None:
    assert root_of(block()) == root_of(block(swap=True))


def test_inputs_that_may_not_be_exchanged_do() -> None:
    """Negative control of the test before: Concat's inputs have an order."""
    assert root_of(block(op="Concat")) != root_of(block(op="Concat", swap=True))


def test_a_shared_weight_is_not_two_equal_ones() -> None:
    def build(b: GraphBuilder, shared: bool) -> None:
        x = b.input((1, 8, 4, 4))
        w = b.const((8, 8, 1, 1))
        y = b.conv(x, 8, weight=w)
        b.conv(y, 8, weight=w if shared else b.const((8, 8, 1, 1)))

    assert root_of(lambda b: build(b, True)) != root_of(lambda b: build(b, False))


def test_square_is_not_a_product_of_two_values() -> None:
    def square(b: GraphBuilder) -> None:
        x = b.input((1, 8))
        b.node("Mul", [x, x])

    def product(b: GraphBuilder) -> None:
        b.node("Mul", [b.input((1, 8)), b.input((1, 8))])

    assert root_of(square) != root_of(product)


def test_edges_count_not_only_operators() -> None:
    """Same operators, same shapes: only which value feeds what differs."""

    def build(b: GraphBuilder, crossed: bool) -> None:
        x = b.input((1, 8, 4, 4))
        one, two = b.conv(x, 8), b.node("Tanh", [x])
        late = b.relu(one)
        b.node("Concat", [late, two if crossed else one], (1, 16, 4, 4), axis=1)

    assert root_of(lambda b: build(b, True)) != root_of(lambda b: build(b, False))


def test_axes_and_shapes_in_constants_count() -> None:
    def build(b: GraphBuilder, axis: int) -> None:
        axes = b.const((1,), ir.DataType.INT64)
        b.initializers[axes] = ir.tensor(np.array([axis], np.int64))
        b.node("Squeeze", [b.conv(b.input((1, 8, 1, 1)), 8), axes], (1, 8, 1))

    assert root_of(lambda b: build(b, 2)) != root_of(lambda b: build(b, 3))


def test_repeated_blocks_are_instances_of_one_pattern() -> None:
    space = find_search_space(FAMILIES["residual"](200), RULES)
    counts = sorted(len(p.instances) for p in space.patterns.values())
    assert counts[-1] >= 14
    assert sum(counts) == len(space.tree.regions)


def test_equal_parts_of_different_models_share_signatures() -> None:
    one, two = (find_search_space(FAMILIES["inception"](n), RULES) for n in (60, 120))
    shared = set(one.patterns) & set(two.patterns)
    assert len(shared) >= 5
    for signature in shared:
        assert one.patterns[signature].points == two.patterns[signature].points


def test_signatures_are_stable() -> None:
    """Caches on disk name patterns by signature: a change here invalidates them, and must raise the cache's version."""
    space = find_search_space(FAMILIES["residual"](10), RULES)
    assert space.pattern_of[0].signature == "9370fcee42f8284c01c2"


def canonical_form(labels: list[int], edges: list[tuple[int, int, int]]) -> tuple[object, ...]:
    rank = {v: i for i, v in enumerate(canonical_order(labels, edges))}
    ordered = sorted(range(len(labels)), key=rank.__getitem__)
    return tuple(labels[v] for v in ordered), tuple(sorted((rank[a], rank[b], lab) for a, b, lab in edges))


def relabelled(
    labels: list[int], edges: list[tuple[int, int, int]], rng: np.random.Generator
) -> tuple[list[int], list[tuple[int, int, int]]]:
    """The same graph in another topological order."""
    waiting = {v: sum(b == v for _, b, _ in edges) for v in range(len(labels))}
    ready, order = [v for v in waiting if not waiting[v]], []
    while ready:
        v = ready.pop(int(rng.integers(len(ready))))
        order.append(v)
        for a, b, _ in edges:
            if a == v:
                waiting[b] -= 1
                if not waiting[b]:
                    ready.append(b)
    place = {v: i for i, v in enumerate(order)}
    fresh = [(place[a], place[b], lab) for a, b, lab in edges]
    return [labels[v] for v in order], [fresh[i] for i in rng.permutation(len(fresh))]


SYMMETRIC = {
    "twin branches": ([0] * 6, [(0, 1, 1), (0, 2, 1), (1, 3, 1), (2, 4, 1), (3, 5, 1), (4, 5, 1)]),
    "tree of sums": ([0] * 7, [(0, 4, 1), (1, 4, 1), (2, 5, 1), (3, 5, 1), (4, 6, 1), (5, 6, 1)]),
    "many equal ends": ([0] * 9, [(0, i, 1) for i in range(1, 9)]),
    "no edges": ([7] * 6, []),
    "two separate diamonds": (
        [0] * 8,
        [(o, o + i, 1) for o in (0, 4) for i in (1, 2)] + [(o + i, o + 3, 1) for o in (0, 4) for i in (1, 2)],
    ),
    # sums over the edges of two triangles, and of a hexagon: refinement cannot tell these two graphs apart
    "hexagon": ([0] * 12, [e for i in range(6) for e in ((i, 6 + i, 1), ((i + 1) % 6, 6 + i, 1))]),
    "two triangles": (
        [0] * 12,
        [e for o in (0, 3) for i in range(3) for e in ((o + i, 6 + o + i, 1), (o + (i + 1) % 3, 6 + o + i, 1))],
    ),
}


@pytest.mark.parametrize("name", SYMMETRIC)
def test_canonical_form_of_symmetric_graphs(name: str) -> None:
    labels, edges = SYMMETRIC[name]
    rng = np.random.default_rng(0)
    forms = {canonical_form(*relabelled(labels, edges, rng)) for _ in range(30)}
    assert len(forms) == 1


def test_refinement_twins_are_told_apart() -> None:
    assert canonical_form(*SYMMETRIC["hexagon"]) != canonical_form(*SYMMETRIC["two triangles"])


def test_thousands_of_equal_ends_are_ordered_in_time() -> None:
    count = 20_000
    assert len(canonical_order([0] * count, [(0, i, 1) for i in range(1, count)])) == count


def captured(outside: bool) -> Build:
    """An If whose bodies read a value that a region before it computes, or the graph's input."""

    def build(b: GraphBuilder) -> None:
        x = b.input((1, 8, 4, 4))
        y = b.relu(b.conv(b.relu(b.conv(x, 8)), 8))
        flag = b.node("ReduceSum", [y], (1, 1, 1, 1))
        b.relu(b.conv(b.node("If", [flag], (1, 8, 4, 4)), 8))
        at = next(i for i, n in enumerate(b.nodes) if n.op_type == "If")
        b.nodes[at] = replace(b.nodes[at], captured=frozenset({x if outside else y}))

    return build


def test_what_a_subgraph_reads_is_part_of_the_pattern() -> None:
    """It has no slot, and still is an input of the region; the graph's own input among them."""
    assert root_of(captured(outside=True)) != root_of(captured(outside=False))
