"""Scales and zero points: rounding error, exact zero, domains, biases; ONNX Runtime's own Q/DQ as oracle."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from onnx import TensorProto, helper, numpy_helper

from inlay.errors import ModelError
from inlay.model.store import packed, tensor_proto, unpacked
from inlay.quant.emit import ONNX_TYPE
from inlay.quant.observers import Range
from inlay.quant.qparams import activation_params, dequantize, quantize, scale_shape
from inlay.quant.weight_scales import block_params, weight_params
from inlay.targets.onnxruntime.rules import rules_for
from inlay.targets.onnxruntime.target import capabilities_for
from inlay.testing import Builder, run_reference, sqnr
from inlay.types import Placement, Port, QParams, QType
from tests.support.fixtures import MakeWorkspace
from tests.support.onnx_queries import constants
from tests.support.runtime import check_and_load

TYPES = [QType.UINT8, QType.INT8, QType.UINT16, QType.INT16]
finite = st.floats(-1e6, 1e6, width=32)


@st.composite
def ranges(draw: st.DrawFn) -> Range:
    low, high = sorted((draw(finite), draw(finite)))
    return Range(low, high)


@given(ranges(), st.sampled_from(TYPES), st.booleans())
def test_zero_is_exact_and_the_zero_point_fits(found: Range, qtype: QType, symmetric: bool) -> None:
    params = activation_params(found, qtype, symmetric)
    assert qtype.qmin <= params.zero_point[0] <= qtype.qmax
    assert params.scale[0] > 0.0
    assert float(np.float32(params.scale[0])) == params.scale[0], "scales are float32 numbers"
    zero = quantize(np.zeros(1, np.float32), params)
    assert zero[0] == params.zero_point[0]
    assert dequantize(zero, params)[0] == 0.0
    if symmetric and qtype.signed:
        assert params.zero_point == (0,)


@given(ranges(), st.sampled_from(TYPES), arrays(np.float64, 20, elements=st.floats(0, 1)))
def test_rounding_error_is_half_a_scale_inside_the_range(found: Range, qtype: QType, where: np.ndarray) -> None:
    params = activation_params(found, qtype)
    scale, zero = params.scale[0], params.zero_point[0]
    low, high = (qtype.qmin - zero) * scale, (qtype.qmax - zero) * scale
    x = (low + where * (high - low)).astype(np.float32)
    error = np.abs(dequantize(quantize(x, params), params).astype(np.float64) - x)
    assert (error <= scale / 2 + 1e-6 * np.abs(x) + 1e-30).all()


@given(ranges(), st.sampled_from(TYPES))
def test_the_representable_range_covers_what_was_observed(found: Range, qtype: QType) -> None:
    """Up to the rounding of the zero point: half a step at either end."""
    params = activation_params(found, qtype)
    scale, zero = params.scale[0], params.zero_point[0]
    slack = scale * (0.5 + 1e-4)
    assert (qtype.qmin - zero) * scale <= min(0.0, found.low) + slack
    assert (qtype.qmax - zero) * scale >= max(0.0, found.high) - slack


@given(st.floats(1e-20, 1e20), st.sampled_from([QType.UINT8, QType.INT8]))
def test_the_largest_integer_never_exceeds_a_clip(high: float, qtype: QType) -> None:
    """A runtime drops Clip(0, high) only when no integer stands for more than ``high``."""
    high = float(np.float32(high))
    params = activation_params(Range(0.0, high), qtype)
    assert params.zero_point[0] == qtype.qmin
    assert np.float32(params.scale[0]) * np.float32(qtype.qmax - qtype.qmin) <= np.float32(high)


@pytest.mark.parametrize("found", [Range(0.0, 0.0), Range(5.0, 5.0), Range(-3.0, -3.0), Range(0.0, 1e-45)])
@pytest.mark.parametrize("qtype", TYPES)
def test_degenerate_ranges(found: Range, qtype: QType) -> None:
    params = activation_params(found, qtype)
    x = np.array([found.low], np.float32)
    assert abs(float(dequantize(quantize(x, params), params)[0]) - found.low) <= params.scale[0] / 2
    assert np.isfinite(params.scale[0])


def test_ranges_beyond_float32() -> None:
    params = activation_params(Range(-3.4e38, 3.4e38), QType.UINT8)
    assert np.isfinite(np.float32(params.scale[0]))
    assert np.isfinite(dequantize(np.array([0, 255], np.uint8), params)).all()


@settings(deadline=None)
@given(
    arrays(np.float32, array_shapes(min_dims=1, max_dims=4, max_side=5), elements=st.floats(-300, 300, width=32)),
    st.sampled_from([QType.UINT8, QType.INT8]),
    st.data(),
)
def test_quantize_is_onnx_runtimes_quantize_linear(x: np.ndarray, qtype: QType, data: st.DataObject) -> None:
    axis = data.draw(st.one_of(st.none(), st.integers(0, x.ndim - 1)))
    count = 1 if axis is None else x.shape[axis]
    scale = data.draw(st.lists(st.floats(2.0**-10, 10.0, width=32), min_size=count, max_size=count))
    zero = data.draw(st.lists(st.integers(qtype.qmin, qtype.qmax), min_size=count, max_size=count))
    params = QParams(qtype, tuple(scale), tuple(zero), axis)
    q = quantize(x, params)
    wanted, back = _runtime_qdq(x, params)
    assert np.array_equal(q, wanted)
    assert np.array_equal(dequantize(q, params), back)


@settings(deadline=None)
@given(
    arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 4), st.just(3)), elements=finite),
    st.sampled_from([None, 0, 1, -1]),
    st.sampled_from([127, 63]),
)
def test_weights_are_symmetric_and_reach_their_limit(w: np.ndarray, axis: int | None, limit: int) -> None:
    params = weight_params(w, axis, limit)
    q = quantize(w, params)
    assert set(params.zero_point) == {0}
    assert np.abs(q.astype(int)).max() <= limit
    channels = [w] if axis is None else list(np.moveaxis(w, axis, 0))
    assert len(params.scale) == len(channels)
    for channel, scale in zip(channels, params.scale, strict=True):
        top = float(np.abs(channel).max())
        if top > 1e-20:
            assert scale == pytest.approx(top / limit, rel=1e-6)
    assert (np.abs(dequantize(q, params) - w) <= np.max(params.scale) * 0.501).all()


def test_an_all_zero_channel_has_a_usable_scale() -> None:
    w = np.stack([np.zeros((2, 2)), np.ones((2, 2))]).astype(np.float32)
    params = weight_params(w, 0, 127)
    assert all(s > 0 for s in params.scale)
    assert np.array_equal(dequantize(quantize(w, params), params)[0], w[0])


def test_weights_that_are_not_finite_do_not_spoil_the_scale() -> None:
    w = np.array([[1.0, np.nan], [2.0, np.inf]], np.float32)
    params = weight_params(w, 0, 127)
    assert params.scale == pytest.approx((1 / 127, 2 / 127))


@pytest.mark.parametrize("flags", [None, frozenset[str]()], ids=["this processor's weights", "7-bit weights"])
def test_a_bias_that_would_overflow_raises_the_weight_scale(
    workspace: MakeWorkspace, flags: frozenset[str] | None
) -> None:
    """A channel of tiny weights and a large bias: round(b / (sx * sw)) must fit int32, and does."""
    b = Builder()
    x = b.input("x", (1, 2, 4, 4))
    w = np.ones((3, 2, 1, 1), np.float32)
    w[1] = 1e-9
    bias = np.array([0.1, 50.0, -0.2], np.float32)
    b.output(b.node("conv", "Conv", [x, b.constant("w", w), b.constant("b", bias)], channels=3))
    space = workspace(b.model(), capabilities_for("x86_64", flags))
    scales, limit = space.table.params("w", QType.INT8).scale, space.prepared.rules.weight_limit
    assert scales[0] == pytest.approx(1 / limit)
    assert scales[1] > 1e-9 / limit
    placement = space.full()
    params = space.table.bias_params(Port("conv", 2), placement)
    stored = quantize(bias, params)
    assert np.abs(stored.astype(np.int64)).max() <= 1 << 30
    assert dequantize(stored, params) == pytest.approx(bias, rel=1e-3)
    proto = space.emit(placement)
    got = check_and_load(proto).run(None, dict(space.feeds[0]))[0]
    want = next(iter(run_reference(space.path, space.feeds[0]).values()))
    assert sqnr(want, got) > 30.0


def test_bias_scale_is_the_product(workspace: MakeWorkspace) -> None:
    b = Builder()
    b.output(b.conv("conv", b.input("x", (1, 3, 5, 5)), 4))
    space = workspace(b.model())
    x = np.float32(space.table.params("x", QType.UINT8).scale[0])
    w = np.asarray(space.table.params("conv_weight", QType.INT8).scale, np.float32)
    found = constants(space.emit(space.full()))
    assert np.array_equal(found["conv_bias_conv_scale"], x * w)


def test_a_bias_alone_is_refused(workspace: MakeWorkspace) -> None:
    b = Builder()
    b.output(b.conv("conv", b.input("x", (1, 3, 5, 5)), 4))
    space = workspace(b.model())
    with pytest.raises(ModelError, match="without its data and weight"):
        space.emit(Placement([(Port("conv", 2), QType.INT32)]))


def test_members_of_a_domain_share_qparams(workspace: MakeWorkspace) -> None:
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 8, 8)), 4)
    pooled = b.node("pool", "MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])
    shape = b.constant("shape", np.array([1, 64]))
    flat = b.node("reshape", "Reshape", [pooled, shape])
    other = b.node("gate", "Sigmoid", [x])
    b.output(flat)
    b.output(other)
    space = workspace(b.model())
    members = ["conv_out", "pool_out", "reshape_out"]
    assert len({space.table.params(v, QType.UINT8) for v in members}) == 1
    assert space.table.params("gate_out", QType.UINT8) != space.table.params("conv_out", QType.UINT8)
    assert space.table.params("x", QType.UINT8) != space.table.params("conv_out", QType.UINT8)


def test_a_domain_covers_all_of_its_members(workspace: MakeWorkspace) -> None:
    """Two values that meet in no op of their own, but in Split's outputs: the range is that of the widest."""
    b = Builder()
    x = b.input("x", (1, 4, 8, 8))
    b.node("split", "Split", [x], ["first", "second"], axis=1)
    b.output(b.node("a", "Sigmoid", ["first"]))
    b.output(b.node("b", "Sigmoid", ["second"]))
    rng = np.random.default_rng(0)
    array = rng.standard_normal((1, 4, 8, 8)).astype(np.float32)
    array[:, :2] *= 100
    space = workspace(b.model(), feeds=({"x": array},))
    params = [space.table.params(v, QType.UINT8) for v in ("x", "first", "second")]
    assert len(set(params)) == 1
    assert params[0].scale[0] == pytest.approx((array.max() - array.min()) / 255, rel=1e-5)


