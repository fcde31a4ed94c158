"""The passes as a whole: gated by a numeric comparison, rolled back one by one, applied to a copy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from inlay.model import normalize as module
from inlay.model.graph import build_graph
from inlay.model.normalize import FloatRewrite, normalize
from inlay.model.pieces import run_model
from inlay.model.reference import ConstantEvaluator
from inlay.model.store import WeightStore
from inlay.testing import Builder, small_model
from tests.support.fixtures import NormalizeModel
from tests.support.onnx_queries import ops


def test_branches_of_if_are_part_of_the_graph(normalized: NormalizeModel) -> None:
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 8, 8)), 4)
    flag = b.node("flag", "Greater", [b.node("sum", "ReduceSum", [x], keepdims=0), b.constant("zero", 0.0)])
    out = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 4, 8, 8]) for n in ("t", "e")]
    then = helper.make_graph([helper.make_node("Relu", [x], ["t"])], "then", [], out[:1])
    other = helper.make_graph([helper.make_node("Neg", [x], ["e"])], "else", [], out[1:])
    b.output(b.node("choose", "If", [flag], then_branch=then, else_branch=other))
    proto, done = normalized(b.model())
    assert "If" in ops(proto)
    graph = build_graph(done.model)
    assert not graph.captured
    assert graph.is_read_below(x)
    assert {n.op_type: n.branch for n in graph.nodes if n.branch} == {"Relu": "0choose", "Neg": "1choose"}


def test_a_wrong_pass_is_rolled_back(normalized: NormalizeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate finds the one pass that changes the outputs; those around it still apply."""

    def spoil(model: ir.Model) -> tuple[ir.Model, int]:
        for node in model.graph:
            if node.op_type == "Relu":
                node.op_type = "Sigmoid"
        return model, 1

    def explode(model: ir.Model) -> tuple[ir.Model, int]:
        raise RuntimeError("a bug")

    whole = module.passes
    monkeypatch.setattr(
        module,
        "passes",
        lambda evaluate, *_: [("spoil", spoil), ("explode", explode), *whole(evaluate)],
    )
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 6, 6)), 4, relu=True)
    b.output(b.node("sum", "Sum", [x, x, x]))
    proto, done = normalized(b.model())
    assert ops(proto) == ["Conv", "Relu", "Add", "Add"]
    rolled = {r.name: r.rolled_back for r in done.reports if r.rolled_back}
    assert rolled.keys() == {"spoil", "explode"}
    assert "dB" in rolled["spoil"]
    assert "a bug" in rolled["explode"]


def test_the_argument_is_not_changed(tmp_path: Path) -> None:
    model = ir.from_proto(small_model())
    before = ir.to_proto(model).SerializeToString()
    normalize(model, ConstantEvaluator(tmp_path), None)
    assert ir.to_proto(model).SerializeToString() == before


def test_several_wrong_passes_are_found_with_few_runs(tmp_path: Path) -> None:
    """Passes that edit nothing cost no run of the model, and those that do are checked together where that works."""
    runs = 0

    def run(model: ir.Model) -> dict[str, np.ndarray]:
        nonlocal runs
        runs += 1
        return run_model(model, WeightStore(tmp_path), {"x": np.linspace(-1, 1, 4, dtype=np.float32)})

    def becomes(old: str, new: str) -> FloatRewrite:
        def edit(model: ir.Model) -> tuple[ir.Model, int]:
            found = [n for n in model.graph if n.op_type == old]
            for node in found:
                node.op_type = new
            return model, len(found)

        return FloatRewrite(f"{old} to {new}", edit, "", "")

    b = Builder()
    value = b.input("x", (4,))
    for op_type in ("Relu", "Neg", "Sin", "Cos"):
        value = b.node(op_type.lower(), op_type, [value])
    b.output(value)
    idle = [becomes("Conv", "Gemm"), becomes("Gemm", "Conv")]
    wrong = [becomes("Sin", "Tan"), becomes("Neg", "Abs")]  # the second alone would do no harm: Cos(Sin(-x)) is even
    model = ir.from_proto(b.model())
    done = normalize(model, ConstantEvaluator(tmp_path), run, rewrites=[*idle, wrong[0], *idle, wrong[1], *idle])
    assert [n.op_type for n in done.model.graph] == ["Relu", "Abs", "Sin", "Cos"]
    assert [r.name for r in done.reports if r.rolled_back] == ["Sin to Tan"]
    assert runs <= 4  # the original, both edits, one alone, and what is left
    runs = 0
    done = normalize(model, ConstantEvaluator(tmp_path), run, rewrites=idle)
    assert runs == 0
    assert not any(r.edits for r in done.reports)


def test_a_pass_is_not_repeated_on_an_unchanged_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def often(model: ir.Model) -> tuple[ir.Model, int]:
        calls.append(0)
        return model, 0

    def edit(model: ir.Model) -> tuple[ir.Model, int]:
        return model, 1

    model = ir.from_proto(small_model())
    for between, count in ((often, 1), (edit, 2)):
        calls.clear()
        steps = [("once", often), ("between", between), ("again", often)]
        monkeypatch.setattr(module, "passes", lambda *_, steps=steps: steps)
        normalize(model, ConstantEvaluator(tmp_path), None)
        assert len(calls) == count
