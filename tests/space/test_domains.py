"""Shared domains and clusters: who follows whom, and what stays float."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from benchmarks.generated_graphs import GraphBuilder

from inlay import OpConfig, Recipe
from inlay.model.graph import Graph
from inlay.space.domains import find_clusters, find_domains
from inlay.space.resolve import Decision, recipe_of, resolve
from inlay.space.rules import OpRule, Rules
from inlay.space.units import find_units
from inlay.tosa.ethos_u.rules import RULES
from inlay.types import Placement, Port, QType

INT = OpConfig()
SHAPE = (1, 8, 8, 8)
FULL = Recipe().set_global(INT)


def decide(
    b: GraphBuilder, recipe: Recipe = FULL, rules: Rules = RULES
) -> tuple[dict[str, Decision], Placement, Graph]:
    graph = b.graph()
    found = resolve(recipe, graph, find_units(graph, rules), rules)
    return {d.node: d for d in found.decisions}, found.placement, graph


def precisions(b: GraphBuilder, recipe: Recipe = FULL) -> dict[str, str]:
    return {n: d.precision for n, d in decide(b, recipe)[0].items()}


def add(b: GraphBuilder, op: str, *inputs: str, name: str, **attributes: Any) -> str:
    return b.node(op, list(inputs), name=name, **attributes)


def conv(b: GraphBuilder, x: str, name: str) -> str:
    return add(b, "Conv", x, b.const((8, 8, 1, 1)), name=name)


# -- clusters ---------------------------------------------------------------------------------------------------------


def test_cluster_between_two_quantized_ops_is_quantized() -> None:
    b = GraphBuilder()
    y = add(b, "MaxPool", conv(b, b.input(SHAPE), "a"), name="pool", kernel_shape=(1, 1))
    conv(b, y, "c")
    assert precisions(b) == {"a": "int8", "pool": "int8", "c": "int8"}


@pytest.mark.parametrize("float_side", ["before", "after"])
def test_cluster_with_one_float_neighbour_is_quantized(float_side: str) -> None:
    b = GraphBuilder()
    x = b.input(SHAPE)
    before = add(b, "CumSum", x, name="erf") if float_side == "before" else conv(b, x, "conv")
    y = add(b, "Transpose", before, name="t", perm=(0, 1, 2, 3))
    if float_side == "before":
        conv(b, y, "conv")
    else:
        add(b, "CumSum", y, name="erf")
    assert precisions(b) == {"erf": "float", "t": "int8", "conv": "int8"}


ONLY_CONVS = Recipe().set_global(None).set_op_type("Conv", INT)


def test_clusters_between_named_operators_follow_them_although_the_rest_is_float() -> None:
    b = GraphBuilder()
    x = b.input(SHAPE)
    left = add(b, "MaxPool", conv(b, x, "a"), name="pool", kernel_shape=(1, 1))
    y = add(b, "Concat", left, conv(b, x, "c"), name="cat", axis=1)
    last = add(b, "Conv", y, b.const((8, 16, 1, 1)), name="d")
    add(b, "Flatten", add(b, "Sigmoid", last, name="s"), name="t")
    rows, placement, graph = decide(b, ONLY_CONVS)
    assert {n: d.precision for n, d in rows.items()} == {
        "a": "int8", "c": "int8", "pool": "int8", "cat": "int8", "d": "int8", "s": "float", "t": "float",
    }  # fmt: skip
    units = find_units(graph, RULES)
    assert recipe_of(placement, graph, units, RULES).rules  # and can be said again
    assert resolve(recipe_of(placement, graph, units, RULES), graph, units, RULES).placement == placement
    assert set(resolve(ONLY_CONVS, graph, units, RULES).kept_float) == {"s", "t"}
    named = decide(b, ONLY_CONVS.set_op_type("Concat", None))[0]
    assert {n: named[n].precision for n in ("pool", "cat", "d")} == {"pool": "int8", "cat": "float", "d": "int8"}


def test_a_state_between_quantized_boundaries_follows_what_the_recipe_quantizes() -> None:
    """No Conv touches the join of a state with the input, only the model's boundary does."""
    b = GraphBuilder()
    x, state = b.input(SHAPE, "x"), b.input(SHAPE, "state")
    y = add(b, "Concat", x, state, name="cat", axis=1)
    add(b, "Slice", y, name="new_state")
    conv(b, x, "a")
    recipe = ONLY_CONVS.set_io(OpConfig(QType.UINT8))
    rows, placement, graph = decide(b, recipe)
    assert {d.precision for d in rows.values()} == {"int8"}
    assert {placement.qtype(p) for p in graph.consumers(y)} == {QType.INT8}
    assert placement.qtype(Port("cat", 1)) is QType.UINT8  # the boundary's pair; the one behind it requantizes
    assert set(precisions(b, ONLY_CONVS).values()) == {"float", "int8"}