def test_weights_stay_within_seven_bits_without_vnni() -> None:
    assert rules_for("x86_64", frozenset({"avx2"})).weight_limit == 63
    assert rules_for("x86_64", frozenset({"avx2", "avx_vnni"})).weight_limit == 127
    assert rules_for("x86_64", frozenset({"avx512_vnni"})).weight_limit == 127
    assert rules_for("aarch64", frozenset()).weight_limit == 127
    assert rules_for("x86_64").activation is QType.UINT8
    assert rules_for("aarch64").activation is QType.INT8


def _runtime_qdq(x: np.ndarray, params: QParams) -> tuple[np.ndarray, np.ndarray]:
    scale = np.asarray(params.scale, np.float32)
    zero = np.asarray(params.zero_point, params.qtype.value)
    axis: dict[str, Any] = {} if params.axis is None else {"axis": params.axis}
    if params.axis is None:
        scale, zero = scale.reshape(()), zero.reshape(())
    tensors = [numpy_helper.from_array(scale, "s"), numpy_helper.from_array(zero, "z")]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **axis),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **axis),
    ]
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)]
    kinds = (("q", getattr(onnx.TensorProto, params.qtype.name)), ("y", onnx.TensorProto.FLOAT))
    outputs = [helper.make_tensor_value_info(n, t, x.shape) for n, t in kinds]
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs, tensors), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 8
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    q, y = session.run(None, {"x": x})
    return q, y


