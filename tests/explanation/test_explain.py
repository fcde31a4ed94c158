"""What an explanation says besides reasons: prices, the values that lose accuracy, and what repairs keep exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import inlay
from inlay import api
from inlay.explanation.command import lines
from inlay.explanation.mended import exact_form
from inlay.model.load import load
from inlay.model.serialize import proto_with
from inlay.space.recipe import OpConfig, Recipe
from inlay.targets.onnxruntime.preconditions import preconditions_for
from inlay.targets.onnxruntime.rules import rules_for
from inlay.testing import Builder, run_reference
from tests.explanation.test_preconditions import Handmade
from tests.support.hand_written_qdq import insert_qdq_everywhere


def test_conversions_are_priced_and_the_sum_is_what_the_target_takes(tmp_path: Path) -> None:
    b = Builder()
    y = b.node("tanh", "Tanh", [b.input("x", (1, 3, 8, 8))])
    b.output(b.node("exp", "Exp", [y]))
    path = tmp_path / "pairs.onnx"
    onnx.save(insert_qdq_everywhere(b.model()), path)
    found = inlay.explain(path, target="null")
    assert {w.value for w in found.waste} >= {"x", "tanh_out_float"}
    assert {w.kind for w in found.waste} == {"idle-pair"}
    assert found.waste[0].cost_ms == pytest.approx(0.003)  # a Q and a DQ of 1.5 us
    whole = sum(w.cost_ms for w in found.waste) + sum(o.cost_ms for o in found.operators)
    assert whole == pytest.approx(found.latency_ms)
    assert found.lost_ms == pytest.approx(sum(w.cost_ms for w in found.waste))


@pytest.mark.matrix
@pytest.mark.parametrize(("dtype", "zero"), [(np.uint8, 128), (np.int8, 0)])
def test_the_value_with_a_coarse_scale_is_named(dtype: type, zero: int, tmp_path: Path) -> None:
    b = Handmade()
    b.branch = "net"
    kind: dict[str, Any] = {"dtype": dtype, "zero": zero}
    coarse = b.pair(b.convolve(b.pair(b.x(), "a", scale=0.03, **kind)), "coarse", scale=2.0, **kind)
    b.end(b.pair(b.convolve(coarse, "next"), "y", scale=0.2, **kind), op_type="Relu")
    path = tmp_path / "coarse.onnx"
    onnx.save(b.model(), path)
    rng = np.random.default_rng(0)
    found = inlay.explain(
        path, data=[{"net_x": rng.standard_normal((1, 8, 12, 12)).astype(np.float32)} for _ in range(3)]
    )
    assert found.sqnr_db is not None
    worst, *others = [loss.loss_db for loss in found.losses if loss.loss_db is not None]
    assert found.losses[0].source == "net_op_out"
    assert worst > 1.0
    assert all(db < worst for db in others)


def test_where_several_values_ruin_the_outputs_those_are_named_and_what_is_gained_without_them(tmp_path: Path) -> None:
    """Without one of two coarse roundings the other does as much harm: no single value is to blame."""
    b = Handmade()
    b.branch = "net"
    y = b.pair(b.convolve(b.pair(b.x(), "a", scale=0.03)), "one", scale=3.0)
    y = b.pair(b.convolve(y, "next"), "two", scale=3.0)
    b.end(b.pair(b.convolve(y, "last"), "y", scale=0.2), op_type="Relu")
    path = tmp_path / "coarse.onnx"
    onnx.save(b.model(), path)
    rng = np.random.default_rng(0)
    feeds = [{"net_x": rng.standard_normal((1, 8, 12, 12)).astype(np.float32)} for _ in range(3)]
    found = inlay.explain(path, data=feeds)
    assert found.sqnr_db is not None
    assert all(loss.loss_db is not None and loss.loss_db < 3.0 for loss in found.losses)
    assert found.together[0].sources == 2
    assert found.together[0].sqnr_db > found.sqnr_db + 10.0
    text = "\n".join(line for line in lines(found) if isinstance(line, str))
    assert f"{found.together[0].sqnr_db:.1f} dB without rounding the 2 that are loudest on their own" in text


def test_the_exact_form_computes_the_same_and_has_no_fault_left(tmp_path: Path) -> None:
    b = Handmade()
    b.branch = "net"
    y = b.pair(b.convolve(b.pair(b.x(), "a", zero=0, dtype=np.int8)), "y", zero=3, dtype=np.int8, shape=(1,))
    total = b.node("net_add", "Add", [y, b.stored("c", (1, 8, 1, 1))], channels=8)
    b.end(b.pair(total, "sum", zero=-7, dtype=np.int8, shape=(1,)))
    b.end(y, "other", "Exp")
    path = tmp_path / "signed.onnx"
    onnx.save(b.model(), path)
    rules, rows = rules_for("x86_64"), preconditions_for("x86_64")
    made = exact_form(load(path).model, rules, rows)
    assert made is not None
    proto = proto_with(made, lambda _, tensor: tensor)
    types = {t.name: t.data_type for t in proto.graph.initializer}
    quantizers = [n for n in proto.graph.node if n.op_type == "QuantizeLinear"]
    assert {types[n.input[2]] for n in quantizers} == {onnx.TensorProto.UINT8}
    feed = {"net_x": np.random.default_rng(0).standard_normal((1, 8, 12, 12)).astype(np.float32)}
    want, got = run_reference(onnx.load(path), feed), run_reference(proto, feed)
    assert want.keys() == got.keys()
    for name in want:
        np.testing.assert_array_equal(want[name], got[name])
    assert exact_form(made, rules, rows) is None


def test_a_float_model_has_a_bound_that_no_placement_exceeds(tmp_path: Path) -> None:
    path, out = tmp_path / "float.onnx", tmp_path / "full.onnx"
    b = Builder()
    y = b.node("tanh", "Tanh", [b.conv("first", b.input("x", (1, 3, 8, 8)), 4)])
    b.output(b.conv("second", y, 4))
    onnx.save(b.model(), path)
    found = inlay.explain(path, target="null")
    assert not found.quantized
    assert found.bound is not None
    assert found.bound.best_ms <= found.bound.float_ms
    assert any("Tanh has no low-precision form" in barrier for barrier in found.bound.barriers)
    api.quantize(path, out, target="null", recipe="full-int8")
    full = api.bench([path, out], target="null", processes=1)[1].speedup.value
    assert full <= found.bound.at_most
    assert found.bound.float_ms / found.bound.int8_ms == pytest.approx(full, rel=0.01)


@pytest.mark.exhaustive
def test_losses_are_told_on_a_target_with_further_types_of_activations(tmp_path: Path) -> None:
    """Its probes have switches for types that the file says nothing of."""
    pytest.importorskip("openvino", reason="the extra openvino is not installed")
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 8, 8)), 8, relu=True)
    b.output(b.classifier("scores", x, 4))
    onnx.save(b.model(), tmp_path / "float.onnx")
    samples = [{"x": b.rng.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(4)]
    file = tmp_path / "q.onnx"
    api.quantize(tmp_path / "float.onnx", file, data=samples, target="openvino-cpu", recipe="full-int8")
    found = inlay.explain(file, data=samples, target="openvino-cpu")
    assert found.sqnr_db is not None
    assert found.losses


@pytest.mark.matrix
@pytest.mark.parametrize("by_inlay", [True, False])
def test_times_of_what_inlay_left_in_float_do_not_read_as_losses_of_its_own(by_inlay: bool, tmp_path: Path) -> None:
    b = Builder()
    y = b.conv("first", b.input("x", (1, 8, 16, 16)), 8, 3)
    b.output(b.conv("second", y, 8, 3))
    path = tmp_path / "model.onnx"
    onnx.save(b.model(), path)
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.standard_normal((1, 8, 16, 16)).astype(np.float32)} for _ in range(3)]
    written = tmp_path / "written.onnx"
    inlay_only_second = Recipe().set_global(None).set_name("second", OpConfig())
    api.quantize(path, data=feeds, recipe=inlay_only_second, out=written)
    if not by_inlay:
        model = onnx.load(written)
        del model.metadata_props[:]
        onnx.save(model, written)
    found = inlay.explain(written, data=feeds)
    assert any(o.reasons for o in found.operators)
    text = "\n".join(line for line in lines(found) if isinstance(line, str))
    assert found.as_json()["placed_by_inlay"] == by_inlay
    assert ("left there by a choice" in text) == by_inlay
    assert all("leaving accuracy aside" in line for line in text.splitlines() if "lost to placement" in line)


def test_a_budget_that_ended_is_said_to_have_been_too_small(tmp_path: Path) -> None:
    b = Handmade()
    b.branch = "net"
    b.end(b.pair(b.convolve(b.pair(b.x(), "a", scale=0.03)), "y", scale=0.2), op_type="Relu")
    path = tmp_path / "model.onnx"
    onnx.save(b.model(), path)
    rng = np.random.default_rng(0)
    feeds = [{"net_x": rng.standard_normal((1, 8, 12, 12)).astype(np.float32)} for _ in range(2)]
    found = inlay.explain(path, data=feeds, budget=0.001)
    assert not found.losses
    said = [note for note in found.notes if "sources of rounding" in note]
    assert said
    assert all("the budget ended before" in note and "larger --budget" in note for note in said)
