"""A strided convolution over blocks of pixels gives the same integers, and is a convolution over pixels to extract."""

from __future__ import annotations

import itertools
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

from inlay.model.graph import Graph, build_graph
from inlay.model.normalize import normalize
from inlay.model.store import embed_weights
from inlay.quant.extract import extract, without_rewrites
from inlay.targets.base import Artifact
from inlay.targets.onnxruntime.rewrites import SpaceToDepth
from inlay.targets.onnxruntime.rewrites.space_to_depth import BlockedConv
from inlay.targets.onnxruntime.target import OrtCpuTarget, capabilities_for
from inlay.testing import Builder, random_feed
from inlay.types import Placement
from tests.support.examples import examples
from tests.support.runtime import check_and_load
from tests.support.workspace import Workspace

PLAIN = replace(capabilities_for("x86_64"), rewrites=())
REWRITES = capabilities_for("x86_64").rewrites


def conv_model(
    kernel: tuple[int, int],
    stride: int,
    pads: tuple[int, int, int, int],
    size: tuple[int | str, int | str],
    channels: int = 3,
    outputs: int = 5,
    **attributes: Any,
) -> onnx.ModelProto:
    b = Builder()
    x = b.input("x", (1, channels, *size))
    width = channels // attributes.get("group", 1)
    weight = b.constant("w", b.rng.integers(-9, 10, (outputs, width, *kernel)).astype(np.float32))
    b.output(b.node("conv", "Conv", [x, weight], pads=list(pads), strides=[stride, stride], **attributes))
    return b.model()


def indexed(model: onnx.ModelProto) -> Graph:
    found = normalize(ir.from_proto(model), lambda m, names: {}, None)
    return build_graph(found.model)


def form(model: onnx.ModelProto, most: int = 4) -> BlockedConv | None:
    graph = indexed(model)
    return SpaceToDepth(most).applies(graph, graph.node("conv"))


