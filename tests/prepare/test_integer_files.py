"""Files whose operators work on integers: whoever wrote them, the float model inside comes back, and its placement."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from benchmarks.transformers import Size, bert, samples
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType

from inlay.model.graph import build_graph
from inlay.model.load import load
from inlay.model.store import WeightStore, embed_weights
from inlay.prepare import same_parts as module
from inlay.prepare.qdq_import import import_qdq, read_baseline
from inlay.prepare.strip_qdq import strip_qdq
from inlay.quant.emit import Emitter
from inlay.quant.extract import Extraction
from inlay.quant.qparams import QParamsTable
from inlay.quant.transfer import transfer
from inlay.space.rules import Rules
from inlay.targets.base import Feed
from inlay.targets.onnxruntime.target import capabilities_for
from inlay.testing import Builder, random_feed, run_reference, small_model, sqnr
from inlay.testing.models import recurrent_model
from inlay.types import Placement, Port, QType
from tests.support.detectors import detector, images
from tests.support.fixtures import MakeWorkspace
from tests.support.runtime_quantizer import quantize_by_runtime, quantize_dynamically

pytestmark = pytest.mark.filterwarnings("ignore")  # the runtime's quantizer warns about this and that

REWRITES = capabilities_for("x86_64").float_rewrites
INTEGER = re.compile("Quantize|Integer|QLinear|QGemm|NBits")


def text_model() -> onnx.ModelProto:
    """Embedded tokens, one head of attention, a classifier with Gemm."""
    b = Builder()
    ids = b.input("ids", (1, 6), TensorProto.INT64)
    x = b.node("embedding", "Gather", [b.constant("table", b.rng.normal(size=(8, 16))), ids])

    def dense(name: str, value: str) -> str:
        weight, bias = b.rng.normal(0, 0.3, (16, 16)), b.rng.normal(0, 0.3, 16)
        product = b.node(name, "MatMul", [value, b.constant(f"{name}_weight", weight)])
        return b.node(f"{name}_add", "Add", [product, b.constant(f"{name}_bias", bias)])

    query, key, value = (dense(name, x) for name in ("query", "key", "value"))
    scores = b.node("scores", "MatMul", [query, b.node("turn", "Transpose", [key], perm=[0, 2, 1])])
    mixed = b.node("mix", "MatMul", [b.node("softmax", "Softmax", [scores]), value])
    rows = b.node("rows", "Reshape", [dense("out", mixed), b.constant("shape", np.array([6, 16]))])
    weight, bias = (
        b.constant("head_weight", b.rng.normal(0, 0.3, (4, 16))),
        b.constant("head_bias", b.rng.normal(size=4)),
    )
    b.output(b.node("head", "Gemm", [rows, weight, bias], transB=1))
    return b.model()


def apart(path: Path, feed: Feed, folder: Path) -> Extraction:
    found = strip_qdq(load(path), [feed], folder)
    assert found is not None
    return found


def emitted(found: Extraction, folder: Path) -> onnx.ModelProto:
    """The placement that was found set into the float model that was found, with the same scales, without rewrites."""
    graph, store = build_graph(found.model), WeightStore(folder)
    moved = transfer(found, graph, graph)
    assert moved.missing == ()
    table = QParamsTable(graph, Rules(QType.UINT8, ops={}), {}, moved.qparams)
    return embed_weights(Emitter(found.model, graph, store).emit(moved.placement.without(found.anew), table), store)


def worst(want: dict[str, np.ndarray], got: dict[str, np.ndarray]) -> float:
    assert list(want) == list(got)
    return min(sqnr(want[name], got[name]) for name in want)


@pytest.mark.parametrize("own_scale", [True, False])
def test_a_bias_that_is_added_to_integers(tmp_path: Path, own_scale: bool) -> None:
    """As in files of ONNX Runtime's first quantizers."""
    rng = np.random.default_rng(0)
    plain = Builder()
    weight, bias = rng.integers(-127, 128, (4, 3, 3, 3)), rng.standard_normal(4).astype(np.float32)
    x = plain.input("x", (1, 3, 8, 8))
    w = plain.constant("w", (weight * np.float32(0.01)).astype(np.float32))
    plain.output(plain.node("conv", "Conv", [x, w, plain.constant("bias", bias)]))
    node = helper.make_node
    steps = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        node("ConvInteger", ["q", "w", "z"], ["sums"], "conv"),
        node("Mul", ["s", "ws" if own_scale else "half"], ["bs"]),
        node("Mul", ["s", "ws"], ["product"]),
        node("Div", ["bias", "bs"], ["divided"]),
        node("Floor", ["divided"], ["floor"]),
        node("Cast", ["floor"], ["integers"], to=onnx.TensorProto.INT32),
        node("Reshape", ["integers", "shape"], ["wide"]),
        node("Add", ["sums", "wide"], ["biased"]),
        node("Cast", ["biased"], ["float"], to=onnx.TensorProto.FLOAT),
        node("Mul", ["float", "product"], ["y"]),
    ]
    held = {"w": weight.astype(np.int8), "ws": np.float32(0.01), "half": np.float32(0.005), "bias": bias}
    inputs = [helper.make_tensor_value_info("x", 1, [1, 3, 8, 8])]
    outputs = [helper.make_tensor_value_info("y", 1, [1, 4, 6, 6])]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()]
    tensors.append(numpy_helper.from_array(np.array([1, -1, 1, 1]), "shape"))
    graph = helper.make_graph(steps, "early", inputs, outputs, tensors)
    path = tmp_path / "early.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=8), path)
    feed = random_feed(plain.model(), 1)
    found = apart(path, feed, tmp_path) if own_scale else strip_qdq(load(path), [feed], tmp_path)
    if not own_scale:
        assert found is None or found.leftovers
        return
    assert found is not None
    assert found.leftovers == ()
    left = run_reference(ir.to_proto(found.model), feed)
    assert sqnr(next(iter(run_reference(plain.model(), feed).values())), left["y"]) > 100.0


