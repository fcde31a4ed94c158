"""A convolution in bands of rows: the same integers, in float and in the runtime's integer kernels; one Conv again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
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
from inlay.quant.extract import extract
from inlay.quant.transfer import transfer
from inlay.targets.base import Artifact
from inlay.targets.machine import level2_bytes
from inlay.targets.onnxruntime.rewrites import NonzeroZeroPoint, RowTiling
from inlay.targets.onnxruntime.target import OrtCpuTarget, capabilities_for
from inlay.testing import Builder
from inlay.types import Placement
from tests.support.examples import examples
from tests.support.runtime import check_and_load
from tests.support.workspace import Workspace

REWRITES = capabilities_for("x86_64").rewrites
CACHE = 2 << 20


@pytest.fixture(autouse=True, scope="module")
def _processor() -> Iterator[None]:
    """One with 2 MB of second-level cache, whatever this machine has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("inlay.targets.onnxruntime.target.level2_bytes", lambda: CACHE)
        yield


def conv_model(
    kernel: int = 3,
    size: tuple[int | str, int | str] = (64, 64),
    shapes: tuple[int, int] = (4, 64),
    relu: bool = True,
    tail: bool = True,
    **attributes: Any,
) -> onnx.ModelProto:
    """Conv, Relu, Conv: the sums of the first take 1 MB."""
    b = Builder()
    channels, outputs = shapes
    x = b.input("x", (1, channels, *size))
    weight = b.constant("w", b.rng.normal(0.0, 0.1, (outputs, channels, kernel, kernel)).astype(np.float32))
    bias = b.constant("b", b.rng.normal(0.0, 0.1, outputs).astype(np.float32))
    y = b.node("conv", "Conv", [x, weight, bias], **{"pads": [kernel // 2] * 4, **attributes})
    if relu:
        y = b.node("relu", "Relu", [y])
    if tail:
        y = b.node("tail", "Conv", [y, b.constant("v", b.rng.normal(0.0, 0.1, (3, outputs, 1, 1)).astype(np.float32))])
    b.output(y)
    return b.model()


def off_zero(space: Workspace) -> Placement:
    return space.full().with_rewrites(space.prepared.selectable_rewrites)


def run(model: onnx.ModelProto, space: Workspace, plainly: bool) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if plainly:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    return [y for feed in space.feeds for y in session.run(None, dict(feed))]


@settings(max_examples=examples(80), deadline=None)
@given(
    kernel=st.integers(1, 5),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    pads=st.tuples(*[st.integers(0, 3)] * 4),
    size=st.tuples(st.integers(4, 17), st.integers(4, 9)),
    rows=st.integers(1, 5),
    relu=st.booleans(),
    tail=st.booleans(),
)
def test_bands_compute_what_the_whole_does(
    kernel: int,
    stride: int,
    dilation: int,
    pads: tuple[int, int, int, int],
    size: tuple[int, int],
    rows: int,
    relu: bool,
    tail: bool,
) -> None:
    reach = dilation * (kernel - 1) + 1
    assume(size[0] + pads[0] + pads[2] >= reach and size[1] + pads[1] + pads[3] >= reach)
    window = {"pads": list(pads), "strides": [stride] * 2, "dilations": [dilation] * 2}
    model = conv_model(kernel, size, (2, 5), relu, tail, **window)
    with tempfile.TemporaryDirectory() as folder:
        space = Workspace(model, Path(folder))
        node = space.graph.node("conv")
        _, outputs, height, width = (int(d or 0) for d in space.graph.shape(node.outputs[0]) or ())
        tiling = RowTiling(space.prepared.rules.absorbed, None, 0, 4 * outputs * width * rows)
        found = tiling.applies(space.graph, node) or ()
        assume(found)
        assert len(found) == -(-height // rows)
        assert sum(-(-(b.stop - b.start + b.above + b.below - reach + 1) // stride) for b in found) == height
        placement = off_zero(space)

        given, graph, store = space.prepared.normalized.model, space.graph, space.prepared.store
        plain, banded = (
            embed_weights(Emitter(given, graph, store, rewrites).emit(placement, space.table), store)
            for rewrites in ((NonzeroZeroPoint(),), (NonzeroZeroPoint(), tiling))
        )
        check_and_load(banded)
        tiles = [n for n in banded.graph.node if n.op_type == "Conv" and n.name.startswith("conv")]
        assert len(tiles) == len(found)
        for a, b in zip(run(plain, space, True), run(banded, space, True), strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_runtime_computes_bands_in_integers_and_they_belong_to_the_conv(tmp_path: Path) -> None:
    space = Workspace(conv_model(), tmp_path)
    usual, other = space.emit(space.full()), space.emit(off_zero(space))
    for a, b in zip(run(usual, space, False), run(other, space, False), strict=True):
        np.testing.assert_array_equal(a, b)
    path = tmp_path / "banded.onnx"
    path.write_bytes(other.SerializeToString())
    executable = OrtCpuTarget().compile(Artifact(path, "banded"))
    kernels = executable.profile(space.feeds[0], 3)
    executable.close()
    mine = [k for k in kernels if "conv" in k.nodes]
    assert sum(k.op_type == "QLinearConv" for k in mine) == 3
    assert {k.op_type for k in mine} >= {"Slice", "Concat"}
    assert not [k for k in kernels if not k.attributed]


def test_kernels_before_bands_of_pointwise_convs_are_traced(tmp_path: Path) -> None:
    """What brings their rows into another layout reads from a Slice that is no operator of the model."""
    space = Workspace(conv_model(kernel=1, shapes=(16, 64)), tmp_path)
    path = tmp_path / "banded.onnx"
    path.write_bytes(space.emit(off_zero(space)).SerializeToString())
    executable = OrtCpuTarget().compile(Artifact(path, "banded"))
    kernels = executable.profile(space.feeds[0], 2)
    executable.close()
    assert any("conv" in k.nodes for k in kernels)
    assert not [k for k in kernels if not k.attributed]


def test_bands_behind_and_beside_bands(tmp_path: Path) -> None:
    """A value whose rows two convolutions read was joined of bands itself."""
    b = Builder()
    x = b.input("x", (1, 4, 64, 64))

    def conv(name: str, value: str, channels: int, outputs: int) -> str:
        weight = b.constant(f"{name}_w", b.rng.normal(0.0, 0.1, (outputs, channels, 3, 3)).astype(np.float32))
        return b.node(name, "Conv", [value, weight], pads=[1] * 4)

    first = b.node("relu", "Relu", [conv("first", x, 4, 64)])
    b.output(b.node("sum", "Add", [conv("left", first, 64, 64), conv("right", first, 64, 64)]))
    space = Workspace(b.model(), tmp_path)
    usual, other = space.emit(space.full()), space.emit(off_zero(space))
    check_and_load(other)
    assert [n.op_type for n in other.graph.node].count("Concat") == 3
    for a, c in zip(run(usual, space, False), run(other, space, False), strict=True):
        np.testing.assert_array_equal(a, c)


def test_only_what_is_off_zero_and_large_is_in_bands(tmp_path: Path) -> None:
    """Negative control: the other kernel has no use for bands, nor has a small image."""
    large, small = Workspace(conv_model(), tmp_path / "a"), Workspace(conv_model(size=(56, 64)), tmp_path / "b")
    kinds = [
        [n.op_type for n in space.emit(placement).graph.node]
        for space, placement in ((large, large.full()), (small, off_zero(small)), (large, off_zero(large)))
    ]
    assert [k.count("Concat") for k in kinds] == [0, 0, 1]


def test_a_conv_of_unknown_height_has_no_bands() -> None:
    def bands(model: onnx.ModelProto) -> int:
        graph = build_graph(normalize(ir.from_proto(model), lambda m, names: {}, None).model)
        return len(RowTiling.for_cache(CACHE, frozenset(), None).applies(graph, graph.node("conv")) or ())

    assert bands(conv_model()) == 3
    assert bands(conv_model(size=("h", 64))) == 0
    assert bands(conv_model(size=(64, "w"))) == 0
    lying = conv_model()  # what a model states of its values need not be so
    for value in lying.graph.value_info:
        value.type.tensor_type.shape.dim[2].dim_value = 1 << 40
    assert bands(lying) == 0


@pytest.mark.parametrize(("cache", "bands"), [(1 << 19, 11), (1 << 20, 6), (2 << 20, 3), (4 << 20, 0)])
def test_bands_fit_the_cache(cache: int, bands: int) -> None:
    """Sums of 1 MB: within half of 4 MB they stay as they are."""
    graph = build_graph(normalize(ir.from_proto(conv_model()), lambda m, names: {}, None).model)
    found = RowTiling.for_cache(cache, frozenset(), None).applies(graph, graph.node("conv")) or ()
    assert len(found) == bands


@pytest.mark.parametrize(
    ("levels", "found"),
    [
        ({"index1": ("1", "32K"), "index2": ("2", "2048K"), "index3": ("3", "36608K")}, 2 << 20),
        ({"index0": ("2", "1M")}, 1 << 20),
        ({"index0": ("2", "0K"), "index1": ("2", "junk")}, 1 << 20),
        ({"index0": ("2", "512K")}, 1 << 19),
        ({}, 1 << 20),
    ],
)
def test_the_cache_is_what_the_kernel_lists(tmp_path: Path, levels: dict[str, tuple[str, str]], found: int) -> None:
    for name, (level, size) in levels.items():
        folder = tmp_path / "cache" / name
        folder.mkdir(parents=True)
        (folder / "level").write_text(f"{level}\n")
        (folder / "size").write_text(f"{size}\n")
    assert level2_bytes(tmp_path) == found


def test_extract_joins_bands_and_keeps_what_is_off_zero(tmp_path: Path) -> None:
    space = Workspace(conv_model(), tmp_path)
    placement = off_zero(space)
    written = ir.from_proto(
        embed_weights(
            space.prepared.emitter.emit(placement, space.table, {"inlay.version": "test"}), space.prepared.store
        )
    )
    found = extract(written)
    assert found.leftovers == ()
    assert [n.op_type for n in found.model.graph] == ["Conv", "Relu", "Conv"]
    source = build_graph(found.model)
    moved = transfer(found, source, space.graph)
    assert moved.missing == ()
    assert moved.placement == placement
    again = Workspace(ir.to_proto(found.model), tmp_path / "again", feeds=space.feeds)
    for a, b in zip(run(space.emit(Placement()), space, True), run(again.emit(Placement()), again, True), strict=True):
        np.testing.assert_allclose(a, b, atol=0.05)  # weights were rounded
