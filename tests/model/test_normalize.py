"""Each pass, checked by numbers against ONNX Runtime on the model as it was given."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import helper

from inlay.errors import UsageError
from inlay.model import normalize as module
from inlay.model.graph import build_graph
from inlay.model.normalize import Normalized, normalize
from inlay.model.passes.lrn import window
from inlay.model.passes.runs import written_out
from inlay.model.reference import ConstantEvaluator, run_model
from inlay.model.store import WeightStore
from inlay.testing import Builder, random_feed, run_reference, small_model, sqnr
from tests.support.runtime import check_and_load
from tests.support.workspace import Workspace

Model = onnx.ModelProto


@pytest.fixture
def normalized(tmp_path: Path) -> Callable[[Model], tuple[Model, Normalized]]:
    """Normalizes with the gate on, and checks that the outputs are the same."""

    def run(model: Model) -> tuple[Model, Normalized]:
        store = WeightStore(tmp_path)
        feed = random_feed(model)
        done = normalize(ir.from_proto(model), ConstantEvaluator(tmp_path), lambda m: run_model(m, store, feed))
        proto = ir.to_proto(done.model)
        check_and_load(proto)
        want, got = run_reference(model, feed), run_reference(proto, feed)
        assert list(got) == list(want)
        assert all(sqnr(want[k], got[k]) > 90.0 for k in want if want[k].dtype.kind == "f")
        return proto, done

    return run


Run = Callable[[Model], tuple[Model, Normalized]]


def ops(model: Model) -> list[str]:
    return [n.op_type for n in model.graph.node]


def no_roll_backs(done: Normalized) -> bool:
    return not [r for r in done.reports if r.rolled_back]


def batch_norm(b: Builder, x: str, channels: int) -> str:
    numbers = [b.rng.uniform(0.5, 2, channels), *b.rng.normal(0, 1, (2, channels)), b.rng.uniform(0.5, 2, channels)]
    names = [b.constant(f"bn_{i}", v) for i, v in enumerate(numbers)]
    return b.node("bn", "BatchNormalization", [x, *names], channels=channels, epsilon=1e-3)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_batch_normalization_into_conv(bias: bool, group: int, normalized: Run) -> None:
    b = Builder()
    b.output(batch_norm(b, b.conv("conv", b.input("x", (2, 4, 6, 6)), 8, group=group, bias=bias), 8))
    proto, done = normalized(b.model())
    assert ops(proto) == ["Conv"]
    assert no_roll_backs(done)


@pytest.mark.parametrize("group", [1, 2])
def test_batch_normalization_into_conv_transpose(group: int, normalized: Run) -> None:
    b = Builder()
    w = b.constant("w", b.rng.standard_normal((4, 3, 2, 2)))
    y = b.node("up", "ConvTranspose", [b.input("x", (1, 4, 5, 5)), w], channels=3 * group, group=group, strides=[2, 2])
    b.output(batch_norm(b, y, 3 * group))
    proto, done = normalized(b.model())
    assert ops(proto) == ["ConvTranspose"]
    assert no_roll_backs(done)


@pytest.mark.parametrize("transposed", [0, 1])
def test_batch_normalization_into_gemm(transposed: int, normalized: Run) -> None:
    b = Builder()
    w = b.constant("w", b.rng.standard_normal((5, 7) if transposed else (7, 5)))
    c = b.constant("c", b.rng.standard_normal(5))
    b.output(batch_norm(b, b.node("fc", "Gemm", [b.input("x", (3, 7)), w, c], channels=5, transB=transposed), 5))
    proto, done = normalized(b.model())
    assert ops(proto) == ["Gemm"]
    assert no_roll_backs(done)


def test_batch_normalization_that_must_stay(normalized: Run) -> None:
    """The convolution's own output is read elsewhere: folding would change it."""
    b = Builder()
    conv = b.conv("conv", b.input("x", (1, 3, 6, 6)), 4)
    b.output(batch_norm(b, conv, 4))
    b.output(conv)
    assert ops(normalized(b.model())[0]) == ["Conv", "BatchNormalization"]


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("shape", [(), (1,), (8, 1, 1), (1, 8, 1, 1)], ids=str)
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "Gemm"])
def test_arithmetic_on_channels_goes_into_the_weights(
    op: str, slot: int, shape: tuple[int, ...], kind: str, normalized: Run
) -> None:
    b = Builder()
    if kind == "Conv":
        y = b.conv("conv", b.input("x", (2, 4, 6, 6)), 8, group=2)
    elif kind == "ConvTranspose":
        w = b.constant("w", b.rng.standard_normal((4, 4, 2, 2)))
        y = b.node("up", "ConvTranspose", [b.input("x", (1, 4, 5, 5)), w], channels=8, group=2, strides=[2, 2])
    else:
        w = b.constant("w", b.rng.standard_normal((8, 4)))
        y = b.node("dense", "Gemm", [b.input("x", (3, 4)), w], channels=8, transB=1)
        shape = shape if shape in ((), (1,)) else (1, 8) if len(shape) == 4 else (8,)
    operands = [y, b.constant("c", b.rng.uniform(0.5, 2.0, shape))]
    b.output(b.node("relu", "Relu", [b.node("c1", op, operands if slot == 0 else operands[::-1], channels=8)]))
    proto, done = normalized(b.model())
    kept = op == "Div" and slot == 1  # a constant over what is computed is no scale
    assert ops(proto) == [kind, "Div", "Relu"] if kept else [kind, "Relu"]
    assert no_roll_backs(done)


