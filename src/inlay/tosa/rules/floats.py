"""Float TOSA for what is not quantized, in profile ``INT+FP``; data movement shares the rules of the integer side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from inlay.tosa import ir
from inlay.tosa.ir import Array, Executor
from inlay.tosa.quantized import Unsupported
from inlay.tosa.rules._node import NodeContext
from inlay.tosa.rules.functions import bounds
from inlay.tosa.rules.normalization import softmax_axis
from inlay.tosa.rules.pool import pooled, pooling_window, reduced_axes

_LARGEST = float(np.finfo(np.float32).max)


def _input(here: NodeContext, index: int = 0) -> str:
    value = here.node.inputs[index]
    dtype = here.context.model.dtypes.get(value, "float32")
    if dtype != "float32":
        raise Unsupported(f"its input {value!r} is {dtype}")
    here.context.shape(value)
    return here.context.unquantized_tensor(value, Executor.TOSA)


def _set_output(here: NodeContext, tensor: str) -> None:
    here.context.unquantized[here.out] = here.reshape(tensor, here.out_shape)


def _unary(here: NodeContext, fn: str, tensor: str) -> str:
    return here.add(ir.Unary, tensor, fn, fn=fn)


def _by_scalar(here: NodeContext, fn: str, tensor: str, number: float) -> str:
    return here.binary(fn, tensor, here.context.scalar(number, len(here.shape(tensor))))


def _clamp(here: NodeContext, tensor: str, low: float, high: float) -> str:
    return here.add(ir.Clamp, tensor, "clamp", low=max(low, -_LARGEST), high=min(high, _LARGEST))


def _constant(here: NodeContext, index: int) -> Array:
    value = here.node.inputs[index]
    if value in here.context.constants:
        return here.context.constants[value].real.astype(np.float32)
    constant = here.context.model.constants.get(value)
    if constant is None or constant.dtype.name != "float32":
        raise Unsupported(f"its input {value!r} is not a float constant")
    return constant


def conv(here: NodeContext) -> None:
    """Dense and depthwise Conv."""
    w = _constant(here, 1)
    inputs = here.node.inputs
    bias = _constant(here, 2) if len(inputs) > 2 and inputs[2] else np.zeros(w.shape[0], np.float32)
    win = here.window(w.shape[2:])
    tensor = here.image(_input(here), win.size)
    group = int(here.attribute("group", 1))
    if group not in (1, here.shape(tensor)[1]):
        raise Unsupported("it has groups of several channels")
    kernel = w[:, :, None, :] if w.ndim == 3 else w
    _set_output(here, here.conv2d(tensor, kernel, bias, win, depthwise=group > 1, step="conv"))


def matmul(here: NodeContext) -> None:
    """MatMul of equal batches, and Gemm."""
    a, b = _input(here, 0), _input(here, 1)
    shape = here.out_shape
    if here.node.op_type == "Gemm":
        a, b = (
            here.transposed(t, (1, 0)) if here.attribute(flag, 0) else t for t, flag in ((a, "transA"), (b, "transB"))
        )
    shape_a, shape_b = here.shape(a), here.shape(b)
    lead = shape[:-2]
    if len(shape_a) < 2 or len(shape_b) < 2 or shape_a[:-2] != lead or shape_b[:-2] not in (lead, ()):
        raise Unsupported("its inputs have different batches")
    # One matrix for all batches: their rows one after the other.
    batches = 1 if shape_b[:-2] == () else math.prod(lead)
    batched_a = (batches, math.prod(shape_a[:-1]) // batches, shape_a[-1])
    batched_b = (batches, *shape_b[-2:])
    names = [here.reshape(t, s, base=f"{t}/batched") for t, s in ((a, batched_a), (b, batched_b))]
    result = here.add(ir.MatMul, names, "product", shape=(*batched_a[:2], shape_b[-1]))
    result = here.reshape(result, shape, "unbatched")
    if here.node.op_type == "Gemm":
        alpha, beta = float(here.attribute("alpha", 1.0)), float(here.attribute("beta", 1.0))
        result = result if alpha == 1 else _by_scalar(here, "mul", result, alpha)
        if len(here.node.inputs) > 2 and here.node.inputs[2]:
            c = here.aligned(_input(here, 2), len(shape))
            result = here.binary("add", result, c if beta == 1 else _by_scalar(here, "mul", c, beta))
    _set_output(here, result)


def elementwise(here: NodeContext) -> None:
    """Add, Sub, Mul, Div, Min, Max, Pow and Sum."""
    fn = {"Sum": "add", "Div": "mul"}.get(here.node.op_type, here.node.op_type.lower())
    rank = len(here.out_shape)
    names = [here.aligned(_input(here, index), rank) for index in range(len(here.node.inputs))]
    if here.node.op_type == "Div":
        names[1] = _unary(here, "reciprocal", names[1])
    result = names[0]
    for other in names[1:]:
        result = here.binary(fn, result, other)
    _set_output(here, result)


def clip(here: NodeContext) -> None:
    """Relu and Clip."""
    _set_output(here, _clamp(here, _input(here), *bounds(here)))


_TOSA_UNARY = {
    "Exp": "exp", "Log": "log", "Sigmoid": "sigmoid", "Tanh": "tanh", "Reciprocal": "reciprocal", "Abs": "abs",
    "Neg": "negate", "Floor": "floor", "Ceil": "ceil", "Erf": "erf",
}  # fmt: skip


def unary(here: NodeContext) -> None:
    """Functions that TOSA has."""
    _set_output(here, _unary(here, _TOSA_UNARY[here.node.op_type], _input(here)))


def sqrt(here: NodeContext) -> None:
    """Sqrt as ``x ** 0.5``."""
    _set_output(here, _by_scalar(here, "pow", _input(here), 0.5))


def leaky_relu(here: NodeContext) -> None:
    """LeakyRelu as ``max(x, 0) + alpha·min(x, 0)``."""
    x = _input(here)
    below = _by_scalar(here, "mul", _clamp(here, x, -_LARGEST, 0.0), float(here.attribute("alpha", 0.01)))
    _set_output(here, here.binary("add", _clamp(here, x, 0.0, _LARGEST), below))


def hard_sigmoid(here: NodeContext) -> None:
    """HardSigmoid, and HardSwish as ``x`` times it."""
    x = _input(here)
    swish = here.node.op_type == "HardSwish"
    alpha = 1 / 6 if swish else float(here.attribute("alpha", 0.2))
    beta = 0.5 if swish else float(here.attribute("beta", 0.5))
    line = _by_scalar(here, "add", _by_scalar(here, "mul", x, alpha), beta)
    gate = _clamp(here, line, 0.0, 1.0)
    _set_output(here, here.binary("mul", x, gate) if swish else gate)


def pool(here: NodeContext) -> None:
    """MaxPool, and AveragePool that does not count padding."""
    if here.reads_extra_outputs or max(here.attribute("dilations", (1,))) > 1:
        raise Unsupported("it is dilated, or its indices are used")
    win = pooling_window(here)
    if here.node.op_type == "AveragePool" and here.attribute("count_include_pad", 0) and max(win.pads):
        raise Unsupported("it counts padding")
    kind = ir.MaxPool if here.node.op_type == "MaxPool" else ir.AvgPool
    _set_output(here, pooled(here, kind, here.image(_input(here), win.size), win))


def reduce(here: NodeContext) -> None:
    """ReduceMean, ReduceSum, ReduceMax, ReduceMin and GlobalAveragePool."""
    result = _input(here)
    shape = here.shape(result)
    axes = reduced_axes(here, len(shape))
    for axis in axes:
        result = here.reduce({"ReduceMax": "max", "ReduceMin": "min"}.get(here.node.op_type, "sum"), result, axis)
    if here.node.op_type in ("ReduceMean", "GlobalAveragePool"):
        result = _by_scalar(here, "mul", result, 1 / math.prod(shape[a] for a in axes))
    _set_output(here, result)


def softmax(here: NodeContext) -> None:
    """Softmax along one axis."""
    x = _input(here)
    axis, single = softmax_axis(here, here.shape(x))
    if not single:
        raise Unsupported("it runs over several axes")
    powers = _unary(here, "exp", here.binary("sub", x, here.reduce("max", x, axis)))
    total = _unary(here, "reciprocal", here.reduce("sum", powers, axis))
    _set_output(here, here.binary("mul", powers, total))


def batch_normalization(here: NodeContext) -> None:
    """BatchNormalization in inference: one factor and one offset per channel."""
    if here.reads_extra_outputs:
        raise Unsupported("it is in training mode")
    scale, offset, mean, variance = (_constant(here, i).astype(np.float64) for i in range(1, 5))
    factor = scale / np.sqrt(variance + float(here.attribute("epsilon", 1e-5)))
    x = _input(here)
    along = (1, -1, *(1,) * (len(here.shape(x)) - 2))
    for fn, values in (("mul", factor), ("add", offset - mean * factor)):
        x = here.binary(fn, x, here.constant(fn, values.astype(np.float32).reshape(along)))
    _set_output(here, x)


RULES: Mapping[str, Callable[[NodeContext], None]] = {
    "Conv": conv,
    "Gemm": matmul,
    "MatMul": matmul,
    **dict.fromkeys(("Add", "Sum", "Sub", "Mul", "Div", "Min", "Max", "Pow"), elementwise),
    "Relu": clip,
    "Clip": clip,
    **dict.fromkeys(_TOSA_UNARY, unary),
    "Sqrt": sqrt,
    "LeakyRelu": leaky_relu,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_sigmoid,
    "MaxPool": pool,
    "AveragePool": pool,
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "GlobalAveragePool"), reduce),
    "Softmax": softmax,
    "BatchNormalization": batch_normalization,
}
"""Operators that compute; those that only move data have one rule for both profiles."""
