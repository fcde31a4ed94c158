"""What a Q/DQ pair clips is part of the model: it survives when the pair is taken out, and numbers prove it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from inlay.model.load import load
from inlay.model.reference import Session
from inlay.prepare import strip_qdq as module
from inlay.prepare.strip_qdq import strip_qdq
from inlay.quant.extract import Extraction, extract
from inlay.testing import Builder, run_reference
from inlay.types import Port, QType
from tests.support.examples import examples

Feeds = list[dict[str, np.ndarray]]


def _pair(x: str, name: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("QuantizeLinear", [x, f"{name}_s", f"{name}_z"], [f"{name}_q"], f"{name}_Q"),
        helper.make_node("DequantizeLinear", [f"{name}_q", f"{name}_s", f"{name}_z"], [name], f"{name}_DQ"),
    ]


def _chain(
    folder: Path, params: list[tuple[float, int]], dtype: type = np.uint8, readers: str = "Tanh", opset: int = 17
) -> Path:
    """``x`` through MatMuls by random matrices, each result through a pair with the given scale and zero point.

    ``readers`` names an operator behind every pair.
    """
    rng = np.random.default_rng(0)
    nodes, tensors, value = [], [], "x"
    for i, (scale, zero) in enumerate(params):
        tensors += [
            numpy_helper.from_array(rng.normal(size=(8, 8)).astype(np.float32), f"w{i}"),
            numpy_helper.from_array(np.array(scale, np.float32), f"p{i}_s"),
            numpy_helper.from_array(np.array(zero, dtype), f"p{i}_z"),
        ]
        nodes += [helper.make_node("MatMul", [value, f"w{i}"], [f"m{i}"], f"matmul{i}"), *_pair(f"m{i}", f"p{i}")]
        nodes.append(helper.make_node(readers, [f"p{i}"], [f"r{i}"], f"reader{i}"))
        value = f"r{i}"
    graph = helper.make_graph(
        [*nodes, helper.make_node("MatMul", [value, "w0"], ["y"], "last")],
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])],
        tensors,
    )
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return path


def _feeds(count: int = 3) -> Feeds:
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(size=(4, 8)).astype(np.float32)} for _ in range(count)]


def _apart(path: Path, feeds: Feeds, folder: Path) -> Extraction:
    found = strip_qdq(load(path), feeds, folder)
    assert found is not None
    return found


def _distance(path: Path, found: Extraction, feeds: Feeds) -> float:
    """Largest difference of the outputs, in standard deviations of the given file's."""
    worst = 0.0
    for feed in feeds:
        want = run_reference(path, feed)["y"]
        got = run_reference(onnx.load_from_string(_bytes(found)), feed)["y"]
        worst = max(worst, float(np.abs(want - got).max() / want.std()))
    return worst


def _bytes(found: Extraction) -> bytes:
    import onnx_ir as ir

    return bytes(ir.to_proto(found.model).SerializeToString())


@pytest.mark.parametrize("opset", [10, 17])
@pytest.mark.parametrize(
    ("dtype", "zero", "kept"),
    [(np.uint8, 0, "Clip"), (np.int8, -128, "Clip"), (np.uint8, 128, "Clip"), (np.int8, 0, "Clip")],
)
def test_a_clip_that_a_pair_implied_comes_back(tmp_path: Path, opset: int, dtype: type, zero: int, kept: str) -> None:
    """Ranges that most values exceed: taking the pairs out without their saturation gives another function."""
    path = _chain(tmp_path, [(0.004, zero), (0.004, zero)], dtype, opset=opset)
    feeds = _feeds()
    found = _apart(path, feeds, tmp_path)
    assert [s.form for s in found.saturations] == [kept, kept]
    assert _distance(path, found, feeds) < 0.05
    stripped = found.settled({})  # the control
    assert _distance(path, stripped, feeds) > 0.3


def test_a_relu_that_a_pair_implied_comes_back(tmp_path: Path) -> None:
    path = _chain(tmp_path, [(0.1, 0), (0.05, 0)])
    found = _apart(path, _feeds(), tmp_path)
    assert [s.form for s in found.saturations] == ["Relu", "Relu"]
    assert _distance(path, found, _feeds()) < 0.2
    assert [n.op_type for n in found.model.graph].count("Relu") == 2


