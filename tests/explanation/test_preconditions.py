"""Each row of ONNX Runtime's preconditions: a branch with that fault alone, and the same branch without it.

All branches stand in one model, so that one explanation, proven by the runtime itself, answers for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import inlay
from inlay.explanation.explanation import Explanation, Operator
from inlay.targets.onnxruntime.preconditions import preconditions_for
from inlay.testing import Builder

IMAGE = (1, 8, 12, 12)
SIGNED: Mapping[str, Any] = {"zero": 0, "dtype": np.int8}
Branch = Callable[["Handmade"], None]


class Handmade(Builder):
    """Writes Q/DQ nodes as asked for, right or wrong; every name begins with the branch's."""

    branch = ""

    def x(self, suffix: str = "x") -> str:
        """An input of the branch."""
        return self.input(f"{self.branch}_{suffix}", IMAGE)

    def grid(
        self, name: str, zero: int = 128, dtype: Any = np.uint8, scale: float = 0.05, shape: Any = ()
    ) -> list[str]:
        """Scale and zero point."""
        scales = np.full(shape, scale, np.float32)
        return [self.constant(f"{name}_s", scales), self.constant(f"{name}_z", np.full(shape, zero, dtype))]

    def quantizer(self, value: str, suffix: str, **grid: Any) -> tuple[str, list[str]]:
        """A Q."""
        name = f"{self.branch}_{suffix}"
        made = self.grid(name, **grid)
        return self.node(f"{name}_q", "QuantizeLinear", [value, *made], channels=8), made

    def pair(self, value: str, suffix: str, **grid: Any) -> str:
        """A Q and its DQ."""
        q, made = self.quantizer(value, suffix, **grid)
        return self.node(f"{self.branch}_{suffix}_dq", "DequantizeLinear", [q, *made], channels=8)

    def stored(self, suffix: str, shape: tuple[int, ...], axis: int | None = None, dtype: Any = np.int8) -> str:
        """A quantized constant behind its DQ."""
        name = f"{self.branch}_{suffix}"
        integers = self.constant(f"{name}_w", self.rng.integers(0, 100, shape).astype(dtype))
        grid = self.grid(name, 0, dtype, 0.02, () if axis is None else (shape[axis],))
        options: dict[str, Any] = {} if axis is None else {"axis": axis}
        return self.node(f"{name}_dq", "DequantizeLinear", [integers, *grid], **options)

    def convolve(self, x: str, suffix: str = "op", axis: int | None = 0, outputs: int = 8) -> str:
        """A Conv with a quantized weight."""
        weight = self.stored(f"{suffix}_weight", (outputs, 8, 3, 3), axis)
        name = f"{self.branch}_{suffix}"
        return self.node(name, "Conv", [x, weight], channels=outputs, pads=[1, 1, 1, 1])

    def end(self, value: str, suffix: str = "end", op_type: str = "Tanh") -> None:
        """A float operator that writes an output of the graph."""
        self.output(self.node(f"{self.branch}_{suffix}", op_type, [value]))


def _plain(b: Handmade) -> None:
    b.end(b.pair(b.convolve(b.pair(b.x(), "a")), "y"))


def _relu(zero: int) -> Branch:
    def build(b: Handmade) -> None:
        y = b.node(f"{b.branch}_relu", "Relu", [b.convolve(b.pair(b.x(), "a"))])
        b.end(b.pair(y, "y", zero=zero))

    return build


def _clip(scale: float) -> Branch:
    def build(b: Handmade) -> None:
        bounds = [b.constant(f"{b.branch}_low", np.float32(0)), b.constant(f"{b.branch}_high", np.float32(6))]
        y = b.node(f"{b.branch}_clip", "Clip", [b.convolve(b.pair(b.x(), "a")), *bounds])
        b.end(b.pair(y, "y", zero=0, scale=scale))

    return build


def _float_input(b: Handmade) -> None:
    b.end(b.pair(b.convolve(b.x()), "y"))


def _no_quantizer(b: Handmade) -> None:
    b.end(b.convolve(b.pair(b.x(), "a")))


def _float_reader(b: Handmade) -> None:
    y = b.convolve(b.pair(b.x(), "a"))
    b.end(b.pair(y, "y"))
    b.end(y, "other", "Exp")


def _covered_reader(b: Handmade) -> None:
    y = b.pair(b.convolve(b.pair(b.x(), "a")), "y")
    b.end(y)
    b.end(y, "other", "Exp")


def _graph_output(b: Handmade) -> None:
    y = b.convolve(b.pair(b.x(), "a"))
    b.end(b.pair(y, "y"))
    b.output(y)


def _quantizers(scale: float) -> Branch:
    def build(b: Handmade) -> None:
        y = b.convolve(b.pair(b.x(), "a"))
        b.end(b.pair(y, "y"))
        b.end(b.pair(y, "again", scale=scale), "other", "Exp")

    return build