def test_a_chain_of_scales_and_shifts_folds_whole(normalized: Run) -> None:
    b = Builder()
    y = batch_norm(b, b.conv("conv", b.input("x", (1, 3, 6, 6)), 4), 4)
    y = b.node("scale", "Mul", [b.constant("k", -1.5), y], channels=4)
    b.output(b.node("shift", "Add", [y, b.constant("d", 0.25)], channels=4))
    proto, done = normalized(b.model())
    assert ops(proto) == ["Conv"]
    assert no_roll_backs(done)


@pytest.mark.parametrize("shape", [(1, 1, 1, 6), (1, 4, 6, 6), (2, 1, 1, 1), (6,), (1, 1, 1, 1, 1)], ids=str)
def test_constants_that_vary_along_other_axes_stay(shape: tuple[int, ...], normalized: Run) -> None:
    """Negative control: such a constant is no number per channel, or it enlarges the result."""
    b = Builder()
    y = b.conv("conv", b.input("x", (1, 3, 6, 6)), 4)
    b.output(b.node("add", "Add", [y, b.constant("c", b.rng.standard_normal(shape))]))
    assert ops(normalized(b.model())[0]) == ["Conv", "Add"]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["Conv", "ConvTranspose", "MaxPool", "AveragePool"]),
    st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.integers(1, 2),
    st.tuples(st.integers(9, 12), st.integers(9, 12)),
    st.booleans(),
)
def test_automatic_pads_are_the_numbers_that_they_stand_for(
    op_type: str,
    mode: str,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilation: int,
    size: tuple[int, int],
    dynamic: bool,
) -> None:
    """Asked of ONNX Runtime; where the size is not known, only what does not depend on it."""
    pool = op_type.endswith("Pool")
    # the runtime refuses the others
    assume(not pool or all(k >= s for k, s in zip(kernel, strides, strict=True)))
    assume(dilation == 1 or mode in ("NOTSET", "VALID"))
    b = Builder()
    x = b.input("x", (1, 2, "height", "width") if dynamic else (1, 2, *size))
    inputs = [x] if pool else [x, b.constant("w", b.rng.standard_normal((2, 2, *kernel)))]
    more = {"kernel_shape": list(kernel)} if pool else {"dilations": [dilation] * 2}
    b.output(b.node("op", op_type, inputs, auto_pad=mode, strides=list(strides), **more))
    model = b.model()
    feed = {"x": np.random.default_rng(0).standard_normal((1, 2, *size)).astype(np.float32)}
    with tempfile.TemporaryDirectory() as folder:
        store = WeightStore(Path(folder))
        wanted = run_model(ir.from_proto(model), store, feed)
        done = normalize(ir.from_proto(model), ConstantEvaluator(Path(folder)), None)
        (node,) = done.model.graph
        got = run_model(done.model, store, feed)
    known = max(strides) == 1 or (not dynamic and op_type != "ConvTranspose") or mode in ("NOTSET", "VALID")
    if op_type == "ConvTranspose" and mode.startswith("SAME"):
        known = all((k - 1) * dilation + 1 >= s for k, s in zip(kernel, strides, strict=True))
    assert ("auto_pad" not in node.attributes) == known
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6)


def halves(kept: bool, dtype: int = onnx.TensorProto.FLOAT16) -> onnx.ModelProto:
    """A small model in half precision; ``kept``: its inputs and outputs are float32, by Casts."""
    model = small_model()
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            wide = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(wide.astype(np.float16), tensor.name))
    del model.graph.value_info[:]
    (x,), (y,) = model.graph.input, model.graph.output
    if not kept:
        x.type.tensor_type.elem_type = y.type.tensor_type.elem_type = dtype
        return model
    for node in model.graph.node:
        node.input[:] = [f"{v}_half" if v == x.name else v for v in node.input]
        node.output[:] = [f"{v}_half" if v == y.name else v for v in node.output]
    model.graph.node.insert(0, onnx.helper.make_node("Cast", [x.name], [f"{x.name}_half"], "in", to=dtype))
    cast = onnx.helper.make_node("Cast", [f"{y.name}_half"], [y.name], "out", to=onnx.TensorProto.FLOAT)
    model.graph.node.append(cast)
    return model


@pytest.mark.parametrize("kept", [False, True])
def test_halves_are_computed_in_float32(kept: bool, tmp_path: Path) -> None:
    model, store = halves(kept), WeightStore(tmp_path)
    onnx.checker.check_model(model, full_check=True)
    feed = random_feed(model, 0)
    done = normalize(
        ir.from_proto(model), ConstantEvaluator(tmp_path), lambda m: run_model(m, store, feed), rewrites=HALF
    )
    assert not [r for r in done.reports if r.rolled_back]
    check_and_load(ir.to_proto(done.model))
    casts = [n.op_type for n in done.model.graph].count("Cast")
    assert casts == (0 if kept else 2)
    assert {v.dtype for n in done.model.graph if n.op_type == "Conv" for v in n.inputs} == {ir.DataType.FLOAT}
    (wanted,), (got,) = (run_model(m, store, feed).values() for m in (ir.from_proto(model), done.model))
    assert got.dtype == wanted.dtype
    exact = run_reference(small_model(), {k: v.astype(np.float32) for k, v in feed.items()})
    (exactly,) = exact.values()
    assert sqnr(wanted.astype(np.float32), got.astype(np.float32)) > 35.0
    assert sqnr(exactly, got.astype(np.float32)) > sqnr(exactly, wanted.astype(np.float32)) - 3.0
    untouched = normalize(ir.from_proto(model), ConstantEvaluator(tmp_path), None)
    assert {v.dtype for n in untouched.model.graph if n.op_type == "Conv" for v in n.inputs[1:]} == {
        ir.DataType.FLOAT16
    }


