"""Each row of ONNX Runtime's rule table, checked against the runtime itself.

For each row the operator stands alone between graph inputs and outputs, Inlay's own placement is set in, and the graph
that the runtime makes of it is read back: no float form of the operator may be left. The negative controls show that
the reading can tell: operators without a row, between Q/DQ nodes set by hand, keep their float form.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from inlay.model.reference import run_once
from inlay.model.store import embed_weights
from inlay.quant.emit import Emitter
from inlay.space.units import STATIC
from inlay.targets import null
from inlay.targets.conditions import plain_product
from inlay.targets.onnxruntime.rules import OPS, precedes, rules_for
from inlay.targets.onnxruntime.target import capabilities_for
from inlay.testing import Builder, random_feed, sqnr
from tests.support.hand_written_qdq import insert_qdq_everywhere
from tests.support.onnx_queries import producers, readers
from tests.support.runtime import optimized
from tests.support.workspace import Workspace

X = (1, 4, 6, 6)
_POOL: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
Case = Callable[[Builder], None]


def _unary(op_type: str, *extra: tuple[str, object], **attributes: Any) -> Case:
    """One operator on ``x``, with constant further inputs."""

    def build(b: Builder) -> None:
        inputs = [b.input("x", X), *(b.constant(name, array) if name else "" for name, array in extra)]
        b.output(b.node("op", op_type, inputs, **attributes))

    return build


def _binary(op_type: str, constant: bool = False, **attributes: Any) -> Case:
    def build(b: Builder) -> None:
        other = b.constant("c", b.rng.standard_normal((1, 4, 1, 1)).astype(np.float32)) if constant else b.input("o", X)
        b.output(b.node("op", op_type, [b.input("x", X), other], **attributes))

    return build


def _conv(**options: Any) -> Case:
    def build(b: Builder) -> None:
        b.output(b.conv("op", b.input("x", X), **{"channels": 4, **options}))

    return build


def _transposed(bias: bool, relu: bool = False, **attributes: Any) -> Case:
    def build(b: Builder) -> None:
        inputs = [b.input("x", X), b.constant("w", b.rng.standard_normal((4, 3, 2, 2)).astype(np.float32))]
        inputs += [b.constant("b", b.rng.standard_normal(3).astype(np.float32))] if bias else []
        y = b.node("op", "ConvTranspose", inputs, strides=[2, 2], **attributes)
        b.output(b.node("relu", "Relu", [y]) if relu else y)

    return build


def _gemm(bias: bool, length: int = 8, **attributes: Any) -> Case:
    def build(b: Builder) -> None:
        shape = (8, length) if attributes.get("transB") else (length, 8)
        inputs = [
            b.input("x", (length, 2) if attributes.get("transA") else (2, length)),
            b.constant("w", b.rng.standard_normal(shape).astype(np.float32)),
        ]
        inputs += [b.constant("b", b.rng.standard_normal(8).astype(np.float32))] if bias else []
        b.output(b.node("op", "Gemm", inputs, **attributes))
        if bias and "beta" in attributes:  # with another reader the bias cannot take it in
            b.output(b.node("other", "Add", [b.input("x2", (2, 8)), inputs[2]]))

    return build


def _lstm(direction: str, **attributes: Any) -> Case:
    def build(b: Builder) -> None:
        ways = 2 if direction == "bidirectional" else 1
        shapes = {"w": (ways, 32, 6), "r": (ways, 32, 8), "b": (ways, 64)}
        weights = [b.constant(n, b.rng.standard_normal(s).astype(np.float32)) for n, s in shapes.items()]
        y = b.node("op", "LSTM", [b.input("x", (5, 1, 6)), *weights], hidden_size=8, direction=direction, **attributes)
        b.output(b.node("after", "Tanh", [y]))

    return build


def _matmul(constant: bool, then_float: bool = False, length: int = 8) -> Case:
    def build(b: Builder) -> None:
        x = b.input("x", (1, 3, length))
        weight = b.rng.standard_normal((length, 5)).astype(np.float32)
        other = b.constant("w", weight) if constant else b.input("o", (1, length, 5))
        y = b.node("op", "MatMul", [x, other])
        b.output(b.node("after", "Tanh", [y]) if then_float else y)

    return build


def _rows_of_a_table(*indices: int) -> Case:
    """Rows by computed indices of this shape."""

    def build(b: Builder) -> None:
        table = b.constant("table", b.rng.standard_normal((256, 64)).astype(np.float32))
        places = b.node("places", "Cast", [b.input("x", indices)], to=onnx.TensorProto.INT64)
        b.output(b.node("after", "Tanh", [b.node("op", "Gather", [table, places])]))

    return build


def _where(b: Builder) -> None:
    condition = b.input("condition", X, onnx.TensorProto.BOOL)
    b.output(b.node("op", "Where", [condition, b.input("x", X), b.input("o", X)]))


def _split(b: Builder) -> None:
    b.node("op", "Split", [b.input("x", X)], ["first", "second"], axis=1)
    b.output("first")
    b.output("second")


def _concat(b: Builder) -> None:
    b.output(b.node("op", "Concat", [b.input("x", X), b.input("o", X), b.input("p", X)], axis=1))


def _max_pool_with_indices(b: Builder) -> None:
    b.node("op", "MaxPool", [b.input("x", X)], ["y", "indices"], **_POOL)
    b.output("y")
    b.output("indices", onnx.TensorProto.INT64)


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _resize(mode: str, by: float = 2) -> Case:
    scales = np.array([1, 1, by, by], np.float32)
    coordinates = "asymmetric" if mode == "nearest" else "half_pixel"
    more = {"nearest_mode": "floor"} if mode == "nearest" else {}
    return _unary("Resize", ("", 0), ("scales", scales), mode=mode, coordinate_transformation_mode=coordinates, **more)


CASES: dict[str, dict[str, Case]] = {
    "Conv": {
        "plain": _conv(),
        "without bias": _conv(bias=False),
        "pointwise": _conv(kernel=1),
        "depthwise": _conv(group=4),
        "grouped": _conv(group=2),
        "strided": _conv(stride=2),
        "with Relu": _conv(relu=True),
    },
    "ConvTranspose": {
        "plain": _transposed(True),
        "without bias": _transposed(False),
        "with Relu": _transposed(True, relu=True),
        "padded": _transposed(True, pads=[1] * 4),
    },
    "MatMul": {"weight": _matmul(True), "two activations": _matmul(False), "float output": _matmul(True, True)},
    "Gemm": {
        "plain": _gemm(True),
        "without bias": _gemm(False),
        "transposed weight": _gemm(True, transB=1),
        "transposed data": _gemm(True, transA=1),
    },
    "Add": {"two activations": _binary("Add"), "constant": _binary("Add", True)},
    "Mul": {"two activations": _binary("Mul"), "constant": _binary("Mul", True)},
    "Where": {"plain": _where},
    "Concat": {"three": _concat},
    # cut off at the border: with whole windows it becomes a Conv before this table is asked
    "AveragePool": {"plain": _unary("AveragePool", **{**_POOL, "pads": [1, 1, 1, 1]})},
    "GlobalAveragePool": {"plain": _unary("GlobalAveragePool")},
    "LeakyRelu": {"plain": _unary("LeakyRelu", alpha=0.1)},
    "HardSigmoid": {"plain": _unary("HardSigmoid"), "of torch": _unary("HardSigmoid", alpha=1 / 6)},
    "Sigmoid": {"plain": _unary("Sigmoid")},
    "Softmax": {"last axis": _unary("Softmax", axis=-1), "channels": _unary("Softmax", axis=1)},
    "MaxPool": {"plain": _unary("MaxPool", **_POOL)},
    "ReduceMax": {"plain": _unary("ReduceMax", axes=[2])},
    "ReduceMin": {"plain": _unary("ReduceMin", axes=[2])},
    "Reshape": {"plain": _unary("Reshape", ("shape", _ints(1, 144)))},
    "Flatten": {"plain": _unary("Flatten")},
    "Squeeze": {"plain": _unary("Squeeze", ("axes", _ints(0)))},
    "Unsqueeze": {"plain": _unary("Unsqueeze", ("axes", _ints(0)))},
    "Transpose": {"plain": _unary("Transpose", perm=[0, 2, 3, 1])},
    "Expand": {"plain": _unary("Expand", ("shape", _ints(3, 4, 6, 6)))},
    "Tile": {"plain": _unary("Tile", ("repeats", _ints(1, 2, 1, 1)))},
    "Slice": {"plain": _unary("Slice", ("starts", _ints(0)), ("ends", _ints(2)), ("axes", _ints(1)))},
    "Gather": {"plain": _unary("Gather", ("indices", _ints(0, 2)), axis=1)},
    "Split": {"plain": _split},
    "DepthToSpace": {"plain": _unary("DepthToSpace", blocksize=2)},
    "Resize": {"nearest": _resize("nearest")},
}

FLOAT: dict[str, Case] = {
    "Sub": _binary("Sub"),
    "Div": _binary("Div"),
    "Pow": _binary("Pow"),
    "Min": _binary("Min"),
    "Max": _binary("Max"),
    "Tanh": _unary("Tanh"),
    "Exp": _unary("Exp"),
    "Abs": _unary("Abs"),
    "Elu": _unary("Elu"),
    "Erf": _unary("Erf"),
    "ReduceMean": _unary("ReduceMean", axes=[2]),
    "InstanceNormalization": _unary("InstanceNormalization", ("s", np.ones(4)), ("b", np.zeros(4))),
    "LayerNormalization": _unary("LayerNormalization", ("s", np.ones(6)), axis=-1),
    "LRN": _unary("LRN", size=3),
    "HardSigmoid that falls": _unary("HardSigmoid", alpha=-0.2),
    "Resize linear": _resize("linear"),
    "Resize linear that shrinks": _resize("linear", 0.5),
    "ConvTranspose": _unary("ConvTranspose", ("w", np.ones((4, 4, 2, 2)))),
    "MaxPool with indices": _max_pool_with_indices,
    "Gemm with beta": _gemm(True, beta=0.5),
    "CumSum": _unary("CumSum", ("axis", np.array(1, np.int64))),
}


def build(case: Case) -> onnx.ModelProto:
    b = Builder(opset=17)
    case(b)
    return b.model()


def float_forms(graph: onnx.ModelProto, op_type: str) -> list[str]:
    """Nodes of this type that read or write float activations in the runtime's graph."""
    made = producers(graph)
    outputs = {o.name for o in graph.graph.output}
    quantized_kernels = ("QLinear", "QuantizeLinear", "QGemm", "QAttention")
    floats = []
    for node in graph.graph.node:
        if node.op_type.removeprefix("Fused").removeprefix("Nhwc") != op_type:
            continue
        source = made.get(node.input[0])
        reads_bytes = source is not None and source.op_type.startswith(quantized_kernels)
        hands_bytes = all(
            value not in outputs and all(r.op_type == "DequantizeLinear" for r in readers(graph, value))
            for value in node.output
            if value
        )
        if not (reads_bytes and hands_bytes):
            floats.append(f"{node.op_type} {node.name}")
    return floats


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize(("op_type", "variant"), [(o, v) for o, variants in CASES.items() for v in variants])
def test_a_row_runs_in_low_precision(op_type: str, variant: str, tmp_path: Path) -> None:
    model = build(CASES[op_type][variant])
    space = Workspace(model, tmp_path)
    unit = next(u for u in space.prepared.units if u.name == "op")
    assert unit.selectable, unit.rejection
    graph = optimized(space.emit(space.label("op")), tmp_path)
    assert float_forms(graph, op_type) == []
    assert any(n.op_type == op_type or op_type in n.op_type for n in graph.graph.node) or op_type in (
        "Gemm",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "ConvTranspose",
        "HardSigmoid",
    ), [n.op_type for n in graph.graph.node]
    assert float_forms(optimized(model, tmp_path), op_type) or op_type == "MatMul", (
        "the float model shows the float form"
    )
    other = {"ConvTranspose": "QLinearConv", "HardSigmoid": "QLinearLeakyRelu"}.get(op_type)  # its name there
    assert other is None or [n.op_type for n in graph.graph.node].count(other) == 1


