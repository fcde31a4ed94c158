"""Q/DQ at the inputs of weighted operators only: what lies between them is computed in 16 bits, not on the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from benchmarks.lowering import inputs_only

from inlay.tosa import ir
from inlay.tosa.ir import Array
from inlay.tosa.lowering import Lowered, lower
from inlay.tosa.reference import LoweredRunner
from tests.tosa.comparison import assert_equal, by_oracle, host_by_ort, run_ort
from tests.tosa.float_models import SIDE, FloatNet, generated, samples, unseen
from tests.tosa.models import quantize


def taken_apart(model: onnx.ModelProto) -> onnx.ModelProto:
    return inputs_only(quantize(onnx.shape_inference.infer_shapes(model), samples(8)))


def compare(qdq: onnx.ModelProto, steps: Sequence[float]) -> Lowered:
    """Oracle == TOSA reference model, and both near ONNX Runtime, in parts of 255 of what each output spans.

    Where a value lies on a rounding edge, both round to different sides; behind a Conv, such a step can become two.
    """
    lowered = lower(qdq)
    for feed in samples(3, seed=9):
        ours = LoweredRunner(lowered).run(feed)
        assert_equal(ours, by_oracle(lowered.graph, feed, host_by_ort(lowered)))
        for a, b, limit in zip(ours, run_ort(qdq, feed), steps, strict=True):
            assert np.abs(a - b).max() <= limit * np.ptp(b) / 255
            assert np.sqrt(np.square(a - b).mean()) <= limit / 2 * np.ptp(b) / 255
    return lowered


ACTIVATIONS = {
    "Relu": {}, "LeakyRelu": {"alpha": 0.1}, "HardSwish": {}, "HardSigmoid": {}, "Sigmoid": {}, "Tanh": {}, "Elu": {},
    "Selu": {}, "Celu": {}, "Softplus": {}, "Softsign": {}, "Erf": {}, "Abs": {}, "Neg": {}, "ThresholdedRelu": {},
    "Exp": {},
}  # fmt: skip


REFUSED = {"ThresholdedRelu": "by interpolation", "Exp": "16 bits do not hold it well"}
"""A jump lies inside a segment; an exponential of what weights allow has no useful range."""


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_an_activation_without_numbers_of_its_own(kind: str) -> None:
    n = FloatNet(1)
    bare = n.op(kind, [n.conv("x", 3, 8)], **ACTIVATIONS[kind])
    y = n.op("Relu", [n.conv(bare, 8, 4)])
    lowered = compare(
        taken_apart(n.model({y: [1, 4, 16, 16], bare: [1, 8, 16, 16]})), [np.inf] * 2 if kind in REFUSED else [2.0, 0.5]
    )
    if kind in REFUSED:
        assert [(r.op_type, REFUSED[kind] in r.reason) for r in lowered.not_lowered] == [(kind, True)]
    else:
        assert not lowered.not_lowered
        assert [p.kind for p in lowered.partitions] == ["tosa"]


def test_a_bare_sum_a_gate_and_a_join() -> None:
    lowered = compare(taken_apart(unseen()), [4.0, 6.0])
    assert [(r.op_type, r.reason) for r in lowered.not_lowered] == [("Sub", "its input 'x' is not quantized")]
    assert sum(p.kind == "tosa" for p in lowered.partitions) == 1
    assert any(t.dtype == "int16" for t in lowered.graph.tensors.values())


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("seed", range(8))
def test_random_graphs(seed: int) -> None:
    """All is integer but an operator without a rule, and what reads its float results without a pair between."""
    lowered = compare(taken_apart(generated(seed)), [6.0])
    left = {n.op_type: n.reason for n in lowered.not_lowered if n.op_type != "CumSum"}
    assert all("is not quantized" in reason for reason in left.values())
    assert not left or any(n.op_type == "CumSum" for n in lowered.not_lowered)


@pytest.mark.parametrize(
    ("kind", "reads", "attributes"),
    [
        ("Resize", ["", "scales"], {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}),
        ("Resize", ["", "scales"], {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
        ("AveragePool", [], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        ("AveragePool", [], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("GlobalAveragePool", [], {}),
        ("GlobalMaxPool", [], {}),
        ("MaxPool", [], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Softmax", [], {"axis": 1}),
        ("Softmax", [], {"axis": 3}),
        ("Clip", ["low", "high"], {}),
        ("Mul", ["channels"], {}),
        ("Add", ["channels"], {}),
        ("Transpose", [], {"perm": [0, 2, 3, 1]}),
        ("DepthToSpace", [], {"blocksize": 2}),
    ],
)  # fmt: skip
def test_an_operator_of_sixteen_bits(kind: str, reads: list[str], attributes: dict[str, object]) -> None:
    """By itself, behind a Conv and before a model output: within a part of an 8-bit step of ONNX Runtime."""
    n = FloatNet(3)
    known: dict[str, Array | np.generic] = {
        "scales": np.array([1, 1, 2, 2], np.float32), "low": np.float32(-0.3), "high": np.float32(0.7),
        "channels": n.rng.normal(size=(8, 1, 1)).astype(np.float32),
    }  # fmt: skip
    y = n.op(kind, [n.conv("x", 3, 8), *(n.const(known[r]) if r else "" for r in reads)], **attributes)
    model = n.model({y: [1, None, None, None]})
    lowered = compare(taken_apart(model), [0.3])
    assert not lowered.not_lowered
    assert any(t.dtype == "int16" for t in lowered.graph.tensors.values())


def test_sixteen_bits_hold_every_value_that_the_weights_allow() -> None:
    """The input of largest response to each channel, which no sample comes near, saturates nothing."""
    n = FloatNet(2)
    conv = n.conv("x", 3, 4, kernel=5)
    qdq = taken_apart(n.model({n.op("Add", [conv, conv]): [1, 4, 16, 16]}))
    lowered = lower(qdq)
    assert not lowered.not_lowered
    w = next(iter(lowered.graph.constants[op.inputs[1]] for op in lowered.graph.ops if isinstance(op, ir.Conv2d)))
    feed = {"x": np.zeros((1, 3, 16, 16), np.float32)}
    feed["x"][0, :, 4:9, 4:9] = np.where(w[0] > 0, 100.0, -100.0)
    for a, b in zip(LoweredRunner(lowered).run(feed), run_ort(qdq, feed), strict=True):
        np.testing.assert_allclose(a, b, atol=np.abs(b).max() / 10000)


@pytest.mark.parametrize("shared", [True, False])
def test_what_moves_an_input_before_it_is_quantized_moves_integers(shared: bool) -> None:
    """And where a move's result is also read in float, it stays where it was."""
    n = FloatNet(1)
    turned = n.op("Transpose", ["x"], perm=[0, 1, 3, 2])
    padded = n.op("Pad", [turned, n.const(np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64))])
    y = n.op("Relu", [n.conv(padded, 3, 4)])
    outputs = {y: [1, 4, 18, 18]}
    if shared:
        outputs[padded] = [1, 3, 18, 18]
    lowered = compare(taken_apart(n.model(outputs)), [0.5] * len(outputs))
    left = {r.op_type for r in lowered.not_lowered} - {"QuantizeLinear", "DequantizeLinear"}
    assert left == ({"Transpose", "Pad"} if shared else set())