def test_a_model_in_halves_gets_8_bits(tmp_path: Path) -> None:
    """The noise at outputs in half precision is looked at, too."""
    space = Workspace(halves(kept=False), tmp_path)
    assert {u.op_type for u in space.prepared.selectable} >= {"Conv", "Add"}
    assert space.graph.float_outputs == tuple(space.graph.outputs)
    proto = space.emit(space.full())
    check_and_load(proto)
    (wanted,), (got,) = (run_reference(m, space.feeds[0]).values() for m in (halves(kept=False), proto))
    assert got.dtype == np.float16
    assert sqnr(wanted.astype(np.float32), got.astype(np.float32)) > 15.0


HALF, LRN, PRELU, GEMM, NORM, MEAN, GATE, FOCUS, BLOCKS, RUNS = (
    frozenset({name})
    for name in (
        "compute halves in float32",
        "spell LRN out",
        "spell PRelu out",
        "gather MatMul and Add into Gemm",
        "turn BatchNormalization into Conv",
        "turn AveragePool into Conv",
        "gather HardSigmoid",
        "fold the patches of an image into Conv",
        "compute few outputs in blocks",
        "write out constants along short rows",
    )
)


@pytest.mark.parametrize("beta", [0.25, 0.5, 0.75, 1.0, 0.6])
@pytest.mark.parametrize("size", [1, 3, 5, 9])
@pytest.mark.parametrize("channels", [1, 4, 9])
def test_lrn_spelled_out_computes_the_same(beta: float, size: int, channels: int, tmp_path: Path) -> None:
    """Against ONNX Runtime's own operator: every window, cut at both ends, and every way to take the power."""
    b = Builder()
    x = b.input("x", (2, channels, 3, 4))
    b.output(b.node("lrn", "LRN", [x], channels=channels, size=size, alpha=0.3, beta=beta, bias=1.5))
    model, store = b.model(), WeightStore(tmp_path)
    feed = {"x": np.random.default_rng(0).normal(0, 3, (2, channels, 3, 4)).astype(np.float32)}
    done = normalize(ir.from_proto(model), ConstantEvaluator(tmp_path), None, rewrites=LRN)
    assert "LRN" not in [n.op_type for n in done.model.graph]
    (wanted,), (got,) = (run_model(m, store, feed).values() for m in (ir.from_proto(model), done.model))
    np.testing.assert_allclose(got, wanted, rtol=2e-6)
    kept = normalize(ir.from_proto(model), ConstantEvaluator(tmp_path), None)
    assert "LRN" in [n.op_type for n in kept.model.graph], "it is for targets that ask for it"


@pytest.mark.parametrize(
    ("slope", "operators"),
    [
        (np.array([0.25]), ["LeakyRelu"]),
        (np.full((4, 1, 1), -0.5), ["LeakyRelu"]),
        (np.array(3.0), ["LeakyRelu"]),
        (np.array([0.25, 0.0, -2.0, 1.0]).reshape(4, 1, 1), ["Mul", "Max"]),
        (np.linspace(-1, 1, 20).reshape(4, 5), ["Mul", "Max"]),
        (np.array([0.25, 1.5, 0.0, 0.1]).reshape(4, 1, 1), ["Min", "Mul", "Add"]),
        (np.array([0.25, np.nan, 0.0, 0.1]).reshape(4, 1, 1), ["PRelu"]),
    ],
    ids=["one", "equal", "steep", "channels", "every number", "some steep", "not a number"],
)
def test_prelu_spelled_out_computes_the_same(slope: np.ndarray, operators: list[str], tmp_path: Path) -> None:
    b = Builder()
    if slope.shape == (4, 5):
        x, shape = b.input("x", (2, 3, 4, 5)), (2, 3, 4, 5)
    else:
        x, shape = b.input("x", (2, 4, 3, "width")), (2, 4, 3, 5)
    b.output(b.node("act", "PRelu", [x, b.constant("slope", slope.astype(np.float32))]))
    model, store = b.model(), WeightStore(tmp_path)
    feed = {"x": np.random.default_rng(0).normal(0, 3, shape).astype(np.float32)}
    feed["x"].flat[:2] = [0.0, -0.0]
    done = normalize(ir.from_proto(model), ConstantEvaluator(tmp_path), None, rewrites=PRELU)
    assert [n.op_type for n in done.model.graph] == operators
    (wanted,), (got,) = (run_model(m, store, feed).values() for m in (ir.from_proto(model), done.model))
    if "Add" in operators:
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(got, wanted)
    kept = normalize(ir.from_proto(model), ConstantEvaluator(tmp_path), None)
    assert [n.op_type for n in kept.model.graph] == ["PRelu"], "it is for targets that ask for it"