def _edges(rng: np.random.Generator) -> np.ndarray:
    """Filters that give 0 where the image is even: what remains there are biases."""
    filters = rng.integers(-3, 4, (4, 4, 3, 3))
    filters[..., 1, 1] -= filters.sum((2, 3))
    return filters.astype(np.int8)


def _early_chain(layers: int) -> onnx.ModelProto:
    """Convolutions by one of ONNX Runtime's first quantizers: biases are rounded down to few, large steps."""
    b = Builder(opset=12)
    x = b.input("x", (1, 4, 12, 12))
    for layer in range(layers):
        integers = b.node(f"quantize{layer}", "DynamicQuantizeLinear", [x], [f"q{layer}", f"s{layer}", f"z{layer}"])
        weight = b.constant(f"w{layer}", _edges(b.rng))
        sums = b.node(f"conv{layer}", "ConvInteger", [integers, weight, f"z{layer}"])
        scale = b.node(
            f"scale{layer}", "Mul", [f"s{layer}", b.constant(f"ws{layer}", np.float32(50.0 if layer else 5.0))]
        )
        bias = b.constant(f"b{layer}", b.rng.normal(0, 0.2, 4))
        floor = b.node(f"floor{layer}", "Floor", [b.node(f"divided{layer}", "Div", [bias, scale])])
        whole = b.node(f"whole{layer}", "Cast", [floor], to=TensorProto.INT32)
        wide = b.node(f"wide{layer}", "Reshape", [whole, b.constant(f"shape{layer}", np.array([1, -1, 1, 1]))])
        real = b.node(f"real{layer}", "Cast", [b.node(f"add{layer}", "Add", [sums, wide])], to=TensorProto.FLOAT)
        x = b.node(f"relu{layer}", "Relu", [b.node(f"scaled{layer}", "Mul", [real, scale])])
    b.output(x)
    return b.model()


