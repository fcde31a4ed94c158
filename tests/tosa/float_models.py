"""Small float models with seeded weights, unlike those that Inlay was developed with: input for whole runs of tune."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from inlay.tosa.ir import Array

SIDE = 16


class FloatNet:
    """Builds a float model node by node on one image input ``x``, of shape [1, 3, SIDE, SIDE] unless given."""

    def __init__(self, seed: int, shape: Sequence[int] = (1, 3, SIDE, SIDE)) -> None:
        self.shape = list(shape)
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def const(self, array: Array | np.generic) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def op(self, kind: str, reads: list[str], **attributes: Any) -> str:
        name = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, reads, [f"{name}.y"], name, **attributes))
        return f"{name}.y"

    def conv(self, x: str, ins: int, outs: int, kernel: int = 3, stride: int = 1) -> str:
        w = self.rng.normal(size=(outs, ins, kernel, kernel)) / np.sqrt(kernel * kernel * ins)
        b = self.const((0.1 * self.rng.normal(size=outs)).astype(np.float32))
        reads = [x, self.const(w.astype(np.float32)), b]
        return self.op("Conv", reads, pads=[kernel // 2] * 4, kernel_shape=[kernel] * 2, strides=[stride] * 2)

    def linear(self, x: str, ins: int, outs: int) -> str:
        w = (self.rng.normal(size=(ins, outs)) / np.sqrt(ins)).astype(np.float32)
        return self.op("Gemm", [x, self.const(w), self.const(np.zeros(outs, np.float32))])

    def model(self, outputs: Mapping[str, Sequence[int | None]]) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "float",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.checker.check_model(model, full_check=True)
        return model


def unseen() -> onnx.ModelProto:
    """Subtraction, gates, a join, a residual, an upsampling and a softmax: every branch of it must stay correct."""
    n = FloatNet(11)
    x = n.op("Sub", ["x", n.const(np.float32(0.2))])
    stem = n.op("Relu", [n.conv(x, 3, 8, stride=2)])
    gate = n.op("Sigmoid", [n.conv(stem, 8, 8, 1)])
    gated = n.op("Mul", [stem, gate])
    summed = n.op("Relu", [n.op("Add", [n.conv(n.op("Relu", [n.conv(gated, 8, 8)]), 8, 8), gated])])
    low = n.op("Relu", [n.conv(summed, 8, 8, stride=2)])
    up = n.op(
        "Resize", [low, "", n.const(np.array([1, 1, 2, 2], np.float32))], mode="nearest",
        coordinate_transformation_mode="half_pixel", nearest_mode="round_prefer_floor",
    )  # fmt: skip
    joined = n.op("Concat", [up, summed, n.op("Sub", [summed, up])], axis=1)
    mixed = n.op("Relu", [n.conv(joined, 24, 12, 1)])
    flat = n.op("Flatten", [n.op("GlobalAveragePool", [mixed])])
    y = n.op("Softmax", [n.linear(flat, 12, 6)], axis=-1)
    return n.model({y: [1, 6], mixed: [1, 12, SIDE // 2, SIDE // 2]})


def generated(seed: int, size: int = 8) -> onnx.ModelProto:
    """A random graph of convolutions, gates, joins, residuals and (for some seeds) an operator only for the host."""
    n = FloatNet(seed)
    values = [n.op("Relu", [n.conv("x", 3, 8, stride=2)])]
    for _ in range(size):
        a, b = (values[int(n.rng.integers(max(0, len(values) - 3), len(values)))] for _ in range(2))
        match int(n.rng.integers(8)):
            case 0:
                y = n.op("Relu", [n.conv(a, 8, 8)])
            case 1:
                y = n.conv(n.op("Concat", [a, b], axis=1), 16, 8, 1)
            case 2:
                y = n.op("Add", [n.conv(a, 8, 8), b])
            case 3:
                y = n.op("Mul", [a, n.op("Sigmoid", [n.conv(b, 8, 8, 1)])])
            case 4:
                y = n.op("Sub", [a, n.op("MaxPool", [b], kernel_shape=[3, 3], pads=[1] * 4)])
            case 5:
                y = n.op("CumSum", [n.op("Mul", [a, n.const(np.float32(0.2))]), n.const(np.array(1, np.int64))])
            case 6:
                y = n.op("HardSwish", [n.conv(a, 8, 8, 1)])
            case _:
                y = n.op("Transpose", [n.op("Tanh", [a])], perm=[0, 1, 3, 2])
        values.append(y)
    flat = n.op("Flatten", [n.op("GlobalAveragePool", [n.op("Add", [values[-1], values[-2]])])])
    return n.model({n.linear(flat, 8, 4): [1, 4]})


def samples(count: int, seed: int = 3) -> list[dict[str, Array]]:
    """Normally distributed images."""
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(size=(1, 3, SIDE, SIDE)).astype(np.float32)} for _ in range(count)]