def test_cluster_between_two_float_ops_stays_float() -> None:
    b = GraphBuilder()
    y = add(b, "Transpose", add(b, "CumSum", b.input(SHAPE), name="f"), name="t", perm=(0, 1, 2, 3))
    add(b, "CumSum", add(b, "Flatten", y, name="u"), name="g")
    rows, placement, _ = decide(b)
    assert rows["t"].precision == rows["u"].precision == "float"
    assert "no quantized neighbour" in rows["t"].reason
    assert not len(placement)


def test_annotated_as_float_does_not_count_as_quantized() -> None:
    b = GraphBuilder()
    y = add(b, "Transpose", conv(b, b.input(SHAPE), "a"), name="t", perm=(0, 1, 2, 3))
    conv(b, y, "c")
    assert precisions(b, FULL.set_op_type("Conv", None)) == {"a": "float", "t": "float", "c": "float"}


def test_input_fork_with_an_op_that_does_not_share() -> None:
    """The forked input is read by a shared operator and by a float one: the cluster still follows the producer."""
    b = GraphBuilder()
    y = conv(b, b.input(SHAPE), "a")
    add(b, "Flatten", y, name="t")
    add(b, "CumSum", y, name="f")
    rows, placement, graph = decide(b)
    assert {n: d.precision for n, d in rows.items()} == {"a": "int8", "t": "int8", "f": "float"}
    assert all(p in placement for p in graph.consumers(y))


def test_input_fork_of_shared_ops() -> None:
    b = GraphBuilder()
    y = conv(b, b.input(SHAPE), "a")
    left, right = (add(b, op, y, name=op) for op in ("Squeeze", "Flatten"))
    add(b, "Concat", left, right, name="cat", axis=1)
    assert precisions(b) == {"a": "int8", "Squeeze": "int8", "Flatten": "int8", "cat": "int8"}
    clusters = find_clusters(b.graph(), {"Squeeze", "Flatten", "cat"}, {"a": QType.INT8})
    assert [c.nodes for c in clusters] == [("Squeeze", "cat", "Flatten")]


def test_constants_in_the_cluster() -> None:
    b = GraphBuilder()
    own, read_twice = b.const(SHAPE), b.const(SHAPE)
    y = add(b, "Flatten", conv(b, b.input(SHAPE), "a"), name="t")
    z = add(b, "Concat", y, own, read_twice, name="cat", axis=1)
    add(b, "CumSum", read_twice, name="f")
    rows, placement, graph = decide(b)
    assert rows["cat"].precision == "int8"
    assert placement.qtype(Port("cat", 1)) is QType.INT8
    domains = find_domains(graph, RULES)
    assert domains[own] == domains[y] == domains[z]
    assert read_twice not in domains


def test_constants_alone_do_not_quantize_a_cluster() -> None:
    b = GraphBuilder()
    add(b, "Concat", add(b, "CumSum", b.input(SHAPE), name="f"), b.const(SHAPE), name="cat", axis=1)
    assert precisions(b)["cat"] == "float"


def test_quantized_op_surrounded_by_a_cluster_keeps_its_own_qparams() -> None:
    b = GraphBuilder()
    x = b.input(SHAPE)
    before = add(b, "Transpose", x, name="t", perm=(0, 1, 2, 3))
    y = add(b, "Sigmoid", before, name="s")
    after = add(b, "Transpose", y, name="u", perm=(0, 1, 2, 3))
    assert precisions(b) == {"t": "int8", "s": "int8", "u": "int8"}
    domains = find_domains(b.graph(), RULES)
    assert domains[before] == domains[x] != domains[y] == domains[after]


def test_competing_neighbours_first_in_search_order_wins() -> None:
    rules = replace(RULES, other_activations=frozenset({QType.UINT8}))
    b = GraphBuilder()
    x = b.input(SHAPE)
    first, second = conv(b, x, "a"), conv(b, x, "c")
    add(b, "Concat", second, first, name="cat", axis=1)
    row = decide(b, FULL.set_name("c", OpConfig(QType.UINT8)), rules)[0]["cat"]
    assert row.precision == "uint8"
    assert row.reason == "its cluster follows c, not int8"


def test_inputs_come_before_consumers_in_the_search() -> None:
    graph_builder = GraphBuilder()
    y = add(graph_builder, "Flatten", conv(graph_builder, graph_builder.input(SHAPE), "a"), name="t")
    conv(graph_builder, y, "c")
    (cluster,) = find_clusters(graph_builder.graph(), {"t"}, {"c": QType.UINT8, "a": QType.INT8})
    assert cluster.qtype is QType.INT8
    assert cluster.competing == (QType.UINT8,)


def test_an_explicit_none_for_concat_leaves_it_float() -> None:
    b = GraphBuilder()
    x = b.input(SHAPE)
    add(b, "Concat", conv(b, x, "a"), conv(b, x, "c"), name="cat", axis=1)
    rows = decide(b, FULL.set_op_type("Concat", None))[0]
    assert rows["cat"].precision == "float"
    assert rows["cat"].rule == "set_op_type('Concat', float)"