def test_the_simulated_target_prices_these_rows() -> None:
    assert {op: row.weight for op, row in OPS.items() if not row.moves_data} == null._WEIGHTS
    assert {op for op, row in OPS.items() if row.moves_data} == null._MOVING


def test_every_row_has_a_case() -> None:
    assert CASES.keys() == OPS.keys()


_WEIGHTS = ("weight-only", *(f"weight-only int{bits}/{block}" for bits in (4, 8) for block in (32, 128)))
_PRODUCTS = ("plain", "without bias", "transposed weight")
FORM_CASES: dict[tuple[str, str], dict[str, Case]] = {
    ("dynamic", "MatMul"): {"weight": CASES["MatMul"]["weight"]},
    ("dynamic", "LSTM"): {
        "one way": _lstm("forward"),
        "both ways": _lstm("bidirectional"),
        "a layout that is stated": _lstm("forward", layout=0),  # as models have it whose opset was raised
    },
    ("dynamic", "Gemm"): {v: CASES["Gemm"][v] for v in _PRODUCTS},
    ("dynamic", "Gather"): {"a sequence": _rows_of_a_table(1, 5), "one row": _rows_of_a_table()},
    **{(form, "MatMul"): {"weight": _matmul(True, length=256)} for form in _WEIGHTS},
    **{
        (form, "Gemm"): {
            "plain": _gemm(True, 256),
            "without bias": _gemm(False, 256),
            "beta of no bias": _gemm(False, 256, beta=0.0),
            "transposed weight": _gemm(True, 256, transB=1),
        }
        for form in _WEIGHTS
    },
}
KERNELS = {
    ("dynamic", "LSTM"): "DynamicQuantizeLSTM",
    ("dynamic", "Gather"): "DequantizeLinear",
    ("dynamic", ""): "DynamicQuantizeMatMul",
}
OWED = {("dynamic", "LSTM", v) for v in ("one way", "both ways", "a layout that is stated")} | {
    ("dynamic", "Gemm", v) for v in _PRODUCTS
}
OWED |= {(form, "Gemm", "transposed weight") for form in _WEIGHTS}
"""What the runtime has a kernel for only as a rewrite writes it."""


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize(
    ("form", "op_type", "variant"), [(*row, variant) for row, cases in FORM_CASES.items() for variant in cases]
)
def test_a_form_runs_in_its_kernel(form: str, op_type: str, variant: str, tmp_path: Path) -> None:
    space = Workspace(build(FORM_CASES[form, op_type][variant]), tmp_path)
    placement = space.prepared.label({"op": form})
    emitted = space.emit(placement)
    kernels = [n.op_type for n in optimized(emitted, tmp_path).graph.node]
    kernel = KERNELS.get((form, op_type)) or KERNELS.get((form, ""), "MatMulNBits")
    offered = {f.name: f.ops for f in rules_for("x86_64", version=ort.__version__).forms}
    if op_type not in offered.get(form, ()):
        assert kernel not in kernels, "this version has the kernel: its rules may have the row"
        return
    assert kernel in kernels, kernels
    if op_type == "Gather":  # rows of integers, and only they are dequantized: no table of floats is left
        assert kernels.index("Gather") < kernels.index(kernel)
        assert not [t for t in emitted.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and len(t.dims) > 1]
    else:
        assert not {op_type, "DequantizeLinear"} & set(kernels), kernels
    writer = Emitter(space.prepared.normalized.model, space.graph, space.prepared.store)
    plain = embed_weights(writer.emit(placement, space.table), space.prepared.store)
    kernels = [n.op_type for n in optimized(plain, tmp_path).graph.node]
    assert op_type == "Gather" or (kernel in kernels) == ((form, op_type, variant) not in OWED)
    if form == "dynamic" and op_type != "LSTM":  # no zeros are stored for the channels of a weight
        assert [_zeros(plain), _zeros(emitted)] == ([1, 0] if op_type != "Gather" else [1, 1])
    found = space.extract(emitted)
    assert found.placement == placement
    assert not found.leftovers
    onnx.checker.check_model(plain if form == "dynamic" else emitted, full_check=True)
    assert all(o.version == (21 if "/" in form else 17) for o in emitted.opset_import if o.domain == "")


