"""When sharing one scale pays: decided by error and by the target's prices, overruled by measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from benchmarks.generated_graphs import GraphBuilder

from inlay.calibrate.observe import observe
from inlay.calibrate.share import Sharing, choose_sharing, flip_sharing, model_cost
from inlay.calibrate.tables import CalibrationChoice
from inlay.data import Samples
from inlay.model.graph import Graph
from inlay.model.load import load
from inlay.prepare.model import prepare
from inlay.quant.observers import Histogram, Range
from inlay.space.domains import find_domains
from inlay.space.rules import ResultRange, Rules
from inlay.space.units import placement_from_labels
from inlay.targets.base import Capabilities
from inlay.tosa.ethos_u.rules import RULES
from inlay.types import QType
from tests.support.branches import branches

SHAPE = (1, 8, 8, 8)
RELU_FREE = replace(RULES, unfold_cost=0.0)
RELU_COSTS = replace(RULES, unfold_cost=4.0)
Limits = Mapping[str, tuple[float, float]]


def conv(b: GraphBuilder, x: str, name: str) -> str:
    return b.node("Conv", [x, b.const((8, 8, 1, 1))], name=name)


def relu_concat(clip: bool = False, other_reader: bool = False) -> tuple[Graph, str, str, str]:
    """Conv→Relu and Conv meet in a Concat; the Conv has negative values."""
    b = GraphBuilder()
    x = b.input(SHAPE)
    y = conv(b, x, "a")
    if clip:
        bounds = [b.const((), name="low"), b.const((), name="high")]
        b.initializers["high"] = ir.tensor(np.float32(6.0))
        y = b.node("Clip", [y, *bounds], name="act")
    else:
        y = b.node("Relu", [y], name="act")
    z = conv(b, x, "c")
    out = b.node("Concat", [y, z], name="cat", axis=1)
    if other_reader:
        conv(b, y, "d")
    return b.graph(), y, z, out


def observed(limits: Limits) -> dict[str, Histogram]:
    found = {}
    for name, (low, high) in limits.items():
        found[name] = Histogram()
        found[name].update(np.random.default_rng(0).uniform(low, high, 4096).astype(np.float32))
    return found


def choose(graph: Graph, rules: Rules, limits: Limits) -> tuple[Sharing, ...]:
    histograms = observed(limits)
    ranges = {v: h.range("minmax") for v, h in histograms.items()}
    return choose_sharing(graph, rules, histograms, ranges)


def test_sharing_is_chosen_where_nothing_is_lost() -> None:
    graph, y, z, out = relu_concat()
    (choice,) = choose(graph, RELU_FREE, {y: (0, 4), z: (-4, 4), out: (-4, 4)})
    assert choice.share
    assert choice.share_cost == 0 < choice.requantize_cost


@pytest.mark.parametrize("clip", [False, True])
def test_an_unfolded_activation_counts_as_cost(clip: bool) -> None:
    graph, y, z, out = relu_concat(clip)
    limits = {y: (0, 6), z: (0, 8) if clip else (-4, 4), out: (-4, 8)}
    (choice,) = choose(graph, RELU_COSTS, limits)
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
    limits = {"y": (0, 1), "z": (-300, 300), "out": (-300, 300)}
    for other_reader in (False, True):
        graph, y, z, out = relu_concat(other_reader=other_reader)
        (choice,) = choose(graph, RELU_FREE, dict(zip((y, z, out), limits.values(), strict=True)))
        assert choice.share == (not other_reader)
        assert (choice.loss_db > 20) == other_reader


def test_the_targets_prices_decide_about_a_moderate_loss() -> None:
    """The same 4 dB: kept where a requantization costs little of the model, given up where it costs much of it."""
    graph, y, z, out = relu_concat(other_reader=True)
    limits = {y: (0, 4), z: (-30, 4), out: (-30, 4)}
    chosen = {}
    for price in (0.001, 1.0):
        rules = replace(RELU_FREE, requantize_cost=price, product_cost=0.01)
        (choice,) = choose(graph, rules, limits)
        assert 2 < choice.loss_db < 6
        assert choice.share == (choice.share_cost <= choice.requantize_cost)
        chosen[price] = choice.share
    assert chosen == {0.001: False, 1.0: True}


def test_the_worth_of_a_decibel_grows_with_the_model() -> None:
    """One requantization beside two convolutions: in a dearer model the same one is made for the same loss."""
    graph, y, z, out = relu_concat(other_reader=True)
    limits = {y: (0, 4), z: (-30, 4), out: (-30, 4)}
    costs = [model_cost(graph, replace(RELU_FREE, product_cost=p)) for p in (0.001, 100.0)]
    assert costs[0] < costs[1]
    shares = [choose(graph, replace(RELU_FREE, product_cost=p), limits)[0].share for p in (0.001, 100.0)]
    assert shares == [True, False]


def test_a_measured_flip_overrules_the_prices() -> None:
    graph, y, z, out = relu_concat()
    histograms = observed({y: (0, 4), z: (-4, 4), out: (-4, 4)})
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
def test_the_target_is_asked_about_each_decision(latency: float, fidelity: float, flips: set[str]) -> None:
    sites = [Sharing("a", True, "", 0.0, 0.0, 5.0), Sharing("free", True, "", 0.0, 0.0, 0.0)]
    asked: list[frozenset[str]] = []

    def measure(names: frozenset[str]) -> tuple[float, float]:
        asked.append(names)
        return (latency, fidelity) if "a" in names else (1.0, 30.0)

    assert flip_sharing(sites, measure) == flips
    assert asked == [frozenset(), {"a"}]  # where nothing would be requantized there is nothing to ask


def test_equal_ranges_need_no_requantizing() -> None:
    graph, y, z, out = relu_concat()
    histograms = observed({y: (0, 4), z: (0, 4), out: (0, 4)})
    ranges = dict.fromkeys(histograms, Range(0.0, 4.0))
    (choice,) = choose_sharing(graph, RELU_COSTS, histograms, ranges)
    assert choice.share
    assert choice.requantize_cost == 0


def test_decisions_of_a_chain_build_on_each_other() -> None:
    b = GraphBuilder()
    x = b.input(SHAPE)
    y = conv(b, x, "a")
    first = b.node("Concat", [y, x], name="one", axis=1)
    b.node("Concat", [first, conv(b, x, "c")], name="two", axis=1)
    graph = b.graph()
    names = [y, x, first, "c:0", "two:0"]
    choices = choose(graph, RELU_FREE, {n: (-i - 1, i + 1) for i, n in enumerate(names)})
    assert [c.node for c in choices] == ["one", "two"]
    domains = find_domains(graph, RELU_FREE, {"two"})
    assert domains[first] == domains[y]
    assert "c:0" not in domains


@pytest.mark.parametrize("low", [0.0, -4.0])
def test_a_kernel_whose_range_begins_at_zero_shares_no_range_below(low: float) -> None:
    b = GraphBuilder()
    x = b.input(SHAPE)
    y = b.node("Transpose", [b.node("Softmax", [conv(b, x, "a")], name="soft")], name="turn", perm=[0, 2, 3, 1])
    z = b.node("Transpose", [conv(b, x, "c")], name="turn2", perm=[0, 2, 3, 1])
    out = b.node("Concat", [y, z], name="cat", axis=1)
    graph, soft = b.graph(), RULES.ops["Softmax"]
    row = replace(soft, result=ResultRange(begins_at_zero=True))
    rules = replace(RULES, unfold_cost=0.0, ops={**RULES.ops, "Softmax": row})
    limits = {"soft:0": (0, 4), y: (0, 4), "c:0": (low, 4), z: (low, 4), out: (low, 4)}
    (choice,) = choose(graph, rules, limits)
    assert choice.share == (low == 0.0)
    (free,) = choose(graph, replace(RULES, unfold_cost=0.0), limits)
    assert free.share, "negative control"
    histograms = observed(limits)
    ranges = {v: h.range("minmax") for v, h in histograms.items()}
    if low < 0:
        assert "Softmax soft" in choice.reason
        (flipped,) = choose_sharing(graph, rules, histograms, ranges, {"cat"})
        assert not flipped.share, "no measurement overrules it"
        assert flip_sharing([choice], lambda names: (1.0 - len(names) / 2, 30.0)) == frozenset()


def test_targets_that_do_not_share_are_never_asked() -> None:
    graph, y, z, out = relu_concat()
    assert choose(graph, replace(RULES, share=frozenset()), {y: (0, 4), z: (-4, 4), out: (-4, 4)}) == ()


@pytest.mark.parametrize("unfold_cost", [0.0, 100.0])
def test_calibrated_qparams_follow_the_decision(tmp_path: Path, unfold_cost: float) -> None:
    """Merged over the class including the producers' outputs, or one's own."""
    model = branches()
    gone = next(n for n in model.graph.node if n.name == "left.relu")
    model.graph.node.remove(gone)
    next(n for n in model.graph.node if n.name == "concat").input[0] = "left.c"
    onnx.save(model, tmp_path / "m.onnx")
    feed = {"x": np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)}
    ready = prepare(load(tmp_path / "m.onnx"), Capabilities(replace(RULES, unfold_cost=unfold_cost)), feed, tmp_path)
    table = CalibrationChoice("minmax").table(ready, observe(ready, Samples((feed,), "feeds", "")))
    params = [table.params(v, QType.INT8) for v in ("left.c", "right.y", "cat")]
    relu = table.params("right.y", QType.INT8)
    if unfold_cost:
        assert relu.zero_point == (QType.INT8.qmin,)
        assert params[0] != relu
    else:
        assert len(set(params)) == 1
        assert relu.zero_point[0] > QType.INT8.qmin
    placement = placement_from_labels(ready.graph, ready.units, ready.rules, lambda u: True)
    assert ready.emitter.emit(placement, table).graph.node