def test_quantized_model_input_without_a_neighbour_takes_the_global_configuration() -> None:
    def boundary() -> GraphBuilder:
        b = GraphBuilder()
        add(b, "CumSum", add(b, "Flatten", b.input(SHAPE, "x"), name="t"), name="f")
        return b

    assert precisions(boundary())["t"] == "float"
    rows = decide(boundary(), FULL.set_io(INT))[0]
    assert rows["t"].precision == "int8"
    assert rows["t"].reason == "its cluster touches x, and takes the global configuration"
    assert precisions(boundary(), Recipe().set_global(None).set_io(INT))["t"] == "float"


def test_quantized_model_output_without_a_neighbour_takes_the_global_configuration() -> None:
    b = GraphBuilder()
    y = add(b, "Flatten", add(b, "CumSum", b.input(SHAPE), name="f"), name="t")
    rows, placement, _ = decide(b, FULL.set_io(INT, y))
    assert rows["t"].precision == "int8"
    assert Port("", 0) in placement


def test_input_state_without_numbers_takes_the_global_configuration() -> None:
    """A recurrent state enters a Concat with nothing quantized beside it, and goes out again."""
    b = GraphBuilder()
    x, state = b.input(SHAPE, "x"), b.input(SHAPE, "state")
    y = add(b, "Concat", x, state, name="cat", axis=1)
    add(b, "Slice", y, name="new_state")
    assert set(precisions(b, FULL.set_io(INT, "state")).values()) == {"int8"}


def uint8_boundary(op: str) -> GraphBuilder:
    b = GraphBuilder()
    raw = b.input(SHAPE, "raw", ir.DataType.UINT8)
    x = add(b, "DequantizeLinear", raw, b.const((), name="s"), b.const((), ir.DataType.UINT8, "z"), name="dq")
    y = add(b, op, *([x, x] if op == "Concat" else [x]), name="op")
    b.node("QuantizeLinear", [y, "s", "z"], name="q", dtype=ir.DataType.UINT8)
    return b


@pytest.mark.parametrize("op", ["Concat", "Slice", "Reshape", "Split"])
def test_uint8_model_boundary_is_bridged_by_a_requantization(op: str) -> None:
    """DQ(uint8)→Q(int8) before the operator and DQ(int8)→Q(uint8) after it: it runs in integers, in int8."""
    rows, placement, _ = decide(uint8_boundary(op))
    assert rows["op"].precision == "int8"
    assert "takes the global configuration" in rows["op"].reason
    assert placement.qtype(Port("op", 0)) is QType.INT8
    assert placement.qtype(Port("q", 0)) is QType.INT8


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, 3.0])
def test_constants_that_no_integer_stands_for_stay_float(number: float) -> None:
    """Masks of attention hold minus infinity: it has no scale."""
    b = GraphBuilder()
    x = conv(b, b.input(SHAPE), "before")
    mask = b.const(SHAPE, name="mask")
    b.initializers[mask] = ir.tensor(np.where(np.arange(8) > 5, number, 0.0).astype(np.float32) * np.ones(SHAPE, "f"))
    conv(b, add(b, "Add", x, mask, name="masked"), "after")
    rows = decide(b)[0]
    assert (rows["before"].precision, rows["after"].precision) == ("int8", "int8")
    assert rows["masked"].precision == ("int8" if np.isfinite(number) else "float")
    if not np.isfinite(number):
        assert rows["masked"].reason == "rejected: mask holds infinity or NaN, which no integer can represent"


def test_int8_model_boundary_is_copied() -> None:
    b = GraphBuilder()
    raw = b.input(SHAPE, "raw", ir.DataType.INT8)
    x = add(b, "DequantizeLinear", raw, b.const(()), name="dq")
    add(b, "CumSum", add(b, "Flatten", x, name="t"), name="f")
    rows = decide(b)[0]
    assert rows["t"].precision == "int8"
    assert rows["t"].reason == "its cluster follows dq"


@pytest.mark.parametrize("op", ["Min", "Max", "Where"])
def test_comparison_ops_share_both_inputs_only(op: str) -> None:
    slots = (1, 2) if op == "Where" else None
    ops = {**RULES.ops, op: OpRule(op, activations=slots)}
    rules = replace(RULES, ops=ops, share=RULES.share | {op})
    b = GraphBuilder()
    x, y = b.input(SHAPE), b.input(SHAPE)
    reads = [b.input(SHAPE, dtype=ir.DataType.BOOL), x, y] if op == "Where" else [x, y]
    z = add(b, op, *reads, name="op")
    domains = find_domains(b.graph(), rules)
    assert domains[x] == domains[y]
    assert z not in domains


def test_comparison_with_boolean_output_shares_its_inputs() -> None:
    rules = replace(RULES, ops={**RULES.ops, "Equal": OpRule("Equal", activations=(0, 1))}, share=frozenset({"Equal"}))
    b = GraphBuilder()
    x, y = b.input(SHAPE), b.input(SHAPE)
    z = b.node("Equal", [x, y], dtype=ir.DataType.BOOL)
    domains = find_domains(b.graph(), rules)
    assert domains[x] == domains[y]
    assert z not in domains
