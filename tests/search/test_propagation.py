"""Which units run in low precision is asked of the runtime: propagation agrees with its profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inlay.search.cost_model import CostModel
from inlay.search.lagrangian import LagrangianSolver
from inlay.search.milp import solve
from inlay.search.surrogate import disagreements
from inlay.search.unit_graph import UnitGraph, build_unit_graph
from inlay.targets.base import Artifact
from inlay.targets.onnxruntime.rules import OPS
from inlay.targets.onnxruntime.target import OrtCpuTarget
from inlay.testing import Builder
from tests.support.workspace import Workspace

X = (1, 8, 12, 12)
Case = Callable[[Builder, str], str]


def _node(op_type: str, *extra: list[int], **attributes: Any) -> Case:
    def build(b: Builder, x: str) -> str:
        constants = [b.constant(f"c{i}", np.array(v, np.int64)) for i, v in enumerate(extra)]
        return b.node("op", op_type, [x, *constants], **attributes)

    return build


def _resize(b: Builder, x: str) -> str:
    scales = b.constant("scales", np.array([1, 1, 2, 2], np.float32))
    return b.node("op", "Resize", [x, "", scales], nearest_mode="floor", coordinate_transformation_mode="asymmetric")


PASSING: dict[str, Case] = {
    "MaxPool": _node("MaxPool", kernel_shape=[2, 2], strides=[2, 2]),
    "Reshape": _node("Reshape", [1, 8, 6, 24]),
    "Slice": _node("Slice", [0], [6], [2]),
    "Unsqueeze": lambda b, x: b.node("back", "Squeeze", [_node("Unsqueeze", [0])(b, x), b.constant("a", [0])]),
    "Squeeze": lambda b, x: _node("Squeeze", [0])(b, b.node("out", "Unsqueeze", [x, b.constant("a", [0])])),
}
STAYING: dict[str, Case] = {
    "Resize": _resize,
    "Gather": _node("Gather", [0, 1, 2, 3], axis=2),
    "DepthToSpace": _node("DepthToSpace", blocksize=2, channels=2),
    "Tile": _node("Tile", [1, 1, 2, 1]),
}


def between(case: Case) -> Builder:
    """conv "first", the operator "op", and its two readers, conv "second" and conv "third"."""
    b = Builder()
    y = case(b, b.conv("first", b.input("x", X), 8, relu=True))
    for name in ("second", "third"):
        b.output(b.conv(name, y, 4, kernel=1, relu=True))
    return b


class Asked:
    """A model whose labelings are shown to the runtime."""

    def __init__(self, b: Builder, folder: Path) -> None:
        self.space = Workspace(b.model(), folder)
        self.folder = folder
        self.graph: UnitGraph = build_unit_graph(self.space.graph, self.space.prepared.units)

    def wrong(self, labels: np.ndarray, believed: np.ndarray) -> list[str]:
        """Units that do not run as believed, in the model that ``labels`` make."""
        path = self.folder / "labeled.onnx"
        path.write_bytes(self.space.emit(self.space.prepared.label(self.graph.precisions(labels))).SerializeToString())
        kernels = OrtCpuTarget(1).compile(Artifact(path, "labeled")).profile(self.space.feeds[0], 1)
        return [d.unit for d in disagreements(self.graph, believed, kernels)]


LABELLED = (["first"], ["second"], ["second", "third"], ["first", "third"])


@pytest.mark.parametrize("name", [*PASSING, *STAYING])
def test_operators_pass_q_and_dq_on_as_their_row_says(name: str, tmp_path: Path) -> None:
    asked = Asked(between({**PASSING, **STAYING}[name]), tmp_path)
    for names in LABELLED:
        labels = asked.graph.labels(names)
        propagated = asked.graph.propagate(labels)
        assert asked.wrong(labels, propagated) == []
        assert asked.wrong(propagated, propagated) == []
        if names != ["first", "third"]:  # there it depends on what stands behind
            assert ("op" in asked.graph.precisions(propagated)) == (name in PASSING and names != ["second"])
    assert OPS[name].propagates_qdq == (name in PASSING)


def test_the_question_can_be_answered_in_the_negative(tmp_path: Path) -> None:
    asked = Asked(between(PASSING["MaxPool"]), tmp_path)
    labels = asked.graph.labels(["first"])
    assert asked.wrong(labels, labels) == ["op"]


def test_a_value_that_is_read_twice_counts_once(tmp_path: Path) -> None:
    """The square of a value between convolutions runs in low precision with them, whether it is labeled or not."""
    b = Builder()
    y = b.conv("first", b.input("x", X), 8, relu=True)
    b.output(b.conv("second", b.node("op", "Mul", [y, y], channels=8), 4))
    asked = Asked(b, tmp_path)
    labels = asked.graph.labels(["first", "second"])
    assert asked.graph.precisions(asked.graph.propagate(labels)).keys() == {"first", "op", "second"}
    assert asked.wrong(labels, asked.graph.propagate(labels)) == []


def mixed() -> Builder:
    b = Builder(seed=3)
    x = b.conv("c0", b.input("x", (1, 4, 16, 16)), 8, relu=True)
    p = b.node("pool", "MaxPool", [x], kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    left, right = b.conv("c1", p, 12, relu=True), b.conv("c2", x, 12, relu=True)
    joined = b.node("cat", "Concat", [left, right], axis=1, channels=24)
    inner = b.conv("c3", joined, 24, relu=True)
    total = b.node("add", "Add", [inner, joined])
    mean = b.node("mean", "AveragePool", [total], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    flat = b.node("flat", "Reshape", [b.conv("c4", mean, 4), b.constant("shape", np.array([1, -1]))])
    b.output(b.node("soft", "Softmax", [flat], axis=1))
    return b


@pytest.mark.parametrize("seed", range(12))
def test_any_labels_propagate_to_what_runs(seed: int, tmp_path: Path) -> None:
    asked = Asked(mixed(), tmp_path)
    rng = np.random.default_rng(seed)
    labels = (rng.random(len(asked.graph.units)) < 0.7) & asked.graph.selectable
    propagated = asked.graph.propagate(labels)
    assert not (labels & ~propagated).any()
    assert (asked.graph.propagate(propagated) == propagated).all()
    assert asked.wrong(labels, propagated) == []


def test_units_that_are_fused_run_in_low_precision_whenever_all_around_them_do(tmp_path: Path) -> None:
    asked = Asked(mixed(), tmp_path)
    graph = asked.graph
    named = {graph.units[i].name: {graph.units[c].name for c in around} for i, around in graph.propagation.fusions}
    assert named["mean"] == {"add", "c4"}
    assert named["cat"] >= {"c1", "c2", "c3"}
    for unit, around in graph.propagation.fusions:
        alone = np.zeros(len(graph.units), bool)
        alone[list(around)] = True
        assert graph.propagate(alone)[unit]
        assert asked.wrong(alone, graph.propagate(alone)) == []


@pytest.mark.parametrize("seed", range(20))
def test_solutions_are_what_they_say(seed: int, tmp_path: Path) -> None:
    """With any costs: no solution counts on a unit in float that the runtime would fuse between low ones."""
    graph = Asked(mixed(), tmp_path).graph
    model = CostModel(graph)
    rng = np.random.default_rng(seed)
    problem = model.parameters.problem(rng.exponential(1e5, len(graph.units) * 4 + len(graph.edges) * 4))
    for found in (solve(problem), LagrangianSolver(problem).unconstrained):
        assert found is not None
        assert not any(penalty.applies(found) for penalty in problem.penalties)
        fused = [i for i, _ in graph.propagation.fusions]
        assert (graph.propagate(found)[fused] == found[fused]).all()


def test_without_penalties_solutions_count_on_what_does_not_happen(tmp_path: Path) -> None:
    """The negative control."""
    graph = Asked(mixed(), tmp_path).graph
    model, rng, paid = CostModel(graph), np.random.default_rng(0), 0
    for _ in range(20):
        problem = model.parameters.problem(rng.exponential(1e5, len(graph.units) * 4 + len(graph.edges) * 4))
        found = solve(replace(problem, penalties=()))
        assert found is not None
        paid += any(penalty.applies(found) for penalty in problem.penalties)
    assert paid


def test_a_convolution_between_integers_runs_as_labeled(tmp_path: Path) -> None:
    b = Builder()
    y = b.conv("middle", b.conv("first", b.input("x", X), 8, relu=True), 8, relu=True)
    b.output(b.conv("last", y, 8))
    asked = Asked(b, tmp_path)
    for names in (["first", "last"], ["first"], ["first", "middle", "last"]):
        labels = asked.graph.labels(names)
        assert (asked.graph.propagate(labels) == labels).all()
        assert asked.wrong(labels, labels) == []


def test_a_pool_behind_a_float_unit_is_dear_before_it_was_seen(tmp_path: Path) -> None:
    """Profiles of float and of full INT8 are enough for a solution without an integer MaxPool behind a float Conv."""
    b = Builder()
    first = b.conv("first", b.input("x", (1, 8, 28, 28)), 64, relu=True)
    pool = b.node("op", "MaxPool", [first], kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    b.output(b.conv("second", pool, 8, kernel=1, relu=True))
    space = Asked(b, tmp_path)
    target, graph = OrtCpuTarget(1), space.graph
    model = CostModel(graph)
    for names in ([], ["first", "op", "second"]):
        labels = graph.labels(names)
        path = tmp_path / "profiled.onnx"
        path.write_bytes(space.space.emit(space.space.prepared.label(graph.precisions(labels))).SerializeToString())
        kernels = target.compile(Artifact(path, "profiled")).profile(space.space.feeds[0], 5)
        model.update_from_profile(labels, kernels, sum(k.ns for k in kernels))
    dear, cheap = (model.costs().mean[4 * graph.index["op"] + form] for form in (2, 3))
    assert dear > 20 * cheap
    found = solve(model.expected_problem())
    assert found is not None
    propagated = graph.propagate(found)
    assert propagated[graph.index["op"]] <= propagated[graph.index["first"]]


def test_a_gate_decides_nothing_about_the_layout_of_what_it_gates(tmp_path: Path) -> None:
    b = Builder()
    first = b.conv("first", b.input("x", (1, 8, 12, 12)), 8)
    gate = b.conv("gate", b.node("mean", "GlobalAveragePool", [first]), 8, kernel=1)
    scaled = b.node("scale", "Mul", [gate, first], channels=8)
    b.output(b.conv("second", scaled, 8))
    graph = Asked(b, tmp_path).graph
    before = {u.name: graph.units[k].name for u, k in zip(graph.units, graph.layout_source, strict=True) if k >= 0}
    assert before == {"mean": "first", "gate": "mean", "scale": "first", "second": "first"}


@pytest.mark.parametrize("between", [["Max"], ["Mul"], ["Mul", "Max"], ["Sigmoid", "Max"]])
def test_what_works_number_by_number_hands_the_layout_on(between: list[str], tmp_path: Path) -> None:
    """An integer MaxPool is the NHWC one or not by the convolution, whatever stands between: asked of the runtime."""
    b = Builder()
    y = b.conv("first", b.input("x", (1, 8, 12, 12)), 64)
    for op_type in between:
        one = b.constant(f"c_{op_type}", b.rng.uniform(0.1, 0.9, (64, 1, 1)).astype(np.float32))
        y = b.node(f"op_{op_type}", op_type, [y] if op_type == "Sigmoid" else [y, one])
    pool = b.node("pool", "MaxPool", [y], kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    b.output(b.conv("second", pool, 8, kernel=1))
    space = Asked(b, tmp_path)
    graph = space.graph
    assert graph.layout_source[graph.index["pool"]] == graph.index["first"]
    for names, kind in ((["first", "pool", "second"], "NhwcMaxPool"), (["pool", "second"], "MaxPool")):
        path = tmp_path / "profiled.onnx"
        path.write_bytes(space.space.emit(space.space.prepared.label(frozenset(names))).SerializeToString())
        kernels = OrtCpuTarget(1).compile(Artifact(path, "profiled")).profile(space.space.feeds[0], 2)
        assert [k.op_type for k in kernels if k.nodes == ("pool",)] == [kind]


@pytest.mark.parametrize("before", ["static", ""], ids=["behind integers", "behind float"])
def test_a_product_that_gets_integers_does_not_find_ranges_of_its_own(before: str, tmp_path: Path) -> None:
    """There is nothing to find; and its bias would stay float, which keeps the product from being fused."""
    b = Builder(opset=17)
    weight = b.constant("w", b.rng.standard_normal((32, 16)).astype(np.float32))
    bias = b.constant("b", b.rng.standard_normal(16).astype(np.float32))
    y = b.node("moved", "Transpose", [b.node("gate", "Sigmoid", [b.input("x", (32, 16))])], perm=[1, 0])
    b.output(b.node("wave", "Tanh", [b.node("product", "Gemm", [y, weight, bias])]))
    asked = Asked(b, tmp_path)
    labels = asked.graph.labels({"product": "dynamic", **({"gate": before, "moved": before} if before else {})})
    settled = asked.graph.fixed_point(labels)
    assert asked.graph.precisions(settled)["product"] == (before or "dynamic")
    assert asked.wrong(settled, asked.graph.propagate(labels)) == []
    assert (asked.graph.fixed_point(settled) == settled).all()
