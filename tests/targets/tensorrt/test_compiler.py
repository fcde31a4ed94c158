"""The rules of TensorRT, asked of its own compiler: what the table says is built, and what it leaves out is refused."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from inlay.errors import CompileFailed
from inlay.search.baselines import CONV_MATMUL, anchor_units
from inlay.targets.base import Capabilities, Feed
from inlay.targets.model_file import ModelFile
from inlay.targets.tensorrt.bindings import RTX
from inlay.targets.tensorrt.engine import build
from inlay.targets.tensorrt.reports import Layer, layers_in_log
from inlay.targets.tensorrt.rtx import TensorRtRtxTarget
from inlay.targets.tensorrt.rules import RTX_RULES, RULES
from inlay.testing import Builder
from inlay.types import Placement
from tests.support.random_models import random_model
from tests.support.workspace import Workspace
from tests.targets.tensorrt.conftest import needs_compiler

pytestmark = needs_compiler

MANY, TOGETHER = 300, 50
"""Random models, and how many of them a test builds: all of them take four minutes of one core, as the trained do."""
PLACEMENTS = 20


def built(model: onnx.ModelProto, feed: Feed | None = None) -> list[Layer]:
    """The kernels of an engine. Raises CompileFailed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        file = ModelFile(path)
        shapes = () if file.is_static or feed is None else file.shapes(feed)
        return layers_in_log(build(RTX, path, shapes, None, "SM89").layers)


# --- every row of the table -------------------------------------------------------------------------------------------


def _weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.1, shape).astype(np.float32)


def _op(op_type: str, *constants: object, outputs: tuple[str, ...] = (), **attributes: Any) -> Callable[..., str]:
    def make(b: Builder, x: str) -> str:
        inputs = [x, *(b.constant(f"c{i}", array) for i, array in enumerate(constants))]
        return b.node("op", op_type, inputs, outputs, **attributes)

    return make


def _residual(b: Builder, x: str) -> str:
    return b.node("op", "Add", [b.node("conv", "Conv", [x, b.constant("w", _weights(8, 8, 1, 1))]), x])


def _numbers(*numbers: int) -> np.ndarray:
    return np.array(numbers)


ROWS: Mapping[str, Callable[[Builder, str], str]] = {
    "Conv": _op("Conv", _weights(8, 8, 3, 3), pads=[1] * 4),
    "ConvTranspose": _op("ConvTranspose", _weights(8, 4, 2, 2), strides=[2, 2]),
    "Gemm": lambda b, x: _op("Gemm", _weights(512, 6))(b, b.node("flat", "Flatten", [x])),
    "MatMul": _op("MatMul", _weights(8, 4)),
    "Add": _residual,
    "AveragePool": _op("AveragePool", kernel_shape=[2, 2]),
    "GlobalAveragePool": _op("GlobalAveragePool"),
    "Concat": lambda b, x: b.node("op", "Concat", [b.node("tanh", "Tanh", [x]), x], axis=1),
    "MaxPool": _op("MaxPool", kernel_shape=[2, 2]),
    "Reshape": _op("Reshape", _numbers(1, 8, 64)),
    "Flatten": _op("Flatten"),
    "Squeeze": _op("Squeeze", _numbers(0)),
    "Unsqueeze": _op("Unsqueeze", _numbers(0)),
    "Transpose": _op("Transpose", perm=[0, 2, 3, 1]),
    "Slice": _op("Slice", _numbers(0), _numbers(4), _numbers(1)),
    "Split": _op("Split", _numbers(4, 4), outputs=("left", "right"), axis=1),
    "Gather": _op("Gather", _numbers(0, 2), axis=1),
    "Expand": _op("Expand", _numbers(2, 8, 8, 8)),
    "Tile": _op("Tile", _numbers(1, 1, 2, 1)),
}
READ_INT8 = {"Conv", "Gemm", "MatMul", "Add", "MaxPool"}  # the kernel of the operator does, with float around it
READ_FP8 = READ_INT8 - {"MaxPool"}


def test_every_row_has_a_model() -> None:
    assert set(ROWS) == set(RULES.ops) >= set(RTX_RULES.ops)