def test_ranges_that_no_value_leaves_put_nothing_in(tmp_path: Path) -> None:
    path = _chain(tmp_path, [(0.2, 128), (0.1, 128)])
    found = _apart(path, _feeds(), tmp_path)
    assert found.saturations == ()
    assert {n.op_type for n in found.model.graph} == {"MatMul", "Tanh"}
    assert set(found.qparams) == {("m0", QType.UINT8), ("m1", QType.UINT8)}


def test_readers_that_clip_as_much_need_no_help(tmp_path: Path) -> None:
    """A pair before a Relu may saturate below zero: that changes nothing."""
    found = _apart(_chain(tmp_path, [(0.1, 0)], readers="Relu"), _feeds(), tmp_path)
    assert found.saturations == ()
    assert [n.op_type for n in found.model.graph] == ["MatMul", "Relu", "MatMul"]


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.002, 0.2), st.integers(0, 255)), min_size=1, max_size=3),
    st.sampled_from(["Tanh", "Relu", "Neg"]),
)
def test_the_parts_compute_what_the_file_computes(
    tmp_path_factory: pytest.TempPathFactory, params: list[tuple[float, int]], readers: str
) -> None:
    """Whatever the ranges: the float model differs from the file by the rounding of its pairs and no more."""
    folder = tmp_path_factory.mktemp("apart")
    path = _chain(folder, params, readers=readers)
    feeds = _feeds()
    found = _apart(path, feeds, folder)
    coarse = sum(scale for scale, _ in params)
    for feed in feeds:
        want = run_reference(path, feed)["y"]
        got = run_reference(onnx.load_from_string(_bytes(found)), feed)["y"]
        # each pair adds at most half a step, and what its saturation cuts off up to a step's noise; random 8x8 matrices
        # amplify the error of one element at most by their norm, which is below 8
        assert np.abs(want - got).max() <= 8.0 ** len(params) * 8.0 * coarse


def test_what_differs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were a saturation lost on the way, the model is taken as it is, with the first value that differs."""
    path = _chain(tmp_path, [(0.2, 128), (0.004, 128), (0.1, 128)])

    def forgetful(*arguments: object) -> Extraction:
        found = extract(*arguments)  # type: ignore[arg-type]
        wider = replace(found.qparams["m1_saturated", QType.UINT8], scale=(0.2,))
        return replace(found, qparams={**found.qparams, ("m1_saturated", QType.UINT8): wider})

    monkeypatch.setattr(module, "extract", forgetful)
    found = strip_qdq(load(path), _feeds(), tmp_path)
    assert found is not None
    assert "first value that differs is r1 " in found.opaque
    assert len(found.placement) == 0
    assert {left.reason for left in found.leftovers} == {found.opaque}
    assert [n.op_type for n in found.model.graph] == [n.op_type for n in load(path).model.graph]


def test_forms_of_an_earlier_call_are_taken_as_they_are(tmp_path: Path) -> None:
    """So that a later command writes the same model from one sample, or from none that saturates."""
    path = _chain(tmp_path, [(0.004, 128), (0.1, 128)])
    first = _apart(path, _feeds(), tmp_path)
    quiet = [{"x": np.zeros((4, 8), np.float32)}]
    again = strip_qdq(load(path), quiet, tmp_path, {s.node: s.form for s in first.saturations})
    assert again is not None
    assert _bytes(again) == _bytes(first)
    alone = _apart(path, quiet, tmp_path)
    assert _bytes(alone) != _bytes(first), "the control: from these samples alone another model comes out"


def test_a_model_of_many_pairs_takes_few_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session takes time by the nodes of the model: one for every few values would be quadratic."""
    built = []
    build = Session.__init__

    def counted(self: Session, *arguments: Any, **options: Any) -> None:
        built.append(self)
        build(self, *arguments, **options)

    monkeypatch.setattr(Session, "__init__", counted)
    model = _chain(tmp_path, [(0.02, 128)] * 80)
    found = strip_qdq(load(model), _feeds(2), tmp_path)
    assert found is not None
    assert len(found.saturations) > 1
    assert len(built) == 3, "one for the values, and two whose outputs are compared"