def test_weights_alone_by_version() -> None:
    """Asked of 1.23.2, 1.24.2 and 1.25.0 themselves, with the test above."""
    old, new = ({f.name: f.ops.keys() for f in rules_for("x86_64", version=v).forms} for v in ("1.24.2", "1.25.0"))
    assert old == {n: {"MatMul"} if n != "dynamic" else new[n] for n in new if n == "dynamic" or "int4" in n}
    assert {"weight-only", "weight-only int8/128", "weight-only int4/32"} < new.keys()
    assert new == {f.name: f.ops.keys() for f in rules_for("x86_64").forms}


def _zeros(model: onnx.ModelProto) -> int:
    """Initializers of int8 that hold nothing but zeros, several of them."""
    arrays = [onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT8]
    return sum(array.size > 1 and not array.any() for array in arrays)


def test_an_lstm_behind_static_pairs_still_is_the_runtimes_own(tmp_path: Path) -> None:
    """Its data stay between Q/DQ nodes, as others read them so; LSTM would dequantize its weights in each inference."""
    b = Builder(opset=17)
    shapes = {"w": (1, 32, 6), "r": (1, 32, 8), "b": (1, 64)}
    weights = [b.constant(n, b.rng.standard_normal(shape).astype(np.float32)) for n, shape in shapes.items()]
    x = b.node("moved", "Transpose", [b.node("gate", "Sigmoid", [b.input("x", (1, 5, 6))])], perm=[1, 0, 2])
    b.output(b.node("op", "LSTM", [x, *weights], hidden_size=8))
    space = Workspace(b.model(), tmp_path)
    placement = space.prepared.label({"gate": STATIC, "moved": STATIC, "op": "dynamic"})
    emitted = space.emit(placement)
    kernels = [n.op_type for n in optimized(emitted, tmp_path).graph.node]
    assert "DynamicQuantizeLSTM" in kernels
    assert "LSTM" not in kernels
    assert space.extract(emitted).placement == placement
    want, got = (run_once(m, space.feeds[0]) for m in (b.model(), emitted))
    assert all(sqnr(want[name], got[name]) > 25.0 for name in want)


