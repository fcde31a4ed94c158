"""Half precision in emitted models: types that fit everywhere, the inverse, numbers, and models that are halves."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper

from inlay.errors import UsageError
from inlay.model.passes.half import rounded_halves
from inlay.space.halves import half_form
from inlay.space.units import STATIC
from inlay.targets.base import Capabilities
from inlay.targets.tensorrt.rules import RULES
from inlay.targets.tensorrt.target import TensorRtTarget
from inlay.testing import Builder, run_reference, sqnr
from inlay.types import FP32, Placement, QType
from tests.support.examples import examples
from tests.support.float_models import graphs
from tests.support.workspace import Workspace

BASES = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}


def on(base: str) -> Capabilities:
    """What TensorRT runs on a base precision."""
    return Capabilities(RULES.on_base(base))


def drawn_labels(data: st.DataObject, space: Workspace, base: str) -> Placement:
    """A random precision for each unit."""
    labels = {}
    for unit in space.prepared.units:
        offered = ["", *([STATIC] if unit.selectable else []), *([base] if base in unit.forms else [])]
        labels[unit.name] = data.draw(st.sampled_from(offered))
    return space.prepared.label(labels)


@settings(max_examples=examples(25))
@given(st.data())
def test_extract_is_the_inverse_of_emit_with_casts(data: st.DataObject) -> None:
    """The checker infers every type: an operator that reads halves beside float32 would not pass it."""
    base = data.draw(st.sampled_from(sorted(BASES)))
    with tempfile.TemporaryDirectory() as folder:
        space = Workspace(data.draw(graphs()), Path(folder), on(base))
        placement = drawn_labels(data, space, base)
        written = space.emit(placement)
        found = space.extract(written)
        assert found.placement == placement
        assert found.leftovers == ()
        assert space.emit(found.placement) == written
        floats = [n.op_type for n in ir.to_proto(found.model).graph.node]
        assert floats == [n.op_type for n in space.prepared.emitter.base.graph.node]
        for (value, qtype), params in found.qparams.items():
            assert params == space.table.params(value, qtype)


def product() -> onnx.ModelProto:
    """MatMul, Add and Relu."""
    b = Builder(seed=3)
    x = b.input("x", (4, 16))
    rng = np.random.default_rng(0)
    w = b.constant("w", rng.normal(size=(16, 8)).astype(np.float32))
    y = b.node("product", "MatMul", [x, w])
    y = b.node("shifted", "Add", [y, b.constant("shift", rng.normal(size=8).astype(np.float32))])
    b.output(b.node("positive", "Relu", [y]))
    return b.model()


def test_halves_are_what_numpy_makes_of_them(tmp_path: Path) -> None:
    model = product()
    space = Workspace(model, tmp_path, on("fp16"))
    written = space.emit(space.prepared.label({u.name: "fp16" for u in space.prepared.units}))
    assert [n.op_type for n in written.graph.node] == ["Cast", "MatMul", "Add", "Relu", "Cast"]
    constants = {t.name.partition("_fp16")[0]: numpy_helper.to_array(t) for t in written.graph.initializer}
    assert {a.dtype for a in constants.values()} == {np.dtype(np.float16)}
    given_weight, shift = (a.astype(np.float32) for a in constants.values())
    x = space.feeds[0]["x"].astype(np.float16).astype(np.float32)
    want = (x @ given_weight).astype(np.float16).astype(np.float32)
    want = np.maximum((want + shift).astype(np.float16), np.float16(0)).astype(np.float32)
    (got,) = run_reference(rounded_halves(written), space.feeds[0]).values()
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, want)


def overflowing() -> onnx.ModelProto:
    """The root of squares beyond what float16 holds."""
    b = Builder(seed=3)
    x = b.input("x", (1, 8))
    b.output(b.node("root", "Sqrt", [b.node("square", "Mul", [x, x])]))
    return b.model()


def test_overflow_shows_only_where_results_are_rounded(tmp_path: Path) -> None:
    """The control: between its own Casts the runtime computes in float32, so that it finds nothing."""
    feed = {"x": np.full((1, 8), 300.0, np.float32)}
    space = Workspace(overflowing(), tmp_path, on("fp16"), feeds=(feed,))
    written = space.emit(space.prepared.label({u.name: "fp16" for u in space.prepared.units}))
    assert np.isinf(next(iter(run_reference(rounded_halves(written), feed).values()))).all()
    assert np.isfinite(next(iter(run_reference(written, feed).values()))).all()


def test_halves_that_a_value_is_read_as_beside_float32(tmp_path: Path) -> None:
    """One Q, and a DQ for each type: a Cast between them and their readers would keep a runtime from fusing."""
    b = Builder(seed=3)
    x = b.conv("first", b.input("x", (1, 3, 6, 6)), 4, 3)
    b.output(b.conv("left", x, 4, 3))
    b.output(b.conv("right", x, 4, 3))
    space = Workspace(b.model(), tmp_path, on("fp16"))
    placement = space.prepared.label({"first": STATIC, "left": STATIC, "right": STATIC})
    bare = {p.node for p, q in placement if q is QType.FP16}
    assert bare == {"first", "left", "right"}  # their biases
    mixed = placement.without([p for p, q in placement if q is QType.FP16 and p.node == "right"])
    written = space.emit(mixed)
    kinds = [n.op_type for n in written.graph.node if "first" in n.name]
    assert kinds.count("QuantizeLinear") == 1
    assert kinds.count("DequantizeLinear") - len({"first_weight"}) == 2
    assert not [n for n in written.graph.node if n.op_type == "Cast" and n.output[0] not in ("left", "left_fp16")][1:]
    assert space.extract(written).placement == mixed


def halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model with all its floats in float16."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for tensor in made.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for value in (*made.graph.input, *made.graph.output, *made.graph.value_info):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return made


def test_a_model_of_halves_stays_one(tmp_path: Path) -> None:
    model = halved(product())
    feed = {"x": np.random.default_rng(1).normal(size=(4, 16)).astype(np.float16)}
    space = Workspace(model, tmp_path, on("fp16"), feeds=(feed,))
    placement = space.prepared.label({u.name: "fp16" for u in space.prepared.units})
    written = space.emit(placement)
    assert [n.op_type for n in written.graph.node] == [n.op_type for n in model.graph.node]
    assert [v.type.tensor_type.elem_type for v in (*written.graph.input, *written.graph.output)] == [10, 10]
    want, got = (run_reference(rounded_halves(m), feed) for m in (model, written))
    np.testing.assert_array_equal(next(iter(want.values())), next(iter(got.values())))
    assert space.extract(written).placement == placement


@pytest.mark.parametrize("base", BASES)
def test_int8_on_a_base_has_scales_that_are_halves(base: str, tmp_path: Path) -> None:
    space = Workspace(product(), tmp_path, on(base))
    written = space.emit(space.prepared.label({"product": STATIC, "shifted": base}))
    scales = {n.input[1] for n in written.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")}
    kinds = {t.data_type for t in written.graph.initializer if t.name in scales}
    assert kinds <= {BASES[base], TensorProto.FLOAT}
    assert BASES[base] in kinds
    want, got = (run_reference(m, space.feeds[0]) for m in (product(), rounded_halves(written)))
    assert sqnr(next(iter(want.values())), next(iter(got.values()))) > 30.0


def test_a_base_is_what_the_target_has_kernels_for() -> None:
    assert RULES.base is None
    assert RULES.on_base("auto").base is QType.FP16
    assert RULES.on_base(FP32).base is None
    assert RULES.on_base("bf16").on_base("fp16").base is QType.FP16
    other = Capabilities.of(_Without())
    assert other.rules.on_base("auto").base is None
    with pytest.raises(UsageError, match="--base fp16: this target has no kernels in it; give auto or fp32"):
        Capabilities.of(_Without(), base="fp16")
    with pytest.raises(UsageError, match="--base fp16: fp16 needs opset 19, and --max-opset is 17"):
        Capabilities.of(TensorRtTarget(), max_opset=17, base="fp16")
    assert Capabilities.of(TensorRtTarget(), max_opset=17, base="auto").rules.base is None


class _Without(TensorRtTarget):
    def capabilities(self) -> Capabilities:
        return Capabilities(replace(RULES, halves=frozenset()))


def test_operators_that_have_no_half_form() -> None:
    """By ONNX's own statement of types; what computes sizes or integers has none either."""
    have = {op: half_form(op, 19, QType.FP16) is not None for op in ("Conv", "Relu", "Softmax", "Where", "ArgMax")}
    assert all(have.values()), have
    none = ("Cast", "Shape", "ConstantOfShape", "NonMaxSuppression", "QuantizeLinear", "If", "Nonsense", "Not")
    assert not any(half_form(op, 19, QType.FP16) for op in none)
    resize = half_form("Resize", 19, QType.FP16)
    assert resize is not None
    assert (resize.takes(0), resize.takes(2)) == (True, False)  # its scales are float32 always
    assert [half_form("Conv", opset, QType.BF16) is not None for opset in (19, 22)] == [False, True]
    concat = half_form("Concat", 19, QType.FP16)
    assert concat is not None
    assert all(itertools.starmap(concat.takes, [(0,), (5,)]))
