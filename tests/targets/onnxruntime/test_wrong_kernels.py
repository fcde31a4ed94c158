"""Integer kernels of ONNX Runtime compute what the Q/DQ nodes say, or their operators stay in float.

The oracle is the runtime itself without optimizations, which runs each node as it is written.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from inlay.space.rules import Rules
from inlay.testing import Builder
from inlay.types import QType
from tests.support.runtime import check_and_load, optimized, run_plain
from tests.support.workspace import Workspace
from tests.targets.onnxruntime.test_rules import CASES, build

Feed = dict[str, np.ndarray]
Make = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

DATA: dict[str, Make] = {
    "normal": lambda rng, shape: rng.normal(0, 1, shape),
    "equal": lambda rng, shape: np.full(shape, rng.uniform(0.5, 1.0)),
    "nearly equal": lambda rng, shape: 3.0 + rng.uniform(-0.02, 0.02, shape),
    "below zero": lambda rng, shape: -np.abs(rng.normal(0, 1, shape)),
    "small": lambda rng, shape: 1e-3 * rng.normal(0, 1, shape),
    "large": lambda rng, shape: 1e3 * rng.standard_t(2, shape),
}
"""Samples of each kind: ranges are those of the same kind and of others, so that data are flat in wide ranges too."""


def feed_of(model: onnx.ModelProto, kind: str, seed: int) -> Feed:
    rng = np.random.default_rng(seed)
    found: Feed = {}
    for value in model.graph.input:
        shape = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        is_bool = value.type.tensor_type.elem_type == onnx.TensorProto.BOOL
        found[value.name] = rng.random(shape) < 0.5 if is_bool else DATA[kind](rng, shape).astype(np.float32)
    return found


def steps_off(model: onnx.ModelProto, feed: Feed) -> float:
    """How far the optimized graph is from the plain one, in steps of the outputs' scales, or of 8 bits."""

    scales = {t.name: float(onnx.numpy_helper.to_array(t)) for t in model.graph.initializer if not t.dims}
    made = {v: n for n in model.graph.node for v in n.output}
    optimized_outputs, found = check_and_load(model).run(None, feed), [0.0]
    for output, want, got in zip(model.graph.output, run_plain(model, feed).values(), optimized_outputs, strict=True):
        node = made[output.name]
        dequantized = node.op_type == "DequantizeLinear"
        step = scales[node.input[1]] if dequantized else max(float(np.abs(want).max()) / 255, 1e-9)
        found.append(float(np.abs(want - got).max()) / step)
    return max(found)


def enclosed(model: onnx.ModelProto, feeds: list[Feed], folder: Path) -> onnx.ModelProto:
    """All of the model in 8 bits, by Inlay."""
    space = Workspace(model, folder, feeds=tuple(feeds))
    return space.emit(space.full())


SINGLE = [(o, v) for o, variants in CASES.items() for v in variants if v != "float output"]


@pytest.mark.matrix(every=5)
@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize(("op_type", "variant"), SINGLE)
def test_kernels_compute_what_their_nodes_say(op_type: str, variant: str, kind: str, tmp_path: Path) -> None:
    model = build(CASES[op_type][variant])
    feeds = [feed_of(model, k, seed) for seed, k in enumerate((kind, "normal"))]
    written = enclosed(model, feeds, tmp_path)
    assert all(steps_off(written, feed) <= 1.01 for feed in feeds)


def pool(**attributes: Any) -> onnx.ModelProto:
    """Operators in 8 bits, with a pool between them."""
    given = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], **attributes}
    b = Builder(opset=19)
    before = b.node("before", "Mul", [b.input("x", (1, 4, 8, 8)), b.constant("two", np.float32(2.0))])
    inside = b.node("inside", "AveragePool", [before], **given)
    b.output(b.node("after", "Mul", [inside, b.constant("three", np.float32(3.0))]))
    return b.model()


WRONG = {"beyond the padding": pool(ceil_mode=1, count_include_pad=1), "dilated": pool(dilations=[2, 2])}
RIGHT = {"rounded up": pool(ceil_mode=1), "plain": pool()}


