"""The runtime's own operators on integers, as its quantizers and its optimizer write them: they compute the same."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from onnxruntime.quantization import QuantFormat, QuantType

from inlay.prepare.qdq_import import import_qdq, read_baseline
from inlay.testing import Builder, random_feed, run_reference, small_model
from inlay.types import Port, QType
from tests.prepare.test_integer_files import INTEGER, REWRITES, apart, emitted, text_model, worst
from tests.support.examples import examples
from tests.support.fixtures import MakeWorkspace
from tests.support.runtime_quantizer import quantize_by_runtime, quantize_dynamically

pytestmark = pytest.mark.filterwarnings("ignore")  # the runtime's quantizer warns about this and that


def image_model() -> onnx.ModelProto:
    """Convs and what the runtime's quantizer makes of activations, pools and moves of elements."""
    b = Builder()
    x = b.conv("stem", b.input("x", (1, 3, 16, 16)), 8, relu=True)
    left = b.node("leaky", "LeakyRelu", [b.conv("left", x, 8)], alpha=0.1)
    gated = b.node("gate", "Mul", [left, b.node("sigmoid", "Sigmoid", [b.conv("right", x, 8)])])
    total = b.node("total", "Add", [gated, x])
    window: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
    pools = [b.node(op, op, [total], **window) for op in ("AveragePool", "MaxPool")]
    b.node("split", "Split", [b.concat("join", pools)], ["first", "second"], axis=1, channels=8)
    b._channels["second"] = 8
    pads = b.constant("pads", np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    padded = b.node("pad", "Pad", ["first", pads, b.constant("with", np.float32(0.0))], channels=8)
    scales = b.constant("scales", np.array([1, 1, 1.25, 1.25]))
    resized = b.node("resize", "Resize", ["second", "", scales], mode="nearest", channels=8)
    both = b.node("both", "Add", [padded, resized])
    flat = b.node("flat", "Flatten", [b.conv("last", both, 4, kernel=1)], axis=2)
    turned = b.node("turn", "Transpose", [flat], perm=[1, 0])
    rows = b.node("rows", "Reshape", [turned, b.constant("shape", np.array([4, 100]))])
    product = b.node("product", "MatMul", [rows, b.constant("weight", b.rng.normal(0, 0.3, (100, 6)))])
    soft = b.node("soft", "Softmax", [product])
    b.output(soft)
    b.output(b.node("best", "ArgMax", [soft], axis=1, keepdims=0), TensorProto.INT64)
    b.output(b.classifier("head", both, 5))
    return b.model()


def test_channels_in_an_opset_whose_pairs_know_none(tmp_path: Path) -> None:
    """Operators on integers have scales for each channel since opset 10, DequantizeLinear since 13."""
    b = Builder(opset=12)
    b.output(b.conv("conv", b.input("x", (1, 3, 8, 8)), 4))
    model = b.model()
    feeds = [random_feed(model, seed) for seed in range(2)]
    path = quantize_by_runtime(model, tmp_path, feeds, operators=True, per_channel=True)
    proto = onnx.load(path)
    assert {o.version for o in proto.opset_import if not o.domain} == {12}
    found = apart(path, feeds[0], tmp_path)
    assert found.leftovers == ()
    assert found.qparams["conv_weight", QType.INT8].axis == 0


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
@pytest.mark.parametrize("activation", [QuantType.QUInt8, QuantType.QInt8])
@pytest.mark.parametrize("build", [image_model, small_model, text_model])
def test_files_of_quantize_static_with_operators_on_integers(
    tmp_path: Path,
    build: Callable[[], onnx.ModelProto],
    activation: QuantType,
    per_channel: bool,
    workspace: MakeWorkspace,
) -> None:
    model = build()
    feeds = [random_feed(model, seed) for seed in range(4)]
    path = quantize_by_runtime(model, tmp_path, feeds, activation=activation, per_channel=per_channel, operators=True)
    assert {n.op_type for n in onnx.load(path).graph.node} & {"QLinearConv", "QLinearMatMul"}
    found = apart(path, feeds[0], tmp_path)
    assert found.leftovers == ()
    left = ir.to_proto(found.model)
    assert [n.op_type for n in left.graph.node if INTEGER.search(n.op_type)] == []
    for feed in feeds[1:]:  # each operator rounds as its float form between the pairs does, up to edges
        assert worst(run_reference(path, feed), run_reference(emitted(found, tmp_path), feed)) > 45.0
    space = workspace(model, feeds=tuple(feeds))
    imported = import_qdq(space.prepared, read_baseline(path, space.prepared.file), REWRITES, feeds, tmp_path)
    inside = ("inside an operator that normalization makes", "normalization folds its Add")  # MatMul and Add are a Gemm
    assert [lost for lost in imported.missing if not any(reason in lost.reason for reason in inside)] == []
    assert build is text_model or imported.missing == ()
    ((_, placement),) = imported.placements
    gemms = [n.name for n in space.graph.nodes if n.op_type == "Gemm"]
    assert all(Port(name, slot) in placement for name in gemms for slot in range(3))
    kinds = {QType.UINT8 if activation is QuantType.QUInt8 else QType.INT8, QType.INT8, QType.INT32}
    assert {qtype for _, qtype in placement} <= kinds


def optimized(path: Path) -> Path:
    """The graph that a session runs, as the runtime saves it."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path.with_name("optimized.onnx"))
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return path.with_name("optimized.onnx")


def test_optimized_graphs_of_dynamic_files(tmp_path: Path) -> None:
    model = text_model()
    path = optimized(quantize_dynamically(model, tmp_path, op_types_to_quantize=["MatMul"]))
    kinds = {n.op_type for n in onnx.load(path).graph.node}
    assert kinds & {"MatMulIntegerToFloat", "DynamicQuantizeMatMul"} == {
        "MatMulIntegerToFloat",
        "DynamicQuantizeMatMul",
    }
    feed = random_feed(model)
    found = apart(path, feed, tmp_path)
    assert found.leftovers == ()
    assert sum(q is QType.DYNAMIC for _, q in found.placement) == 5
    assert worst(run_reference(path, feed), run_reference(emitted(found, tmp_path), feed)) > 60.0


def test_attention_and_embedding_of_the_runtime(tmp_path: Path) -> None:
    """Fused operators that its quantizer knows: the float ones are the runtime's, too."""
    b = Builder()
    ids, domain = b.input("ids", (1, 6), TensorProto.INT32), "com.microsoft"
    sizes = {"words": (8, 16), "places": (6, 16), "parts": (2, 16), "gamma": (16,), "beta": (16,)}
    tables = [b.constant(name, b.rng.normal(size=shape)) for name, shape in sizes.items()]
    segments = b.constant("segments", np.array([[0, 0, 0, 1, 1, 1]], np.int32))
    b.node("embed", "EmbedLayerNormalization", [ids, segments, *tables], ["x", "mask"], domain=domain)
    weights = [b.constant(n, b.rng.normal(0, 0.3, s)) for n, s in (("qkv", (16, 48)), ("qkv_bias", (48,)))]
    b.output(b.node("attention", "Attention", ["x", *weights], domain=domain, num_heads=2))
    model = b.model(check=False)
    path = quantize_dynamically(model, tmp_path, per_channel=True)
    kinds = {n.op_type for n in onnx.load(path).graph.node}
    assert {"QAttention", "QEmbedLayerNormalization"} <= kinds
    feed = random_feed(model)
    found = apart(path, feed, tmp_path)
    assert found.leftovers == ()
    assert {n.op_type for n in found.model.graph} == {"EmbedLayerNormalization", "Attention"}
    assert worst(run_reference(path, feed), run_reference(emitted(found, tmp_path), feed)) > 60.0


def test_where_of_the_runtime(tmp_path: Path) -> None:
    b = Builder()
    x, names = b.input("x", (1, 8)), {}
    for name, scale, zero in (("x", 0.02, 128), ("y", 0.03, 100), ("z", 0.05, 120)):
        names[name] = [b.constant(f"{name}_s", np.float32(scale)), b.constant(f"{name}_z", np.uint8(zero))]
    q = b.node("q", "QuantizeLinear", [x, *names["x"]])
    other = b.constant("other", b.rng.integers(0, 256, (1, 8)).astype(np.uint8))
    mask = b.constant("mask", np.arange(8).reshape(1, 8) % 3 == 0)
    inputs = [mask, q, *names["x"], other, *names["y"], *names["z"]]
    chosen = b.node("where", "QLinearWhere", inputs, domain="com.microsoft")
    b.output(b.node("dq", "DequantizeLinear", [chosen, *names["z"]]))
    model = b.model(check=False)
    onnx.save(model, tmp_path / "where.onnx")
    feed = random_feed(model)
    found = apart(tmp_path / "where.onnx", feed, tmp_path)
    assert found.leftovers == ()
    assert "Where" in {n.op_type for n in found.model.graph}
    assert worst(run_reference(model, feed), run_reference(emitted(found, tmp_path), feed)) > 60.0


def in_blocks(
    model: onnx.ModelProto, folder: Path, bits: int, block: int, symmetric: bool, qdq: bool = False, **options: object
) -> Path:
    """The file of ``model`` by the runtime's weight-only quantizer."""
    form = QuantFormat.QDQ if qdq else QuantFormat.QOperator
    blocks = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")  # not in ONNX Runtime 1.20
    if "bits" in inspect.signature(blocks.MatMulNBitsQuantizer).parameters:
        options["bits"] = bits
    elif bits != 4:
        pytest.skip("this version of ONNX Runtime quantizes weights to 4 bits only")
    quantizer = blocks.MatMulNBitsQuantizer(
        model, block_size=block, is_symmetric=symmetric, quant_format=form, **options
    )
    quantizer.process()
    path = folder / "blocks.onnx"
    onnx.save(quantizer.model.model, path)
    return path


def dense_model(rows: int = 128) -> onnx.ModelProto:
    b = Builder(opset=21)
    x = b.input("x", (2, 3, rows))
    product = b.node("dense", "MatMul", [x, b.constant("weight", b.rng.normal(0, 0.1, (rows, 24)))])
    b.output(b.node("sum", "Add", [product, b.constant("bias", b.rng.normal(0, 0.1, 24))]))
    return b.model()


@settings(max_examples=examples(20), deadline=None)
@given(
    bits=st.sampled_from([2, 4, 8]),
    block=st.sampled_from([16, 32, 128]),
    rows=st.sampled_from([32, 96, 128, 200]),
    symmetric=st.booleans(),
    qdq=st.booleans(),
)
def test_weights_in_blocks(
    tmp_path_factory: pytest.TempPathFactory, bits: int, block: int, rows: int, symmetric: bool, qdq: bool
) -> None:
    """The weight that comes back computes what the runtime computes; where labels have such blocks, it has one."""
    folder, model = tmp_path_factory.mktemp("blocks"), dense_model(rows)
    path = in_blocks(model, folder, bits, block, symmetric, qdq and bits == 4)
    feed = random_feed(model)
    found = apart(path, feed, folder)
    assert [n.op_type for n in found.model.graph] == ["MatMul", "Add"]
    assert worst(run_reference(path, feed), run_reference(ir.to_proto(found.model), feed)) > 100.0
    labels = [qtype for _, qtype in found.placement]
    if block == 16 or rows % block:
        assert labels == []
        (leftover,) = found.leftovers
        assert "float now" in leftover.reason
    else:
        assert (labels, found.leftovers) == ([QType(f"int{max(bits, 4)}/{block}")], ())
        assert worst(run_reference(path, feed), run_reference(emitted(found, folder), feed)) > 100.0


def grouped_by_an_index(folder: Path) -> Path:
    """A file whose weight is quantized in groups that an index lists."""
    path = in_blocks(dense_model(), folder, 4, 32, True)
    proto = onnx.load(path)
    (node,) = (n for n in proto.graph.node if n.op_type == "MatMulNBits")
    index = onnx.numpy_helper.from_array(np.repeat(np.arange(4, dtype=np.int32), 32), "index")
    proto.graph.initializer.append(index)
    node.input.extend(["", "index"])
    onnx.save(proto, path)
    return path


def test_groups_by_an_index_are_listed(tmp_path: Path) -> None:
    path = grouped_by_an_index(tmp_path)
    found = apart(path, random_feed(path), tmp_path)
    assert len(found.placement) == 0
    (leftover,) = found.leftovers
    assert "g_idx" in leftover.reason


@pytest.mark.parametrize("symmetric", [True, False])
def test_tables_in_blocks(tmp_path: Path, symmetric: bool) -> None:
    b = Builder(opset=21)
    ids = b.input("ids", (1, 6), TensorProto.INT64)
    b.output(b.node("embedding", "Gather", [b.constant("table", b.rng.normal(size=(8, 64))), ids]))
    model = b.model()
    path = in_blocks(model, tmp_path, 4, 32, symmetric, op_types_to_quantize=("Gather",), quant_axes=(("Gather", 1),))
    assert [n.op_type for n in onnx.load(path).graph.node] == ["GatherBlockQuantized"]
    feed = random_feed(model)
    found = apart(path, feed, tmp_path)
    assert [n.op_type for n in found.model.graph] == ["Gather"]
    assert worst(run_reference(path, feed), run_reference(ir.to_proto(found.model), feed)) > 100.0
    assert [qtype.value for _, qtype in found.placement] == ["int4/32"]


@pytest.mark.parametrize("name", ["g2p_bert", "fastestdet"])
@pytest.mark.matrix
def test_shared_models(name: str, real_models: Path, tmp_path: Path) -> None:
    """A transformer, dynamic and in blocks; an image model with operators on integers: all sites are accounted for."""
    feeds = importlib.import_module("feeds")
    model, samples = onnx.load(real_models / f"{name}.onnx"), feeds.feeds(name)[0][:4]
    files = {}
    if name == "g2p_bert":
        files["dynamic"] = quantize_dynamically(model, tmp_path, per_channel=True), "MatMulInteger"
        files["blocks"] = in_blocks(model, tmp_path, 4, 32, False, accuracy_level=4), "MatMulNBits"
    else:
        files["static"] = quantize_by_runtime(model, tmp_path, samples, operators=True, per_channel=True), "QLinearConv"
    for kind, (path, integer) in files.items():
        before = sum(n.op_type == integer for n in onnx.load(path).graph.node)
        assert before > 4
        found = apart(path, samples[0], tmp_path)
        assert found.leftovers == (), kind
        assert not [n.op_type for n in found.model.graph if INTEGER.search(n.op_type)], kind
        assert len(found.placement) >= before, kind
