"""Relu and Clip, and functions of one int8 value: a TABLE of all 256 results, computed by ONNX Runtime."""

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
from inlay.tosa.rules._node import NodeContext, outside, representable


def clip(here: NodeContext) -> None:
    """Relu and Clip: at the qparams of the result, a CLAMP where saturation does not do it already.

    The bounds are quantized like any value. ``Relu`` is redundant only where the zero point is the type's minimum,
    ``Clip``'s upper bound only where it reaches the type's maximum (DESIGN §12).
    """
    x = here.quantized_input(wide=True)
    low, high = bounds(here)
    own = x.known_qparams
    exact = x.wide or all(np.isinf(b) or representable(b, own) or outside(b, own) for b in (low, high))
    try:
        to = here.qparams_within(np.inf if exact else x.bound)
    except Unsupported as error:
        if not exact:
            raise Unsupported(f"its bounds are no steps of its input, and {error}", error.unstated) from error
        to = own
    q_low, q_high = (int(v) for v in quantize(np.array([low, high]), to))
    tensor = here.requantize(x, to, f"{here.node.name}/rescaled")
    if q_low > to.qtype.qmin or q_high < to.qtype.qmax:
        tensor = here.add(ir.Clamp, tensor, low=q_low, high=q_high)
    here.context.quantized[here.out] = QuantizedTensor(tensor, to)


def bounds(here: NodeContext) -> tuple[float, float]:
    """Lower and upper limit of a Relu or Clip (infinite where absent)."""
    if here.node.op_type == "Relu":
        return 0.0, np.inf
    limits = []
    for slot, name, default in ((1, "min", -np.inf), (2, "max", np.inf)):
        given = here.constant_input(slot)
        limits.append(float(here.attribute(name, default)) if given is None else float(given.reshape(())))
    low, high = limits
    if np.isnan(low) or np.isnan(high):
        raise Unsupported("one of its bounds is not a number")
    return min(low, high), high  # ONNX: where the bounds are crossed, every element is the upper one


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