def dense(rank: int = 2, bias: tuple[int, ...] = (5,), swapped: bool = False, twice: bool = False) -> Builder:
    b = Builder()
    x = b.input("x", (3, 4)[:rank] if rank < 3 else (2, 3, 4))
    product = b.node("dense", "MatMul", [x, b.constant("w", b.rng.standard_normal((4, 5)))])
    inputs = [product, b.constant("row", b.rng.standard_normal(bias))]
    b.output(b.node("sum", "Add", inputs[::-1] if swapped else inputs))
    if twice:
        b.output(b.node("again", "Relu", [product]))
    return b


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("bias", [(5,), (1, 5)])
def test_matmul_and_add_are_one_gemm(bias: tuple[int, ...], swapped: bool, tmp_path: Path) -> None:
    model, store = dense(bias=bias, swapped=swapped).model(), WeightStore(tmp_path)
    feed = random_feed(model, 0)
    done = normalize(ir.from_proto(model), ConstantEvaluator(tmp_path), None, rewrites=GEMM)
    assert [n.op_type for n in done.model.graph] == ["Gemm"]
    (wanted,), (got,) = (run_model(m, store, feed).values() for m in (ir.from_proto(model), done.model))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("other", [dense(rank=3), dense(bias=(3, 5)), dense(bias=(1,)), dense(twice=True)])
def test_other_sums_of_products_stay(other: Builder, tmp_path: Path) -> None:
    done = normalize(ir.from_proto(other.model()), ConstantEvaluator(tmp_path), None, rewrites=GEMM)
    assert "MatMul" in [n.op_type for n in done.model.graph]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_window_of_a_channel(size: int) -> None:
    """The operator's definition, channel by channel; an even window has its extra channel behind."""
    for i, row in enumerate(window(7, size)):
        low, high = max(0, i - math.floor((size - 1) / 2)), min(6, i + math.ceil((size - 1) / 2))
        assert np.flatnonzero(row).tolist() == list(range(low, high + 1))


def alone(shape: tuple[int | str, ...], seed: int = 0) -> Builder:
    """A BatchNormalization behind a Concat, and a Mul and an Add behind it."""
    b = Builder(seed=seed)
    x = b.input("x", shape)
    both = b.node("cat", "Concat", [x, x], axis=1)
    factors = [("gamma", 0.5, 2.0), ("beta", -1.0, 1.0), ("mean", -1.0, 1.0), ("var", 0.1, 2.0)]
    numbers = [b.constant(n, b.rng.uniform(low, high, 6).astype(np.float32)) for n, low, high in factors]
    y = b.node("norm", "BatchNormalization", [both, *numbers], epsilon=1e-3)
    along = (6, *[1] * (len(shape) - 2))
    y = b.node("mul", "Mul", [y, b.constant("k", b.rng.uniform(0.5, 2.0, along).astype(np.float32))])
    b.output(b.node("add", "Add", [y, b.constant("d", b.rng.uniform(-1.0, 1.0, along).astype(np.float32))]))
    return b


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 5, 4), (1, 3, 4, 3, 2), ("n", 3, 5, 4)])
def test_batchnorm_that_stands_alone_becomes_one_convolution(shape: tuple[int | str, ...], tmp_path: Path) -> None:
    model, store = alone(shape).model(), WeightStore(tmp_path)
    real = tuple(2 if isinstance(d, str) else d for d in shape)
    feed = {"x": np.random.default_rng(0).normal(0, 3, real).astype(np.float32)}
    done = normalize(ir.from_proto(model), ConstantEvaluator(tmp_path), None, rewrites=NORM)
    assert [n.op_type for n in done.model.graph] == ["Concat", "Conv"]
    (wanted,), (got,) = (run_model(m, store, feed).values() for m in (ir.from_proto(model), done.model))
    np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=2e-6)
    kept = normalize(ir.from_proto(model), ConstantEvaluator(tmp_path), None)
    assert [n.op_type for n in kept.model.graph][1] == "BatchNormalization", "it is for targets that ask for it"


def test_batchnorm_of_plain_vectors_stays(tmp_path: Path) -> None:
    done = normalize(
        ir.from_proto(alone((2, 3)).model()),
        ConstantEvaluator(tmp_path),
        None,
        rewrites=NORM,
    )
    assert "BatchNormalization" in [n.op_type for n in done.model.graph]


POOL = {"kernel_shape": [2, 3], "strides": [2, 1]}