@pytest.mark.matrix
@pytest.mark.parametrize("op_type", ROWS)
@pytest.mark.parametrize(("kind", "readers"), [("int8", READ_INT8), ("fp8", READ_FP8)])
def test_every_row_is_built(op_type: str, kind: str, readers: set[str], tmp_path: Path) -> None:
    """With and without Q/DQ nodes; products read 8 bits, and what only moves elements becomes no more kernels."""
    b = Builder(opset=21)
    b.output(b.node("after", "Sigmoid", [ROWS[op_type](b, b.node("before", "Relu", [b.input("x", (1, 8, 8, 8))]))]))
    workspace = Workspace(b.model(), tmp_path, Capabilities(RULES.in_type(kind)))
    placement = workspace.full()
    assert any(port.node == "op" for port, _ in placement)
    quantized, plain = (built(workspace.emit(p)) for p in (placement, Placement()))
    types = {t.type for layer in quantized if "op" in layer.nodes for t in layer.inputs}
    eight_bits = {"int8": "int8", "fp8": "float8"}[kind]
    assert (eight_bits in types) == (op_type in readers)
    assert {t.type for layer in plain for t in layer.inputs} <= {"float32"}
    if RULES.ops[op_type].moves_data and op_type != "MaxPool":
        assert len(quantized) <= len(plain), "Q and DQ are moved through it"


# --- what the compiler refuses ----------------------------------------------------------------------------------------


def _quantized_conv(
    activation: int = TensorProto.INT8,
    zero_point: int = 0,
    bias: int = TensorProto.FLOAT,
    weight: int = TensorProto.INT8,
    block: int = 0,
) -> onnx.ModelProto:
    """A product between Q/DQ nodes, opset 21 or 23."""
    rows, columns = 64, 32
    shape = (rows // block, columns) if block else (columns,)
    scales = {"x_scale": _weights(1)[0] ** 2, "w_scale": np.abs(_weights(*shape)) + 0.01, "b_scale": np.float32(1e-4)}
    constants = [numpy_helper.from_array(np.asarray(a, np.float32), name) for name, a in scales.items()]
    numbers = np.random.default_rng(0).integers(-6, 7, (rows, columns))
    constants.append(helper.make_tensor("w", weight, numbers.shape, numbers.ravel().tolist()))
    constants.append(helper.make_tensor("x_zero", activation, (), [zero_point]))
    constants.append(helper.make_tensor("b", bias, (columns,), [1] * columns))
    how: dict[str, Any] = {"axis": 0, "block_size": block} if block else {"axis": 1}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "x_scale", "x_zero"], ["q"], "quantize"),
        helper.make_node("DequantizeLinear", ["q", "x_scale", "x_zero"], ["dq"], "dequantize"),
        helper.make_node("DequantizeLinear", ["w", "w_scale"], ["weight"], "weight", **how),
        helper.make_node("MatMul", ["dq", "weight"], ["product"], "op"),
    ]
    added = "b"
    if bias == TensorProto.INT32:
        nodes.append(helper.make_node("DequantizeLinear", ["b", "b_scale"], ["bias"], "bias"))
        added = "bias"
    nodes.append(helper.make_node("Add", ["product", added], ["y"], "add"))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, rows]), ("y", [1, columns])))
    graph = helper.make_graph(nodes, "test", [x], [y], constants)
    opset = 23 if weight == TensorProto.FLOAT4E2M1 else 21
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)


def test_what_the_table_writes_is_built() -> None:
    kernels = built(_quantized_conv())
    assert any(layer.kind == "gemm" and layer.inputs[0].type == "int8" for layer in kernels)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"zero_point": 3}, "Non-zero zero point is not supported"),
        ({"bias": TensorProto.INT32}, "has type Int32 but must have type FP8, FP4, Int4, Int8, or UInt8"),
        ({"activation": TensorProto.UINT8, "zero_point": 128}, "Non-zero zero point is not supported"),
        ({"activation": TensorProto.INT16}, "unsupported|UNSUPPORTED"),
        ({"activation": TensorProto.UINT16}, "unsupported|UNSUPPORTED"),
    ],
    ids=["asymmetric", "int32 bias", "uint8", "int16", "uint16"],
)
def test_what_the_table_leaves_out_is_refused(fault: dict[str, int], words: str) -> None:
    with pytest.raises(CompileFailed, match=words) as raised:
        built(_quantized_conv(**fault))
    assert "\n" not in str(raised.value)