@pytest.mark.parametrize("qtype", [t for t in QType if t.block])
@pytest.mark.parametrize("axis", [0, 1])
def test_blocks_are_what_the_operator_dequantizes(qtype: QType, axis: int) -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_t(3, (256, 128) if axis == 0 else (128, 256)).astype(np.float32)
    weight[:32, :32] = 0.0
    params = block_params(weight, axis, qtype)
    integers = quantize(weight, params)
    found = dequantize(integers, params)
    grid = [np.asarray(params.scale, np.float32).reshape(scale_shape(weight.shape, params))]
    node = helper.make_node("DequantizeLinear", ["q", "s"], ["y"], axis=axis, block_size=qtype.block)
    tensors = [tensor_proto("q", integers, ONNX_TYPE[qtype]), numpy_helper.from_array(grid[0], "s")]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, weight.shape)
    graph = helper.make_graph([node], "g", [], [output], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (want,) = check_and_load(model).run(None, {})
    assert np.array_equal(found, want)
    error = np.abs(found - weight).max() / np.abs(weight).max()
    assert error < (0.21 if qtype.bits == 4 else 0.005)
    whole = weight_params(weight, 1 - axis, qtype.qmax)
    assert np.square(found - weight).sum() < np.square(dequantize(quantize(weight, whole), whole) - weight).sum()


def test_four_bits_share_a_byte() -> None:
    odd = np.arange(-7, 8).astype(ml_dtypes.int4).reshape(3, 5)
    assert len(packed(odd)) == 8
    assert (unpacked(packed(odd), odd.shape) == odd).all()
    stored = onnx.TensorProto(name="t", data_type=TensorProto.INT4, dims=odd.shape, raw_data=packed(odd))
    assert (numpy_helper.to_array(stored) == odd).all()
