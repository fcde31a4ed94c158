"""Shared domains and clusters: who follows whom, what stays float, and when sharing one scale pays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from inlay import OpConfig, Recipe
from inlay.calibrate.scale_sharing import Sharing, choose_sharing, flip_sharing, model_cost
from inlay.calibrate.tables import observe, table_from
from inlay.data import Samples
from inlay.model.load import load
from inlay.prepare.model import prepare
from inlay.quant.observers import Histogram, Range
from inlay.space.domains import find_clusters, find_domains
from inlay.space.resolve import resolve
from inlay.space.rules import OpRule
from inlay.space.units import find_units, placement_from_labels
from inlay.targets.ethos_u.rules import RULES
from inlay.testing.generated_graphs import GraphBuilder
from inlay.types import Port, QType
from tests.support.branches import branches

INT = OpConfig()
SHAPE = (1, 8, 8, 8)
FULL = Recipe().set_global(INT)


def decide(b, recipe=FULL, rules=RULES, outputs=None):
    graph = b.graph(outputs)
    found = resolve(recipe, graph, find_units(graph, rules), rules)
    return {d.node: d for d in found.decisions}, found.placement, graph


def precisions(b, recipe=FULL, **options):
    return {n: d.precision for n, d in decide(b, recipe, **options)[0].items()}


def add(b, op, *inputs, name, **attributes):
    return b.node(op, list(inputs), name=name, **attributes)


def conv(b, x, name):
    return add(b, "Conv", x, b.const((8, 8, 1, 1)), name=name)


# -- clusters ---------------------------------------------------------------------------------------------------------


def test_cluster_between_two_quantized_ops_is_quantized() -> None:
    b = GraphBuilder()
    y = add(b, "MaxPool", conv(b, b.input(SHAPE), "a"), name="pool", kernel_shape=(1, 1))
    conv(b, y, "c")
    assert precisions(b) == {"a": "int8", "pool": "int8", "c": "int8"}


@pytest.mark.parametrize("float_side", ["before", "after"])
def test_cluster_with_one_float_neighbour_is_quantized(float_side) -> None:
    b = GraphBuilder()
    x = b.input(SHAPE)
    before = add(b, "CumSum", x, name="erf") if float_side == "before" else conv(b, x, "conv")
    y = add(b, "Transpose", before, name="t", perm=(0, 1, 2, 3))
    if float_side == "before":
        conv(b, y, "conv")
    else:
        add(b, "CumSum", y, name="erf")
    assert precisions(b) == {"erf": "float", "t": "int8", "conv": "int8"}


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


def test_quantized_op_surrounded_by_a_cluster_keeps_its_own_numbers() -> None:
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
    def boundary():
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


def uint8_boundary(op):
    b = GraphBuilder()
    raw = b.input(SHAPE, "raw", ir.DataType.UINT8)
    x = add(b, "DequantizeLinear", raw, b.const((), name="s"), b.const((), ir.DataType.UINT8, "z"), name="dq")
    y = add(b, op, *([x, x] if op == "Concat" else [x]), name="op")
    b.node("QuantizeLinear", [y, "s", "z"], name="q", dtype=ir.DataType.UINT8)
    return b


@pytest.mark.parametrize("op", ["Concat", "Slice", "Reshape", "Split"])
def test_uint8_model_boundary_is_bridged_by_a_requantization(op) -> None:
    """DQ(uint8)→Q(int8) before the operator and DQ(int8)→Q(uint8) after it: it runs in integers, in int8."""
    rows, placement, _ = decide(uint8_boundary(op))
    assert rows["op"].precision == "int8"
    assert "takes the global configuration" in rows["op"].reason
    assert placement.qtype(Port("op", 0)) is QType.INT8
    assert placement.qtype(Port("q", 0)) is QType.INT8


def test_int8_model_boundary_is_copied() -> None:
    b = GraphBuilder()
    raw = b.input(SHAPE, "raw", ir.DataType.INT8)
    x = add(b, "DequantizeLinear", raw, b.const(()), name="dq")
    add(b, "CumSum", add(b, "Flatten", x, name="t"), name="f")
    rows = decide(b)[0]
    assert rows["t"].precision == "int8"
    assert rows["t"].reason == "its cluster follows dq"


@pytest.mark.parametrize("op", ["Min", "Max", "Where"])
def test_comparison_ops_share_both_inputs_only(op) -> None:
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


# -- share or requantize ----------------------------------------------------------------------------------------------

RELU_FREE = replace(RULES, unfold_cost=0.0)
RELU_COSTS = replace(RULES, unfold_cost=4.0)


def relu_concat(clip=False, other_reader=False):
    """Conv→Relu and Conv meet in a Concat; the Conv has negative numbers."""
    b = GraphBuilder()
    x = b.input(SHAPE)
    y = conv(b, x, "a")
    if clip:
        limits = [b.const((), name="low"), b.const((), name="high")]
        b.initializers["high"] = ir.tensor(np.float32(6.0))
        y = add(b, "Clip", y, *limits, name="act")
    else:
        y = add(b, "Relu", y, name="act")
    z = conv(b, x, "c")
    out = add(b, "Concat", y, z, name="cat", axis=1)
    if other_reader:
        conv(b, y, "d")
    return b.graph(), y, z, out


def observed(**arrays):
    found = {}
    for name, limits in arrays.items():
        found[name] = Histogram()
        found[name].update(np.random.default_rng(0).uniform(*limits, 4096).astype(np.float32))
    return found


def choose(graph, rules, numbers):
    histograms = observed(**numbers)
    ranges = {v: h.range("minmax") for v, h in histograms.items()}
    return choose_sharing(graph, rules, histograms, ranges)


def test_sharing_is_chosen_where_nothing_is_lost() -> None:
    graph, y, z, out = relu_concat()
    (choice,) = choose(graph, RELU_FREE, {y: (0, 4), z: (-4, 4), out: (-4, 4)})
    assert choice.share
    assert choice.share_cost == 0 < choice.requantize_cost


@pytest.mark.parametrize("clip", [False, True])
def test_an_unfolded_activation_counts_as_cost(clip) -> None:
    graph, y, z, out = relu_concat(clip)
    numbers = {y: (0, 6), z: (0, 8) if clip else (-4, 4), out: (-4, 8)}
    (choice,) = choose(graph, RELU_COSTS, numbers)
    assert not choice.share
    assert "unfold" in choice.reason
    assert choice.share_cost == 4 * 512


def test_no_cost_where_the_zero_point_stays() -> None:
    graph, y, z, out = relu_concat()
    (choice,) = choose(graph, RELU_COSTS, {y: (0, 4), z: (0, 8), out: (0, 8)})
    assert choice.share
    assert choice.share_cost == 0


def test_error_of_other_readers_decides() -> None:
    """Scores beside boxes: nothing is lost in the Concat itself, but whoever else reads the scores loses everything."""
    numbers = {"y": (0, 1), "z": (-300, 300), "out": (-300, 300)}
    for other_reader in (False, True):
        graph, y, z, out = relu_concat(other_reader=other_reader)
        (choice,) = choose(graph, RELU_FREE, dict(zip((y, z, out), numbers.values(), strict=True)))
        assert choice.share == (not other_reader)
        assert (choice.loss_db > 20) == other_reader


def test_the_targets_prices_decide_about_a_moderate_loss() -> None:
    """The same 4 dB: kept where a requantization costs little of the model, given up where it costs much of it."""
    graph, y, z, out = relu_concat(other_reader=True)
    numbers = {y: (0, 4), z: (-30, 4), out: (-30, 4)}
    chosen = {}
    for price in (0.001, 1.0):
        rules = replace(RELU_FREE, requantize_cost=price, product_cost=0.01)
        (choice,) = choose(graph, rules, numbers)
        assert 2 < choice.loss_db < 6
        assert choice.share == (choice.share_cost <= choice.requantize_cost)
        chosen[price] = choice.share
    assert chosen == {0.001: False, 1.0: True}


def test_the_worth_of_a_decibel_grows_with_the_model() -> None:
    """One requantization beside two convolutions: in a dearer model the same one is made for the same loss."""
    graph, y, z, out = relu_concat(other_reader=True)
    numbers = {y: (0, 4), z: (-30, 4), out: (-30, 4)}
    costs = [model_cost(graph, replace(RELU_FREE, product_cost=p)) for p in (0.001, 100.0)]
    assert costs[0] < costs[1]
    shares = [choose(graph, replace(RELU_FREE, product_cost=p), numbers)[0].share for p in (0.001, 100.0)]
    assert shares == [True, False]


def test_a_measured_flip_overrules_the_prices() -> None:
    graph, y, z, out = relu_concat()
    histograms = observed(**{y: (0, 4), z: (-4, 4), out: (-4, 4)})
    ranges = {v: h.range("minmax") for v, h in histograms.items()}
    (plain,) = choose_sharing(graph, RELU_FREE, histograms, ranges)
    (flipped,) = choose_sharing(graph, RELU_FREE, histograms, ranges, {"cat"})
    assert plain.share
    assert not flipped.share
    assert "measured" in flipped.reason


@pytest.mark.parametrize(
    ("latency", "fidelity", "flips"),
    [
        (0.99, 30.0, {"a"}),  # faster
        (1.01, 30.0, set()),  # slower
        (1.01, 33.0, {"a"}),  # three decibels are worth more than a hundredth of the time
        (1.01, 31.0, set()),  # one is not
        (0.99, 27.0, set()),
        (1.0, 30.0, set()),  # no gain is no reason
    ],
)
def test_the_target_is_asked_about_each_decision(latency, fidelity, flips) -> None:
    sites = [Sharing("a", True, "", 0.0, 0.0, 5.0), Sharing("free", True, "", 0.0, 0.0, 0.0)]
    asked = []

    def measure(names):
        asked.append(names)
        return (latency, fidelity) if "a" in names else (1.0, 30.0)

    assert flip_sharing(sites, measure) == flips
    assert asked == [frozenset(), {"a"}]  # where nothing would be requantized there is nothing to ask


def test_equal_ranges_need_no_requantizing() -> None:
    graph, y, z, out = relu_concat()
    histograms = observed(**{y: (0, 4), z: (0, 4), out: (0, 4)})
    ranges = dict.fromkeys(histograms, Range(0.0, 4.0))
    (choice,) = choose_sharing(graph, RELU_COSTS, histograms, ranges)
    assert choice.share
    assert choice.requantize_cost == 0


def test_decisions_of_a_chain_build_on_each_other() -> None:
    b = GraphBuilder()
    x = b.input(SHAPE)
    y = conv(b, x, "a")
    first = add(b, "Concat", y, x, name="one", axis=1)
    add(b, "Concat", first, conv(b, x, "c"), name="two", axis=1)
    graph = b.graph()
    names = [y, x, first, "c:0", "two:0"]
    choices = choose(graph, RELU_FREE, {n: (-i - 1, i + 1) for i, n in enumerate(names)})
    assert [c.node for c in choices] == ["one", "two"]
    domains = find_domains(graph, RELU_FREE, {"two"})
    assert domains[first] == domains[y]
    assert "c:0" not in domains


def test_targets_that_do_not_share_are_never_asked() -> None:
    graph, y, z, out = relu_concat()
    assert choose(graph, replace(RULES, share=frozenset()), {y: (0, 4), z: (-4, 4), out: (-4, 4)}) == ()


@pytest.mark.parametrize("unfold_cost", [0.0, 100.0])
def test_calibrated_numbers_follow_the_decision(tmp_path, unfold_cost) -> None:
    """Merged over the class including the producers' outputs, or one's own."""
    model = branches()
    gone = next(n for n in model.graph.node if n.name == "left.relu")
    model.graph.node.remove(gone)
    next(n for n in model.graph.node if n.name == "concat").input[0] = "left.c"
    onnx.save(model, tmp_path / "m.onnx")
    feed = {"x": np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)}
    ready = prepare(load(tmp_path / "m.onnx"), replace(RULES, unfold_cost=unfold_cost), feed, tmp_path)
    table = table_from(ready, observe(ready, Samples((feed,), "feeds", "")), "minmax")
    numbers = [table.params(v, QType.INT8) for v in ("left.c", "right.y", "cat")]
    relu = table.params("right.y", QType.INT8)
    if unfold_cost:
        assert relu.zero_point == (QType.INT8.qmin,)
        assert numbers[0] != relu
    else:
        assert len(set(numbers)) == 1
        assert relu.zero_point[0] > QType.INT8.qmin
    placement = placement_from_labels(ready.graph, ready.units, ready.rules, lambda u: True)
    assert ready.emitter.emit(placement, table).graph.node