def _nothing(b: Handmade) -> None:
    weight = b.constant(f"{b.branch}_w", b.rng.standard_normal((8, 8, 3, 3)).astype(np.float32))
    y = b.node(f"{b.branch}_op", "Conv", [b.node(f"{b.branch}_before", "Tanh", [b.x()]), weight], pads=[1, 1, 1, 1])
    b.end(y)


def _float_weight(b: Handmade) -> None:
    x = b.input(f"{b.branch}_x", (4, 8))
    weight = b.constant(f"{b.branch}_w", b.rng.standard_normal((8, 6)).astype(np.float32))
    b.end(b.pair(b.node(f"{b.branch}_op", "MatMul", [b.pair(x, "a"), weight]), "y"))


def _stored_weight(b: Handmade) -> None:
    x = b.input(f"{b.branch}_x", (4, 8))
    b.end(b.pair(b.node(f"{b.branch}_op", "MatMul", [b.pair(x, "a"), b.stored("w", (8, 6))]), "y"))


def _bias(quantized: bool) -> Branch:
    def build(b: Handmade) -> None:
        x = b.input(f"{b.branch}_x", (4, 8))
        bias = b.constant(f"{b.branch}_b", b.rng.integers(-9, 9, 6).astype(np.int32 if quantized else np.float32))
        if quantized:
            grid = [b.constant(f"{b.branch}_bs", np.float32(0.001)), b.constant(f"{b.branch}_bz", np.int32(0))]
            bias = b.node(f"{b.branch}_bias", "DequantizeLinear", [bias, *grid])
        b.end(b.node(f"{b.branch}_op", "Gemm", [b.pair(x, "a"), b.stored("w", (8, 6)), bias]))

    return build


def _joined(apart: bool) -> Branch:
    def build(b: Handmade) -> None:
        x = b.input(f"{b.branch}_x", (4, 8))
        y = b.node(f"{b.branch}_op", "MatMul", [b.pair(x, "a"), b.stored("w", (8, 6))])
        bias = b.constant(f"{b.branch}_b", b.rng.standard_normal(6).astype(np.float32))
        b.end(b.node(f"{b.branch}_add", "Add", [b.pair(y, "y") if apart else y, bias]))

    return build


def _conv_bias(scale: float = 0.001, zero: int = 0, dtype: Any = np.int32) -> Branch:
    """A Conv whose products have scale 0.05 * 0.02 = 0.001, with a quantized bias."""

    def build(b: Handmade) -> None:
        integers = b.constant(f"{b.branch}_b", b.rng.integers(-99, 99, 8).astype(dtype))
        grid = [b.constant(f"{b.branch}_bs", np.float32(scale)), b.constant(f"{b.branch}_bz", dtype(zero))]
        bias = b.node(f"{b.branch}_bias", "DequantizeLinear", [integers, *grid])
        inputs = [b.pair(b.x(), "a"), b.stored("w", (8, 8, 3, 3)), bias]
        b.end(b.pair(b.node(f"{b.branch}_op", "Conv", inputs, channels=8, pads=[1] * 4), "y"))

    return build


def _pool(scale: float) -> Branch:
    def build(b: Handmade) -> None:
        y = b.node(f"{b.branch}_op", "MaxPool", [b.pair(b.x(), "a")], kernel_shape=[2, 2])
        b.end(b.pair(y, "y", scale=scale))

    return build


def _weight_axis(axis: int) -> Branch:
    def build(b: Handmade) -> None:
        x = b.input(f"{b.branch}_x", (4, 8))
        b.end(b.pair(b.node(f"{b.branch}_op", "Gemm", [b.pair(x, "a"), b.stored("w", (8, 6), axis)]), "y"))

    return build


def _branching(dtype: Any, zero: int) -> Branch:
    def build(b: Handmade) -> None:
        y = b.pair(b.convolve(b.pair(b.x(), "a", zero=zero, dtype=dtype)), "y", zero=zero, dtype=dtype)
        b.end(y)
        b.end(y, "other", "Exp")

    return build


def _constant_type(dtype: Any) -> Branch:
    def build(b: Handmade) -> None:
        other = b.stored("c", (1, 8, 1, 1), dtype=dtype)
        b.end(b.pair(b.node(f"{b.branch}_op", "Add", [b.pair(b.x(), "a"), other]), "y"))

    return build


def _transposed(b: Handmade) -> None:
    weight = b.stored("w", (8, 4, 2, 2))
    y = b.node(f"{b.branch}_op", "ConvTranspose", [b.pair(b.x(), "a"), weight], channels=8, strides=[2, 2])
    b.end(b.pair(y, "y"))


