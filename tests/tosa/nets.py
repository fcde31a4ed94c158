"""Small Q/DQ models for the lowering's tests, and the three-way comparison that every one of them goes through."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("tosa_serializer", reason="the extra arm is not installed")

from inlay.tosa import ir, oracle
from inlay.tosa.lowering import Lowered, lower
from inlay.tosa.reference import LoweredRunner

ONNX_TYPE = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "float32": TensorProto.FLOAT}


class Net:
    """Builds a Q/DQ model node by node; values are float unless said otherwise."""

    def __init__(self, opset: int = 17, qtype: str = "int8") -> None:
        self.opset, self.qtype = opset, qtype
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self._count = 0

    def name(self, base: str) -> str:
        self._count += 1
        return f"{base}{self._count}"

    def const(self, value: np.ndarray | np.generic, base: str = "c") -> str:
        name = self.name(base)
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def input(self, shape: list[int], dtype: str = "float32") -> str:
        name = self.name("in")
        self.inputs.append(helper.make_tensor_value_info(name, ONNX_TYPE[dtype], shape))
        return name

    def output(self, value: str, dtype: str = "float32") -> None:
        self.outputs.append(helper.make_tensor_value_info(value, ONNX_TYPE[dtype], None))

    def i64(self, *values: int) -> str:
        """A constant vector of sizes, axes or indices."""
        return self.const(np.array(values, np.int64))

    def op(self, kind: str, inputs: list[str], **attributes: Any) -> str:
        """A node with one output."""
        return self.op_with_outputs(kind, inputs, 1, **attributes)[0]

    def op_with_outputs(self, kind: str, inputs: list[str], count: int, **attributes: Any) -> list[str]:
        """A node with ``count`` outputs."""
        names = [self.name(kind.lower()) for _ in range(count)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=self.name(f"n_{kind}"), **attributes))
        return names

    def _qparams(self, scale: float, zp: int) -> list[str]:
        return [self.const(np.float32(scale), "s"), self.const(np.array(zp, self.qtype), "z")]

    def q(self, value: str, scale: float, zp: int) -> str:
        return self.op("QuantizeLinear", [value, *self._qparams(scale, zp)])

    def dq(self, value: str, scale: float, zp: int) -> str:
        return self.op("DequantizeLinear", [value, *self._qparams(scale, zp)])

    def qdq(self, value: str, scale: float, zp: int) -> str:
        qparams = self._qparams(scale, zp)
        return self.op("DequantizeLinear", [self.op("QuantizeLinear", [value, *qparams]), *qparams])

    def weight(self, ints: np.ndarray, scale: np.ndarray | np.generic | float, axis: int = 0) -> str:
        scales = np.asarray(scale, np.float32)
        attributes = {"axis": axis} if scales.ndim else {}
        names = [self.const(ints), self.const(scales), self.const(np.zeros(scales.shape, ints.dtype))]
        return self.op("DequantizeLinear", names, **attributes)

    def bias(self, real: np.ndarray, scale: np.ndarray | np.generic | float) -> str:
        """An int32 bias at the scale of the products, as every Q/DQ exporter writes it."""
        scales = np.broadcast_to(np.asarray(scale, np.float32), real.shape)
        ints = np.rint(real / scales).astype(np.int32)
        return self.op(
            "DequantizeLinear",
            [self.const(ints), self.const(scales), self.const(np.zeros(real.shape, np.int32))],
            axis=0,
        )

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "net", self.inputs, self.outputs, self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        model = onnx.shape_inference.infer_shapes(model)  # the outputs' shapes, which the checker wants
        onnx.checker.check_model(model, full_check=True)
        return model


def run_ort(model: onnx.ModelProto, feed: dict[str, np.ndarray], optimize: bool = False) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs: list[np.ndarray] = session.run(None, feed)
    return outputs


@functools.cache
def exact_weight_limit() -> int:
    """Largest weight magnitude at which ONNX Runtime's integer kernels are exact on this processor: 127 or 63.

    On x86 without VNNI they add pairs of 8-bit products in 16 bits (VPMADDUBSW), which saturates for weights that use
    all 8 bits. The known remedy is ``reduce_range``: 7-bit weights. Measured, not derived from the processor's flags: a
    convolution whose every product is the largest one.
    """
    net = Net(qtype="uint8")
    x = net.qdq(net.input([1, 32, 4, 4]), 1.0, 0)
    weight = net.weight(np.full((8, 32, 1, 1), 127, np.int8), 1.0)
    net.output(net.qdq(net.op("Conv", [x, weight]), float(32 * 127), 0))
    model, feed = net.model(), {"in1": np.full((1, 32, 4, 4), 255, np.float32)}
    exact = np.array_equal(run_ort(model, feed, optimize=True)[0], run_ort(model, feed)[0])
    return 127 if exact else 63


def three_ways(
    model: onnx.ModelProto,
    feed: dict[str, np.ndarray],
    profile: str = "INT",
    lsb: float | list[float] = 0.0,
    limit: float = 1.0,
) -> float:
    """Oracle == TOSA reference model bit for bit, and both within ``limit`` steps of ONNX Runtime.

    ``lsb`` is the size of a step of the (float) outputs. Returns the largest distance from ONNX Runtime, in steps.
    """
    lowered = lower(model, profile)
    types = {n: t.dtype for n, t in lowered.graph.tensors.items()}
    rescales = {(types[op.inputs[0]], types[op.out]) for op in lowered.graph.ops if isinstance(op, ir.Rescale)}
    assert ("int32", "int32") not in rescales  # not every compiler carries that out
    reference = LoweredRunner(lowered).run(feed)
    numpy_outputs = oracle.outputs(lowered.graph, feed, host=host_by_ort(lowered))
    for a, b in zip(reference, numpy_outputs, strict=True):
        np.testing.assert_array_equal(a, b)
    worst = 0.0
    steps = lsb if isinstance(lsb, list) else [lsb or 1.0] * len(reference)
    for ours, theirs, step in zip(reference, run_ort(model, feed), steps, strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        worst = max(worst, float(np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max(initial=0.0)) / step)
    assert worst <= limit + 1e-3, f"{worst} steps away from ONNX Runtime"
    return worst


def output_steps(graph: ir.IntegerGraph) -> list[float]:
    """Size of a quantization step of each (dequantized) output."""
    made = {name: op for op in graph.ops for name in op.outputs}
    sizes = []
    for interface in graph.outputs:
        op = made[interface.tensor]
        assert isinstance(op, ir.Dequantize)
        qparams = graph.tensors[op.inputs[0]].qparams
        assert qparams is not None
        sizes.append(qparams.scale[0])
    return sizes


def host_by_ort(lowered: Lowered) -> Callable[[ir.Host, list[np.ndarray]], list[np.ndarray]]:
    """Computes host nodes for the oracle, one at a time."""

    def run(op: ir.Host, args: list[np.ndarray]) -> list[np.ndarray]:
        given = {name: value for name, value in zip(op.node.input, args, strict=True) if name}
        types = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in given.items()}
        graph = helper.make_graph(
            [op.node],
            "one",
            [helper.make_tensor_value_info(n, types[n], a.shape) for n, a in given.items()],
            [onnx.ValueInfoProto(name=n) for n in op.node.output],
        )
        opsets = next(p.host.opset_import for p in lowered.partitions if p.host is not None)
        return run_ort(helper.make_model(graph, opset_imports=opsets, ir_version=8), given)

    return run