@pytest.mark.parametrize(
    ("attributes", "spelled"),
    [
        (POOL, True),
        ({**POOL, "pads": [1, 1, 1, 1], "count_include_pad": 1}, True),
        ({**POOL, "auto_pad": "VALID"}, True),
        ({**POOL, "pads": [1, 1, 1, 1]}, False),
        ({**POOL, "auto_pad": "SAME_UPPER"}, False),
        ({**POOL, "ceil_mode": 1}, False),
        ({"kernel_shape": [5, 5]}, False),
        ({"kernel_shape": [1, 1]}, False),
    ],
)
def test_averagepool_with_whole_windows_becomes_a_convolution(
    attributes: dict[str, Any], spelled: bool, tmp_path: Path
) -> None:
    b = Builder()
    b.output(b.node("pool", "AveragePool", [b.input("x", (2, 5, 7, 8))], channels=5, **attributes))
    model, store = b.model(), WeightStore(tmp_path)
    feed = {"x": np.random.default_rng(0).normal(0, 3, (2, 5, 7, 8)).astype(np.float32)}
    done = normalize(ir.from_proto(model), ConstantEvaluator(tmp_path), None, rewrites=MEAN)
    assert [n.op_type for n in done.model.graph] == ["Conv" if spelled else "AveragePool"]
    (wanted,), (got,) = (run_model(m, store, feed).values() for m in (ir.from_proto(model), done.model))
    np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=2e-6)


def hard(b: Builder, form: str, low: float = 0.0, high: float = 6.0, by: float = 6.0) -> str:
    """A hard sigmoid or swish in one of the forms that exporters write."""
    x = b.input("x", (2, 3, 5))
    three = b.constant("three", np.float32(3.0))
    limits = [b.constant("low", np.float32(low)), b.constant("high", np.float32(high))]
    whole, part = b.constant("by", np.array([by], np.float32)), b.constant("part", np.float32(1.0 / by))
    clipped = b.node("clip", "Clip", [b.node("shift", "Add", [three, x]), *limits])
    match form:
        case "sigmoid":
            return b.node("out", "Div", [clipped, whole])
        case "scaled sigmoid":
            return b.node("out", "Mul", [part, clipped])
        case "swish":
            return b.node("out", "Div", [b.node("mul", "Mul", [x, clipped]), whole])
        case "scaled swish":
            return b.node("out", "Mul", [b.node("mul", "Mul", [clipped, x]), part])
        case "swish of a sixth":
            return b.node("out", "Mul", [b.node("sixth", "Mul", [x, part]), clipped])
        case _:
            return b.node("out", "Add", [b.node("mul", "Div", [clipped, whole]), clipped])


@pytest.mark.parametrize("form", ["sigmoid", "scaled sigmoid", "swish", "scaled swish", "swish of a sixth"])
def test_hard_sigmoids_are_gathered(form: str, tmp_path: Path) -> None:
    b = Builder()
    b.output(hard(b, form))
    model, store = b.model(), WeightStore(tmp_path)
    feed = {"x": np.random.default_rng(0).normal(0, 4, (2, 3, 5)).astype(np.float32)}
    done = normalize(ir.from_proto(model), ConstantEvaluator(tmp_path), None, rewrites=GATE)
    assert [n.op_type for n in done.model.graph] == (["HardSigmoid"] if "sigmoid" in form else ["HardSigmoid", "Mul"])
    (wanted,), (got,) = (run_model(m, store, feed).values() for m in (ir.from_proto(model), done.model))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("form", "limits"),
    [
        ("read twice", {}),
        ("swish", {"low": -1.0}),
        ("swish", {"high": 4.0}),
        ("sigmoid", {"by": 3.0}),
        ("swish of a sixth", {"by": 5.0}),
    ],
)
def test_what_is_no_hard_sigmoid_stays(form: str, limits: dict[str, float], tmp_path: Path) -> None:
    b = Builder()
    b.output(hard(b, form, **limits))
    done = normalize(ir.from_proto(b.model()), ConstantEvaluator(tmp_path), None, rewrites=GATE)
    assert "Clip" in [n.op_type for n in done.model.graph]


ORDER = ((0, 0), (1, 0), (0, 1), (1, 1))


def focus(order: Sequence[tuple[int, int]] = ORDER, step: int = 2, twice: bool = False) -> Builder:
    """Patches of an image, sliced along one axis after the other, before a convolution with uneven pads."""
    b = Builder(seed=5)
    x = b.input("x", (2, 3, 12, 18))
    end, patches = b.constant("end", np.array([np.iinfo(np.int64).max])), []
    by, rows, columns = (b.constant(n, np.array([v])) for n, v in (("by", step), ("rows", 2), ("columns", 3)))
    for number, starts in enumerate(order):
        value = x
        for axis, start in zip((rows, columns), starts, strict=True):
            first = b.constant(f"start_{number}_{axis}", np.array([start]))
            value = b.node(f"slice_{number}_{axis}", "Slice", [value, first, end, axis, by])
        patches.append(value)
    joined = b.node("cat", "Concat", patches, axis=1, channels=3 * len(order))
    weight = b.constant("w", b.rng.standard_normal((5, 3 * len(order), 3, 2)).astype(np.float32))
    bias = b.constant("b", b.rng.standard_normal(5).astype(np.float32))
    b.output(b.node("conv", "Conv", [joined, weight, bias], channels=5, pads=[1, 0, 2, 1], strides=[1, 2]))
    if twice:
        b.output(b.node("again", "Relu", [joined]))
    return b


THIRDS = tuple((i, j) for i in range(3) for j in range(3))


