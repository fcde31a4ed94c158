"""Clusters of data movement at quantized model boundaries stay integer: no float partition, whatever the type."""

from __future__ import annotations

import contextlib

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.errors import InlayError
from inlay.tosa.ir import Array
from inlay.tosa.lowering import Lowered, lower
from inlay.tosa.reference import LoweredRunner
from tests.tosa.comparison import run_ort, three_ways
from tests.tosa.nets import Net, random_weights

KINDS = ("Concat", "Slice", "Reshape", "Split", "Transpose")


def movement(n: Net, kind: str, values: list[str]) -> list[str]:
    match kind:
        case "Concat":
            return [n.op("Concat", values, axis=1)]
        case "Slice":
            return [n.op("Slice", [values[0], n.i64(1), n.i64(3), n.i64(1)])]
        case "Reshape":
            return [n.op("Reshape", [values[0], n.i64(1, 2, 2, 36)])]
        case "Transpose":
            return [n.op("Transpose", [values[0]], perm=[0, 2, 3, 1])]
        case _:
            return n.ops("Split", [values[0], n.i64(1, 3)], 2, axis=1)


def assert_integer_everywhere(lowered: Lowered) -> None:
    assert not lowered.not_lowered
    assert [p.kind for p in lowered.partitions] == ["tosa"]
    assert all(p.dtype in ("int8", "uint8") for b in lowered.tosa for p in (*b.inputs, *b.outputs))