@pytest.mark.parametrize(("least", "kept"), [(-30.0, False), (-1.0, True)])
def test_a_mask_that_a_pair_clips_leaves_no_clip_where_it_still_masks(tmp_path: Path, least: float, kept: bool) -> None:
    """-10000 becomes -30, which a Softmax weighs with nothing as well; -1 it does not."""
    scale = np.float32((6.0 - least) / 255)
    arrays: dict[str, np.ndarray] = {"p_s": np.array(scale), "p_z": np.array(round(-least / scale), np.uint8)}
    nodes = [
        helper.make_node("Add", ["x", "mask"], ["masked"], "add"),
        *_pair("masked", "p"),
        helper.make_node("Softmax", ["p"], ["y"], "softmax", axis=-1),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 8]) for n in ("x", "mask")]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])
    graph = helper.make_graph(nodes, "g", inputs, [output], [numpy_helper.from_array(a, n) for n, a in arrays.items()])
    (tmp_path / "m.onnx").write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )
    rng = np.random.default_rng(0)
    feeds = [
        {"x": rng.standard_normal((4, 8)).astype(np.float32), "mask": np.float32(-1e4) * (rng.random((4, 8)) < 0.3)}
        for _ in range(3)
    ]
    extraction = strip_qdq(load(tmp_path / "m.onnx"), feeds, tmp_path)
    assert extraction is not None
    assert [s.form for s in extraction.saturations] == (["Clip"] if kept else [])


def test_channels_of_a_weight_that_is_computed_at_run_time(tmp_path: Path) -> None:
    """NNCF quantizes such weights by channel, along an axis whose size only an inference tells."""
    b = Builder()
    x = b.input("x", ("batch", 8))
    sizes = b.node("sizes", "Shape", [x])
    inner = b.node("inner", "Slice", [sizes, b.constant("one", np.array([1])), b.constant("two", np.array([2]))])
    shape = b.node("shape", "Concat", [inner, b.constant("four", np.array([4]))], axis=0)
    weight = b.constant("w", np.random.default_rng(0).uniform(-1, 1, 32).astype(np.float32))
    value = b.node("reshaped", "Reshape", [weight, shape])
    scales = b.constant("scales", np.full(8, 0.01, np.float32)), b.constant("zeros", np.zeros(8, np.int8))
    low = b.node("q", "QuantizeLinear", [value, *scales], axis=0)
    b.output(b.node("product", "MatMul", [x, b.node("dq", "DequantizeLinear", [low, *scales], axis=0)]))
    path = tmp_path / "model.onnx"
    onnx.save(b.model(), path)
    feed = {"x": np.ones((1, 8), np.float32)}
    found = strip_qdq(load(path), [feed], tmp_path)
    assert found is not None
    assert dict(found.placement) == {Port("product", 1): QType.INT8}


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("ends", [(-128, 127), (-100, 90)])
def test_integers_that_are_clipped_between_q_and_dq(ends: tuple[int, int], by_channel: bool, tmp_path: Path) -> None:
    """Exporters of PyTorch state the integers' range once more, or fewer bits."""
    rng = np.random.default_rng(0)
    scale = rng.uniform(0.02, 0.03, 8).astype(np.float32) if by_channel else np.float32(0.02)
    nodes, tensors = list[onnx.NodeProto](), list[onnx.TensorProto]()
    for name, array in {
        "w": rng.normal(size=(8, 8)).astype(np.float32),
        "x_s": np.float32(0.02),
        "x_z": np.int8(0),
        "w_s": np.asarray(scale),
        "w_z": np.zeros(np.shape(scale), np.int8),
        "low": np.int8(ends[0]),
        "high": np.int8(ends[1]),
    }.items():
        tensors.append(numpy_helper.from_array(np.asarray(array), name))
    for value in ("x", "w"):
        q, c, dq = (f"{value}_{what}" for what in ("q", "c", "dq"))
        nodes += [
            helper.make_node("QuantizeLinear", [value, f"{value}_s", f"{value}_z"], [q], q, axis=1),
            helper.make_node("Clip", [q, "low", "high"], [c], c),
            helper.make_node("DequantizeLinear", [c, f"{value}_s", f"{value}_z"], [dq], dq, axis=1),
        ]
    graph = helper.make_graph(
        [*nodes, helper.make_node("MatMul", ["x_dq", "w_dq"], ["y"], "product")],
        "clipped",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])],
        tensors,
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    found = _apart(path, _feeds(), tmp_path)
    assert found.opaque == ""
    assert found.leftovers == ()
    assert {(p.node, p.slot) for p, _ in found.placement} == {("product", 0), ("product", 1)}
    assert _distance(path, found, _feeds()) < 0.05