@pytest.mark.parametrize(("order", "step"), [(ORDER, 2), (ORDER[::-1], 2), (THIRDS, 3)])
def test_patches_of_an_image_are_folded_into_the_convolution(
    order: tuple[tuple[int, int], ...], step: int, tmp_path: Path
) -> None:
    model, store = focus(order, step).model(), WeightStore(tmp_path)
    feed = {"x": np.random.default_rng(0).normal(0, 1, (2, 3, 12, 18)).astype(np.float32)}
    done = normalize(ir.from_proto(model), ConstantEvaluator(tmp_path), None, rewrites=FOCUS)
    assert [n.op_type for n in done.model.graph] == ["Conv"]
    (wanted,), (got,) = (run_model(m, store, feed).values() for m in (ir.from_proto(model), done.model))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "b",
    [
        focus(ORDER[:3]),
        focus((*ORDER[:3], (0, 0))),
        focus(twice=True),
        focus(step=3),
    ],
    ids=["a patch is missing", "one comes twice", "read elsewhere", "gaps"],
)
def test_patches_that_are_no_whole_image_stay(b: Builder, tmp_path: Path) -> None:
    done = normalize(ir.from_proto(b.model()), ConstantEvaluator(tmp_path), None, rewrites=FOCUS)
    assert "Slice" in [n.op_type for n in done.model.graph]


def few(
    channels: int = 8,
    outputs: int = 3,
    size: tuple[int, int] = (20, 24),
    kernel: tuple[int, int] = (3, 3),
    **attributes: Any,
) -> tuple[Builder, str]:
    """A convolution with few outputs, and its result."""
    b = Builder()
    x = b.input("x", (2, channels, *size))
    weight = b.constant(
        "w", b.rng.standard_normal((outputs, channels // attributes.get("group", 1), *kernel)).astype(np.float32)
    )
    bias = b.constant("b", b.rng.standard_normal(outputs).astype(np.float32))
    return b, b.node("conv", "Conv", [x, weight, bias], channels=outputs, **attributes)


def in_blocks(b: Builder, tmp_path: Path) -> list[str]:
    """Operators after the rewrite, whose outputs are checked against the original's."""
    model, store = b.model(), WeightStore(tmp_path)
    feed = random_feed(model)
    done = normalize(ir.from_proto(model), ConstantEvaluator(tmp_path), None, rewrites=BLOCKS)
    wanted, got = (run_model(m, store, feed) for m in (ir.from_proto(model), done.model))
    assert list(wanted) == list(got)
    for name, array in wanted.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-4)
    check_and_load(ir.to_proto(done.model))
    assert "conv" in {n.name for n in done.model.graph}  # recipes and imported models name it
    return [n.op_type for n in done.model.graph]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_few_outputs_are_computed_in_blocks(data: st.DataObject, tmp_path: Path) -> None:
    kernel = (data.draw(st.integers(3, 5)), data.draw(st.integers(3, 9)))
    auto = data.draw(st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    pads = [data.draw(st.integers(0, 3)) for _ in range(4)] if auto == "NOTSET" else [0, 0, 0, 0]
    if auto.startswith("SAME"):
        pads = [1, 1, kernel[0] - 2, kernel[1] - 2]  # as much in all
    results = [2 * data.draw(st.integers(9, 12)) for _ in range(2)]
    size = (results[0] + kernel[0] - 1 - pads[0] - pads[2], results[1] + kernel[1] - 1 - pads[1] - pads[3])
    window = {"pads": pads} if auto == "NOTSET" else {"auto_pad": auto}
    b, y = few(data.draw(st.integers(8, 10)), data.draw(st.integers(1, 8)), size, kernel, **window)
    b.output(y)
    assert in_blocks(b, tmp_path) == ["Conv", "DepthToSpace"]


@pytest.mark.parametrize(
    ("wanted", "changes"),
    [
        ("more outputs", {"outputs": 9}),
        ("odd results", {"size": (20, 25), "pads": [1, 1, 1, 1]}),
        ("few products", {"channels": 7}),
        ("few pixels", {"size": (16, 16)}),
        ("small kernel", {"kernel": (2, 5), "channels": 16, "pads": [0, 0, 1, 0]}),
        ("strided", {"strides": [1, 2]}),
        ("dilated", {"dilations": [2, 1]}),
        ("grouped", {"group": 2, "channels": 16, "outputs": 4}),
    ],
)
def test_other_convolutions_are_not_computed_in_blocks(wanted: str, changes: dict[str, Any], tmp_path: Path) -> None:
    b, y = few(**changes)
    b.output(y)
    assert in_blocks(b, tmp_path) == ["Conv"]


def test_blocks_are_spread_out_behind_the_functions_that_follow(tmp_path: Path) -> None:
    """Runtimes join a convolution with the function behind it: nothing may come between them."""
    b, y = few()
    limits = [b.constant("low", np.float32(-0.5)), b.constant("high", np.float32(0.5))]
    b.output(b.node("sigmoid", "Sigmoid", [b.node("clip", "Clip", [y, *limits], channels=3)], channels=3))
    assert in_blocks(b, tmp_path) == ["Conv", "Clip", "Sigmoid", "DepthToSpace"]
    b, y = few()
    b.output(b.node("product", "Mul", [y, b.node("sigmoid", "Sigmoid", [y], channels=3)]))
    assert in_blocks(b, tmp_path) == ["Conv", "DepthToSpace", "Sigmoid", "Mul"]
    b, y = few()
    b.output(y)
    b.output(b.node("relu", "Relu", [y]))
    assert in_blocks(b, tmp_path) == ["Conv", "DepthToSpace", "Relu"]


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    ("shape", "own", "wanted"),
    [
        ((1, 70, 80, 1), (1,), (1, 1, 1, 1)),
        ((1, 70, 80, 1), (), (1, 1, 1, 1)),
        ((1, 70, 80, 2), (1, 1, 80, 1), (1, 1, 80, 2)),
        ((2, 50, 60, 3), (3,), (1, 1, 60, 3)),
        ((2, 50, 20, 3), (3,), (1, 50, 20, 3)),
        ((2, 40, 60, 3), (40, 1, 1), (40, 1, 1)),  # stands still for 180 numbers
        ((2, 40, 60, 3), (), ()),  # for all of them
        ((1, 64, 100), (100,), (100,)),
        ((1, 60, 60, 1), (1,), (1,)),  # few numbers
        ((2, 50, 60, 1), (2, 50, 60, 5), (2, 50, 60, 5)),  # the constant is what is larger
        ((1, 90000, 2), (90000, 1), (90000, 1)),  # more than may be written out
    ],
)
def test_constants_are_written_out_along_short_rows(
    op_type: str, first: bool, shape: tuple[int, ...], own: tuple[int, ...], wanted: tuple[int, ...], tmp_path: Path
) -> None:
    b = Builder()
    x, c = b.input("x", shape), b.constant("c", np.asarray(b.rng.uniform(0.5, 2.0, own), np.float32))
    b.output(b.node("node", op_type, [c, x] if first else [x, c]))
    model, store = b.model(), WeightStore(tmp_path)
    feed = {"x": np.random.default_rng(0).uniform(0.5, 2.0, shape).astype(np.float32)}
    done = normalize(ir.from_proto(model), ConstantEvaluator(tmp_path), None, rewrites=RUNS)
    (constant,) = done.model.graph.initializers.values()
    assert constant.shape is not None
    assert tuple(constant.shape) == wanted
    (before,), (after,) = (run_model(m, store, feed).values() for m in (ir.from_proto(model), done.model))
    np.testing.assert_array_equal(after, before)


def test_sizes_that_are_not_known_are_not_written_out() -> None:
    assert written_out([None, None, 100, 3], [3]) is None  # 300 numbers are known
    assert written_out([None, 2000, 3], [3]) == [1, 2000, 3]
    assert written_out([5000, None, 3], [3]) is None
    assert written_out([5000, None], [1]) is None


def test_an_unknown_rewrite_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"speed it up; there are .*spell LRN out"):
        normalize(ir.from_proto(small_model()), ConstantEvaluator(tmp_path), None, rewrites=frozenset({"speed it up"}))


