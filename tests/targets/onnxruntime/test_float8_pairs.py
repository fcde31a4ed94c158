"""What ONNX Runtime does with pairs in floats of 8 bits, and with what is written in their place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from inlay.model.store import embed_weights
from inlay.quant.emit import Emitter
from inlay.space.recipe import OpConfig, Recipe
from inlay.space.resolve import resolve
from inlay.testing import concat_model, residual_model, run_reference, small_model
from inlay.types import QType
from tests.support.fixtures import MakeWorkspace
from tests.support.workspace import Workspace

FP8 = Recipe().set_global(OpConfig(QType.FP8)).set_io(OpConfig(QType.FP8))
KNOWS_FLOAT8 = (1, 32)
"""The version that loads Q/DQ pairs of float8 as ONNX has them."""


def _session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()  # as users build it
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _plain(space: Workspace) -> onnx.ModelProto:
    """The model with Q/DQ nodes as ONNX has them."""
    prepared = space.prepared
    placement = resolve(FP8, space.graph, prepared.units, prepared.rules).placement
    emitter = Emitter(prepared.normalized.model, space.graph, prepared.store)
    return embed_weights(emitter.emit(placement, space.table), prepared.store)


@pytest.mark.parametrize("build", [residual_model, concat_model, small_model])
def test_the_runtime_loads_what_is_written_and_computes_what_the_pairs_say(
    workspace: MakeWorkspace, build: Callable[[], onnx.ModelProto]
) -> None:
    space = workspace(build())
    plain = _plain(space)
    if tuple(map(int, ort.__version__.split(".")[:2])) < KNOWS_FLOAT8:  # the rewrite serves older versions
        with pytest.raises(Exception, match=r"float8|Failed to find kernel"):
            _session(plain)
    placement = resolve(FP8, space.graph, space.prepared.units, space.prepared.rules).placement
    written = space.emit(placement)
    session = _session(written)
    want = run_reference(plain, space.feeds[0])
    got = session.run(list(want), dict(space.feeds[0]))
    for name, array in zip(want, got, strict=True):
        assert np.abs(array - want[name]).max() <= 0.13 * np.abs(want[name]).max()  # one step of 3 bits, where sums tip
    exact = run_reference(written, space.feeds[0])
    assert all(np.allclose(exact[name], want[name], rtol=1e-5, atol=1e-6) for name in want)


def test_the_runtime_drops_a_relu_before_a_pair() -> None:
    make = onnx.helper.make_node
    nodes = [
        make("Relu", ["x"], ["r"]),
        make("QuantizeLinear", ["r", "s", "z"], ["q"]),
        make("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    values = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2]) for n in "xy"]
    tensors = [
        onnx.helper.make_tensor("s", onnx.TensorProto.FLOAT, [], [1.0]),
        onnx.TensorProto(name="z", data_type=onnx.TensorProto.FLOAT8E4M3FN, raw_data=b"\0"),
    ]
    graph = onnx.helper.make_graph(nodes, "relu", values[:1], values[1:], tensors)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9)
    (got,) = _session(model).run(None, {"x": np.array([-3.0, 3.0], np.float32)})
    assert got.tolist() == [-3.0, 3.0], "the runtime keeps the Relu now: its fusions may be right for such pairs"