def test_every_row_of_a_form_has_a_case() -> None:
    assert FORM_CASES.keys() == {(form.name, op) for form in rules_for("x86_64").forms for op in form.ops}


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (CASES["Gemm"]["transposed data"], "transposed"),
        (_gemm(True, beta=0.5), "scaled"),
        (CASES["MatMul"]["two activations"], ""),
    ],
    ids=["transposed data", "scaled bias", "two activations"],
)
def test_other_products_have_no_further_form(case: Case, reason: str, tmp_path: Path) -> None:
    space = Workspace(build(case), tmp_path)
    unit = next(u for u in space.prepared.units if u.name == "op")
    assert not unit.forms
    if reason:
        assert reason in (plain_product(space.graph, space.graph.node("op")) or "")


REASONS = {
    "MaxPool with indices": "index output",
    "Gemm with beta": "scaled by beta",
    "Resize linear": "it interpolates",
}
"""What the rejection names in place of the operator."""

WRITTEN_OUT = {"LRN", "Resize linear"}
"""What float rewrites write in other operators."""


@pytest.mark.parametrize("name", FLOAT)
def test_operators_without_a_row_stay_float(name: str, tmp_path: Path) -> None:
    """Negative control, and the other half of the table's claim: nothing is missing from it."""
    model = build(FLOAT[name])
    op_type = next(n.op_type for n in model.graph.node if n.name == "op")
    graph = optimized(insert_qdq_everywhere(model), tmp_path)
    on_bytes = name.startswith("Resize linear") and precedes(ort.__version__, 27)
    assert bool(float_forms(graph, op_type)) is not on_bytes, [n.op_type for n in graph.graph.node]
    space = Workspace(model, tmp_path)
    unit = next(u for u in space.prepared.units if u.name == "op")
    assert not unit.selectable
    assert (op_type in [n.op_type for n in space.prepared.graph.nodes]) == (name not in WRITTEN_OUT)
    assert REASONS.get(name, unit.op_type) in unit.rejection