def test_lrn_over_unknown_channels_stays(tmp_path: Path) -> None:
    b = Builder()
    b.output(b.node("lrn", "LRN", [b.input("x", (1, "c", 3, 4))], size=3))
    done = normalize(ir.from_proto(b.model()), ConstantEvaluator(tmp_path), None, rewrites=LRN)
    assert [n.op_type for n in done.model.graph] == ["LRN"]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_sum_becomes_add(count: int, normalized: Run) -> None:
    b = Builder()
    b.output(b.node("sum", "Sum", [b.input(f"x{i}", (1, 3, 4, 4)) for i in range(count)]))
    proto, done = normalized(b.model())
    assert ops(proto) == ["Add"] * (count - 1)
    assert no_roll_backs(done)


def test_constants_and_initializers_among_the_inputs(normalized: Run) -> None:
    b = Builder()
    w = numpy_tensor(b.rng.standard_normal((4, 3, 1, 1)).astype(np.float32))
    weight = b.node("weight", "Constant", [], value=w)
    y = b.node("conv", "Conv", [b.input("x", (1, 3, 6, 6)), weight], channels=4)
    b.output(b.node("max", "Max", [y, b.constant("c", np.ones((1, 4, 1, 1)))]))
    model = b.model()
    model.graph.input.append(helper.make_tensor_value_info("c", onnx.TensorProto.FLOAT, [1, 4, 1, 1]))
    want = [i.name for i in model.graph.input if i.name != "c"]
    model_without = onnx.ModelProto()
    model_without.CopyFrom(model)
    proto, done = normalized(model)
    assert [i.name for i in proto.graph.input] == want
    assert ops(proto) == ["Conv", "Max"]
    assert {t.name for t in proto.graph.initializer} >= {"c"}
    assert no_roll_backs(done)


def numpy_tensor(array: np.ndarray) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(array)


def test_weights_behind_shape_operators_are_computed(normalized: Run) -> None:
    b = Builder()
    flat = b.constant("flat", b.rng.standard_normal(12))
    weight = b.node("weight", "Reshape", [flat, b.constant("shape", np.array([4, 3, 1, 1]))])
    b.output(b.node("conv", "Conv", [b.input("x", (1, 3, 6, 6)), weight], channels=4))
    assert ops(normalized(b.model())[0]) == ["Conv"]


def test_dropout_identity_and_casts_go(normalized: Run) -> None:
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 6, 6)), 4)
    x = b.node("cast", "Cast", [b.node("same", "Identity", [b.node("drop", "Dropout", [x])])], to=1)
    b.output(b.node("relu", "Relu", [x]))
    assert ops(normalized(b.model())[0]) == ["Conv", "Relu"]


