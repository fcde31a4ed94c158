"""Functions of one int8 value: a TABLE of all 256 results, which ONNX Runtime computes from the node itself."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context
from inlay.tosa.ir import Array
from inlay.tosa.oracle import dequantize, quantize
from inlay.tosa.quantized import Unsupported

UNARY = (
    "LeakyRelu", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh", "Elu", "Selu", "Celu", "Softplus", "Softsign", "Erf",
    "Gelu",
    "Mish", "Exp", "Log", "Sqrt", "Reciprocal", "Abs", "Neg", "Floor", "Ceil", "Round", "Sin", "Cos", "PRelu", "Pow",
    "ThresholdedRelu", "Sign",
)  # fmt: skip
"""Operators of this rule, provided that every input but the first is a constant scalar."""


def table(context: Context, node: Node) -> None:
    """One int8 → int8 TABLE: bit for bit what ONNX Runtime gives on the dequantized value, quantized again."""
    tabulate(context, node, 0)


def tabulate(context: Context, node: Node, at: int) -> None:
    """TABLE of a node whose input ``at`` is the activation and whose other inputs are constant scalars."""
    to = context.output_qparams(node.outputs[0])
    x = context.quantized_input(node.inputs[at])
    others = {}
    for slot, value in enumerate(node.inputs):
        if slot == at:
            continue
        given = context.constant_input(node, slot)
        if given is None:
            continue
        if given.size != 1:
            raise Unsupported(f"its input {slot} differs between channels")
        others[value] = given.reshape(())
    reals = dequantize(np.arange(-128, 128, dtype=np.int8), x.known_qparams)
    results = _evaluate(context, node, at, reals, others)
    if np.isnan(results).any():
        raise Unsupported("it is not a number over a part of its input's range")
    values = tuple(int(v) for v in quantize(results, to))
    tensor = context.builder.add(
        ir.Table, node.name, [x.tensor], node.outputs[0], "int8", context.builder.shape(x.tensor), to, values=values
    )
    context.set_quantized(node.outputs[0], tensor, to)


def _evaluate(context: Context, node: Node, at: int, reals: Array, others: dict[str, Array]) -> Array:
    proto = onnx.NodeProto()
    proto.CopyFrom(context.model.proto(node.name))
    graph = helper.make_graph(
        [proto], "table",
        [helper.make_tensor_value_info(node.inputs[at], onnx.TensorProto.FLOAT, [256])],
        [helper.make_tensor_value_info(node.outputs[0], onnx.TensorProto.FLOAT, [256])],
        [numpy_helper.from_array(v, n) for n, v in others.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=context.model.opsets, ir_version=context.model.ir_version)
    options = ort.SessionOptions()
    options.log_severity_level = 4  # a unsupported is reported by us, once
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return np.asarray(session.run(None, {node.inputs[at]: reals})[0])
    except Exception as error:  # ONNX Runtime's own exceptions share no base class
        raise Unsupported(f"ONNX Runtime cannot compute it: {error}") from error
