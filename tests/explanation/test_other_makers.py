"""Models in the style of other quantizers are explained right: what ran, and why the rest did not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import inlay

Arrays = dict[str, np.ndarray]


class SymmetricInputs:
    """A model as NVIDIA ModelOpt writes it for TensorRT, by its format.

    int8 and symmetric throughout, Q/DQ only where Conv and MatMul read, weights as int8 initializers behind
    DequantizeLinear with a scale per channel; what they write is left in float.
    """

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.arrays: Arrays = {}
        self.rng = np.random.default_rng(0)

    def node(self, op_type: str, name: str, inputs: list[str], **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def constant(self, name: str, array: np.ndarray) -> str:
        self.arrays[name] = array
        return name

    def quantized(self, value: str, reader: str) -> str:
        qparams = [
            self.constant(f"{reader}_x_scale", np.array(0.03, np.float32)),
            self.constant(f"{reader}_x_zero", np.array(0, np.int8)),
        ]
        low = self.node("QuantizeLinear", f"{reader}_x_q", [value, *qparams])
        return self.node("DequantizeLinear", f"{reader}_x_dq", [low, *qparams])

    def weight(self, reader: str, shape: tuple[int, ...], axis: int) -> str:
        size = shape[axis]
        parts = [
            self.constant(f"{reader}_w", self.rng.integers(-127, 128, shape).astype(np.int8)),
            self.constant(f"{reader}_w_scale", np.full(size, 0.002, np.float32)),
            self.constant(f"{reader}_w_zero", np.zeros(size, np.int8)),
        ]
        return self.node("DequantizeLinear", f"{reader}_w_dq", parts, axis=axis)

    def conv(self, name: str, value: str, channels: int, outputs: int) -> str:
        inputs = [self.quantized(value, name), self.weight(name, (outputs, channels, 3, 3), 0)]
        inputs.append(self.constant(f"{name}_b", self.rng.standard_normal(outputs).astype(np.float32)))
        return self.node("Conv", name, inputs, pads=[1, 1, 1, 1])

    def matmul(self, name: str, value: str, depth: int, outputs: int) -> str:
        return self.node("MatMul", name, [self.quantized(value, name), self.weight(name, (depth, outputs), 1)])

    def model(self, output: str, opset: int) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 12, 12])],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            [numpy_helper.from_array(a, n) for n, a in self.arrays.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def network(opset: int) -> onnx.ModelProto:
    b = SymmetricInputs()
    x = b.node("Relu", "relu_1", [b.conv("conv_1", "x", 8, 16)])
    y = b.node("Relu", "relu_2", [b.conv("conv_2", x, 16, 16)])
    y = b.node("Add", "add", [y, x])
    y = b.node("GlobalAveragePool", "pool", [b.conv("conv_3", y, 16, 16)])
    y = b.node("Flatten", "flat", [y])
    return b.model(b.matmul("matmul", y, 16, 4), opset)


@pytest.mark.parametrize("opset", [17, 19, 21])
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_symmetric_inputs_only(opset: int, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(network(opset), path)
    found = inlay.explain(path)
    ran = {o.name: o for o in found.operators}
    assert ran["matmul"].precision == "int8"
    reasons = {name: {r.code for r in o.reasons} for name, o in ran.items() if o.heavy and o.precision == "float"}
    assert reasons["conv_1"] == {"float-reader", "zero-point"}, "Add reads it beside; 0 is not where Relu ends"
    assert reasons["conv_2"] == reasons["conv_3"] == {"no-quantizer"}, "nothing quantizes what it writes"
    assert reasons["add"] == {"float-input"}
    assert all(r.certain for o in ran.values() for r in o.reasons), "the runtime itself has shown each"