def test_dropout_whose_mask_is_read_stays(normalized: Run) -> None:
    b = Builder()
    b.node("drop", "Dropout", [b.input("x", (1, 3))], ["y", "mask"])
    b.output("y")
    b.output("mask", onnx.TensorProto.BOOL)
    assert ops(normalized(b.model())[0]) == ["Dropout"]


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("op_type", "opset"), [("Upsample", 9), ("Resize", 10)])
def test_raising_the_opset_keeps_asymmetric_coordinates(op_type: str, opset: int, mode: str, normalized: Run) -> None:
    """The converter forgets them: half-pixel coordinates give other numbers."""
    b = Builder(opset=opset)
    x = b.conv("conv", b.input("x", (1, 3, 5, 5)), 4)
    scales = b.constant("scales", np.array([1, 1, 2, 2], np.float32))
    b.output(b.conv("last", b.node("up", op_type, [x, scales], mode=mode), 2))
    proto, done = normalized(b.model())
    assert "Resize" in ops(proto)
    assert next(o.version for o in proto.opset_import if o.domain == "") >= 13
    assert no_roll_backs(done)


def test_raising_the_opset_keeps_every_resize_its_own_name(normalized: Run) -> None:
    """Outputs of one shape would be exchanged unnoticed by everything but their numbers."""
    b = Builder(opset=9)
    x = b.input("x", (1, 3, 5, 5))
    scales = b.constant("scales", np.array([1, 1, 2, 2], np.float32))
    for i in range(6):
        b.output(b.node(f"up{i}", "Upsample", [b.conv(f"conv{i}", x, 4), scales], mode="nearest"))
    proto, done = normalized(b.model())
    assert ops(proto).count("Resize") == 6
    assert no_roll_backs(done)


def test_names_are_made_unique(normalized: Run) -> None:
    model = small_model()
    for node in model.graph.node:
        node.name = ""
    proto, _ = normalized(model)
    names = [n.name for n in proto.graph.node]
    assert all(names)
    assert len(set(names)) == len(names)


def test_bodies_of_if_are_left_alone(normalized: Run) -> None:
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 8, 8)), 4)
    flag = b.node("flag", "Greater", [b.node("sum", "ReduceSum", [x], keepdims=0), b.constant("zero", 0.0)])
    out = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 4, 8, 8]) for n in ("t", "e")]
    then = helper.make_graph([helper.make_node("Relu", [x], ["t"])], "then", [], out[:1])
    other = helper.make_graph([helper.make_node("Neg", [x], ["e"])], "else", [], out[1:])
    b.output(b.node("choose", "If", [flag], then_branch=then, else_branch=other))
    proto, done = normalized(b.model())
    assert "If" in ops(proto)
    assert build_graph(done.model).captured == {x}


def test_identities_go_around_an_if_and_stay_inside_it(normalized: Run) -> None:
    """A branch that hands an outer value on cannot do without its Identity."""
    b = Builder()
    x = b.node("before", "Identity", [b.conv("conv", b.input("x", (1, 3, 8, 8)), 4)])
    flag = b.node("flag", "Greater", [b.node("sum", "ReduceSum", [x], keepdims=0), b.constant("zero", 0.0)])
    out = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 4, 8, 8]) for n in ("t", "e")]
    then = helper.make_graph([helper.make_node("Identity", [x], ["t"])], "then", [], out[:1])
    other = helper.make_graph([helper.make_node("Neg", [x], ["e"])], "else", [], out[1:])
    b.output(b.node("after", "Identity", [b.node("choose", "If", [flag], then_branch=then, else_branch=other)]))
    proto, done = normalized(b.model())
    assert "Identity" not in ops(proto)
    assert not [r for r in done.reports if r.rolled_back]
    assert [o.name for o in proto.graph.output] == ["after_out"]
    inner = next(a.g for n in proto.graph.node if n.op_type == "If" for a in n.attribute if a.name == "then_branch")
    assert [n.op_type for n in inner.node] == ["Identity"]


def test_a_wrong_pass_is_rolled_back(normalized: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate finds the one pass that changes the outputs; those around it still apply."""

    def spoil(model: ir.Model) -> tuple[ir.Model, int]:
        for node in model.graph:
            if node.op_type == "Relu":
                node.op_type = "Sigmoid"
        return model, 1

    def explode(model: ir.Model) -> tuple[ir.Model, int]:
        raise RuntimeError("a bug")

    whole = module.passes
    monkeypatch.setattr(
        module, "passes", lambda evaluate, rewrites: [("spoil", spoil), ("explode", explode), *whole(evaluate)]
    )
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 6, 6)), 4, relu=True)
    b.output(b.node("sum", "Sum", [x, x, x]))
    proto, done = normalized(b.model())
    assert ops(proto) == ["Conv", "Relu", "Add", "Add"]
    rolled = {r.name: r.rolled_back for r in done.reports if r.rolled_back}
    assert rolled.keys() == {"spoil", "explode"}
    assert "dB" in rolled["spoil"]
    assert "a bug" in rolled["explode"]


def test_the_argument_is_not_changed(tmp_path: Path) -> None:
    model = ir.from_proto(small_model())
    before = ir.to_proto(model).SerializeToString()
    normalize(model, ConstantEvaluator(tmp_path), None)
    assert ir.to_proto(model).SerializeToString() == before
