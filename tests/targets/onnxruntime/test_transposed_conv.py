"""A transposed convolution as convolution and DepthToSpace: the same sums, and a form of low precision only."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from inlay.model.graph import build_graph
from inlay.model.normalize import normalize
from inlay.model.store import embed_weights
from inlay.quant.emit import Emitter
from inlay.quant.extract import extract, without_rewrites
from inlay.quant.qparams import QParamsTable
from inlay.quant.transfer import transfer
from inlay.targets.base import Artifact
from inlay.targets.onnxruntime.rewrites.transposed_conv import BlockConv, block_conv_of
from inlay.targets.onnxruntime.target import OrtCpuTarget, capabilities_for
from inlay.testing import Builder
from inlay.types import QType
from tests.support.examples import examples
from tests.support.runtime import check_and_load, optimized
from tests.support.workspace import Workspace

TARGET = capabilities_for("x86_64")
PLAIN = replace(TARGET, rewrites=())


def transposed(
    kernel: tuple[int, int] = (2, 2),
    size: tuple[int | str, int | str] = (6, 5),
    shapes: tuple[int, int] = (3, 2),
    group: int = 1,
    bias: bool = False,
    **attributes: Any,
) -> onnx.ModelProto:
    """One ConvTranspose of small integers, strides 2 where nothing else is said."""
    b = Builder()
    channels, outputs = shapes
    inputs = [b.input("x", (1, channels, *size))]
    weight = b.rng.integers(-9, 10, (channels, outputs // group, *kernel)).astype(np.float32)
    inputs.append(b.constant("w", weight))
    if bias:
        inputs.append(b.constant("b", b.rng.integers(-9, 10, outputs).astype(np.float32)))
    attributes = {"strides": [2, 2], **attributes}
    b.output(b.node("up", "ConvTranspose", inputs, group=group, **attributes))
    return b.model()


def form(model: onnx.ModelProto) -> BlockConv | str:
    graph = build_graph(normalize(ir.from_proto(model), lambda m, names: {}, None).model)
    return block_conv_of(graph, graph.node("up"))


def run(model: onnx.ModelProto, feed: Mapping[str, np.ndarray], plainly: bool = False) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if plainly:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return list(ort.InferenceSession(model.SerializeToString(), options).run(None, dict(feed)))


@settings(max_examples=examples(200), deadline=None)
@given(
    kernel=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    stride=st.integers(2, 4),
    pads=st.tuples(*[st.integers(0, 3)] * 4),
    extra=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    size=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    shapes=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    bias=st.booleans(),
)
def test_every_sum_is_the_same(
    kernel: tuple[int, int],
    stride: int,
    pads: tuple[int, int, int, int],
    extra: tuple[int, int],
    size: tuple[int, int],
    shapes: tuple[int, int],
    bias: bool,
) -> None:
    result = [(size[i] - 1) * stride + kernel[i] + extra[i] - pads[i] - pads[i + 2] for i in (0, 1)]
    assume(max(extra) < stride and min(result) > 0)
    model = transposed(
        kernel, size, shapes, bias=bias, strides=[stride] * 2, pads=list(pads), output_padding=list(extra)
    )
    found = form(model)
    assert isinstance(found, BlockConv) == all(r % stride == 0 for r in result)
    if isinstance(found, str):
        return
    given = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    b = Builder()
    inputs = [b.input("x", (1, shapes[0], *size)), b.constant("w", found.weight(given["w"]))]
    if bias:
        inputs.append(b.constant("b", found.channels(given["b"])))
    blocks = b.node("conv", "Conv", inputs, pads=list(found.pads))
    b.output(b.node("up", "DepthToSpace", [blocks], blocksize=stride))
    feed = {"x": np.random.default_rng(0).integers(-9, 10, (1, shapes[0], *size)).astype(np.float32)}
    for one, other in zip(run(model, feed), run(b.model(), feed), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (transposed(strides=[1, 1]), "strides"),
        (transposed(strides=[2, 4]), "strides"),
        (transposed((3, 3)), "multiple"),
        (transposed(shapes=(4, 4), group=2), "groups"),
        (transposed((3, 3), dilations=[2, 2]), "dilations"),
        (transposed((1, 1), auto_pad="SAME_UPPER"), "pads"),
        (transposed(output_shape=[12, 10]), "pads"),
    ],
    ids=["stride 1", "two strides", "odd image", "groups", "dilation", "auto_pad", "output_shape"],
)
def test_others_keep_their_form_and_say_why(model: onnx.ModelProto, reason: str, tmp_path: Path) -> None:
    found = form(model)
    assert isinstance(found, str)
    assert reason in found
    space = Workspace(model, tmp_path)
    assert not space.prepared.selectable
    (unit,) = space.prepared.units
    assert found in unit.rejection


def decoder(relu: bool, channels: int = 16, tail: str = "") -> onnx.ModelProto:
    """Two convolutions with a transposed one between them, its weight beside the file where there are many channels."""
    b = Builder()
    y = b.conv("first", b.input("x", (1, 3, 8, "width")), channels, relu=True)
    weight = b.rng.normal(0.0, 0.1, (channels, 8, 4, 4)) * np.linspace(0.2, 3, 8)[None, :, None, None]
    inputs = [y, b.constant("up_weight", weight), b.constant("up_bias", b.rng.normal(0, 0.1, 8))]
    y = b.node("up", "ConvTranspose", inputs, channels=8, strides=[2, 2], pads=[1] * 4)
    y = b.node("up_relu", "Relu", [y]) if relu else y
    if tail:
        b.output(b.node("other", tail, [y]))
    b.output(b.conv("last", y, 4, kernel=1))
    return b.model()


def feeds(count: int) -> list[dict[str, np.ndarray]]:
    return [{"x": np.random.default_rng(i).standard_normal((1, 3, 8, 7)).astype(np.float32)} for i in range(count)]


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("channels", [2, 16])
def test_the_written_model_computes_what_the_transposed_one_does(relu: bool, channels: int, tmp_path: Path) -> None:
    """Against the placement with ConvTranspose between its Q/DQ, computed as it stands: the same but for ties."""
    model = decoder(relu, channels)
    plain = Workspace(model, tmp_path / "plain", PLAIN, feeds=tuple(feeds(2)))
    rewritten = Workspace(model, tmp_path / "rewritten", feeds=tuple(feeds(2)))
    one, other = plain.emit(plain.full()), rewritten.emit(rewritten.full())
    assert [n.op_type for n in one.graph.node].count("ConvTranspose") == 1
    kinds = [n.op_type for n in other.graph.node]
    assert ("ConvTranspose" in kinds, kinds.count("DepthToSpace")) == (False, 1)
    check_and_load(other)
    step = rewritten.table.params("last_out", QType.UINT8).scale[0]
    for feed in feeds(4):
        for a, b in zip(run(one, feed, plainly=True), run(other, feed, plainly=True), strict=True):
            assert np.abs(a - b).max() <= 1.01 * step
            assert np.mean(a != b) < 0.02
        for a, b in zip(run(one, feed, plainly=True), run(other, feed), strict=True):
            assert np.abs(a - b).max() <= 2.01 * step, "in the runtime's integer kernels, too"


def test_in_float_and_between_float_neighbours_it_stays(tmp_path: Path) -> None:
    """Negative control: what reads the result in float leaves no Q behind, and so no integer kernel."""
    space = Workspace(decoder(True, tail="Tanh"), tmp_path, feeds=tuple(feeds(2)))
    whole = space.label("up")
    partly = whole.without([p for p, _ in whole if p.node == "other"])
    kinds = {name: [n.op_type for n in space.emit(p).graph.node] for name, p in (("whole", whole), ("partly", partly))}
    assert "ConvTranspose" not in kinds["whole"]
    assert "ConvTranspose" in kinds["partly"]
    assert "ConvTranspose" in [n.op_type for n in space.emit(space.label("first", "last")).graph.node]


@pytest.mark.parametrize("zeros", [(7,), (7, -3, 0)])
@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_what_is_added_to_a_weight_is_zero_wherever_its_zero_point_is(
    operator: str, zeros: tuple[int, ...], tmp_path: Path
) -> None:
    """Numbers that an imported placement brings may have zero points: integers of 0 are not 0.0 then."""
    b = Builder()
    x = b.input("x", (1, 3, 8, 8))
    weight = b.constant("w", b.rng.normal(0.0, 0.1, (3, 3, 3, 3)).astype(np.float32))
    more: dict[str, Any] = {"output_padding": [1, 1]} if operator == "ConvTranspose" else {}
    b.output(b.node("op", operator, [x, weight], strides=[2, 2], pads=[1] * 4, **more))
    space = Workspace(b.model(), tmp_path)
    axis = None if len(zeros) == 1 else ["Conv", "ConvTranspose"].index(operator)
    scales = [0.01, 0.02, 0.03][: len(zeros)]
    data = space.table.as_json() | {"fixed": [["w", "int8", scales, list(zeros), axis]]}
    table = QParamsTable.from_json(space.graph, space.prepared.rules, data)
    formed = space.emit(space.full(), table)
    assert {"SpaceToDepth", "DepthToSpace"} & {n.op_type for n in formed.graph.node}
    formless = Emitter(space.prepared.normalized.model, space.graph, space.prepared.store)
    plain = embed_weights(formless.emit(space.full(), table), space.prepared.store)
    assert operator in {n.op_type for n in plain.graph.node}
    for feed in space.feeds:
        for a, c in zip(run(plain, feed, plainly=True), run(formed, feed, plainly=True), strict=True):
            np.testing.assert_allclose(a, c, atol=1e-6)


def test_extract_finds_the_transposed_convolution_again(tmp_path: Path) -> None:
    space = Workspace(decoder(True), tmp_path, feeds=tuple(feeds(2)))
    placement = space.full()
    found = extract(ir.from_proto(space.emit(placement)))
    assert found.leftovers == ()
    assert found.placement == placement
    left = ir.to_proto(found.model)
    check_and_load(left)
    assert [n.op_type for n in left.graph.node] == ["Conv", "Relu", "ConvTranspose", "Relu", "Conv"]
    for a, b in zip(run(left, feeds(1)[0]), run(decoder(True), feeds(1)[0]), strict=True):
        assert np.linalg.norm(a - b) <= 0.05 * np.linalg.norm(b), "float, up to the rounding of weights"


@settings(max_examples=examples(100), deadline=None)
@given(
    kernel=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    stride=st.integers(2, 4),
    before=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    size=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    bias=st.booleans(),
)
@pytest.mark.exhaustive
def test_undone_every_result_is_the_same(
    kernel: tuple[int, int], stride: int, before: tuple[int, int], size: tuple[int, int], bias: bool
) -> None:
    pads = (*before, *((kernel[i] - before[i]) % stride for i in (0, 1)))  # whole blocks
    result = [(size[i] - 1) * stride + kernel[i] - pads[i] - pads[i + 2] for i in (0, 1)]
    assume(min(result) > 0)
    model = transposed(kernel, size, bias=bias, strides=[stride] * 2, pads=list(pads))
    with tempfile.TemporaryDirectory() as folder:
        space = Workspace(model, Path(folder))
        proto = space.emit(space.full())
        assume("DepthToSpace" in {n.op_type for n in proto.graph.node})
        undone = ir.to_proto(without_rewrites(ir.from_proto(proto)))
        check_and_load(undone)
        assert "ConvTranspose" in {n.op_type for n in undone.graph.node}
        for a, b in zip(run(proto, space.feeds[0], True), run(undone, space.feeds[0], True), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def output_in_blocks() -> onnx.ModelProto:
    b = Builder()
    y = b.conv("first", b.input("x", (1, 3, 8, 7)), 16, relu=True)
    weight = b.constant("up_weight", b.rng.normal(0.0, 0.1, (16, 4, 2, 2)))
    b.output(b.node("up", "ConvTranspose", [y, weight], channels=4, strides=[2, 2]))
    return b.model()


@pytest.mark.parametrize("model", [decoder(True), decoder(False), output_in_blocks()], ids=["relu", "none", "output"])
def test_a_delivered_model_is_a_baseline_of_the_float_one(model: onnx.ModelProto, tmp_path: Path) -> None:
    space = Workspace(model, tmp_path, feeds=tuple(feeds(2)))
    placement = space.full()
    found = extract(ir.from_proto(space.emit(placement)))
    assert found.leftovers == ()
    left = build_graph(found.model)
    assert all(left.value_of(port) for port, _ in found.placement)
    moved = transfer(found, left, space.graph)
    assert moved.missing == ()
    assert moved.placement == placement
    for (value, qtype), params in moved.qparams.items():
        own = space.table.params(value, qtype)
        assert params.axis == own.axis
        np.testing.assert_allclose(params.scale, own.scale, rtol=1e-6)
    up = next(n for n in space.graph.nodes if n.name == "up")
    assert (up.inputs[1], QType.INT8) in moved.qparams, "its scales are in its own order again"


def test_a_baseline_goes_on_in_bytes_where_the_model_computes_in_blocks(tmp_path: Path) -> None:
    """Few outputs are computed in blocks here: the pixels' way to their places is quantized as their place is."""
    b = Builder()
    y = b.conv("first", b.input("x", (1, 3, 32, 32)), 16, relu=True)
    y = b.conv("few", y, 3, kernel=5, relu=True)
    b.output(b.conv("last", y, 16))
    plain = Workspace(b.model(), tmp_path / "plain", replace(PLAIN, float_rewrites=()))
    space = Workspace(b.model(), tmp_path / "blocks")
    assert [n.op_type for n in space.graph.nodes].count("DepthToSpace") == 1
    found = extract(ir.from_proto(plain.emit(plain.full())))
    moved = transfer(found, build_graph(found.model), space.graph)
    table = QParamsTable(space.graph, space.prepared.rules, {}, moved.qparams)
    graph = optimized(space.emit(moved.placement, table), tmp_path)
    kinds = [n.op_type for n in graph.graph.node]
    assert kinds.count("QLinearConv") == 3
    assert (kinds.count("QuantizeLinear"), kinds.count("DequantizeLinear")) == (1, 1)


def test_the_time_of_the_pixels_belongs_to_the_value(tmp_path: Path) -> None:
    space = Workspace(decoder(True), tmp_path, feeds=tuple(feeds(2)))
    path = tmp_path / "m.onnx"
    onnx.save(space.emit(space.full()), path)
    kernels = OrtCpuTarget().compile(Artifact(path, "m")).profile(feeds(1)[0], 5)
    assert all(k.attributed for k in kernels)
    (moved,) = (k for k in kernels if k.op_type == "DepthToSpace")
    assert moved.kind == "layout"
    assert moved.values == ("up_relu_out",)
    assert [k.nodes[0] for k in kernels if k.op_type == "QLinearConv"] == ["first", "up", "last"]


def test_one_candidate_does_not_change_the_next(tmp_path: Path) -> None:
    space = Workspace(decoder(False), tmp_path, feeds=tuple(feeds(2)))
    names = [frozenset(n) for n in (["first", "up", "last"], ["last"], ["up"], ["first", "up", "last"])]
    models = [space.emit(space.prepared.label(n)).SerializeToString() for n in names]
    assert models[0] == models[3]
    assert [b"DepthToSpace" in m for m in models] == [True, False, True, True]
