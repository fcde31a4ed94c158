"""Each row of OpenVINO's rule table, checked against the graph that the runtime says it executes.

For each row the operator stands between two convolutions, Inlay's own placement is set in, and the executed graph is
read back: the operator's kernel reads bytes and writes bytes. The negative controls show that the reading can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from inlay.quant.fake_quant import NoiseProbe
from inlay.targets.base import Capabilities
from inlay.targets.conditions import constant_weight
from inlay.targets.openvino.profile import Attribution, Kernel, executed_graph
from inlay.targets.openvino.rules import OPS, rules_for
from inlay.targets.openvino.target import OpenVinoCpuTarget
from inlay.testing import Builder
from inlay.types import Placement, QType
from tests.support.hand_written_qdq import insert_qdq_everywhere
from tests.support.workspace import Workspace

pytest.importorskip("openvino", reason="the extra openvino is not installed")

from inlay.targets.openvino.runtime import core

C = 16
X = (1, C, 8, 8)
BYTES = ("u8", "i8")
Case = Callable[[Builder, str], str]
"""Adds the operator, called ``op``, behind a value, and returns what it computes."""


def _unary(op_type: str, *extra: tuple[str, object], channels: int = C, **attributes: Any) -> Case:
    def build(b: Builder, x: str) -> str:
        inputs = [x, *(b.constant(name, array) if name else "" for name, array in extra)]
        return b.node("op", op_type, inputs, channels=channels, **attributes)

    return build


def _conv(**options: Any) -> Case:
    return lambda b, x: b.conv("op", x, C, **options)


def _two(op_type: str, **attributes: Any) -> Case:
    """The operator on two convolutions."""

    def build(b: Builder, x: str) -> str:
        channels = 2 * C if op_type == "Concat" else C
        return b.node("op", op_type, [x, b.conv("beside", x, C)], channels=channels, **attributes)

    return build


def _flat(op_type: str, bias: bool = False, **attributes: Any) -> Case:
    """The operator behind a Flatten, over rows of ``64 * C``."""

    def build(b: Builder, x: str) -> str:
        shape = (8, 64 * C) if attributes.get("transB") else (64 * C, 8)
        inputs = [b.node("flat", "Flatten", [x]), b.constant("w", b.rng.standard_normal(shape).astype(np.float32))]
        inputs += [b.constant("b", b.rng.standard_normal(8).astype(np.float32))] if bias else []
        y = b.node("op", op_type, inputs, channels=8, **attributes)
        return b.node("image", "Reshape", [y, b.constant("to", _ints(1, 8, 1, 1))], channels=8)

    return build


def _around(op_type: str, *extra: tuple[str, object], axis: int, half: int = C // 2) -> Case:
    """The operator, and behind it half of what it computes, as an image: two Reshapes alone would become one."""

    def build(b: Builder, x: str) -> str:
        y = _unary(op_type, *extra)(b, x)
        bounds = [b.constant(n, _ints(v)) for n, v in (("from", 0), ("end", half), ("axis", axis))]
        y = b.node("half", "Slice", [y, *bounds])
        return b.node("image", "Reshape", [y, b.constant("to", _ints(1, C // 2, 8, 8))], channels=C // 2)

    return build


def _split(b: Builder, x: str) -> str:
    b.node("op", "Split", [x], ["first", "second"], axis=1, channels=C // 2)
    b.output(b.conv("other", b.node("half", "Relu", ["second"], channels=C // 2), 4))
    return "first"


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _resize(mode: str) -> Case:
    scales = np.array([1, 1, 2, 2], np.float32)
    coordinates = "asymmetric" if mode == "nearest" else "half_pixel"
    more: dict[str, Any] = {"nearest_mode": "floor"} if mode == "nearest" else {}
    return _unary("Resize", ("", 0), ("scales", scales), mode=mode, coordinate_transformation_mode=coordinates, **more)


_POOL: Mapping[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
CASES: dict[str, dict[str, Case]] = {
    "Conv": {
        "plain": _conv(),
        "without bias": _conv(bias=False),
        "pointwise": _conv(kernel=1),
        "depthwise": _conv(group=C),
        "grouped": _conv(group=2),
        "strided": _conv(stride=2),
        "with Relu": _conv(relu=True),
    },
    "MatMul": {"weight": _flat("MatMul")},
    "Gemm": {"plain": _flat("Gemm", True), "without bias": _flat("Gemm"), "transposed": _flat("Gemm", True, transB=1)},
    "Add": {"two": _two("Add")},
    "Sub": {"two": _two("Sub")},
    "Concat": {"two": _two("Concat", axis=1)},
    "AveragePool": {"plain": _unary("AveragePool", **_POOL), "padded": _unary("AveragePool", pads=[1] * 4, **_POOL)},
    "GlobalAveragePool": {"plain": _unary("GlobalAveragePool")},
    "ReduceMean": {"image": _unary("ReduceMean", axes=[2, 3])},
    "MaxPool": {"plain": _unary("MaxPool", **_POOL)},
    "ReduceMax": {"plain": _unary("ReduceMax", axes=[2])},
    "ReduceMin": {"plain": _unary("ReduceMin", axes=[2])},
    "Reshape": {"plain": _unary("Reshape", ("shape", _ints(1, C, 16, 4)))},
    "Flatten": {"plain": _around("Flatten", axis=1, half=32 * C)},
    "Squeeze": {"plain": _around("Squeeze", ("axes", _ints(0)), axis=0)},
    "Unsqueeze": {"plain": _around("Unsqueeze", ("axes", _ints(0)), axis=2)},
    "Expand": {"plain": _unary("Expand", ("shape", _ints(3, C, 8, 8)))},
    "Slice": {"plain": _unary("Slice", ("starts", _ints(0)), ("ends", _ints(4)), ("axes", _ints(2)))},
    "Gather": {"plain": _unary("Gather", ("indices", _ints(0, 2, 5)), axis=2)},
    "Split": {"plain": _split},
    "DepthToSpace": {"plain": _unary("DepthToSpace", blocksize=2, channels=C // 4)},
    "Resize": {"nearest": _resize("nearest")},
}

FLOAT: dict[str, Case] = {
    "Softmax": _unary("Softmax", axis=1),
    "HardSigmoid": _unary("HardSigmoid"),
    "LRN": _unary("LRN", size=3),
    "Tile": _unary("Tile", ("repeats", _ints(1, 1, 2, 1))),
    "SpaceToDepth": _unary("SpaceToDepth", blocksize=2, channels=4 * C),
    "Resize linear": _resize("linear"),
    "ConvTranspose": _unary("ConvTranspose", ("w", np.ones((C, C, 2, 2)))),
    "MatMul": _two("MatMul"),
}
"""Operators whose kernel reads floats, Q/DQ nodes around it or not."""

FUSED = {name: _unary(name) for name in ("Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSwish", "Elu", "Abs")}
FUSED["Add of a constant"] = _unary("Add", ("c", np.ones((1, C, 1, 1))))
FUSED["Mul by a constant"] = _unary("Mul", ("c", np.full((1, C, 1, 1), 2.0)))
"""Elementwise operators that a convolution computes besides."""


def model(case: Case) -> onnx.ModelProto:
    """Conv, the operator, Conv."""
    b = Builder(opset=17)
    before = b.conv("before", b.input("x", X), C)
    b.output(b.conv("after", case(b, before), C, kernel=1))
    return b.model()


def compiled_in_float32(proto: onnx.ModelProto) -> Any:
    """Compiled so that float means float32, also on processors where the runtime would take bfloat16."""
    options = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    return core().compile_model(core().read_model(proto.SerializeToString()), "CPU", options)


def executed(proto: onnx.ModelProto) -> tuple[list[Kernel], Attribution]:
    return executed_graph(compiled_in_float32(proto)), Attribution(proto)


def kernel_of(proto: onnx.ModelProto, node: str) -> Kernel:
    """The kernel that computes a node."""
    graph, attribution = executed(proto)
    (found,) = [k for k in graph if node in attribution.nodes(k) and not k.constant]
    return found


def computing(proto: onnx.ModelProto) -> list[str]:
    """Operators of the kernels that compute something."""
    graph, attribution = executed(proto)
    return [k.op_type for k in graph if attribution.nodes(k) and not k.constant and k.op_type != "Output"]


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize(("op_type", "variant"), [(o, v) for o, variants in CASES.items() for v in variants])
def test_a_row_runs_in_low_precision(op_type: str, variant: str, tmp_path: Path) -> None:
    proto = model(CASES[op_type][variant])
    space = Workspace(proto, tmp_path, Capabilities.of(OpenVinoCpuTarget()))
    unit = next(u for u in space.prepared.units if u.name == "op")
    assert unit.selectable, unit.rejection
    found = kernel_of(space.emit(space.full()), "op")
    assert found.inputs[0] in BYTES, found
    assert found.output in BYTES, found
    assert found.precision in BYTES
    graph, _ = executed(proto)
    assert {k.precision for k in graph if not k.constant} == {"f32"}, "the float model shows floats"


@pytest.mark.parametrize("form", ["weight-only", "weight-only int8/128", "weight-only int4/128"])
@pytest.mark.parametrize("length", [256, 384])
def test_the_noise_of_a_form_is_that_of_its_kernel(form: str, length: int, tmp_path: Path) -> None:
    """Which rounds its data, too: without that, there would be half of it."""
    b = Builder(opset=17)
    weight = b.constant("w", b.rng.standard_normal((length, 48)).astype(np.float32))
    b.output(b.node("op", "MatMul", [b.input("x", (1, 64, length)), weight]))
    space = Workspace(b.model(), tmp_path, Capabilities.of(OpenVinoCpuTarget()))
    prepared, placement = space.prepared, space.prepared.label({"op": form})
    probe = NoiseProbe(
        prepared.emitter.base, prepared.store, prepared.graph, prepared.units, prepared.rules, space.table
    )
    probe.use([dict(feed) for feed in space.feeds])
    outputs = []
    for proto in (space.emit(Placement()), space.emit(placement)):
        compiled = compiled_in_float32(proto)
        outputs.append(np.stack([compiled(feed)[compiled.outputs[0]].astype(np.float64) for feed in space.feeds]))
    noise = float(np.square(outputs[1] - outputs[0]).sum() / np.square(outputs[0]).sum())
    assert probe.noise(placement)[0] == pytest.approx(noise, rel=0.05)


HERE = rules_for()
SYMMETRIC = [(op, variant) for op in sorted(HERE.fast.get(QType.INT8, ())) for variant in CASES[op]]


@pytest.mark.parametrize(("op_type", "variant"), SYMMETRIC)
def test_products_without_zero_points_run_in_low_precision(op_type: str, variant: str, tmp_path: Path) -> None:
    """The control is the usual type, whose values have zero points: the images behind a convolution are signed."""
    space = Workspace(model(CASES[op_type][variant]), tmp_path, Capabilities(HERE))
    for label, dtype in (("int8", np.int8), ("static", np.uint8)):
        emitted = space.emit(space.prepared.label({"op": label}))
        zeros = zero_points(emitted, "op")
        assert zeros.dtype == dtype
        assert bool(zeros.any()) is (label == "static")
        graph, attribution = executed(emitted)
        read = {k.inputs[0] for k in graph if "op" in attribution.nodes(k) and not k.constant}
        assert read & set(BYTES) == {"i8" if label == "int8" else "u8"}, read


def zero_points(proto: onnx.ModelProto, node: str) -> np.ndarray:
    """Of the activation that a node reads."""
    arrays = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    producers = {v: n for n in proto.graph.node for v in n.output}
    (reader,) = [n for n in proto.graph.node if n.name == node]
    found: np.ndarray = arrays[producers[reader.input[0]].input[2]]
    return found


def test_convolutions_have_signed_activations_where_they_are_read_as_such(tmp_path: Path) -> None:
    """Elsewhere they become unsigned, with a zero point: a label that would be none."""
    flags = frozenset({"avx512_vnni"})
    assert rules_for("x86_64", flags).fast[QType.INT8] == {"MatMul", "Gemm"}
    with_amx = rules_for("x86_64", flags | {"amx_int8"})
    for also in ("amx_int8", "avx_vnni_int8"):
        assert rules_for("x86_64", flags | {also}).fast[QType.INT8] == {"Conv", "MatMul", "Gemm"}
    if HERE.fast and "Conv" not in HERE.fast[QType.INT8]:
        space = Workspace(model(CASES["Conv"]["plain"]), tmp_path, Capabilities(with_amx))
        graph, attribution = executed(space.emit(space.prepared.label({"op": "int8"})))
        assert "u8" in {k.inputs[0] for k in graph if "op" in attribution.nodes(k) and not k.constant}


def test_without_vnni_signed_activations_are_no_label() -> None:
    narrow = rules_for("x86_64", frozenset({"avx2"}))
    assert not narrow.fast
    assert QType.INT8 in narrow.types, "who asks for them has them"


def test_every_row_has_a_case() -> None:
    assert CASES.keys() == OPS.keys()


FORMS = [(form.name, op, variant) for form in rules_for().forms for op in form.ops for variant in CASES[op]]


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize(("form", "op_type", "variant"), FORMS)
def test_weights_of_a_form_are_still_integers_when_they_are_read(
    form: str, op_type: str, variant: str, tmp_path: Path
) -> None:
    proto = model(CASES[op_type][variant])
    space = Workspace(proto, tmp_path, Capabilities.of(OpenVinoCpuTarget()))
    emitted = space.emit(space.prepared.label({"op": form}))
    found = kernel_of(emitted, "op")
    assert found.op_type == "FullyConnected"
    assert found.inputs[:2] == ("f32", found.precision), found
    assert found.precision == ("i4" if "int4" in form else "i8")
    assert found.output == "f32"
    assert {k.precision for k in executed(proto)[0] if not k.constant} == {"f32"}, "the float model shows floats"
    extracted = space.extract(emitted)
    assert extracted.placement == space.prepared.label({"op": form})
    assert not extracted.leftovers


@pytest.mark.parametrize("op_type", ["Conv", "MatMul", "Gemm", "AveragePool", "GlobalAveragePool", "MaxPool"])
def test_a_row_writes_floats_where_its_readers_want_them(op_type: str, tmp_path: Path) -> None:
    space = Workspace(model(next(iter(CASES[op_type].values()))), tmp_path, Capabilities.of(OpenVinoCpuTarget()))
    graph, attribution = executed(space.emit(space.label("before", "flat", "op")))
    found = next(k for k in graph if "op" in attribution.nodes(k) and not k.constant)
    assert found.inputs[0] in BYTES, found
    assert found.output == ("u8" if OPS[op_type].moves_data else "f32")
    assert next(k for k in graph if "after" in attribution.nodes(k)).inputs[0] == "f32"


@pytest.mark.parametrize("name", FLOAT)
def test_operators_without_a_row_read_floats(name: str, tmp_path: Path) -> None:
    proto = model(FLOAT[name])
    found = kernel_of(insert_qdq_everywhere(proto), "op")
    assert found.inputs[0] == "f32", found
    space = Workspace(proto, tmp_path, Capabilities.of(OpenVinoCpuTarget()))
    unit = next((u for u in space.prepared.units if u.name == "op"), None)
    assert unit is not None
    assert not unit.selectable


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("name", FUSED)
def test_elementwise_operators_are_computed_by_the_convolution_before_them(name: str, tmp_path: Path) -> None:
    """And so a Q/DQ pair in between would cost a kernel: they have no row."""
    proto = model(FUSED[name])
    space = Workspace(proto, tmp_path, Capabilities.of(OpenVinoCpuTarget()))
    assert "op" not in [u.name for u in space.prepared.selectable]
    emitted = space.emit(space.full())
    assert computing(emitted) == ["Convolution", "Convolution"]
    assert kernel_of(emitted, "before").output in BYTES
    assert (
        name in ("Relu", "Add of a constant", "Mul by a constant") or len(computing(insert_qdq_everywhere(proto))) > 2
    )


@pytest.mark.parametrize("form", ["float", "weight-only", "static"])
def test_a_product_behind_a_normalization_is_attributed_to_itself(form: str, tmp_path: Path) -> None:
    """The runtime names the normalization, or the bias alone, as what such kernels were made of."""
    b = Builder(opset=17)
    x = b.node("norm", "LayerNormalization", [b.input("x", (1, 64, 384)), b.constant("g", np.full(384, 1.5))], axis=-1)
    for name in ("query", "key"):
        product = b.node(name, "MatMul", [x, b.constant(f"{name}_w", b.rng.standard_normal((384, 384)) / 20)])
        b.output(b.node(f"{name}_add", "Add", [product, b.constant(f"{name}_b", b.rng.standard_normal(384))]))
    space = Workspace(b.model(), tmp_path, Capabilities.of(OpenVinoCpuTarget()))
    labels = {} if form == "float" else {"query": form, "key": form}
    graph, attribution = executed(space.emit(space.prepared.label(labels)))
    products = [attribution.nodes(k) for k in graph if k.op_type == "FullyConnected"]
    assert sorted(products) == [("key", "key_add"), ("query", "query_add")]


def test_a_residual_add_is_computed_by_the_convolution_before_it(tmp_path: Path) -> None:
    b = Builder()
    stem = b.conv("stem", b.input("x", X), C, relu=True)
    branch = b.conv("last", b.conv("first", stem, C, relu=True), C)
    b.output(b.conv("after", b.node("relu", "Relu", [b.node("add", "Add", [branch, stem])]), C))
    space = Workspace(b.model(), tmp_path, Capabilities.of(OpenVinoCpuTarget()))
    found = kernel_of(space.emit(space.full()), "add")
    assert found.op_type == "Convolution"
    assert found.output in BYTES
    assert [t for t in found.inputs if t == "u8"] == ["u8", "u8"], "the image and the skipped value"
    assert kernel_of(space.emit(space.label("stem", "first", "last", "after")), "add").op_type == "Subgraph", (
        "a kernel alone"
    )


def _rows(b: Builder, x: str) -> str:
    """Rows of a table, as many as a value has, which a compiler that knows the sizes looks up."""
    sizes = b.node("sizes", "Shape", [x], start=1, end=2)
    numbers = b.node("numbers", "Slice", [b.constant("all", _ints(*range(C))), b.constant("zero", _ints(0)), sizes])
    return b.node("rows", "Gather", [b.constant("table", b.rng.standard_normal((C, 8, 8))), numbers], axis=0)


@pytest.mark.parametrize("looked_up", [False, True])
def test_a_sum_with_what_the_compiler_computes_stays_in_float(looked_up: bool, tmp_path: Path) -> None:
    """As positions are added in transformers: with Q/DQ nodes there the model does not compile."""

    def added(b: Builder, x: str) -> str:
        beside = _rows(b, x) if looked_up else b.constant("token", b.rng.standard_normal((C, 8, 8)))
        image = b.node("image", "Reshape", [beside, b.constant("to", _ints(1, C, 8, 8))])
        return b.node("op", "Add", [x, image])

    space = Workspace(model(added), tmp_path, Capabilities.of(OpenVinoCpuTarget()))
    assert {u.name for u in space.prepared.selectable} == {"before", "after"}
    compiled_in_float32(space.emit(space.full()))
    if not looked_up:
        with pytest.raises(RuntimeError, match="out of range"):
            compiled_in_float32(insert_qdq_everywhere(model(added)))


def test_a_product_of_joined_rows_stays_in_float(tmp_path: Path) -> None:
    """In 8 bits it does not compile, that of joined columns does."""

    def joined(axis: int) -> onnx.ModelProto:
        b = Builder(opset=17)
        y = b.node("op", "Concat", [b.input("x", (1, 8, 16)), b.input("z", (1, 8, 16))], axis=axis)
        shape = (16 if axis == 1 else 32, 8)
        b.output(b.node("product", "MatMul", [y, b.constant("w", b.rng.standard_normal(shape))]))
        return b.model()

    rows = Workspace(joined(1), tmp_path / "rows", Capabilities.of(OpenVinoCpuTarget()))
    columns = Workspace(joined(2), tmp_path / "columns", Capabilities.of(OpenVinoCpuTarget()))
    assert {u.name for u in rows.prepared.selectable} == {"op"}
    assert {u.name for u in columns.prepared.selectable} == {"op", "product"}
    for space in (rows, columns):
        compiled_in_float32(space.emit(space.full()))
    target = Capabilities.of(OpenVinoCpuTarget())
    ops = {**target.rules.ops, "MatMul": replace(OPS["MatMul"], conditions=(constant_weight,))}
    control = Workspace(joined(1), tmp_path / "control", replace(target, rules=replace(target.rules, ops=ops)))
    with pytest.raises(RuntimeError, match="cannot be broadcasted"):
        compiled_in_float32(control.emit(control.full()))


def test_a_quantization_is_computed_by_the_kernel_before_it(tmp_path: Path) -> None:
    """Behind a float operator too: there is no kernel for the Q alone."""
    b = Builder()
    b.output(b.conv("after", b.node("gate", "Sigmoid", [b.conv("first", b.input("x", X), C)]), C))
    space = Workspace(b.model(), tmp_path, Capabilities.of(OpenVinoCpuTarget()))
    graph, attribution = executed(space.emit(space.label("after")))
    gate = next(k for k in graph if "gate" in attribution.nodes(k))
    assert (gate.inputs[0], gate.output) == ("f32", "u8") or gate.op_type == "Convolution"


def test_weights_have_seven_bits_where_sums_of_products_saturate() -> None:
    assert rules_for("x86_64", frozenset({"avx2"})).weight_limit == 63
    assert rules_for("x86_64", frozenset({"avx512_vnni"})).weight_limit == 127
    assert rules_for("aarch64", frozenset()).weight_limit == 127


READ = sorted(o for o, row in OPS.items() if (row.moves_data or o == "Concat") and not o.startswith("ReduceM"))
"""Of a maximum nothing reads bytes: they stay in float, see ``test_maxima.py``."""


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("op_type", READ)
def test_bytes_that_are_only_moved_are_not_quantized_again(op_type: str, tmp_path: Path) -> None:
    """The rewrite leaves out pairs that the runtime would compute, as it does without the rewrite."""
    proto = model(next(iter(CASES[op_type].values())))
    idle = ("u8", "u8")
    for rewrites, passes in ((OpenVinoCpuTarget().rewrites(), 0), ((), 1)):
        space = Workspace(proto, tmp_path, Capabilities(rules_for(), (), rewrites))
        graph, _ = executed(space.emit(space.full()))
        again = [k for k in graph if k.op_type == "Subgraph" and (k.inputs[0], k.output) == idle]
        assert min(len(again), 1) == passes or op_type == "Split", again
        assert [k.name for k in graph if k.op_type == "FakeQuantize"] == []
