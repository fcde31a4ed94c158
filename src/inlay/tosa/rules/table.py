"""Functions of one int8 value: a TABLE of all 256 results, which ONNX Runtime computes from the node itself."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
from onnx import helper, numpy_helper

from inlay.errors import TargetError
from inlay.model.reference import run_once
from inlay.quant.qparams import dequantize, quantize
from inlay.tosa import ir
from inlay.tosa.ir import Array
from inlay.tosa.quantized import QuantizedTensor, Unsupported
from inlay.tosa.rules._lookup import function
from inlay.tosa.rules._node import NodeContext

UNARY = (
    "LeakyRelu", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh", "Elu", "Selu", "Celu", "Softplus", "Softsign", "Erf",
    "Gelu", "Mish", "Exp", "Log", "Sqrt", "Reciprocal", "Abs", "Neg", "Floor", "Ceil", "Round", "Sin", "Cos",
    "Pow", "ThresholdedRelu", "Sign",
)  # fmt: skip
"""Operators of this rule, provided that every input but the first is a constant scalar."""


def table(here: NodeContext) -> None:
    """One int8 → int8 TABLE: bit for bit what ONNX Runtime gives on the dequantized value, quantized again."""
    tabulate(here, 0)


def tabulate(here: NodeContext, slot: int) -> None:
    """TABLE of a node whose input ``slot`` is the activation and whose other inputs are constant scalars."""
    x = here.quantized_input(slot, wide=True)
    others = {}
    for other, value in enumerate(here.node.inputs):
        quantized = here.context.constants.get(value)
        if quantized is not None:
            given: Array | None = quantized.real.astype(np.float32)
        else:
            given = here.constant_input(other) if other != slot else None
        if other == slot or given is None:
            continue
        if given.size != 1:
            raise Unsupported(f"its input {other} differs between channels")
        others[value] = given.reshape(())
    evaluate = partial(_evaluate, here, here.node.inputs[slot], others)
    try:
        to = here.output_qparams
    except Unsupported:
        to = None
    if x.wide or to is None:
        try:
            done = function(here, x, evaluate)
        except Unsupported as error:  # eight bits over a range that is known would do
            raise Unsupported(str(error), here.node.inputs[slot] if x.wide else here.out) from error
        here.set_output(done.tensor, done.known_qparams)
        return
    results = evaluate(dequantize(np.arange(-128, 128, dtype=np.int8), x.known_qparams))
    if np.isnan(results).any():
        raise Unsupported("it is not a number over a part of its input's range")
    values = tuple(int(v) for v in quantize(results, to))
    tensor = here.add(ir.Table, x.tensor, "", "int8", qparams=to, values=values)
    here.context.quantized[here.out] = QuantizedTensor(tensor, to)


def _evaluate(here: NodeContext, activation: str, others: dict[str, Array], reals: Array) -> Array:
    model = here.context.model
    graph = helper.make_graph(
        [model.proto(here.node.name)], "table",
        [helper.make_tensor_value_info(activation, onnx.TensorProto.FLOAT, reals.shape)],
        [helper.make_tensor_value_info(here.out, onnx.TensorProto.FLOAT, reals.shape)],
        [numpy_helper.from_array(v, n) for n, v in others.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=model.opsets, ir_version=model.ir_version)
    try:
        return run_once(proto, {activation: reals})[here.out]
    except TargetError as error:
        raise Unsupported(f"its function cannot be tabulated: {error}") from error