def _binary(op_type: str) -> Branch:
    def build(b: Handmade) -> None:
        y = b.node(f"{b.branch}_op", op_type, [b.pair(b.x(), "a"), b.pair(b.x("o"), "b")])
        b.end(b.pair(y, "y"))

    return build


FAULTS: Mapping[str, tuple[Branch, Branch]] = {
    "float-input": (_float_input, _plain),
    "no-quantizer": (_no_quantizer, _plain),
    "float-reader": (_float_reader, _covered_reader),
    "graph-output": (_graph_output, _plain),
    "two-quantizers": (_quantizers(0.1), _covered_reader),
    "zero-point": (_relu(128), _relu(0)),
    "not-quantized": (_nothing, _plain),
    "float-weight": (_float_weight, _stored_weight),
    "float-bias": (_bias(False), _bias(True)),
    "bias-scale": (_conv_bias(0.00102), _conv_bias(0.00101)),
    "joined-add": (_joined(False), _joined(True)),
    "other-scale": (_pool(0.1), _pool(0.05)),
    "scale-axis": (_weight_axis(0), _weight_axis(1)),
    "int8-branches": (_branching(np.int8, 0), _branching(np.uint8, 128)),
    "type-mismatch": (_constant_type(np.int8), _constant_type(np.uint8)),
    "needs-rewrite": (_transposed, _plain),
    "unsupported": (_binary("Sub"), _binary("Add")),
}
APART = {"scale-shape", "several-scales", "misread-bias"}
"""They keep the whole model from being built or from running, or no operator in float: they have tests of their own."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Explanation:
    """One explanation of every branch, each with its twin."""
    b = Handmade()
    for name, branches in FAULTS.items():
        for kind, build in zip(("bad", "good"), branches, strict=True):
            b.branch = f"{name}_{kind}".replace("-", "_")
            build(b)
    path = tmp_path_factory.mktemp("faults") / "faults.onnx"
    onnx.save(b.model(), path)
    return inlay.explain(path)


def _operator(found: Explanation, name: str, kind: str) -> Operator:
    wanted = f"{name}_{kind}_op".replace("-", "_")
    return next(o for o in found.operators if o.name == wanted)


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_a_fault_is_named_and_proven_and_its_twin_runs_on_integers(found: Explanation, name: str) -> None:
    bad, good = (_operator(found, name, kind) for kind in ("bad", "good"))
    assert bad.precision == "float"
    assert [r.code for r in bad.reasons] == [name]
    assert bad.reasons[0].proof == ("table" if name in ("unsupported", "needs-rewrite") else "alone")
    assert good.precision == "int8" or (good.op_type == "MaxPool" and good.kernel == "MaxPool")
    assert not good.reasons


def test_every_row_has_its_model() -> None:
    assert {row.name for row in preconditions_for("x86_64")} <= {*FAULTS, *APART}


@pytest.mark.exhaustive
def test_a_clip_above_its_quantizer_is_no_fault_and_one_below_is(tmp_path: Path) -> None:
    b = Handmade()
    for b.branch, scale in (("bad", 0.1), ("good", 6.0 / 255.0)):
        _clip(scale)(b)
    path = tmp_path / "clip.onnx"
    onnx.save(b.model(), path)
    found = {o.name: o for o in inlay.explain(path).operators}
    assert [r.code for r in found["bad_op"].reasons] == ["zero-point"]
    assert found["good_op"].precision == "int8"


@pytest.mark.exhaustive
def test_two_faults_are_both_given_and_what_is_not_needed_is_not(tmp_path: Path) -> None:
    b = Handmade()
    b.branch = "op"
    weight = b.constant("w", b.rng.standard_normal((8, 8, 3, 3)).astype(np.float32))  # the runtime quantizes it itself
    y = b.node("conv", "Conv", [b.x(), weight], channels=8, pads=[1, 1, 1, 1])
    b.end(b.pair(y, "y"))
    b.end(y, "other", "Exp")
    path = tmp_path / "two.onnx"
    onnx.save(b.model(), path)
    (conv,) = (o for o in inlay.explain(path).operators if o.name == "conv")
    assert {r.code for r in conv.reasons} == {"float-input", "float-reader"}
    assert {r.proof for r in conv.reasons} == {"alone"}


def test_a_scale_that_keeps_the_model_from_being_built_is_the_reason(tmp_path: Path) -> None:
    b = Handmade()
    b.branch = "bad"
    y = b.node("add", "Add", [b.pair(b.x(), "a", shape=(1,)), b.pair(b.x("o"), "b")])
    b.end(b.pair(y, "y"))
    path = tmp_path / "shape.onnx"
    onnx.save(b.model(), path)
    try:
        ort.InferenceSession(path)
    except ort.capi.onnxruntime_pybind11_state.Fail:
        pass
    else:
        pytest.skip("this version of the runtime builds it (1.32.0 does)")
    found = inlay.explain(path)
    (add,) = (o for o in found.operators if o.name == "add")
    assert "scale-shape" in found.failed
    assert [r.code for r in add.reasons] == ["scale-shape"]
    assert add.precision == "int8"  # of the model without the fault


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.matrix
def test_a_value_with_a_scale_for_each_channel(bias: bool, tmp_path: Path) -> None:
    """Without a bias the kernel is built and fails; with one, as NNCF writes depthwise convolutions, it stays float."""
    b = Handmade()
    for b.branch, shape in (("bad", (8,)), ("good", ())):
        weight = b.stored("w", (8, 1, 3, 3), 0)
        inputs = [b.pair(b.x(), "a", shape=shape), weight]
        if bias:
            inputs.append(b.constant(f"{b.branch}_b", b.rng.standard_normal(8).astype(np.float32)))
        y = b.node(f"{b.branch}_op", "Conv", inputs, channels=8, group=8, pads=[1, 1, 1, 1])
        b.end(b.pair(y, "y"))
    path = tmp_path / "channels.onnx"
    onnx.save(b.model(), path)
    found = inlay.explain(path)
    bad, good = (next(o for o in found.operators if o.name == f"{kind}_op") for kind in ("bad", "good"))
    assert bool(found.failed) == (not bias)
    assert [r.code for r in bad.reasons] == ["several-scales"]
    assert bad.reasons[0].proof == ("alone" if bias else "together")
    assert bad.precision == ("float" if bias else "int8")  # int8: of the model without the fault
    assert not good.reasons
    assert good.precision == "int8"


@pytest.mark.exhaustive
def test_a_weight_behind_a_quantizer_may_have_a_scale_for_each_channel(tmp_path: Path) -> None:
    b = Handmade()
    b.branch = "op"
    weight = b.constant("w", b.rng.standard_normal((8, 8, 3, 3)).astype(np.float32))
    grid = b.grid("w", 0, np.int8, 0.02, (8,))
    stored = b.node(
        "w_dq", "DequantizeLinear", [b.node("w_q", "QuantizeLinear", [weight, *grid], axis=0), *grid], axis=0
    )
    y = b.node("relu", "Relu", [b.node("conv", "Conv", [b.pair(b.x(), "a"), stored], channels=8, pads=[1] * 4)])
    b.end(b.pair(y, "y", zero=128))
    path = tmp_path / "weight.onnx"
    onnx.save(b.model(), path)
    (conv,) = (o for o in inlay.explain(path).operators if o.name == "conv")
    assert [r.code for r in conv.reasons] == ["zero-point"]


@pytest.mark.parametrize("bad", [_conv_bias(zero=5), _conv_bias(0.05, dtype=np.int8), _conv_bias(0.1)])
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_a_bias_of_another_zero_point_type_or_scale(bad: Branch, tmp_path: Path) -> None:
    b = Handmade()
    b.branch = "bad"
    bad(b)
    path = tmp_path / "bias.onnx"
    onnx.save(b.model(), path)
    found = inlay.explain(path)
    (conv,) = (o for o in found.operators if o.name == "bad_op")
    assert [(r.code, r.proof) for r in conv.reasons] == [("bias-scale", "alone")]
    assert not any("bad_op" in n for n in found.notes)  # in float it computes what the file says


@pytest.mark.parametrize("scale", [0.001, 0.1])
def test_a_bias_that_a_kernel_reads_at_another_scale_is_told(scale: float, tmp_path: Path) -> None:
    """Gemm runs on integers with a bias of any scale, and computes something else: the runtime itself is the oracle."""
    b = Handmade()
    b.branch = "fc"
    integers = b.constant("b", np.array([90, -80, 70, 60, -50, 40], np.int32))
    grid = [b.constant("bs", np.float32(scale)), b.constant("bz", np.int32(0))]
    bias = b.node("bias", "DequantizeLinear", [integers, *grid])
    y = b.node("fc_op", "Gemm", [b.pair(b.input("x", (4, 8)), "a"), b.stored("w", (8, 6)), bias])
    b.end(b.pair(y, "y"))
    path = tmp_path / "misread.onnx"
    onnx.save(b.model(), path)
    feed = {"x": b.rng.standard_normal((4, 8)).astype(np.float32)}
    fused, said = (_run(path, feed, level) for level in ("ORT_ENABLE_ALL", "ORT_DISABLE_ALL"))
    found = inlay.explain(path)
    (fc,) = (o for o in found.operators if o.name == "fc_op")
    assert fc.precision == "int8"
    assert not fc.reasons
    told = [n for n in found.notes if "fc_op" in n]
    assert bool(told) == (np.abs(fused - said).max() > 0.1) == (scale != 0.001)
    assert all("b at the scale of the products, which is off by up to 8.91" in n for n in told)


def _run(path: Path, feed: Mapping[str, np.ndarray], level: str) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, dict(feed))[0])