def run(model: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return list(ort.InferenceSession(model.SerializeToString(), options).run(None, dict(feed)))


@settings(max_examples=examples(150), deadline=None)
@given(
    st.tuples(st.integers(1, 7), st.integers(1, 7)),
    st.sampled_from([2, 4]),
    st.tuples(*[st.integers(0, 4)] * 4),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.integers(1, 4),
)
def test_over_blocks_every_product_is_the_same(
    kernel: tuple[int, int],
    stride: int,
    pads: tuple[int, int, int, int],
    times: tuple[int, int],
    channels: int,
) -> None:
    size = (times[0] * stride, times[1] * stride)
    if any(size[a] + pads[a] + pads[a + 2] < kernel[a] for a in (0, 1)):
        return
    model = conv_model(kernel, stride, pads, size, channels)
    found = form(model)
    if found is None:  # no window reaches the last row or column of blocks
        results = [(size[a] + pads[a] + pads[a + 2] - kernel[a]) // stride + 1 for a in (0, 1)]
        reached = [(results[a] - 1) * stride + kernel[a] - pads[a] for a in (0, 1)]
        assert any(reached[a] <= size[a] - stride for a in (0, 1))
        return
    (weight,) = (onnx.numpy_helper.to_array(t) for t in model.graph.initializer)
    b = Builder()
    x = b.input("x", (1, channels, *size))
    blocks = b.node("blocks", "SpaceToDepth", [x], blocksize=stride, channels=channels * stride**2)
    b.output(b.node("conv", "Conv", [blocks, b.constant("w", found.weight(weight))], pads=list(found.pads)))
    feed = {"x": np.random.default_rng(0).integers(-9, 10, (1, channels, *size)).astype(np.float32)}
    for one, other in zip(run(model, feed), run(b.model(), feed), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "model",
    [
        conv_model((3, 3), 1, (1, 1, 1, 1), (8, 8)),
        conv_model((3, 3), 3, (1, 1, 1, 1), (9, 9)),
        conv_model((3, 3), 2, (1, 1, 1, 1), (8, 7)),
        conv_model((3, 3), 2, (1, 1, 1, 1), (8, "width")),
        conv_model((3, 3), 2, (1, 1, 1, 1), (8, 8), channels=5),
        conv_model((3, 3), 2, (1, 1, 1, 1), (8, 8), channels=2, outputs=4, group=2),
        conv_model((3, 3), 2, (2, 2, 2, 2), (8, 8), dilations=[2, 2]),
    ],
    ids=["stride 1", "stride 3", "odd width", "dynamic width", "many channels", "groups", "dilation"],
)
def test_other_convolutions_stay_as_they_are(model: onnx.ModelProto) -> None:
    assert form(model) is None


def stem(shared: bool, outputs: int) -> onnx.ModelProto:
    """An image read by a strided convolution (and a pooling), whose result another convolution reads."""
    b = Builder()
    x = b.input("x", (1, 3, 16, 16))
    y = b.conv("first", x, outputs, kernel=5, stride=2, relu=True)
    z = b.conv("second", y, 8)
    if shared:
        pooled = b.node("pool", "AveragePool", [x], kernel_shape=[2, 2], strides=[2, 2])
        z = b.concat("join", [z, b.conv("third", pooled, 4, kernel=1)])
    b.output(z)
    return b.model()


@pytest.mark.parametrize(("shared", "outputs"), list(itertools.product([False, True], [4, 32])))
def test_the_written_model_gives_the_same_integers(shared: bool, outputs: int, tmp_path: Path) -> None:
    """With the weight inside the file, and beside it."""
    model = stem(shared, outputs)
    plain, blocks = Workspace(model, tmp_path / "plain", PLAIN), Workspace(model, tmp_path / "blocks")
    one, other = plain.emit(plain.full()), blocks.emit(blocks.full())
    assert "SpaceToDepth" not in {n.op_type for n in one.graph.node}
    assert [n.op_type for n in other.graph.node].count("SpaceToDepth") == 1
    check_and_load(other)
    read = {v for n in other.graph.node for v in n.input} | {o.name for o in other.graph.output}
    assert all(set(n.output) & read for n in other.graph.node), "nothing is written that nobody reads"
    for seed in range(3):
        for a, b in zip(run(one, random_feed(model, seed)), run(other, random_feed(model, seed)), strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_weight_with_two_readers_stays_over_pixels(tmp_path: Path) -> None:
    b = Builder()
    x, y = b.input("x", (1, 3, 16, 16)), b.input("y", (1, 3, 16, 16))
    weight = b.constant("w", b.rng.normal(0.0, 0.1, (32, 3, 3, 3)).astype(np.float32))
    both = [b.node(f"conv_{v}", "Conv", [v, weight], channels=32, pads=[1] * 4, strides=[2, 2]) for v in (x, y)]
    b.output(b.conv("last", b.node("sum", "Add", both), 8, kernel=1))
    plain, blocks = Workspace(b.model(), tmp_path / "plain", PLAIN), Workspace(b.model(), tmp_path / "blocks")
    assert blocks.emit(blocks.full()).graph == plain.emit(plain.full()).graph


def test_one_candidate_does_not_change_the_next(tmp_path: Path) -> None:
    space = Workspace(stem(False, 32), tmp_path)
    names = [frozenset(n) for n in (["first", "second"], ["second"], [], ["first", "second"])]
    models = [space.emit(space.prepared.label(n)).SerializeToString() for n in names]
    assert models[0] == models[3]
    assert models[0] != models[1]
    assert b"SpaceToDepth" not in models[1]
    empty = embed_weights(space.prepared.emitter.base, space.prepared.store)
    assert onnx.ModelProto.FromString(models[2]).graph == empty.graph


@settings(max_examples=examples(20), deadline=None)
@given(st.booleans(), st.sets(st.sampled_from(["first", "second", "third", "pool", "join"])))
def test_extract_finds_the_ports_of_the_image(shared: bool, names: set[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        space = Workspace(stem(shared, 32), Path(folder))
        placement: Placement = space.prepared.label(frozenset(names))
        proto = space.emit(placement)
        found = extract(ir.from_proto(proto))
        assert found.placement == placement
        assert found.leftovers == ()
        left = ir.to_proto(found.model)
        assert not {"QuantizeLinear", "DequantizeLinear"} & {n.op_type for n in left.graph.node}
        given = embed_weights(space.prepared.emitter.base, space.prepared.store)
        for a, b in zip(run(left, space.feeds[0]), run(given, space.feeds[0]), strict=True):
            assert np.linalg.norm(a - b) <= 0.05 * np.linalg.norm(b), "float, up to the rounding of weights"


@settings(max_examples=examples(100), deadline=None)
@given(
    st.tuples(st.integers(1, 7), st.integers(1, 7)),
    st.sampled_from([2, 4]),
    st.tuples(*[st.integers(0, 4)] * 4),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
)
def test_undone_it_is_a_convolution_over_pixels_with_the_same_results(
    kernel: tuple[int, int], stride: int, pads: tuple[int, int, int, int], times: tuple[int, int]
) -> None:
    size = (times[0] * stride, times[1] * stride)
    assume(all(size[a] + pads[a] + pads[a + 2] >= kernel[a] for a in (0, 1)))
    with tempfile.TemporaryDirectory() as folder:
        space = Workspace(conv_model(kernel, stride, pads, size), Path(folder))
        proto = space.emit(space.full())
        assume("SpaceToDepth" in {n.op_type for n in proto.graph.node})
        undone = ir.to_proto(without_rewrites(ir.from_proto(proto)))
        check_and_load(undone)
        assert "SpaceToDepth" not in {n.op_type for n in undone.graph.node}
        (conv,) = (n for n in undone.graph.node if n.op_type == "Conv")
        (given,) = (n for n in space.prepared.emitter.base.graph.node if n.op_type == "Conv")
        assert conv.attribute == given.attribute
        for a, b in zip(run(proto, space.feeds[0]), run(undone, space.feeds[0]), strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_time_of_the_blocks_belongs_to_the_image(tmp_path: Path) -> None:
    space = Workspace(stem(False, 32), tmp_path)
    path = tmp_path / "m.onnx"
    onnx.save(space.emit(space.full()), path)
    kernels = OrtCpuTarget().compile(Artifact(path, "m")).profile(space.feeds[0], 5)
    assert all(k.attributed for k in kernels)
    (moved,) = (k for k in kernels if k.op_type == "SpaceToDepth")
    assert moved.kind == "layout"
    assert moved.values == ("x",)
    assert {k.values for k in kernels if k.op_type == "QuantizeLinear"} == {("x",)}
    assert [k.nodes for k in kernels if k.op_type == "QLinearConv"] == [("first",), ("second",)]
