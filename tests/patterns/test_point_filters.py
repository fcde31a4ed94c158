"""Every filter by itself: a case that it rejects, and the nearest case that it must not reject."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir
import pytest
from benchmarks.generated_graphs import GraphBuilder

from inlay.errors import UsageError
from inlay.model.graph import Graph
from inlay.patterns.point_filters import (
    OUTPUT_FILTERS,
    PORT_FILTERS,
    TINY_ELEMENTS,
    FilterContext,
    find_rejections,
    shape_arithmetic,
)
from inlay.patterns.search_space import find_search_space
from inlay.space.recipe import select_nodes
from inlay.space.rules import Rules
from inlay.space.units import find_units, placement_from_labels
from inlay.targets.onnxruntime.rules import rules_for
from inlay.types import Port

RULES = rules_for("x86_64", frozenset({"avx512_vnni"}))
FUSING = replace(RULES, fuses_residual_add=True)


def context_of(graph: Graph, rules: Rules = RULES, allowed: frozenset[str] | None = None) -> FilterContext:
    return FilterContext(graph, rules, find_units(graph, rules), allowed)


def reason_for(name: str, graph: Graph, node: str, slot: int = 0, rules: Rules = RULES, **more: object) -> str | None:
    context = FilterContext(graph, rules, find_units(graph, rules), **more)  # type: ignore[arg-type]
    return PORT_FILTERS[name](context, graph.node(node), slot)


def test_nodes_outside_the_selection_are_rejected() -> None:
    b = GraphBuilder()
    b.conv(b.conv(b.input((1, 8, 4, 4)), 8), 8)
    graph = b.graph()
    assert "--nodes" in str(reason_for("nodes", graph, "n0", allowed=frozenset({"n1"})))
    assert reason_for("nodes", graph, "n1", allowed=frozenset({"n1"})) is None
    assert reason_for("nodes", graph, "n1") is None


def test_nodes_with_subgraphs_are_rejected() -> None:
    b = GraphBuilder()
    x = b.conv(b.input((1, 8, 4, 4)), 8)
    b.node("Loop", [x])
    plain = b.graph()
    b.nodes[-1] = replace(b.nodes[-1], captured=frozenset({x}))
    assert "subgraph" in str(reason_for("subgraph", b.graph(), "n1"))
    assert reason_for("subgraph", plain, "n1") is None


def test_values_that_are_not_float32_are_rejected() -> None:
    b = GraphBuilder()
    whole = b.input((1, 8, 4, 4), dtype=ir.DataType.INT64)
    b.node("Reshape", [whole, b.const((4,), ir.DataType.INT64)], dtype=ir.DataType.INT64)
    b.node("Transpose", [b.input((1, 8, 4, 4))])
    graph = b.graph()
    assert "int64" in str(reason_for("dtype", graph, "n0"))
    assert reason_for("dtype", graph, "n1") is None
    assert "unknown type" in str(reason_for("dtype", replace(graph, dtypes={}), "n1"))


def test_shape_arithmetic_is_rejected_even_where_it_is_float() -> None:
    b = GraphBuilder()
    x = b.input((1, 8, 4, 4))
    size = b.node("Cast", [b.node("Shape", [x], (4,), dtype=ir.DataType.INT64)], (4,))
    half = b.node("Mul", [size, b.const(())], (4,))
    b.node("Mul", [x, half])
    graph = b.graph()
    assert shape_arithmetic(graph) == {"n0:0", "n1:0", "n2:0"}
    assert "tensor shapes" in str(reason_for("shape-arithmetic", graph, "n3", 1))
    assert reason_for("shape-arithmetic", graph, "n3", 0) is None


@pytest.mark.parametrize(("size", "rejected"), [(TINY_ELEMENTS - 1, True), (TINY_ELEMENTS, False), (None, False)])
def test_tiny_tensors_are_rejected(size: int | None, rejected: bool) -> None:
    b = GraphBuilder()
    b.node("Sigmoid", [b.input((1, size))])
    graph = b.graph()
    assert bool(reason_for("tiny", graph, "n0")) is rejected


def test_ports_of_folded_activations_are_rejected() -> None:
    b = GraphBuilder()
    x = b.conv(b.input((1, 8, 4, 4)), 8)
    b.relu(x)
    shared = b.conv(x, 8)
    graph = b.graph()
    assert reason_for("folded-activation", graph, "n1") is None  # two read the Conv's output: nothing is folded
    b = GraphBuilder()
    b.conv(b.relu(b.conv(b.input((1, 8, 4, 4)), 8)), 8)
    graph = b.graph()
    assert "folded into n0" in str(reason_for("folded-activation", graph, "n1"))
    assert reason_for("folded-activation", graph, "n2") is None
    assert shared


@pytest.mark.parametrize("shared", [False, True])
def test_between_conv_batchnorm_and_relu_nothing_is_offered(shared: bool) -> None:
    b = GraphBuilder()
    x = b.conv(b.input((1, 8, 4, 4)), 8)
    y = b.node("BatchNormalization", [x, *(b.const((8,)) for _ in range(4))])
    b.relu(y)
    if shared:
        b.node("Tanh", [x])
        b.node("Tanh", [y])
    graph = b.graph()
    assert bool(reason_for("conv-bn-interior", graph, "n1")) is not shared
    assert bool(reason_for("conv-bn-interior", graph, "n2")) is not shared


def residual(*, relu: bool = True, norm: bool = False, spare: bool = False, both: bool = False) -> Graph:
    b = GraphBuilder()
    x = b.relu(b.conv(b.input((1, 8, 4, 4)), 8))  # n0, n1
    y = b.conv(x, 8)  # n2
    if norm:
        y = b.node("BatchNormalization", [y, *(b.const((8,)) for _ in range(4))], name="norm")
    skip = b.conv(x, 8) if both else x
    out = b.node("Add", [y, skip], name="add")
    if relu:
        out = b.relu(out)
    b.node("Tanh", [out])
    if spare:
        b.node("Tanh", [y])
    return b.graph()


@pytest.mark.parametrize("norm", [False, True])
def test_residual_main_path_is_rejected_where_the_target_folds_it(norm: bool) -> None:
    graph = residual(norm=norm)
    assert "main path" in str(reason_for("residual-main-path", graph, "add", 0, FUSING))
    assert reason_for("residual-main-path", graph, "add", 1, FUSING) is None  # the skip input carries Q/DQ
    assert reason_for("residual-main-path", graph, "add", 0, RULES) is None  # this target folds no Add


def test_residual_rule_needs_a_relu_behind_the_add() -> None:
    assert reason_for("residual-main-path", residual(relu=False), "add", 0, FUSING) is None


def test_residual_rule_needs_a_single_consumer_of_the_conv() -> None:
    assert reason_for("residual-main-path", residual(spare=True), "add", 0, FUSING) is None


def test_of_two_conv_paths_only_one_is_the_main_path() -> None:
    graph = residual(both=True)
    assert reason_for("residual-main-path", graph, "add", 0, FUSING)
    assert reason_for("residual-main-path", graph, "add", 1, FUSING) is None


def test_operators_without_a_kernel_are_rejected_unless_their_producer_needs_them() -> None:
    b = GraphBuilder()
    x = b.input((1, 8, 4, 4))
    b.node("Tanh", [x])
    b.node("Tanh", [b.node("Concat", [x, x], (1, 16, 4, 4), axis=1)])
    b.node("Tanh", [b.node("MatMul", [x, b.const((4, 4))])])
    graph = b.graph()
    assert "no low-precision form" in str(reason_for("no-kernel", graph, "n0"))
    assert reason_for("no-kernel", graph, "n2") is None  # only then can the Concat before it run on bytes
    assert reason_for("no-kernel", graph, "n4")  # MatMul can hand out float
    assert reason_for("no-kernel", graph, "n1") is None


def test_slots_that_are_not_activations_are_rejected() -> None:
    b = GraphBuilder()
    x = b.input((1, 8, 4, 4))
    scales = b.input((8,))
    b.node("Resize", [x, "", scales], mode="nearest")
    assert "not an activation" in str(reason_for("no-kernel", b.graph(), "n0", 2))
    assert reason_for("no-kernel", b.graph(), "n0", 0) is None


def output_reason(name: str, graph: Graph, value: str, rules: Rules = RULES, **more: object) -> str | None:
    context = FilterContext(graph, rules, find_units(graph, rules), **more)  # type: ignore[arg-type]
    producer = graph.producer(value)
    assert producer is not None
    return OUTPUT_FILTERS[name](context, producer, value)


def test_outputs_that_subgraphs_read_are_rejected() -> None:
    b = GraphBuilder()
    x = b.conv(b.input((1, 8, 4, 4)), 8)
    b.node("If", [b.conv(x, 8)])
    b.nodes[-1] = replace(b.nodes[-1], captured=frozenset({x}))
    assert output_reason("subgraph", b.graph(), "n0:0")
    assert output_reason("subgraph", b.graph(), "n1:0") is None


def test_outputs_that_are_not_float32_are_rejected() -> None:
    b = GraphBuilder()
    x = b.input((1, 8, 4, 4))
    b.node("Shape", [x], (4,), dtype=ir.DataType.INT64)
    b.conv(x, 8)
    assert output_reason("dtype", b.graph(), "n0:0")
    assert output_reason("shape-arithmetic", b.graph(), "n0:0")
    assert output_reason("dtype", b.graph(), "n1:0") is None
    assert output_reason("shape-arithmetic", b.graph(), "n1:0") is None


def test_tiny_outputs_are_rejected() -> None:
    b = GraphBuilder()
    x = b.input((1, 8, 4, 4))
    b.node("GlobalAveragePool", [x], (1, 2, 1, 1))
    b.node("GlobalAveragePool", [x], (1, 8, 1, 1))
    assert output_reason("tiny", b.graph(), "n0:0")
    assert output_reason("tiny", b.graph(), "n1:0") is None


def test_outputs_inside_a_fused_kernel_are_rejected() -> None:
    b = GraphBuilder()
    b.conv(b.relu(b.conv(b.input((1, 8, 4, 4)), 8)), 8)
    graph = b.graph()
    assert output_reason("interior", graph, "n0:0")
    assert output_reason("interior", graph, "n1:0") is None


def test_outputs_of_float_kernels_are_rejected() -> None:
    b = GraphBuilder()
    x = b.input((1, 8, 4, 4))
    b.node("Tanh", [x])
    b.node("Sigmoid", [x])
    assert output_reason("no-kernel", b.graph(), "n0:0")
    assert output_reason("no-kernel", b.graph(), "n1:0") is None


def test_outputs_outside_the_selection_are_rejected() -> None:
    b = GraphBuilder()
    b.conv(b.input((1, 8, 4, 4)), 8)
    assert output_reason("nodes", b.graph(), "n0:0", allowed=frozenset())
    assert output_reason("nodes", b.graph(), "n0:0") is None


def test_every_filter_is_documented_and_named() -> None:
    for name, check in [*PORT_FILTERS.items(), *OUTPUT_FILTERS.items()]:
        assert name == name.lower()
        assert check.__doc__


def test_concat_is_never_rejected_for_being_a_concat() -> None:
    b = GraphBuilder()
    x = b.input((1, 8, 4, 4))
    b.conv(b.node("Concat", [b.relu(b.conv(x, 8)), b.relu(b.conv(x, 8))], (1, 16, 4, 4), axis=1), 8)
    rejections = find_rejections(context_of(b.graph()))
    assert rejections.allows(Port("n4", 0))
    assert rejections.allows(Port("n4", 1))


def test_first_filter_that_rejects_gives_the_reason() -> None:
    b = GraphBuilder()
    b.node("Tanh", [b.input((2,), dtype=ir.DataType.INT64)])
    rejection = find_rejections(context_of(b.graph())).ports[Port("n0", 0)]
    assert rejection is not None
    assert rejection.filter == "dtype"


def test_globs_select_nodes_and_idle_ones_are_named() -> None:
    b = GraphBuilder()
    b.conv(b.conv(b.input((1, 8, 4, 4)), 8), 8)
    graph = b.graph()
    assert select_nodes(graph, ["n?"]) == {"n0", "n1"}
    assert select_nodes(graph, ["n0", "*1"]) == {"n0", "n1"}
    with pytest.raises(UsageError, match=r"'N\*', ''"):
        select_nodes(graph, ["n0", "N*", ""])


def test_restricted_space_allows_nothing_else() -> None:
    b = GraphBuilder()
    b.conv(b.relu(b.conv(b.input((1, 8, 4, 4)), 8)), 8)
    space = find_search_space(b.graph(), RULES, nodes=["n2"])
    allowed = {p.node for p, r in space.rejections.ports.items() if r is None}
    assert allowed == {"n2"}


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("both", [False, True])
def test_full_low_precision_leaves_the_residual_main_path_bare(norm: bool, both: bool) -> None:
    """What the filter forbids the search, no recipe and no strategy that labels units does either."""
    graph = residual(norm=norm, both=both)
    for rules, bare in ((FUSING, True), (RULES, False)):
        placement = placement_from_labels(graph, find_units(graph, rules), rules, lambda unit: True)
        assert (Port("add", 0) not in placement) is bare
        assert Port("add", 1) in placement
    other = residual(relu=False)
    placement = placement_from_labels(other, find_units(other, FUSING), FUSING, lambda unit: True)
    assert Port("add", 0) in placement
