"""Small ONNX models with seeded weights, for tests that need a file rather than a graph."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def branches(channels: int = 8, names: str = "", seed: int = 0) -> onnx.ModelProto:
    """Conv→Relu on two branches, Concat, Conv→Relu, residual Add→Relu, pooled."""
    rng = np.random.default_rng(seed)
    weights: list[onnx.TensorProto] = []
    nodes: list[onnx.NodeProto] = []

    def conv(x: str, outs: int, ins: int, name: str) -> str:
        w = (rng.standard_normal((outs, ins, 3, 3)) / np.sqrt(9 * ins)).astype(np.float32)
        b = (0.1 * rng.standard_normal(outs)).astype(np.float32)
        weights.extend([numpy_helper.from_array(w, f"{name}.w"), numpy_helper.from_array(b, f"{name}.b")])
        inputs = [x, f"{name}.w", f"{name}.b"]
        nodes.append(helper.make_node("Conv", inputs, [f"{name}.c"], name, pads=[1, 1, 1, 1], kernel_shape=[3, 3]))
        nodes.append(helper.make_node("Relu", [f"{name}.c"], [f"{name}.y"], f"{name}.relu"))
        return f"{name}.y"

    p = names
    stem = conv("x", channels, 3, f"{p}stem")
    left, right = conv(stem, channels, channels, f"{p}left"), conv(stem, channels, channels, f"{p}right")
    nodes.append(helper.make_node("Concat", [left, right], [f"{p}cat"], f"{p}concat", axis=1))
    after = conv(f"{p}cat", channels, 2 * channels, f"{p}after")
    nodes.append(helper.make_node("Add", [after, stem], [f"{p}sum"], f"{p}add"))
    nodes.append(helper.make_node("Relu", [f"{p}sum"], [f"{p}out"], f"{p}relu"))
    nodes.append(helper.make_node("GlobalAveragePool", [f"{p}out"], ["y"], f"{p}pool"))
    graph = helper.make_graph(
        nodes,
        "branches",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, channels, 1, 1])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
