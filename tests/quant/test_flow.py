"""Operators in bodies of Ifs, Loops and Scans are placed, written, computed and read back like any others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from inlay.calibrate.bias import weight_error_means
from inlay.prepare.model import where_taken
from inlay.quant.transfer import transfer
from inlay.targets.base import Feed
from inlay.testing import Builder, sqnr
from inlay.types import Placement
from tests.support.control_flow import CHANNELS, SHAPE, controlled, feed_for
from tests.support.runtime import CAN_TAKE_BODIES
from tests.support.workspace import Workspace

FEW = range(10)
MANY = [pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(10, 200)]
LEAST_DB = 12.0
"""What random nets of up to some tens of operators in 8 bits keep; a wrong scale or a wrong branch is near 0."""


def bodies(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    """The bodies of a graph's operators, and those within them."""
    found = [a.g for n in graph.node for a in n.attribute if a.type == onnx.AttributeProto.GRAPH]
    return [*found, *(inner for body in found for inner in bodies(body))]


def run(model: onnx.ModelProto, feeds: Sequence[Feed], level: int) -> list[list[np.ndarray]]:
    """The outputs for each of the feeds."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel(level)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [[np.asarray(y) for y in session.run(None, dict(feed))] for feed in feeds]


def turns(model: onnx.ModelProto, feed: dict[str, np.ndarray], at: int, want: np.ndarray) -> bool:
    """Whether little noise at the inputs of a float model, of 25 dB, turns a decision that an output depends on."""
    rng, noisy = np.random.default_rng(0), []
    for _ in range(24):
        size = {
            n: 10.0 ** (-25.0 / 20.0) * np.sqrt(np.square(a).mean()) for n, a in feed.items() if a.dtype.kind == "f"
        }
        noisy.append(
            {
                n: (a + size[n] * rng.standard_normal(a.shape)).astype(a.dtype) if n in size else a
                for n, a in feed.items()
            }
        )
    return any(sqnr(want, outputs[at]) <= LEAST_DB for outputs in run(model, noisy, 0))


@pytest.mark.matrix(every=4)
@CAN_TAKE_BODIES
@pytest.mark.parametrize("seed", [*FEW, *MANY])
def test_models_with_bodies(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    model = controlled(seed, ("if",) if seed % 2 else ("if", "loop", "scan"), ("mode", "data"))
    feeds = tuple(feed_for(n, n % 2, n // 2 % 2) for n in range(8))
    space = Workspace(model, tmp_path, feeds=feeds)
    assert not [r for r in space.prepared.normalized.reports if r.rolled_back]
    units = [u.name for u in space.prepared.selectable]
    some = frozenset(name for name in units if rng.random() < 0.7)
    given = run(model, feeds[:4], 0)
    for placement in (Placement(), space.prepared.label(some), space.full()):
        emitted = space.emit(placement)  # which the full checker passes
        found = transfer(space.extract(emitted), space.graph, space.graph)
        missing, more = set(placement) - set(found.placement), set(found.placement) - set(placement)
        assert (missing, more) == (set(), set()), "extract is the inverse of emit"
        plain, fused = (run(emitted, feeds[:4], level) for level in (0, 99))
        for number, outputs in enumerate(zip(given, plain, fused, strict=True)):
            for at, (want, exact, quick) in enumerate(zip(*outputs, strict=True)):
                assert want.shape == exact.shape == quick.shape
                if not placement:
                    np.testing.assert_allclose(exact, want, rtol=1e-4, atol=1e-5)
                if min(sqnr(want, exact), sqnr(want, quick)) <= LEAST_DB:
                    assert placement
                    assert turns(model, feeds[number], at, want), "or the data of the float model decide otherwise"
    quantized = any(n.op_type == "QuantizeLinear" for body in bodies(emitted.graph) for n in body.node)
    inner = {n.name for body in bodies(emitted.graph) for n in body.node}
    assert quantized or not inner.intersection(units), "pairs are where the operators are"


def test_pairs_are_beside_the_operators(tmp_path: Path) -> None:
    """In the branch itself, where runtimes fuse: a value that both branches read has a pair in each."""
    space = Workspace(two_branches(), tmp_path, feeds=tuple(vector_feed(n, bool(n % 2)) for n in range(4)))
    assert {u.name for u in space.prepared.selectable} >= {"then_conv", "else_conv"}
    emitted = space.emit(space.label("then_conv", "else_conv"))
    (choice,) = [n for n in emitted.graph.node if n.op_type == "If"]
    for attribute in choice.attribute:
        kinds = Counter(n.op_type for n in attribute.g.node)
        assert kinds["QuantizeLinear"] == 2, "before and behind the Conv"
        assert kinds["DequantizeLinear"] == 4, "and those of weight and bias"
    assert not [n for n in emitted.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")]


def test_ranges_come_from_the_samples_that_take_the_branch(tmp_path: Path) -> None:
    feeds = tuple(vector_feed(n, bool(n % 2)) for n in range(4))
    space = Workspace(two_branches(), tmp_path / "both", feeds=feeds)
    taken = space.observed.histograms["then_y"]
    for number in (1, 3):
        taken_alone = Workspace(two_branches(), tmp_path / f"{number}", feeds=(feeds[number],)).observed.histograms
        assert taken.low <= taken_alone["then_y"].low
        assert taken_alone["else_y"].counts.sum() == 0
    assert len(taken.highs) == 2, "of the four samples two"


def test_a_branch_that_no_sample_takes_stays_float(tmp_path: Path) -> None:
    feeds = [vector_feed(n, True) for n in range(4)]
    space = Workspace(two_branches(), tmp_path, feeds=tuple(feeds))
    units = {u.name: u for u in where_taken(space.prepared, feeds).units}
    assert units["then_conv"].selectable
    assert "no sample takes this branch of choice" in units["else_conv"].rejection
    both = where_taken(space.prepared, [*feeds, vector_feed(4, False)]).units
    assert {u.name for u in both if u.selectable} >= {"then_conv", "else_conv"}, "the negative control"


def test_mean_errors_of_weights_are_those_of_the_samples_that_take_the_branch(tmp_path: Path) -> None:
    feeds = [vector_feed(n, n % 3 == 0) for n in range(6)]
    space = Workspace(two_branches(), tmp_path, feeds=tuple(feeds))
    units = space.prepared.selectable
    means = weight_error_means(space.prepared, units, space.table, feeds)
    assert means.keys() == {"then_conv", "else_conv"}
    for name, flag in (("then_conv", True), ("else_conv", False)):
        taken = [f for f in feeds if bool(f["flag"]) is flag]
        alone = weight_error_means(space.prepared, units, space.table, taken)
        np.testing.assert_allclose(means[name], alone[name], rtol=1e-5, atol=1e-7)


def two_branches() -> onnx.ModelProto:
    """A Conv in each branch of an If over the input ``flag``, which both read ``x`` and one weight."""
    b = Builder()
    x, flag = b.input("x", SHAPE), b.input("flag", (), onnx.TensorProto.BOOL)
    weight = b.constant("w", np.random.default_rng(0).standard_normal((CHANNELS, CHANNELS, 1, 1)).astype(np.float32))
    bias = b.constant("b", np.zeros(CHANNELS, np.float32))
    branches = list[onnx.GraphProto]()
    for name in ("then", "else"):
        conv = helper.make_node("Conv", [x, weight, bias], [f"{name}_y"], f"{name}_conv", kernel_shape=[1, 1])
        out = helper.make_tensor_value_info(f"{name}_y", onnx.TensorProto.FLOAT, SHAPE)
        branches.append(helper.make_graph([conv], name, [], [out]))
    then, otherwise = branches
    b.output(b.node("choice", "If", [flag], then_branch=then, else_branch=otherwise))
    return b.model()


def vector_feed(seed: int, flag: bool) -> dict[str, np.ndarray]:
    x = np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)
    return {"x": x, "flag": np.array(flag)}
