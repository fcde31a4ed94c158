"""Float TOSA for what is not quantized, in profile ``INT+FP``; data movement shares the rules of the integer side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context
from inlay.tosa.ir import Array, Executor
from inlay.tosa.quantized import Unsupported
from inlay.tosa.rules._common import as_nchw, axes_of, expand_rank, reads_extra_outputs, slice_spatial, window
from inlay.tosa.rules.activation import bounds

_LARGEST = float(np.finfo(np.float32).max)


def _input(context: Context, node: Node, index: int = 0) -> str:
    value = node.inputs[index]
    if context.model.dtypes.get(value, "float32") != "float32":
        raise Unsupported(f"its input {value!r} is {context.model.dtypes[value]}")
    context.shape(value)
    return context.unquantized_tensor(value, Executor.TOSA)


def _set_output(context: Context, node: Node, tensor: str) -> None:
    context.unquantized[node.outputs[0]] = context.reshape(
        node.name, tensor, context.shape(node.outputs[0]), node.outputs[0]
    )


def _unary(context: Context, node: Node, fn: str, tensor: str) -> str:
    return context.builder.add(
        ir.Unary, node.name, [tensor], f"{node.name}/{fn}", "float32", context.builder.shape(tensor), fn=fn
    )


def _binary(context: Context, node: Node, fn: str, a: str, b: str | float) -> str:
    other = context.scalar(b, len(context.builder.shape(a))) if isinstance(b, (int, float)) else b
    return context.float_binary(node.name, fn, a, other, f"{node.name}/{fn}")


def _clamp(context: Context, node: Node, tensor: str, low: float, high: float) -> str:
    return context.builder.add(
        ir.Clamp, node.name, [tensor], f"{node.name}/clamp", "float32", context.builder.shape(tensor),
        low=max(low, -_LARGEST), high=min(high, _LARGEST),
    )  # fmt: skip


def _reduce(context: Context, node: Node, tensor: str, fn: str, axis: int) -> str:
    shape = tuple(1 if i == axis else d for i, d in enumerate(context.builder.shape(tensor)))
    return context.builder.add(ir.Reduce, node.name, [tensor], f"{node.name}/{fn}", "float32", shape, fn=fn, axis=axis)


def _constant(context: Context, node: Node, index: int) -> Array:
    value = node.inputs[index]
    if value in context.constants:
        return context.constants[value].real.astype(np.float32)
    constant = context.model.constants.get(value)
    if constant is None or constant.dtype.name != "float32":
        raise Unsupported(f"its input {value!r} is not a float constant")
    return constant


def conv(context: Context, node: Node) -> None:
    """Dense and depthwise Conv."""
    w = _constant(context, node, 1)
    bias = _constant(context, node, 2) if len(node.inputs) > 2 and node.inputs[2] else np.zeros(w.shape[0], np.float32)
    win = window(node, context.shape(node.inputs[0])[2:], w.shape[2:])
    tensor = slice_spatial(context, node, as_nchw(context, node, _input(context, node)), win.size)
    n, channels = context.builder.shape(tensor)[:2]
    group = int(node.attributes.get("group", 1))
    if group not in (1, channels):
        raise Unsupported("it has groups of several channels")
    kernel = w[:, :, None, :] if w.ndim == 3 else w
    result = context.builder.add(
        ir.Conv2d, node.name,
        [
            tensor,
            context.builder.constant(f"{node.name}/weight", kernel),
            context.builder.constant(f"{node.name}/bias", bias),
        ],
        f"{node.name}/conv", "float32", (n, w.shape[0], *win.out),
        pads=win.pads, strides=win.strides, dilations=win.dilations, depthwise=group > 1,
    )  # fmt: skip
    _set_output(context, node, result)


def matmul(context: Context, node: Node) -> None:
    """MatMul of equal batches, and Gemm."""
    a, b = _input(context, node, 0), _input(context, node, 1)
    shape = context.shape(node.outputs[0])
    if node.op_type == "Gemm":
        a, b = (
            _transposed(context, node, t) if node.attributes.get(flag, 0) else t
            for t, flag in ((a, "transA"), (b, "transB"))
        )
    shape_a, shape_b = context.builder.shape(a), context.builder.shape(b)
    lead = shape[:-2]
    if len(shape_a) < 2 or len(shape_b) < 2 or any(s[:-2] not in (lead, ()) for s in (shape_a, shape_b)):
        raise Unsupported("its inputs have different batches")
    if shape_a[:-2] == lead and shape_b[:-2] == ():
        rows = math.prod(shape_a[:-1])
        batched = [(a, (1, rows, shape_a[-1])), (b, (1, *shape_b))]
        product = (1, rows, shape_b[-1])
    else:
        if shape_a[:-2] != lead or shape_b[:-2] != lead:
            raise Unsupported("its inputs have different batches")
        batched = [(a, (math.prod(lead), *shape_a[-2:])), (b, (math.prod(lead), *shape_b[-2:]))]
        product = (math.prod(lead), shape_a[-2], shape_b[-1])
    names = [context.reshape(node.name, t, s, f"{t}/batched") for t, s in batched]
    result = context.builder.add(ir.MatMul, node.name, names, f"{node.name}/product", "float32", product)
    result = context.reshape(node.name, result, shape, f"{node.name}/unbatched")
    if node.op_type == "Gemm":
        alpha, beta = float(node.attributes.get("alpha", 1.0)), float(node.attributes.get("beta", 1.0))
        result = result if alpha == 1 else _binary(context, node, "mul", result, alpha)
        if len(node.inputs) > 2 and node.inputs[2]:
            c = _input(context, node, 2)
            c = context.reshape(node.name, c, expand_rank(context.builder.shape(c), len(shape)), f"{c}/aligned")
            result = _binary(context, node, "add", result, c if beta == 1 else _binary(context, node, "mul", c, beta))
    _set_output(context, node, result)


def _transposed(context: Context, node: Node, tensor: str) -> str:
    shape = context.builder.shape(tensor)
    return context.builder.add(
        ir.Transpose, node.name, [tensor], f"{tensor}/transposed", "float32", shape[::-1], perm=(1, 0)
    )


def elementwise(context: Context, node: Node) -> None:
    """Add, Sub, Mul, Div, Min, Max, Pow and Sum."""
    fn = {
        "Add": "add",
        "Sum": "add",
        "Sub": "sub",
        "Mul": "mul",
        "Div": "mul",
        "Min": "min",
        "Max": "max",
        "Pow": "pow",
    }[node.op_type]
    rank = len(context.shape(node.outputs[0]))
    names = []
    for index in range(len(node.inputs)):
        tensor = _input(context, node, index)
        names.append(
            context.reshape(node.name, tensor, expand_rank(context.builder.shape(tensor), rank), f"{tensor}/aligned")
        )
    if node.op_type == "Div":
        names[1] = _unary(context, node, "reciprocal", names[1])
    result = names[0]
    for other in names[1:]:
        result = _binary(context, node, fn, result, other)
    _set_output(context, node, result)


def clip(context: Context, node: Node) -> None:
    """Relu and Clip."""
    _set_output(context, node, _clamp(context, node, _input(context, node), *bounds(context, node)))


_TOSA_UNARY = {
    "Exp": "exp", "Log": "log", "Sigmoid": "sigmoid", "Tanh": "tanh", "Reciprocal": "reciprocal", "Abs": "abs",
    "Neg": "negate", "Floor": "floor", "Ceil": "ceil", "Erf": "erf",
}  # fmt: skip


def unary(context: Context, node: Node) -> None:
    """Functions that TOSA has."""
    _set_output(context, node, _unary(context, node, _TOSA_UNARY[node.op_type], _input(context, node)))


def sqrt(context: Context, node: Node) -> None:
    """Sqrt as ``x ** 0.5``."""
    _set_output(context, node, _binary(context, node, "pow", _input(context, node), 0.5))


def leaky_relu(context: Context, node: Node) -> None:
    """LeakyRelu as ``max(x, 0) + alpha·min(x, 0)``."""
    x = _input(context, node)
    below = _clamp(context, node, x, -_LARGEST, 0.0)
    scaled = _binary(context, node, "mul", below, float(node.attributes.get("alpha", 0.01)))
    _set_output(context, node, _binary(context, node, "add", _clamp(context, node, x, 0.0, _LARGEST), scaled))


def hard_sigmoid(context: Context, node: Node) -> None:
    """HardSigmoid, and HardSwish as ``x`` times it."""
    x = _input(context, node)
    swish = node.op_type == "HardSwish"
    alpha = 1 / 6 if swish else float(node.attributes.get("alpha", 0.2))
    beta = 0.5 if swish else float(node.attributes.get("beta", 0.5))
    line = _binary(context, node, "add", _binary(context, node, "mul", x, alpha), beta)
    gate = _clamp(context, node, line, 0.0, 1.0)
    _set_output(context, node, _binary(context, node, "mul", x, gate) if swish else gate)


def pool(context: Context, node: Node) -> None:
    """MaxPool, and AveragePool that does not count padding."""
    if reads_extra_outputs(context, node) or max(node.attributes.get("dilations", (1,))) > 1:
        raise Unsupported("it is dilated, or its indices are used")
    win = window(node, context.shape(node.inputs[0])[2:], node.attributes["kernel_shape"])
    if node.op_type == "AveragePool" and node.attributes.get("count_include_pad", 0) and max(win.pads):
        raise Unsupported("it counts padding")
    if any(p >= k for p, k in zip(win.pads, np.repeat(win.kernel, 2), strict=True)):
        raise Unsupported("its padding is as large as its window")
    tensor = slice_spatial(context, node, as_nchw(context, node, _input(context, node)), win.size)
    kind = ir.MaxPool if node.op_type == "MaxPool" else ir.AvgPool
    result = context.builder.add(
        kind, node.name, [tensor], f"{node.name}/pooled", "float32", (*context.builder.shape(tensor)[:2], *win.out),
        kernel=win.kernel, strides=win.strides, pads=win.pads,
    )  # fmt: skip
    _set_output(context, node, result)


def reduce(context: Context, node: Node) -> None:
    """ReduceMean, ReduceSum, ReduceMax, ReduceMin and GlobalAveragePool."""
    result = _input(context, node)
    shape = context.builder.shape(result)
    if node.op_type == "GlobalAveragePool":
        axes: tuple[int, ...] | None = tuple(range(2, len(shape)))
    else:
        axes = axes_of(context, node, 1, len(shape))
    axes = tuple(range(len(shape))) if axes is None else axes
    fn = {"ReduceMax": "max", "ReduceMin": "min"}.get(node.op_type, "sum")
    for axis in axes:
        result = _reduce(context, node, result, fn, axis)
    if node.op_type in ("ReduceMean", "GlobalAveragePool"):
        result = _binary(context, node, "mul", result, 1 / math.prod(shape[a] for a in axes))
    _set_output(context, node, result)


def softmax(context: Context, node: Node) -> None:
    """Softmax along one axis."""
    x = _input(context, node)
    shape = context.builder.shape(x)
    axis = int(node.attributes.get("axis", -1 if context.graph.opset >= 13 else 1)) % len(shape)
    if context.graph.opset < 13 and math.prod(shape[axis:]) != shape[axis]:
        raise Unsupported("it runs over several axes")
    powers = _unary(context, node, "exp", _binary(context, node, "sub", x, _reduce(context, node, x, "max", axis)))
    total = _unary(context, node, "reciprocal", _reduce(context, node, powers, "sum", axis))
    _set_output(context, node, _binary(context, node, "mul", powers, total))


def batch_normalization(context: Context, node: Node) -> None:
    """BatchNormalization in inference: one factor and one offset per channel."""
    if reads_extra_outputs(context, node):
        raise Unsupported("it is in training mode")
    scale, offset, mean, variance = (_constant(context, node, i).astype(np.float64) for i in range(1, 5))
    factor = scale / np.sqrt(variance + float(node.attributes.get("epsilon", 1e-5)))
    x = _input(context, node)
    along = (1, -1, *(1,) * (len(context.builder.shape(x)) - 2))
    for fn, values in (("mul", factor), ("add", offset - mean * factor)):
        constant = context.builder.constant(f"{node.name}/{fn}", values.astype(np.float32).reshape(along))
        x = _binary(context, node, fn, x, constant)
    _set_output(context, node, x)


RULES: Mapping[str, Callable[[Context, Node], None]] = {
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
