"""Means that are right for the first of a batch only, and products and convolutions that do not compile in 8 bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from inlay.errors import CompileFailed
from inlay.space.rules import Condition, weight_only
from inlay.space.units import STATIC
from inlay.targets.base import Capabilities
from inlay.targets.conditions import plain_product
from inlay.targets.machine import cpu_flags
from inlay.targets.openvino.rules import rules_for
from inlay.targets.openvino.wrong_kernels import no_function_of_words, no_new_last_axis, no_pixels_apart, whole_batch
from inlay.testing import Builder, random_feed
from inlay.types import QType
from tests.support.workspace import Workspace
from tests.targets.openvino.conftest import InRuntime, unaware

FAILS = -300.0
"""What stands for the SQNR of a model that does not compile."""


def mean(shape: tuple[int, ...], axes: list[int]) -> onnx.ModelProto:
    b = Builder()
    b.output(b.node("tested", "ReduceMean", [b.input("x", shape)], axes=axes))
    return b.model()


def product(*behind: str, shared: bool = False) -> onnx.ModelProto:
    """A product with operators behind it, the last of which may add an axis.

    Where it is ``shared`` with another operator, no factor behind it goes into its weight.
    """
    b = Builder()
    x = b.node("tested", "MatMul", [b.input("x", (2, 7, 16)), b.constant("w", b.rng.standard_normal((16, 8)) / 4)])
    beside = b.node("beside", "ReduceMax", [x], keepdims=0) if shared else None
    for i, op in enumerate(behind):
        if op in ("last", "first"):
            x = b.node(op, "Unsqueeze", [x, b.constant(f"axis{i}", np.array([3 if op == "last" else 0]))])
        else:
            x = b.node(op, op, [x, *([b.constant(f"by{i}", 0.7)] if op == "Mul" else [])])
    b.output(x if beside is None else b.node("both", "Add", [x, beside]))
    return b.model()


def pooled(kind: str) -> onnx.ModelProto:
    """A product whose channels are columns of windows."""
    b = Builder()
    x = b.node("tested", "MatMul", [b.input("x", (1, 3, 8, 16)), b.constant("w", b.rng.standard_normal((16, 8)) / 4)])
    x = b.node("pool", kind, [x], kernel_shape=[3, 3], strides=[2, 2])
    b.output(b.node("last", "Conv", [x, b.constant("v", b.rng.standard_normal((4, 3, 1, 1)))]))
    return b.model()


def apart(
    window: int = 1, stride: int = 2, pad: int = 0, perm: tuple[int, ...] = (), between: str = ""
) -> onnx.ModelProto:
    """A convolution with strides, whose result may be turned."""
    b = Builder()
    axes = len(perm or "NCHW") - 2
    weight = b.constant("w", b.rng.standard_normal((6, 4, *[window] * axes)))
    inputs = b.input("x", (1, 4, *range(8, 8 + 2 * axes, 2))), weight
    x = b.node("tested", "Conv", inputs, kernel_shape=[window] * axes, strides=[stride] * axes, pads=[pad] * 2 * axes)
    if between:
        x = b.node("between", between, [x, *([b.constant("by", 0.7)] if between == "Mul" else [])])
    b.output(b.node("turned", "Transpose", [x], perm=perm) if perm else x)
    return b.model()


def words(*functions: str, kind: str = "Conv") -> onnx.ModelProto:
    """A convolution over words, or a product, behind functions of them."""
    b = Builder()
    ids = b.input("ids", (1, 7), onnx.TensorProto.INT64)
    x = b.node("words", "Gather", [b.constant("table", b.rng.standard_normal((20, 16))), ids])
    for i, op in enumerate(functions):
        x = b.node(op, op, [x, *([b.constant(f"by{i}", 0.5)] if op == "Mul" else [])])
    if kind == "Conv":
        x = b.node("turned", "Transpose", [x], perm=[0, 2, 1])
        b.output(b.node("tested", kind, [x, b.constant("w", b.rng.standard_normal((8, 16, 3)))], pads=[1, 1]))
    else:
        b.output(b.node("tested", kind, [x, b.constant("w", b.rng.standard_normal((16, 8)))]))
    return b.model()


WRONG: dict[str, tuple[onnx.ModelProto, Condition]] = {
    "mean of rows": (mean((3, 17, 24), [1]), whole_batch),
    "mean of rows and channels": (mean((3, 17, 24), [1, -1]), whole_batch),
    "an axis behind a product": (product("last"), no_new_last_axis),
    "an axis behind a factor": (product("Mul", "last", shared=True), no_new_last_axis),
    "means along channels": (pooled("AveragePool"), no_new_last_axis),
    "maxima along channels": (pooled("MaxPool"), no_new_last_axis),
    "pixels apart, turned": (apart(perm=(0, 1, 3, 2)), no_pixels_apart),
    "pixels apart, scaled and turned": (apart(perm=(0, 3, 1, 2), between="Mul"), no_pixels_apart),
    "pixels apart with pads": (apart(pad=1), no_pixels_apart),
    "function of words": (words("Tanh"), no_function_of_words),
    "factor of a function": (words("Relu", "Mul"), no_function_of_words),
}
RIGHT: dict[str, tuple[onnx.ModelProto, Condition]] = {
    "one batch": (mean((1, 17, 24), [1]), whole_batch),
    "mean of channels": (mean((3, 17, 24), [2]), whole_batch),
    "mean of pixels": (mean((3, 4, 5, 6), [2, 3]), whole_batch),
    "an axis before a product": (product("first"), no_new_last_axis),
    "behind a function": (product("Tanh", "last"), no_new_last_axis),
    "pixels apart": (apart(), no_pixels_apart),
    "pixels apart, channels last": (apart(perm=(0, 2, 3, 1)), no_pixels_apart),
    "pixels apart behind a function": (apart(perm=(0, 1, 3, 2), between="Tanh"), no_pixels_apart),
    "pixels apart of a sequence": (apart(perm=(0, 2, 1)), no_pixels_apart),
    "windows apart": (apart(3, perm=(0, 1, 3, 2)), no_pixels_apart),
    "pixels side by side": (apart(stride=1, perm=(0, 1, 3, 2)), no_pixels_apart),
    "words": (words(), no_function_of_words),
    "words times a number": (words("Mul"), no_function_of_words),
    "product of a function": (words("Tanh", kind="MatMul"), no_function_of_words),
}


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("case", [*WRONG, *RIGHT])
def test_it_stays_in_float_where_the_runtime_gets_it_wrong(case: str, tmp_path: Path, in_runtime: InRuntime) -> None:
    """And there alone; quantized by rules that do not know it, it is wrong."""
    (model, condition), rules, found = (WRONG | RIGHT)[case], rules_for(), {}
    (op_type,) = [n.op_type for n in model.graph.node if n.name == "tested"]
    careless = unaware(rules, op_type, condition) if condition in rules.ops[op_type].conditions else rules
    feed = random_feed(model)
    for name, known in (("by the rules", rules), ("unaware", careless)):
        space = Workspace(model, tmp_path / name, Capabilities(known), feeds=(feed,))
        (tested,) = [u for u in space.prepared.units if u.name == "tested"]
        assert tested.selectable == (name == "unaware" or case in RIGHT), tested.rejection
        path = tmp_path / f"{name}.onnx"
        onnx.save(space.emit(space.label(*["tested"] if tested.selectable else [])), path)
        try:
            found[name] = in_runtime(path, feed, "f32")
        except CompileFailed:
            found[name] = FAILS
    assert found["by the rules"] > 30.0
    assert (not found["unaware"] > 20.0) == (case in WRONG), found


def scores(kind: str = "Softmax", between: str = "") -> onnx.ModelProto:
    """A product of what a product in 8 bits becomes."""
    b = Builder()
    weights = [b.constant(name, b.rng.standard_normal((32, 32)) / 5) for name in "wv"]
    x = b.node(kind, kind, [b.node("first", "MatMul", [b.input("x", (2, 128, 32)), weights[0]])])
    if between:
        x = b.node(between, between, [x])
    b.output(b.node("last", "MatMul", [x, weights[1]]))
    return b.model()


@pytest.mark.parametrize("kind", ["Softmax", "Tanh"])
def test_scores_are_not_multiplied_with_quantized_weights(kind: str, tmp_path: Path, in_runtime: InRuntime) -> None:
    """Other results may be. Shown with VNNI: without it, such products have other kernels."""
    if not {"avx512_vnni", "avx_vnni"} & cpu_flags():
        pytest.skip("the processor has no VNNI")
    model, rules = scores(kind), rules_for()
    form = weight_only(QType.INT8)
    free = tuple(
        replace(f, ops={k: replace(r, conditions=(plain_product,)) for k, r in f.ops.items()}) for f in rules.forms
    )
    feed, found = random_feed(model), {}
    for name, known in (("by the rules", rules), ("unaware", replace(rules, forms=free))):
        space = Workspace(model, tmp_path / name, Capabilities(known), feeds=(feed,))
        (last,) = [u for u in space.prepared.units if u.name == "last"]
        assert (form in last.forms) == (name == "unaware" or kind != "Softmax")
        path = tmp_path / f"{name}.onnx"
        precisions = {"first": STATIC, **({"last": form} if form in last.forms else {})}
        onnx.save(space.emit(space.prepared.label(precisions)), path)
        found[name] = in_runtime(path, feed, "f32")
    assert found["by the rules"] > 30.0
    assert (not found["unaware"] > 20.0) == (kind == "Softmax"), found  # it may be no number


def test_what_is_computed_from_scores_is_one(tmp_path: Path) -> None:
    """Element by element."""
    space = Workspace(scores(between="Sigmoid"), tmp_path, Capabilities(rules_for()))
    (last,) = [u for u in space.prepared.units if u.name == "last"]
    assert weight_only(QType.INT8) not in last.forms
