"""A builder of small Q/DQ models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("tosa_serializer", reason="the extra arm is not installed")

from inlay.tosa.ir import Array

ONNX_TYPE = {
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "float32": TensorProto.FLOAT,
}


class Net:
    """Builds a Q/DQ model node by node; inputs and outputs are float unless said otherwise.

    Attributes:
        opset: of the model.
        qtype: ``int8`` or ``uint8``, of the activations that are quantized from now on.
    """

    def __init__(self, opset: int = 17, qtype: str = "int8") -> None:
        self.opset, self.qtype = opset, qtype
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self._count = 0

    def _name(self, base: str) -> str:
        self._count += 1
        return f"{base}{self._count}"

    def const(self, value: Array | np.generic, base: str = "c") -> str:
        """An initializer."""
        name = self._name(base)
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def i64(self, *values: int) -> str:
        """A vector of int64, as axes and shapes are given."""
        return self.const(np.array(values, np.int64))

    def f32(self, value: float) -> str:
        """A float scalar."""
        return self.const(np.float32(value))

    def input(self, shape: Sequence[int], dtype: str = "float32") -> str:
        """A model input."""
        name = self._name("in")
        self.inputs.append(helper.make_tensor_value_info(name, ONNX_TYPE[dtype], shape))
        return name

    def output(self, value: str, dtype: str = "float32") -> None:
        """Declare ``value`` as a model output."""
        self.outputs.append(helper.make_tensor_value_info(value, ONNX_TYPE[dtype], None))

    def op(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """A node with one output."""
        return self.ops(kind, inputs, 1, **attributes)[0]

    def ops(self, kind: str, inputs: Sequence[str], outputs: int, **attributes: Any) -> list[str]:
        """A node with several outputs."""
        names = [self._name(kind.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=self._name(f"n_{kind}"), **attributes))
        return names

    def _qparams(self, scale: float, zp: int) -> list[str]:
        return [self.const(np.float32(scale), "s"), self.const(np.array(zp, self.qtype), "z")]

    def q(self, value: str, scale: float, zp: int) -> str:
        """QuantizeLinear."""
        return self.op("QuantizeLinear", [value, *self._qparams(scale, zp)])

    def dq(self, value: str, scale: float, zp: int) -> str:
        """DequantizeLinear."""
        return self.op("DequantizeLinear", [value, *self._qparams(scale, zp)])

    def qdq(self, value: str, scale: float, zp: int) -> str:
        """Both, with the same qparams."""
        qparams = self._qparams(scale, zp)
        return self.op("DequantizeLinear", [self.op("QuantizeLinear", [value, *qparams]), *qparams])

    def weight(self, ints: Array, scale: Array | np.floating | float, axis: int = 0) -> str:
        """A dequantized constant, per channel of ``axis`` where ``scale`` is a vector."""
        scale = np.asarray(scale, np.float32)
        attributes = {"axis": axis} if scale.ndim else {}
        names = [self.const(ints), self.const(scale), self.const(np.zeros(scale.shape, ints.dtype))]
        return self.op("DequantizeLinear", names, **attributes)

    def bias(self, real: Array, scale: Array | np.floating | float) -> str:
        """An int32 bias at the scale of the products, as every Q/DQ exporter writes it."""
        scale = np.broadcast_to(np.asarray(scale, np.float32), real.shape)
        ints = np.rint(real / scale).astype(np.int32)
        names = [self.const(ints), self.const(scale), self.const(np.zeros(real.shape, np.int32))]
        return self.op("DequantizeLinear", names, axis=0)

    def model(self) -> onnx.ModelProto:
        """The model, checked."""
        graph = helper.make_graph(self.nodes, "net", self.inputs, self.outputs, self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        model = onnx.shape_inference.infer_shapes(model)  # the outputs' shapes, which the checker wants
        onnx.checker.check_model(model, full_check=True)
        return model


def random_weights(rng: np.random.Generator, *shape: int, low: int = -127) -> Array:
    """int8 weights over the whole symmetric range."""
    return rng.integers(low, 128, shape).astype(np.int8)


def shape_of(value: onnx.ValueInfoProto) -> list[int]:
    """The static shape of a model input."""
    return [d.dim_value for d in value.type.tensor_type.shape.dim]


def normal_feed(model: onnx.ModelProto, seed: int, deviation: float = 1.0) -> dict[str, Array]:
    """Normally distributed float inputs."""
    rng = np.random.default_rng(seed)
    return {v.name: (rng.normal(size=shape_of(v)) * deviation).astype(np.float32) for v in model.graph.input}