def test_biases_that_are_rounded_down_are_no_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is rounded differs from what is not by as much as the file differs from itself rounded up: no mistake."""
    model = _early_chain(4)
    onnx.save(model, tmp_path / "early.onnx")
    feed = {"x": np.full((1, 4, 12, 12), 4.0, np.float32)}
    found = apart(tmp_path / "early.onnx", feed, tmp_path)
    differing = worst(run_reference(model, feed), run_reference(emitted(found, tmp_path), feed))
    assert differing < module.SAME_DB, "the control: they do differ"
    assert found.leftovers == ()
    assert [n.op_type for n in found.model.graph] == ["Conv", "Relu"] * 4
    monkeypatch.setattr(module, "_integer_biases", lambda graph: ())
    assert "the first value that differs" in apart(tmp_path / "early.onnx", feed, tmp_path).opaque


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
@pytest.mark.parametrize("weight", [QuantType.QInt8, QuantType.QUInt8])
@pytest.mark.parametrize("reduce_range", [False, True], ids=["8 bits", "7 bits"])
@pytest.mark.parametrize("build", [text_model, recurrent_model, small_model])
def test_files_of_quantize_dynamic(
    tmp_path: Path, build: type, per_channel: bool, weight: QuantType, reduce_range: bool, workspace: MakeWorkspace
) -> None:
    model: onnx.ModelProto = build()
    path = quantize_dynamically(model, tmp_path, per_channel=per_channel, weight_type=weight, reduce_range=reduce_range)
    given = {n.op_type for n in onnx.load(path).graph.node}
    assert given & {"MatMulInteger", "ConvInteger", "DynamicQuantizeLSTM"}
    feed = random_feed(model, 1)
    found = apart(path, feed, tmp_path)
    assert found.leftovers == ()
    left = ir.to_proto(found.model)
    assert [n.op_type for n in left.graph.node if INTEGER.search(n.op_type)] == []
    assert worst(run_reference(model, feed), run_reference(left, feed)) > 25.0
    assert worst(run_reference(path, feed), run_reference(emitted(found, tmp_path), feed)) > 40.0
    # in the float model the same operators have the same labels
    space = workspace(model)
    imported = import_qdq(space.prepared, read_baseline(path, space.prepared.file), REWRITES, [feed], tmp_path)
    ((_, placement),) = imported.placements
    assert imported.missing == ()
    kinds = {"LSTM", "Conv"} | ({"MatMul", "Gemm"} if build is not small_model else set())
    nodes = [n for n in space.graph.nodes if n.op_type in kinds and space.graph.is_constant(n.inputs[1])]
    static = {QType.UINT8} if build is text_model else set()  # what reads the quantized table has its scale
    assert {placement.qtype(Port(n.name, 0)) for n in nodes} == {QType.DYNAMIC} | static
    assert {placement.qtype(Port(n.name, 1)) for n in nodes} <= {QType.INT8, QType.UINT8}


@pytest.mark.parametrize("build", [text_model, recurrent_model])
def test_a_dynamic_file_of_our_own_comes_back(build: type, tmp_path: Path, workspace: MakeWorkspace) -> None:
    """It is given as MODEL: the labels are those that it was written with, on the nodes that it was written for."""
    space = workspace(build())
    placement = space.prepared.label({u.name: "dynamic" for u in space.prepared.units if "dynamic" in u.forms})
    proto = space.emit(placement)
    assert {n.op_type for n in proto.graph.node} & {"MatMulInteger", "DynamicQuantizeLSTM"}, "rewrites were applied"
    onnx.save(proto, tmp_path / "own.onnx")
    found = apart(tmp_path / "own.onnx", space.feeds[0], tmp_path)
    assert found.leftovers == ()
    assert found.placement == placement
    assert [n.op_type for n in found.model.graph] == [n.op_type for n in space.prepared.normalized.model.graph]


def test_directions_with_scales_of_their_own_are_quantized_anew(tmp_path: Path) -> None:
    """No one axis states a scale for each gate of each direction; one for each direction can be stated."""
    model = recurrent_model()
    feed = random_feed(model)
    by_gate = apart(quantize_dynamically(model, tmp_path, per_channel=True), feed, tmp_path)
    assert by_gate.anew == {Port("lstm", 1), Port("lstm", 2)}
    assert {by_gate.placement.qtype(p) for p in by_gate.anew} == {QType.INT8}
    by_direction = apart(quantize_dynamically(model, tmp_path), feed, tmp_path)
    assert by_direction.anew == frozenset()
    assert {p.axis for (v, q), p in by_direction.qparams.items() if v in "wr"} == {0}


def test_an_lstm_with_one_scale_for_each_direction_is_written_for_the_runtime(
    tmp_path: Path, workspace: MakeWorkspace
) -> None:
    model = recurrent_model()
    path = quantize_dynamically(model, tmp_path)
    space = workspace(model)
    imported = import_qdq(space.prepared, read_baseline(path, space.prepared.file), REWRITES, space.feeds, tmp_path)
    ((_, placement),) = imported.placements
    table = QParamsTable(space.graph, space.prepared.rules, {}, imported.qparams)
    proto = space.emit(placement, table)
    assert "DynamicQuantizeLSTM" in {n.op_type for n in proto.graph.node}
    feed = space.feeds[0]
    assert worst(run_reference(path, feed), run_reference(proto, feed)) > 60.0


def test_moved_integers_of_one_inference(tmp_path: Path) -> None:
    """A Transpose between DynamicQuantizeLinear and its readers: the range is the same behind it."""
    model = _turned_product("Transpose", perm=[1, 0])
    onnx.save(model, tmp_path / "turned.onnx")
    feed = random_feed(model)
    found = apart(tmp_path / "turned.onnx", feed, tmp_path)
    assert found.leftovers == ()
    assert [n.op_type for n in found.model.graph] == ["Transpose", "MatMul"]
    (product,) = (n for n in found.model.graph if n.op_type == "MatMul")
    assert found.placement == Placement(
        [(Port(str(product.name), 0), QType.DYNAMIC), (Port(str(product.name), 1), QType.INT8)]
    )
    assert worst(run_reference(model, feed), run_reference(emitted(found, tmp_path), feed)) > 80.0


def test_what_cannot_be_read_stays_and_is_listed(tmp_path: Path) -> None:
    """A part of a value has another range than the whole."""
    model = _turned_product("Gather", axis=1)
    onnx.save(model, tmp_path / "part.onnx")
    feed = random_feed(model)
    found = apart(tmp_path / "part.onnx", feed, tmp_path)
    reasons = {leftover.node: leftover.reason for leftover in found.leftovers}
    assert "a part of what is quantized in each inference" in reasons["move"]
    assert "MatMulInteger" in reasons["product"]
    assert worst(run_reference(model, feed), run_reference(ir.to_proto(found.model), feed)) > 100.0


def _turned_product(op_type: str, **attributes: Any) -> onnx.ModelProto:
    b = Builder()
    x = b.input("x", (8, 8))
    integers = b.node("quantize", "DynamicQuantizeLinear", [x], ["q", "s", "z"])
    more = [] if op_type == "Transpose" else [b.constant("index", np.arange(8))]
    moved = b.node("move", op_type, [integers, *more], **attributes)
    weight = b.constant("w", b.rng.integers(-127, 128, (8, 4)).astype(np.int8))
    sums = b.node("product", "MatMulInteger", [moved, weight, "z"])
    scale = b.node("scales", "Mul", ["s", b.constant("ws", np.float32(0.01))])
    cast = b.node("cast", "Cast", [sums], to=TensorProto.FLOAT)
    b.output(b.node("scaled", "Mul", [cast, scale]))
    return b.model()


@pytest.mark.parametrize("gain", [1.0, 3e6])
def test_a_model_may_differ_as_it_does_from_itself(tmp_path: Path, gain: float) -> None:
    """Where last bits decide, other last bits are no mistake; a lost activation is one in any model."""

    def model(shift: float, activation: str) -> onnx.ModelProto:
        bias = np.full(64, shift, np.float32)
        nodes = [
            helper.make_node("Add", ["x", "bias"], ["sum"]),
            helper.make_node(activation, ["sum"], ["held"]),
            helper.make_node("Mul", ["held", "gain"], ["large"]),
            helper.make_node("Sin", ["large"], ["sin"]),
            helper.make_node("Add", ["sin", "held"], ["y"]),
        ]
        tensors = [numpy_helper.from_array(bias, "bias"), numpy_helper.from_array(np.array(gain, np.float32), "gain")]
        values = [helper.make_tensor_value_info(v, TensorProto.FLOAT, [64]) for v in "xy"]
        graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    feed = {"x": np.random.default_rng(0).normal(0, 4, 64).astype(np.float32)}
    store = WeightStore(tmp_path)
    given = model(1.0, "Relu")
    own = ir.from_proto(given)
    assert module.first_difference(own, given, model(1.0 + 2**-20, "Relu"), store, feed) == ""
    assert "held" in module.first_difference(own, given, model(1.0, "Neg"), store, feed)


def test_an_output_may_be_longer_where_last_bits_decide(tmp_path: Path) -> None:
    """Durations are rounded: one frame more says nothing, and what comes after is compared from the same durations."""

    def model(shift: float, after: str) -> onnx.ModelProto:
        b = Builder()
        shifted = b.node("shifted", "Add", [b.input("x", (8,)), b.constant("shift", np.full(8, shift, np.float32))])
        far = b.node("far", "Mul", [shifted, b.constant("gain", np.float32(3e6))])
        wide = b.node("wide", "Mul", [b.node("sin", "Sin", [far]), b.constant("ten", np.float32(10))])
        whole = b.node("whole", "Round", [b.node("abs", "Abs", [wide])])
        count = b.node("count", "Cast", [b.node("sum", "ReduceSum", [whole])], to=TensorProto.INT64)
        frames = b.node("frames", "Range", [b.constant("zero", np.int64(0)), count, b.constant("one", np.int64(1))])
        real = b.node("real", "Cast", [frames], to=TensorProto.FLOAT)
        b.output(b.node("y", after, [b.node("tenth", "Div", [real, b.constant("tens", np.float32(10))])]))
        return b.model()

    feed = {"x": np.random.default_rng(0).normal(0, 4, 8).astype(np.float32)}
    store, given = WeightStore(tmp_path), model(1.0, "Sin")
    shapes = [next(iter(run_reference(m, feed).values())).shape for m in (given, model(1.0 + 2**-20, "Sin"))]
    assert shapes[0] != shapes[1], "the control: they differ in length"
    own = ir.from_proto(given)
    assert module.first_difference(own, given, model(1.0 + 2**-20, "Sin"), store, feed) == ""
    (y,) = [o.name for o in given.graph.output]
    assert y in module.first_difference(own, given, model(1.0 + 2**-20, "Cos"), store, feed)


def test_a_lost_part_of_an_output_is_a_difference(tmp_path: Path) -> None:
    """Scores beside boxes of thousands of pixels: over the whole output nobody would see that they are gone."""
    given = detector("joined", pixels=4096)
    lost = onnx.ModelProto()
    lost.CopyFrom(given)
    (join,) = [n for n in lost.graph.node if n.op_type == "Concat"]
    (scores,) = [n for n in lost.graph.node if n.output[0] == join.input[1]]
    assert scores.op_type == "Sigmoid"
    scores.op_type = "Floor"
    lost.graph.node.insert([*lost.graph.node].index(join), helper.make_node("Relu", [join.input[1]], ["floored"]))
    join.input[1] = "floored"
    feed, store = {"images": images(1, 1)}, WeightStore(tmp_path)
    want, got = (run_reference(m, feed)["out"] for m in (given, lost))
    assert sqnr(want, got) > module.SAME_DB, "negative control: the whole output says nothing"
    own = ir.from_proto(given)
    assert module.first_difference(own, given, given, store, feed) == ""
    assert scores.output[0] in module.first_difference(own, given, lost, store, feed)


def test_a_file_on_integers_may_differ_as_it_does_with_other_last_bits_of_its_scales(tmp_path: Path) -> None:
    """It has next to no vectors of floats: without its scales it would seem to be as stable as a rock."""
    model = bert(Size(2, 128, 4, 32), 500)
    stacked = samples(model, 4)
    feeds = [{name: array[i] for name, array in stacked.items()} for i in range(4)]
    path = quantize_by_runtime(model, tmp_path, feeds, activation=QuantType.QInt8, operators=True)
    found = strip_qdq(load(path), feeds, tmp_path)
    assert found is not None
    assert found.leftovers == ()
    assert len(found.placement) > 100
