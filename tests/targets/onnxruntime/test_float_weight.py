"""What a placement leaves in float runs in float, in sessions with default options: the runtime's own graph decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from inlay.targets.onnxruntime.rewrites import FloatWeight
from inlay.targets.onnxruntime.target import capabilities_for
from inlay.testing import Builder
from inlay.testing.models import concat_model, depthwise_model, residual_model, small_model, upsampling_model
from tests.support.executed import quantized_weights, wrong
from tests.support.runtime import check_and_load, optimized
from tests.support.workspace import Workspace

Case = Callable[[Builder], None]


def _weight(b: Builder, *shape: int) -> str:
    return b.constant("weight", b.rng.standard_normal(shape).astype(np.float32) * 0.3)


def _around(op: Callable[[Builder, str], str], clamp: str = "", before: str = "", behind: str = "", c: int = 6) -> Case:
    """Conv "first", perhaps a move, the operator "op", perhaps a clamp and a move, Conv "last"."""

    def move(b: Builder, name: str, x: str) -> str:
        if name == "MaxPool":
            return b.node(f"{name}_{x}", name, [x], kernel_shape=[2, 2], strides=[2, 2])
        if name == "Transpose":
            return b.node(f"{name}_{x}", name, [x], perm=[0, 1, 3, 2])
        if name == "Pad":
            return b.node(f"{name}_{x}", name, [x, b.constant("pads", np.array([0, 0, 1, 1] * 2))])
        return x

    def build(b: Builder) -> None:
        y = move(b, before, b.conv("first", b.input("x", (1, 4, 8, 8)), c))
        y = op(b, y)
        if clamp == "Relu":
            y = b.node("clamp", "Relu", [y])
        elif clamp == "Clip":
            y = b.node("clamp", "Clip", [y, b.constant("low", -0.5), b.constant("high", 0.7)])
        b.output(b.conv("last", move(b, behind, y), 4))

    return build


def _conv(group: int = 1) -> Callable[[Builder, str], str]:
    return lambda b, x: b.conv("op", x, 6, group=group)


def _bare_conv(b: Builder, x: str) -> str:
    return b.conv("op", x, 6, bias=False)


def _transposed(b: Builder, x: str) -> str:
    return b.node("op", "ConvTranspose", [x, _weight(b, 6, 6, 3, 3)], strides=[1, 1])


def _dense(op_type: str, rank: int = 2, clamp: str = "", size: int = 8, **attributes: Any) -> Case:
    """Three dense layers with a bias, "op" the second."""

    def build(b: Builder) -> None:
        y = b.input("x", (1,) * (rank - 2) + (5, 8))
        for name, inputs, outputs in (("first", 8, size), ("op", size, 8), ("last", 8, 8)):
            shape = (outputs, inputs) if attributes.get("transB") and op_type == "Gemm" else (inputs, outputs)
            weight = b.constant(f"{name}_weight", b.rng.standard_normal(shape).astype(np.float32) * 0.3)
            bias = b.constant(f"{name}_bias", b.rng.standard_normal(outputs).astype(np.float32))
            if op_type == "Gemm":
                y = b.node(name, "Gemm", [y, weight, bias], **attributes)
            else:
                y = b.node(f"{name}_add", "Add", [b.node(name, "MatMul", [y, weight]), bias])
            y = b.node(f"{name}_clamp", clamp, [y]) if clamp and name == "op" else y
            y = b.node("sigmoid", "Sigmoid", [y]) if name == "first" else y  # a Gemm alone may hand on floats
        b.output(y)

    return build


CASES: dict[str, Case] = {
    "Conv": _around(_conv()),
    "Conv, Relu": _around(_conv(), "Relu"),
    "Conv, Clip": _around(_conv(), "Clip"),
    "Conv without bias": _around(_bare_conv),
    "depthwise Conv": _around(_conv(6)),
    "Conv of one channel": _around(_conv(), c=1),
    "Conv of one channel, Relu": _around(_conv(), "Relu", c=1),
    "Conv behind a move": _around(_conv(), before="MaxPool"),
    "Conv behind a Pad": _around(_conv(), "Clip", before="Pad"),
    "Conv before a move": _around(_conv(), "Relu", behind="Transpose"),
    "Conv between moves": _around(_conv(), "Clip", "Transpose", "MaxPool"),
    "ConvTranspose": _around(_transposed),
    "ConvTranspose, Relu": _around(_transposed, "Relu"),
    "Gemm": _dense("Gemm"),
    "Gemm, Relu": _dense("Gemm", clamp="Relu"),
    "Gemm, transposed weight": _dense("Gemm", transB=1),
    "Gemm of one column": _dense("Gemm", size=1),
    "MatMul and Add": _dense("MatMul"),
    "MatMul and Add, three axes": _dense("MatMul", rank=3),
    "MatMul and Add, Relu": _dense("MatMul", clamp="Relu"),
}


def _space(case: Case, folder: Path, without: bool = False) -> Workspace:
    """The model of a case, for a target with or without the rewrite."""
    b = Builder()
    case(b)
    target = capabilities_for("x86_64")
    rewrites = tuple(r for r in target.rewrites if not (without and isinstance(r, FloatWeight)))
    return Workspace(b.model(), folder, replace(target, rewrites=rewrites))


def _all_but_op(space: Workspace) -> onnx.ModelProto:
    """Everything but the operator (and moves next to it) in low precision."""
    names = [u.name for u in space.prepared.selectable if u.op_type not in ("MaxPool", "Transpose")]
    return space.emit(space.label(*(n for n in names if n not in ("op", "op_add", "op_product"))))


@pytest.mark.parametrize("name", CASES)
def test_it_runs_in_float(name: str, tmp_path: Path) -> None:
    space = _space(CASES[name], tmp_path)
    written = _all_but_op(space)
    check_and_load(written)
    stated = quantized_weights(written)
    assert stated == 2, "first and last"
    assert quantized_weights(optimized(written, tmp_path)) == stated


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("name", CASES)
def test_the_runtime_would_quantize_it(name: str, tmp_path: Path) -> None:
    """Negative control: without the rewrite each case has a third quantized weight."""
    space = _space(CASES[name], tmp_path, without=True)
    assert quantized_weights(optimized(_all_but_op(space), tmp_path)) == 3


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("name", CASES)
def test_its_results_are_those_of_the_placement(name: str, tmp_path: Path) -> None:
    """Extracting undoes it, and emitting again writes the same model."""
    space = _space(CASES[name], tmp_path)
    written = _all_but_op(space)
    found = space.extract(written)
    assert not found.leftovers
    assert {n.op_type for n in found.model.graph} <= {n.op_type for n in space.graph.nodes}
    assert space.emit(found.placement) == written


def test_a_placement_without_such_an_operator_is_written_as_before(tmp_path: Path) -> None:
    for i, case in enumerate(CASES.values()):
        space, plain = _space(case, tmp_path / f"{i}"), _space(case, tmp_path / f"{i} without", without=True)
        if all(u.selectable for u in space.prepared.units):
            assert space.emit(space.full()) == plain.emit(plain.full())


NETS = (residual_model, concat_model, depthwise_model, small_model, upsampling_model)


@pytest.mark.parametrize("net", NETS)
def test_every_unit_runs_as_stated(net: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    """Each unit in low precision, and in float between neighbors in low precision."""
    tried, found = wrong(Workspace(net(), tmp_path), tmp_path)
    assert tried > 2
    assert found == []


def test_a_unit_that_does_not_run_as_stated_is_found(tmp_path: Path) -> None:
    """Negative control."""
    assert wrong(_space(CASES["Conv, Relu"], tmp_path, without=True), tmp_path)[1]
    assert not wrong(_space(CASES["Conv, Relu"], tmp_path / "with"), tmp_path)[1]