@pytest.mark.parametrize("case", [*WRONG, *RIGHT])
def test_what_is_wrong_runs_in_float_between_what_is_not(case: str, tmp_path: Path) -> None:
    model = (WRONG | RIGHT)[case]
    feeds = [feed_of(model, "normal", seed) for seed in range(2)]
    space = Workspace(model, tmp_path, feeds=tuple(feeds))
    unit = next(u for u in space.prepared.units if u.name == "inside")
    assert unit.selectable == (case in RIGHT), unit.rejection
    written = space.emit(space.full())
    kernels = [n.op_type for n in optimized(written, tmp_path).graph.node]
    assert kernels.count("QLinearMul") >= 1, "the operators around it are in integers"
    assert ("AveragePool" in kernels) == (case in WRONG)
    assert all(steps_off(written, feed) <= 1.01 for feed in feeds)


def test_without_a_second_reader_the_runtime_is_wrong(tmp_path: Path) -> None:
    """The control: what the runtime makes of the same file once the Size that nobody needs is gone."""
    model = WRONG["beyond the padding"]
    feed = feed_of(model, "normal", 0)
    written = enclosed(model, [feed], tmp_path)
    kept = [n for n in written.graph.node if n.op_type != "Size"]
    assert len(kept) < len(written.graph.node)
    del written.graph.node[:]
    written.graph.node.extend(kept)
    assert steps_off(written, feed) > 10.0


def softmax(length: int, axis: int = -1, opset: int = 17) -> onnx.ModelProto:
    shape = (2, length, 3) if axis == 1 and opset >= 13 else (2, 3, length)
    b = Builder(opset=opset)
    before = b.node("before", "Mul", [b.input("x", shape), b.constant("two", np.float32(2.0))])
    b.output(b.node("soft", "Softmax", [before], axis=axis))
    return b.model()


FLAT = {
    "one": softmax(1),
    "two": softmax(2),
    "rows": softmax(50),
    "long rows": softmax(439),
    "columns": softmax(20, axis=1),
    "a block of an old opset": softmax(20, axis=1, opset=12),
}


FLAT_ROWS = dict(zip(FLAT, (1, 2, 50, 439, 20, 60), strict=True))


@pytest.mark.parametrize("case", FLAT)
def test_flat_rows_of_a_softmax_stay_what_they_are(case: str, tmp_path: Path) -> None:
    """Where samples have no others, the range of the result would end at what all elements are."""
    model = FLAT[case]
    feeds = [feed_of(model, kind, 0) for kind in ("nearly equal", "equal")]
    space = Workspace(model, tmp_path, feeds=tuple(feeds))
    written = space.emit(space.full())
    assert "QLinearSoftmax" in [n.op_type for n in optimized(written, tmp_path).graph.node]
    assert all(steps_off(written, feed) <= 1.01 for feed in feeds)
    scale = space.table.params("soft_out", QType.UINT8).scale[0]
    assert scale == pytest.approx(2.0 / FLAT_ROWS[case] / 255.0)


def test_they_do_so_behind_a_clip_that_the_runtime_removes(tmp_path: Path) -> None:
    b = Builder()
    x = b.node("before", "Mul", [b.input("x", (2, 3, 20)), b.constant("two", np.float32(2.0))])
    x = b.node("clip", "Clip", [b.node("soft", "Softmax", [x]), b.constant("low", 0.0), b.constant("high", 1.0)])
    b.output(b.node("after", "LeakyRelu", [x]))
    model = b.model()
    feed = feed_of(model, "nearly equal", 0)
    space = Workspace(model, tmp_path, feeds=(feed,))
    assert space.prepared.rules.reaches(space.graph) == {"soft_out": (0.0, 0.1), "clip_out": (0.0, 0.1)}
    assert steps_off(space.emit(space.label("before", "after")), feed) <= 1.01


def test_without_that_the_runtime_makes_zeros_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control, in the versions that do."""
    if tuple(map(int, ort.__version__.split(".")[:2])) >= (1, 32):
        pytest.skip("this version of the runtime is right")
    monkeypatch.setattr(Rules, "reaches", lambda rules, graph: {})
    for case, model in FLAT.items():
        feed = feed_of(model, "nearly equal", 0)
        assert steps_off(enclosed(model, [feed], tmp_path), feed) > 100.0, case