def test_an_image_that_is_cut_and_joined_before_it_is_quantized_moves_integers() -> None:
    """As detectors do: every second row and column, joined; one pair on the image serves all the cuts."""
    n = FloatNet(1)
    axes, steps = n.const(np.array([2, 3], np.int64)), n.const(np.array([2, 2], np.int64))
    ends = n.const(np.array([SIDE, SIDE], np.int64))
    cuts = [n.op("Slice", ["x", n.const(np.array(at, np.int64)), ends, axes, steps]) for at in ([0, 0], [1, 0])]
    y = n.op("Relu", [n.conv(n.op("Concat", cuts, axis=1), 6, 4)])
    lowered = compare(taken_apart(n.model({y: [1, 4, SIDE // 2, SIDE // 2]})), [0.5])
    assert {r.op_type for r in lowered.not_lowered} <= {"QuantizeLinear", "DequantizeLinear"}


def test_a_pair_of_the_model_that_stands_behind_a_move_does_not_serve_it() -> None:
    """The image itself is quantized as well, with the same scale, for a convolution that is listed last."""
    n = FloatNet(1)
    turned = n.op("Transpose", ["x"], perm=[0, 1, 3, 2])
    first, last = n.op("Relu", [n.conv(turned, 3, 4)]), n.op("Relu", [n.conv("x", 3, 4)])
    shape = [1, 4, SIDE, SIDE]
    model = taken_apart(n.model({first: shape, last: shape}))
    nodes = list(model.graph.node)
    quantize = next(n for n in nodes if n.op_type == "QuantizeLinear" and n.input[0] == "x")
    back = next(n for n in nodes if n.input[0] == quantize.output[0])
    others = [n for n in nodes if n not in (quantize, back)]
    reader = next(i for i, n in enumerate(others) if back.output[0] in n.input)
    late = [onnx.NodeProto.FromString(n.SerializeToString()) for n in (*others[:reader], quantize, back)]
    late += [onnx.NodeProto.FromString(n.SerializeToString()) for n in others[reader:]]
    del model.graph.node[:]
    model.graph.node.extend(late)
    kinds = [n.op_type for n in late]
    assert kinds.index("Transpose") < late.index(quantize), "the control: the move stands before the pair"
    lowered = compare(model, [0.5, 0.5])
    assert {r.op_type for r in lowered.not_lowered} <= {"QuantizeLinear", "DequantizeLinear"}
