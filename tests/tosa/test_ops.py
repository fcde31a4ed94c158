"""Every lowered operator, under random shapes and qparams: numpy oracle == TOSA reference model bit for bit, and both
within one step of ONNX Runtime on the Q/DQ model (each rounds once; ONNX Runtime ties to even, TOSA half up)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from inlay.tosa import ir
from inlay.tosa.lowering import lower
from inlay.tosa.rules import RULES, functions
from tests.tosa.comparison import three_ways
from tests.tosa.nets import Net, normal_feed, random_weights
from tests.tosa.one_op import ScaleZero, check, covering, few, scale, scale_zeros, seeds, zero


@few
@given(data=st.data(), seed=seeds, xq=scale_zeros, zp=zero)
def test_conv(data: st.DataObject, seed: int, xq: ScaleZero, zp: int) -> None:
    draw = data.draw
    rng = np.random.default_rng(seed)
    one_d = draw(st.booleans())
    group = draw(st.sampled_from(["dense", "depthwise", "grouped"]))
    channels = draw(st.sampled_from([4, 6])) if group == "grouped" else draw(st.integers(1, 5))
    groups = {"dense": 1, "depthwise": channels, "grouped": 2}[group]
    out = groups * draw(st.integers(1, 3))
    rank = 1 if one_d else 2
    kernel = [draw(st.integers(1, 4)) for _ in range(rank)]
    dilations = [draw(st.integers(1, 2)) for _ in range(rank)]
    strides = [draw(st.integers(1, 3)) for _ in range(rank)]
    pads = [draw(st.integers(0, 2)) for _ in range(2 * rank)]
    size = [draw(st.integers((k - 1) * d + 1, 12)) for k, d in zip(kernel, dilations, strict=True)]
    for i, (s, stride) in enumerate(zip(size, strides, strict=True)):
        reach, begin, end = (kernel[i] - 1) * dilations[i] + 1, pads[i], pads[i + rank]
        last = (s + begin + end - reach) // stride * stride - begin
        assume(last + reach > 0)  # else: test_windows_of_padding_only
    n = Net()
    x = n.qdq(n.input([draw(st.integers(1, 2)), channels, *size]), *xq)
    w = random_weights(rng, out, channels // groups, *kernel)
    ws = rng.uniform(0.001, 0.02, out).astype(np.float32) if draw(st.booleans()) else np.float32(0.01)
    inputs = [x, n.weight(w, ws)]
    if draw(st.booleans()):
        inputs.append(n.bias(rng.normal(size=out), np.float32(xq[0]) * ws))
    y = n.op("Conv", inputs, strides=strides, pads=pads, dilations=dilations, group=groups)
    activation = draw(st.sampled_from(["", "Relu", "Clip"]))
    if activation == "Relu":
        y = n.op("Relu", [y])
    elif activation:
        y = n.op("Clip", [y, n.f32(0), n.f32(6)])
    check(n, y, covering(n, y, zp), seed)


@pytest.mark.parametrize(("groups", "scales"), [(0, 4), (3, 4), (1, 3)])
def test_a_conv_that_is_none_stays_on_the_host(groups: int, scales: int) -> None:
    """Groups that do not divide its outputs, and scales that do not fit them, are reasons."""
    rng = np.random.default_rng(0)
    n = Net()
    x = n.qdq(n.input([1, 4, 6, 6]), 0.05, 3)
    w = n.weight(random_weights(rng, 4, 4, 3, 3), rng.uniform(0.001, 0.02, 4).astype(np.float32))
    n.output(n.qdq(n.op("Relu", [n.qdq(n.op("Conv", [x, w]), 0.05, 0)]), 0.05, 0))
    model = n.model()
    conv = next(node for node in model.graph.node if node.op_type == "Conv")
    conv.attribute.append(helper.make_attribute("group", groups))
    for tensor in model.graph.initializer:
        if list(tensor.dims) == [4] and scales != 4:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:scales], tensor.name))
    left = {r.op_type: r.reason for r in lower(model).not_lowered}
    assert "groups" in left["Conv"] if scales == 4 else "do not fit" in left["DequantizeLinear"]


def test_windows_of_padding_only() -> None:
    """The only window lies in the padding: TOSA has no such convolution, because its windows end on the padded edge."""
    n = Net()
    x = n.qdq(n.input([1, 4, 1]), 0.05, 3)
    weight = n.weight(random_weights(np.random.default_rng(0), 4, 4, 1), 0.01)
    n.output(n.qdq(n.op("Conv", [x, weight], strides=[3], pads=[2, 0]), 0.05, 3))
    (reason,) = [r.reason for r in lower(n.model()).not_lowered if r.op_type == "Conv"]
    assert reason == "its windows read padding only"


@few
@given(data=st.data(), seed=seeds, xq=scale_zeros, zp=zero)
def test_conv_transpose(data: st.DataObject, seed: int, xq: ScaleZero, zp: int) -> None:
    draw = data.draw
    rng = np.random.default_rng(seed)
    one_d, groups = draw(st.booleans()), draw(st.sampled_from([1, 1, 2]))
    rank = 1 if one_d else 2
    channels, per_out = groups * draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel = [draw(st.integers(2, 4)) for _ in range(rank)]
    strides = [draw(st.integers(1, 3)) for _ in range(rank)]
    dilations = [draw(st.integers(1, 2)) for _ in range(rank)]
    pads = [draw(st.integers(0, 1)) for _ in range(2 * rank)]
    extra = [draw(st.integers(0, max(s - 1, 0))) for s in strides]
    n = Net()
    x = n.qdq(n.input([1, channels, *(draw(st.integers(2, 6)) for _ in range(rank))]), *xq)
    w = random_weights(rng, channels, per_out, *kernel)
    per_channel = groups == 1 and draw(st.booleans())
    ws = rng.uniform(0.001, 0.02, per_out).astype(np.float32) if per_channel else np.float32(0.01)
    inputs = [x, n.weight(w, ws, axis=1)]
    if draw(st.booleans()):
        inputs.append(n.bias(rng.normal(size=per_out * groups), np.float32(xq[0]) * ws))
    y = n.op(
        "ConvTranspose", inputs, strides=strides, pads=pads, dilations=dilations, group=groups, output_padding=extra
    )
    check(n, y, covering(n, y, zp), seed)


@few
@given(data=st.data(), seed=seeds, xq=scale_zeros, zp=zero)
def test_gemm_and_matmul(data: st.DataObject, seed: int, xq: ScaleZero, zp: int) -> None:
    draw = data.draw
    rng = np.random.default_rng(seed)
    k, columns = draw(st.integers(1, 20)), draw(st.integers(1, 9))
    gemm = draw(st.booleans())
    lead = [draw(st.integers(1, 3))] if gemm else [draw(st.integers(1, 3)) for _ in range(draw(st.integers(1, 3)))]
    n = Net()
    x = n.qdq(n.input([*lead, k]), *xq)
    ws = rng.uniform(0.001, 0.02, columns).astype(np.float32) if draw(st.booleans()) else np.float32(0.01)
    turned = gemm and draw(st.booleans())
    w = rng.integers(-127, 128, (columns, k) if turned else (k, columns)).astype(np.int8)
    inputs = [x, n.weight(w, ws, axis=0 if turned else 1)]
    if gemm:
        if draw(st.booleans()):
            inputs.append(n.bias(rng.normal(size=columns), np.float32(xq[0]) * ws))
        y = n.op("Gemm", inputs, transB=int(turned))
    else:
        y = n.op("MatMul", inputs)
    check(n, y, covering(n, y, zp), seed)


@few
@given(data=st.data(), seed=seeds, aq=scale_zeros, bq=scale_zeros, zp=zero)
def test_matmul_of_activations(data: st.DataObject, seed: int, aq: ScaleZero, bq: ScaleZero, zp: int) -> None:
    draw = data.draw
    lead = [draw(st.integers(1, 3)) for _ in range(draw(st.integers(0, 2)))]
    m, k, columns = (draw(st.integers(1, 8)) for _ in range(3))
    n = Net()
    a, b = n.qdq(n.input([*lead, m, k]), *aq), n.qdq(n.input([*lead, k, columns]), *bq)
    y = n.op("MatMul", [a, b])
    check(n, y, covering(n, y, zp), seed)


@few
@given(data=st.data(), seed=seeds, aq=scale_zeros, bq=scale_zeros, zp=zero)
@pytest.mark.parametrize("kind", ["Add", "Sub", "Sum", "Mul", "Min", "Max"])
def test_two_operands(kind: str, data: st.DataObject, seed: int, aq: ScaleZero, bq: ScaleZero, zp: int) -> None:
    draw = data.draw
    shape = [draw(st.integers(1, 4)) for _ in range(draw(st.integers(1, 4)))]
    other = [1 if draw(st.booleans()) else d for d in shape][draw(st.integers(0, len(shape) - 1)) :]
    n = Net()
    a = n.qdq(n.input(shape), *aq)
    what = draw(
        st.sampled_from(
            ["activation", "same scale", "same qparams", "constant", "scalar", "quantized constant", "same"]
        )
    )
    rng = np.random.default_rng(seed)
    match what:
        case "activation":
            b = n.qdq(n.input(other), *bq)
        case "same scale" | "same qparams":
            b = n.qdq(n.input(other), aq[0], aq[1] if what == "same qparams" else bq[1])
        case "constant":
            b = n.const((rng.normal(size=other) * 2).astype(np.float32))
        case "scalar":
            b = n.const(np.float32(rng.normal() * 2))
        case "quantized constant":
            b = n.weight(rng.integers(-127, 128, other).astype(np.int8), 0.02)
        case _:
            b = a
    operands = [a, b] if draw(st.booleans()) else [b, a]
    y = n.op(kind, operands)
    check(n, y, covering(n, y, zp), seed)


@few
@given(data=st.data(), seed=seeds, zp=zero)
@pytest.mark.parametrize("kind", ["Min", "Max", "Sum"])
def test_three_operands(kind: str, data: st.DataObject, seed: int, zp: int) -> None:
    n = Net()
    sides = [n.qdq(n.input([2, 3, 4]), *data.draw(scale_zeros)) for _ in range(2)]
    sides.append(n.const(np.random.default_rng(seed).normal(size=[3, 1]).astype(np.float32)))
    y = n.op(kind, sides)
    check(n, y, covering(n, y, zp), seed)


@few
@given(data=st.data(), seed=seeds, xq=scale_zeros, zp=zero)
def test_prelu(data: st.DataObject, seed: int, xq: ScaleZero, zp: int) -> None:
    n = Net()
    shape = data.draw(st.sampled_from([[1], [3, 1, 1], [2, 3, 4, 5], [5]]))
    slope = np.random.default_rng(seed).normal(size=shape).astype(np.float32) * data.draw(st.sampled_from([0.2, 3.0]))
    y = n.op("PRelu", [n.qdq(n.input([2, 3, 4, 5]), *xq), n.const(slope)])
    check(n, y, covering(n, y, zp), seed)


@pytest.mark.matrix(every=4)
@few
@given(seed=seeds, xq=scale_zeros, gq=scale_zeros, zp=zero)
@pytest.mark.parametrize("function", ["Sigmoid", "HardSigmoid", "Tanh", ""])
@pytest.mark.parametrize("kind", ["Mul", "Add", "Sub"])
def test_an_operand_that_is_a_function_of_the_other(
    kind: str, function: str, seed: int, xq: ScaleZero, gq: ScaleZero, zp: int
) -> None:
    """A gate, and a value beside itself: one TABLE, which rounds where ONNX Runtime rounds."""
    n = Net()
    x = n.qdq(n.input([2, 3, 4]), *xq)
    y = n.op(kind, [x, n.qdq(n.op(function, [x]), *gq) if function else x])
    to = covering(n, y, zp)
    n.output(n.qdq(y, *to))
    model = n.model()
    lowered = lower(model)
    assert "Binary" not in {type(op).__name__ for op in lowered.graph.ops}
    three_ways(model, normal_feed(model, seed, deviation=3), lsb=to[0])


def test_an_operand_of_another_shape_is_no_function_of_one_value() -> None:
    """Negative control: a table cannot read two elements."""
    n = Net()
    x = n.qdq(n.input([1, 4, 4]), 0.05, 3)
    turned = n.qdq(n.op("Transpose", [n.qdq(n.op("Sigmoid", [x]), 1 / 256, -128)], perm=[0, 2, 1]), 1 / 256, -128)
    check(n, n.op("Mul", [x, turned]), (0.05, 0), 1)


@few
@given(data=st.data(), seed=seeds, xq=scale_zeros, yq=scale_zeros)
@pytest.mark.parametrize("kind", ["Relu", "Clip", "LeakyRelu", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh", "Elu"])
def test_one_operand(kind: str, data: st.DataObject, seed: int, xq: ScaleZero, yq: ScaleZero) -> None:
    n = Net()
    shape = [data.draw(st.integers(1, 5)) for _ in range(data.draw(st.integers(1, 4)))]
    x = n.qdq(n.input(shape), *xq)
    inputs = [x, n.f32(-1), n.f32(2.3)] if kind == "Clip" else [x]
    check(n, n.op(kind, inputs), yq, seed)


TABLES = tuple(op for op in functions.UNARY if op not in ("Gelu", "Mish", "Pow"))  # those have tests of their own


@pytest.mark.matrix(every=4)
@settings(max_examples=8, deadline=None)
@given(data=st.data(), seed=seeds, xq=scale_zeros, yq=scale_zeros)
@pytest.mark.parametrize("kind", TABLES)
def test_every_table(kind: str, data: st.DataObject, seed: int, xq: ScaleZero, yq: ScaleZero) -> None:
    """Bit for bit what ONNX Runtime gives; infinite results saturate, and what is not a number is refused."""
    n = Net()
    x = n.qdq(n.input([2, 3, 5]), *xq)
    n.output(n.qdq(n.op(kind, [x]), *yq))
    lowered = lower(n.model())
    if kind in ("Log", "Sqrt") and xq[1] > -128:
        assert "not a number" in lowered.not_lowered[0].reason
        return
    assert not lowered.not_lowered
    feed = {"in1": (np.random.default_rng(seed).normal(size=(2, 3, 5)) * 3).astype(np.float32)}
    three_ways(n.model(), feed, limit=0)


@settings(max_examples=8, deadline=None)
@given(data=st.data(), seed=seeds, xq=scale_zeros, yq=scale_zeros)
@pytest.mark.parametrize("kind", ["Gelu", "Mish", "PRelu", "Pow"])
def test_tables_of_newer_opsets_and_with_a_constant(
    kind: str, data: st.DataObject, seed: int, xq: ScaleZero, yq: ScaleZero
) -> None:
    n = Net({"Gelu": 20, "Mish": 18}.get(kind, 17))
    x = n.qdq(n.input([2, 3, 5]), *xq)
    others = {"PRelu": [n.const(np.array([0.2], np.float32))], "Pow": [n.f32(2)]}.get(kind, [])
    n.output(n.qdq(n.op(kind, [x, *others]), *yq))
    assert not lower(n.model()).not_lowered
    feed = {"in1": (np.random.default_rng(seed).normal(size=(2, 3, 5)) * 3).astype(np.float32)}
    three_ways(n.model(), feed, limit=0)


@few
@given(data=st.data(), seed=seeds, xq=scale_zeros, zp=zero)
def test_division_by_a_constant(data: st.DataObject, seed: int, xq: ScaleZero, zp: int) -> None:
    n = Net()
    x = n.qdq(n.input([2, 3, 4, 5]), *xq)
    shape = data.draw(st.sampled_from([(), (3, 1, 1), (5,), (2, 3, 4, 5)]))
    divisor = np.random.default_rng(seed).uniform(0.3, 4, shape).astype(np.float32)
    y = n.op("Div", [x, n.const(divisor)])
    check(n, y, covering(n, y, zp), seed)


COVERED = {
    "Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sub", "Sum", "Mul", "Div", "Min", "Max", "BatchNormalization",
    "PRelu", "Relu", "Clip", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceSum",
    "ReduceMax", "ReduceMin", "Softmax", "LogSoftmax", "LayerNormalization", "Where", "Concat", "Resize",
    "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Expand", "Tile", "Slice",
    "Pad", "Split", "Gather", "Identity", "SpaceToDepth", "DepthToSpace",
}  # fmt: skip


def test_every_rule_has_a_test() -> None:
    untested = {"Upsample", "Dropout"}  # older names of Resize and Identity, by the same rules
    assert set(RULES) - COVERED - set(functions.UNARY) == untested


@few
@given(data=st.data(), seed=seeds, xq=scale_zeros, same=st.booleans())
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_pool(kind: str, data: st.DataObject, seed: int, xq: ScaleZero, same: bool) -> None:
    draw = data.draw
    rank = draw(st.integers(1, 2))
    kernel = [draw(st.integers(1, 4)) for _ in range(rank)]
    strides = [draw(st.integers(1, 3)) for _ in range(rank)]
    pads = [draw(st.integers(0, k - 1)) for k in kernel * 2]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "pads": pads}
    if kind == "AveragePool":
        attributes["count_include_pad"] = draw(st.integers(0, 1))
    elif not any(pads) and all(s <= k for s, k in zip(strides, kernel, strict=True)):
        attributes["ceil_mode"] = draw(st.integers(0, 1))
    n = Net()
    x = n.qdq(n.input([1, draw(st.integers(1, 4)), *(draw(st.integers(k, 9)) for k in kernel)]), *xq)
    # Finer steps at the output: rounding twice would show.
    to = xq if same else (xq[0] * (draw(st.sampled_from([0.3, 1.3])) if kind == "AveragePool" else 0.7), 11)
    check(n, n.op(kind, [x], **attributes), to, seed)


@few
@given(data=st.data(), seed=seeds, xq=scale_zeros, zp=zero)
@pytest.mark.parametrize(
    "kind", ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "GlobalAveragePool", "GlobalMaxPool"]
)
def test_reduce(kind: str, data: st.DataObject, seed: int, xq: ScaleZero, zp: int) -> None:
    draw = data.draw
    rank = draw(st.integers(3, 4)) if kind.startswith("Global") else draw(st.integers(1, 4))
    shape = [draw(st.integers(1, 6)) for _ in range(rank)]
    n = Net()
    x = n.qdq(n.input(shape), *xq)
    if kind.startswith("Global"):
        y = n.op(kind, [x])
    else:
        axes = draw(st.lists(st.integers(0, rank - 1), min_size=1, max_size=rank, unique=True))
        keep = draw(st.integers(0, 1)) if len(axes) < rank else 1
        if kind == "ReduceSum":
            y = n.op(kind, [x, n.i64(*axes)], keepdims=keep)
        else:
            y = n.op(kind, [x], axes=axes, keepdims=keep)
    check(n, y, covering(n, y, zp), seed)


@few
@given(data=st.data(), seed=seeds, xq=scale_zeros)
def test_softmax(data: st.DataObject, seed: int, xq: ScaleZero) -> None:
    draw = data.draw
    shape = [draw(st.integers(1, 9)) for _ in range(draw(st.integers(1, 4)))]
    n = Net(draw(st.sampled_from([12, 17])))
    y = n.op("Softmax", [n.qdq(n.input(shape), *xq)], axis=draw(st.integers(0, len(shape) - 1)))
    check(n, y, (1 / 256, -128), seed)


@settings(max_examples=8, deadline=None)
@given(data=st.data(), seed=seeds, xq=scale_zeros)
def test_log_softmax(data: st.DataObject, seed: int, xq: ScaleZero) -> None:
    draw = data.draw
    shape = [draw(st.integers(2, 9)) for _ in range(draw(st.integers(1, 4)))]
    n = Net(draw(st.sampled_from([12, 17])))
    y = n.op("LogSoftmax", [n.qdq(n.input(shape), *xq)], axis=draw(st.integers(0, len(shape) - 1)))
    check(n, y, covering(n, y, 127), seed)


@settings(max_examples=8, deadline=None)
@given(data=st.data(), seed=seeds, scale=scale, zp=zero)
def test_layer_normalization(data: st.DataObject, seed: int, scale: float, zp: int) -> None:
    draw = data.draw
    shape = [draw(st.integers(1, 4)) for _ in range(draw(st.integers(1, 3)))] + [draw(st.integers(4, 200))]
    axis = draw(st.integers(max(0, len(shape) - 2), len(shape) - 1))
    rng = np.random.default_rng(seed)
    n = Net()
    x = n.qdq(n.input(shape), max(scale, 0.02), draw(st.integers(-40, 40)))  # steps finer than what varies
    factors = [n.const(rng.normal(size=shape[axis:]).astype(np.float32)) for _ in range(draw(st.integers(1, 2)))]
    y = n.op("LayerNormalization", [x, *factors], axis=axis)
    check(n, y, covering(n, y, zp), seed)


def test_layer_normalization_of_equal_values_and_of_a_long_row() -> None:
    """A row without variance is its offset; one that varies by single steps is normalized to a hundredth."""
    rng = np.random.default_rng(0)
    n = Net()
    x = n.qdq(n.input([4, 768]), 0.1, 3)
    offset = n.const(rng.normal(size=768).astype(np.float32))
    y = n.op("LayerNormalization", [x, n.const(np.ones(768, np.float32)), offset])
    n.output(n.qdq(y, 0.04, 0))
    feed = np.zeros((4, 768), np.float32)
    feed[1], feed[2], feed[3] = 0.1 * rng.integers(-1, 2, 768), rng.normal(size=768) * 4, 1.0
    three_ways(n.model(), {"in1": feed}, lsb=0.04)


@settings(max_examples=8, deadline=None)
@given(data=st.data(), seed=seeds, aq=scale_zeros, bq=scale_zeros, zp=zero)
def test_where_by_a_constant(data: st.DataObject, seed: int, aq: ScaleZero, bq: ScaleZero, zp: int) -> None:
    rng = np.random.default_rng(seed)
    n = Net()
    mask = n.const(rng.random(data.draw(st.sampled_from([(2, 3, 4, 5), (4, 5), (3, 1, 1)]))) < 0.5)
    a = n.qdq(n.input([2, 3, 4, 5]), *aq)
    b = n.qdq(n.input([2, 3, 1, 5]), *bq) if data.draw(st.booleans()) else n.f32(-1)
    y = n.op("Where", [mask, *([a, b] if data.draw(st.booleans()) else [b, a])])
    check(n, y, covering(n, y, zp), seed)


def test_where_at_run_time_and_with_infinity() -> None:
    """The condition is computed on the host; minus infinity saturates, as QuantizeLinear has it."""
    n = Net()
    a, raw = n.qdq(n.input([1, 3, 4, 5]), 0.05, 3), n.input([1, 1, 4, 5])
    y = n.op("Where", [n.op("Greater", [raw, n.f32(0)]), a, n.const(np.array(-np.inf, np.float32))])
    n.output(n.qdq(y, 0.05, 3))
    model = n.model()
    assert [r.op_type for r in lower(model).not_lowered] == ["Greater"]
    rng = np.random.default_rng(0)
    feed = {v.name: rng.normal(size=[d.dim_value for d in v.type.tensor_type.shape.dim]) for v in model.graph.input}
    three_ways(model, {k: v.astype(np.float32) for k, v in feed.items()}, lsb=0.05)


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("zp", [-128, -7, 0, 127])
def test_a_scalar_constant_is_an_exact_table(kind: str, quantized: bool, zp: int) -> None:
    """One function of one value: no rounding of its own, in whatever rank."""
    for shape in ([1, 4, 5, 6], [3, 7]):
        n = Net()
        x = n.qdq(n.input(shape), 0.037, zp)
        c = n.weight(np.array(71, np.int8), 0.01) if quantized else n.f32(0.71)
        n.output(n.qdq(n.op(kind, [x, c]), 0.05, 5))
        model = n.model()
        assert any(isinstance(op, ir.Table) for op in lower(model).graph.ops)
        three_ways(model, normal_feed(model, 1, deviation=3), limit=0)


def test_sums_that_int32_cannot_hold_stay_on_the_host() -> None:
    rng = np.random.default_rng(0)
    for kind in ("MatMul", "Gemm", "activations", "Conv"):
        n = Net()
        length = 70_000
        x = n.qdq(n.input([1, length, 1, 1] if kind == "Conv" else [1, length]), 0.05, 127)
        w = np.full((length, 2), 127, np.int8)
        match kind:
            case "Conv":
                y = n.op("Conv", [x, n.weight(np.full((2, length, 1, 1), 127, np.int8), 0.01)])
            case "activations":
                y = n.op("MatMul", [x, n.qdq(n.input([length, 2]), 0.05, 127)])
            case _:
                y = n.op(kind, [x, n.weight(w, 0.01)])
        n.output(n.qdq(y, 100.0, 0))
        (left,) = lower(n.model()).not_lowered
        assert left.reason == f"sums of its {length} products do not fit int32"
    n = Net()
    x = n.qdq(n.input([1, length]), 0.05, 0)
    y = n.op("MatMul", [x, n.weight(rng.integers(-3, 4, (length, 2)).astype(np.int8), 0.01)])
    n.output(n.qdq(y, 2.0, 0))
    assert not lower(n.model()).not_lowered  # small weights: it is the sum that counts, not the length


@pytest.mark.parametrize("bounds", [(2.0, -1.0), (np.inf, 1.0), (-np.inf, -0.5), (0.3, 0.3), (0.5, np.inf)])
def test_bounds_that_are_crossed_infinite_or_equal(bounds: tuple[float, float]) -> None:
    n = Net()
    x = n.qdq(n.input([1, 3, 4, 5]), 0.05, 3)
    y = n.op("Clip", [x, *map(n.f32, bounds)])
    check(n, y, (0.05, 3), 0)


def test_a_bound_that_is_no_number_stays_on_the_host() -> None:
    n = Net()
    y = n.op("Clip", [n.qdq(n.input([4]), 0.05, 3), n.f32(np.nan)])
    n.output(n.qdq(y, 0.05, 3))
    assert [r.reason for r in lower(n.model()).not_lowered] == ["one of its bounds is not a number"]


def test_softmax_of_a_long_row() -> None:
    n = Net()
    y = n.op("Softmax", [n.qdq(n.input([2, 3000]), 0.05, 3)], axis=-1)
    check(n, y, (2**-12, -128), 0)


@few
@given(data=st.data(), seed=seeds, xq=scale_zeros, zp=zero)
def test_batch_normalization(data: st.DataObject, seed: int, xq: ScaleZero, zp: int) -> None:
    rng = np.random.default_rng(seed)
    channels = data.draw(st.integers(1, 5))
    n = Net()
    x = n.qdq(n.input([1, channels, 3, 4]), *xq)
    arrays = [
        rng.normal(size=channels),
        rng.normal(size=channels),
        rng.normal(size=channels),
        rng.uniform(0.5, 2, channels),
    ]
    y = n.op("BatchNormalization", [x, *(n.const(a.astype(np.float32)) for a in arrays)])
    check(n, y, covering(n, y, zp), seed)