def _weight_only(weight: int, block: int) -> onnx.ModelProto:
    model = _quantized_conv(weight=weight, block=block)
    nodes = [n for n in model.graph.node if n.name not in ("quantize", "dequantize")]
    next(n for n in nodes if n.name == "op").input[0] = "x"
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


@pytest.mark.parametrize(
    ("model", "read", "least"),
    [
        (_quantized_conv(activation=TensorProto.FLOAT8E4M3FN, weight=TensorProto.FLOAT8E4M3FN), "float8", "SM89"),
        (_weight_only(TensorProto.INT4, 16), "int4", "SM80"),
        (_weight_only(TensorProto.FLOAT4E2M1, 16), "float4", "SM120"),
    ],
    ids=["fp8", "int4 blocks", "fp4 blocks"],
)
def test_types_of_newer_gpus(model: onnx.ModelProto, read: str, least: str, tmp_path: Path) -> None:
    """They are built for the GPUs that have them, and refused for those that lack them."""
    onnx.save(model, tmp_path / "model.onnx")
    known = ["SM80", "SM89", "SM120"]
    for capability in known[known.index(least) :]:
        layers = layers_in_log(build(RTX, tmp_path / "model.onnx", (), None, capability).layers)
        assert read in {t.type for layer in layers for t in (*layer.inputs, *layer.constants)}
    for capability in known[: known.index(least)]:
        with pytest.raises(CompileFailed, match="HW-specific datatypes"):
            build(RTX, tmp_path / "model.onnx", (), None, capability)


# --- whole models -----------------------------------------------------------------------------------------------------


def _placements(workspace: Workspace, rng: np.random.Generator, count: int) -> Iterator[Placement]:
    """Full INT8, Conv and MatMul alone, and random ones; each once."""
    prepared = workspace.prepared
    usual = anchor_units(prepared.graph, prepared.units)
    names = sorted(u.name for u in prepared.selectable)
    shares = [float(rng.choice([0.2, 0.5, 0.8])) for _ in range(count)]
    drawn = [prepared.label(frozenset(n for n in names if rng.random() < share)) for share in shares]
    yield from dict.fromkeys([workspace.full(), prepared.label(usual[CONV_MATMUL]), *drawn])


def _builds(model: onnx.ModelProto, feeds: tuple[Feed, ...], folder: Path, seed: int, count: int) -> int:
    workspace = Workspace(model, folder, TensorRtRtxTarget().capabilities(), feeds=feeds)
    number = 0
    for placement in _placements(workspace, np.random.default_rng(seed), count):
        assert built(workspace.emit(placement), feeds[0])
        number += 1
    return number


@pytest.mark.matrix
@pytest.mark.parametrize(
    "seeds",
    [range(1), range(1, TOGETHER), *(range(i, i + TOGETHER) for i in range(TOGETHER, MANY, TOGETHER))],
    ids=lambda seeds: f"up to {seeds[-1]}",
)
def test_random_models_are_built(seeds: range, tmp_path: Path) -> None:
    count = 0
    for seed in seeds:
        model, feeds = random_model(np.random.default_rng(seed))
        count += _builds(model, feeds, tmp_path / str(seed), seed, PLACEMENTS)
    assert count >= 2 * len(seeds)


@pytest.mark.real_model
@pytest.mark.exhaustive
@pytest.mark.parametrize("turn", range(2))
def test_trained_models_are_built(turn: int, real_models: Path, tmp_path: Path) -> None:
    """Every one of the folder, on its own samples: each second one in a turn."""
    samples, paths = importlib.import_module("feeds"), sorted(real_models.glob("*.onnx"))
    assert paths
    for path in paths[turn::2]:
        calibration, _ = samples.feeds(path.stem)
        assert _builds(onnx.load(path), (calibration[0],), tmp_path / path.stem, 0, PLACEMENTS) >= 2