def random_ints(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("profile", ["INT", "INT+FP"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("dtype_in", "dtype_out"), [("int8", "int8"), ("uint8", "uint8"), ("uint8", "int8"), ("int8", "uint8")]
)
def test_between_dequantize_and_quantize(kind: str, dtype_in: str, dtype_out: str, profile: str) -> None:
    n = Net(qtype=dtype_in)
    xs = [n.input([1, 4, 6, 6], dtype_in) for _ in range(2 if kind == "Concat" else 1)]
    values = movement(n, kind, [n.dq(x, 0.05, 7) for x in xs])
    n.qtype = dtype_out
    for value in values:
        n.output(n.q(value, 0.05, 7), dtype_out)
    model = n.model()
    assert_integer_everywhere(lower(model, profile))
    feed = {x: random_ints(dtype_in, (1, 4, 6, 6), i) for i, x in enumerate(xs)}
    three_ways(model, feed, profile, limit=0 if dtype_in == dtype_out else 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_on_integer_tensors_without_qparams(kind: str, dtype: str) -> None:
    """The movement stands between Q and DQ, on the integers themselves."""
    n = Net(opset=17, qtype=dtype)
    xs = [n.input([1, 4, 6, 6], dtype) for _ in range(2 if kind == "Concat" else 1)]
    for value in movement(n, kind, xs):
        n.output(value, dtype)
    model = n.model()
    assert_integer_everywhere(lower(model))
    three_ways(model, {x: random_ints(dtype, (1, 4, 6, 6), i) for i, x in enumerate(xs)}, limit=0)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("kind", ["Concat", "Slice"])
def test_state(kind: str, dtype: str) -> None:
    """A state that enters, is joined with new data, cut, and leaves again; in float on the ONNX side."""
    n = Net(qtype=dtype)
    state, new = n.input([1, 4, 6, 6]), n.input([1, 4, 6, 6])
    joined = n.op("Concat", [n.qdq(state, 0.05, 7), n.qdq(new, 0.05, 7)], axis=1)
    joined = n.qdq(joined, 0.05, 7)
    n.output(n.qdq(n.op("Slice", [joined, n.i64(4), n.i64(8), n.i64(1)]), 0.05, 7))
    if kind == "Concat":
        n.output(joined)
    model = n.model()
    assert_integer_everywhere(lower(model))
    rng = np.random.default_rng(0)
    three_ways(model, {v: rng.normal(size=(1, 4, 6, 6)).astype(np.float32) for v in (state, new)}, limit=0.001)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_integer_state_is_fed_back(dtype: str) -> None:
    """The state is an integer tensor of the model: what comes out goes in again as it is, step by step."""
    offset = 128 if dtype == "uint8" else 0
    n = Net(qtype=dtype)
    state, new = n.input([1, 4, 3, 8], dtype), n.input([1, 4, 1, 8], dtype)
    joined = n.qdq(n.op("Concat", [n.dq(state, 0.05, 7), n.dq(new, 0.05, 7)], axis=2), 0.05, 7)
    w = random_weights(np.random.default_rng(0), 4, 4, 4, 3)
    y = n.op("Relu", [n.op("Conv", [joined, n.weight(w, 0.002)], pads=[0, 1, 0, 1])])
    n.output(n.q(y, 0.05, offset - 111), dtype)
    # The newest frame of the state is what the convolution made of all of them.
    past = n.op("Slice", [joined, *(n.i64(v) for v in (2, 4, 2))])
    n.output(n.q(n.op("Concat", [past, n.qdq(y, 0.05, offset - 111)], axis=2), 0.05, 7), dtype)
    model = n.model()
    lowered = lower(model)
    assert_integer_everywhere(lowered)
    exact, fast = LoweredRunner(lowered), LoweredRunner(lowered, in_numpy=True)
    held = np.full((1, 4, 3, 8), 7, dtype)
    for step in range(5):
        feed = {state: held, new: random_ints(dtype, (1, 4, 1, 8), step)}
        ours = exact.run(feed)
        for a, b, c in zip(ours, fast.run(feed), run_ort(model, feed), strict=True):
            assert a.dtype == c.dtype
            np.testing.assert_array_equal(a, b)
            assert np.abs(a.astype(int) - c.astype(int)).max() <= 1
        held = ours[1]


@settings(max_examples=15, deadline=None)
@given(zp_in=st.integers(0, 255), zp_out=st.integers(0, 255), seed=st.integers(0, 99))
def test_uint8_activations_lower_exactly(zp_in: int, zp_out: int, seed: int) -> None:
    """x86 style: uint8 inside is int8 with the zero point moved by 128, exactly."""
    rng = np.random.default_rng(seed)
    w = random_weights(rng, 5, 3, 3, 3)
    models = []
    for dtype, offset in (("uint8", 0), ("int8", -128)):
        n = Net(qtype=dtype)
        n.input([1, 3, 7, 7])
        x = n.qdq("in1", 0.03, zp_in + offset)
        y = n.op("Relu", [n.op("Conv", [x, n.weight(w, 0.004)])])
        n.output(n.qdq(y, 0.05, zp_out + offset))
        models.append(n.model())
    feed = {"in1": rng.normal(size=(1, 3, 7, 7)).astype(np.float32)}
    a, b = (LoweredRunner(lower(m)).run(feed)[0] for m in models)
    np.testing.assert_array_equal(a, b)
    assert np.abs(a - run_ort(models[0], feed)[0]).max() <= 0.05 * 1.001


@pytest.mark.parametrize("of_constant", [True, False])
def test_qparams_that_do_not_fit_are_no_traceback(of_constant: bool) -> None:
    """Two scales for a constant without dimensions, three zero points for one scale: no valid model has them."""
    make, tensor = onnx.helper.make_node, onnx.numpy_helper.from_array
    data = [tensor(np.array(3, np.int8), "x_q"), tensor(np.array([0.1, 0.2], np.float32), "t")]
    data += [tensor(np.array(0.1, np.float32), "s"), tensor(np.zeros(1 if of_constant else 3, np.int8), "z")]
    scale = "t" if of_constant else "s"
    nodes = [] if of_constant else [make("QuantizeLinear", ["x", "s"], ["x_q"])]
    nodes += [make("DequantizeLinear", ["x_q", scale, "z"], ["d"]), make("Add", ["x", "d"], ["y"])]
    info = [onnx.helper.make_tensor_value_info(name, 1, [3]) for name in ("x", "y")]
    graph = onnx.helper.make_graph(nodes, "g", info[:1], info[1:], data if of_constant else data[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    with contextlib.suppress(InlayError):  # one line
        assert lower(model).not_lowered