@pytest.mark.parametrize("op_type", ["Add", "Mul", "Sigmoid", "Concat", "MaxPool", "Transpose"])
def test_hand_written_qdq_would_show_integer_forms(op_type: str, tmp_path: Path) -> None:
    """Positive control of the negative control: between the same hand-written Q/DQ nodes, rows do fuse."""
    model = build(next(iter(CASES[op_type].values())))
    same = dict.fromkeys(("x", "op_out"), (0.05, 128))
    assert float_forms(optimized(insert_qdq_everywhere(model, same), tmp_path), op_type) == []


def test_one_float_consumer_keeps_a_convolution_in_float(tmp_path: Path) -> None:
    """Why a placement covers all consumers of a low-precision unit's output together."""
    b = Builder()
    conv = b.conv("conv", b.input("x", X), 4)
    b.output(b.node("gate", "Sigmoid", [conv]))
    b.output(b.node("island", "Tanh", [conv]))
    space = Workspace(b.model(), tmp_path)
    whole = space.label("conv")
    assert {p.node for p, _ in whole} == {"conv", "gate", "island"}
    assert float_forms(optimized(space.emit(whole), tmp_path), "Conv") == []
    partly = whole.without([p for p, _ in whole if p.node == "island"])
    assert float_forms(optimized(space.emit(partly), tmp_path), "Conv")


def test_relu_is_folded_when_zero_is_the_least_integer(tmp_path: Path) -> None:
    b = Builder()
    b.output(b.conv("conv", b.input("x", X), 4, relu=True))
    model = b.model()
    space = Workspace(model, tmp_path)
    graph = optimized(space.emit(space.full()), tmp_path)
    assert [n.op_type for n in graph.graph.node if "Relu" in n.op_type] == []
    symmetric = insert_qdq_everywhere(model)  # zero point 128: the Relu is not redundant, the Conv is not fused
    assert float_forms(optimized(symmetric, tmp_path), "Conv") or any(
        n.op_type == "Relu" for n in optimized(symmetric, tmp_path).graph.node
    )


def test_int8_activations_fuse_as_well(tmp_path: Path) -> None:
    """The rules of other machines: signed activations."""
    model = build(CASES["Conv"]["plain"])
    space = Workspace(model, tmp_path, capabilities_for("aarch64"))
    graph = optimized(space.emit(space.full()), tmp_path)
    assert float_forms(graph, "Conv") == []


def test_feeds_fit_the_cases() -> None:
    assert random_feed(build(CASES["Where"]["plain"]))["condition"].dtype == np.bool_
