"""Float TOSA for what is not quantized, in profile ``INT+FP``. Data movement shares its rules with the integer side."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context, Refused
from inlay.tosa.ir import Array, Place
from inlay.tosa.rules._common import align, axes_of, crop, further_outputs, spatial4, window
from inlay.tosa.rules.elementwise import bounds

_LARGEST = float(np.finfo(np.float32).max)


def _in(context: Context, node: Node, index: int = 0) -> str:
    value = node.inputs[index]
    if context.source.dtypes.get(value, "float32") != "float32":
        raise Refused(f"its input {value!r} is {context.source.dtypes[value]}")
    context.shape(value)
    return context.as_float(value, Place.TOSA)


def _out(context: Context, node: Node, tensor: str) -> None:
    context.floats[node.outputs[0]] = context.reshape(
        node.name, tensor, context.shape(node.outputs[0]), node.outputs[0]
    )


def _unary(context: Context, node: Node, fn: str, tensor: str) -> str:
    return context.builder.add(
        ir.Unary, node.name, [tensor], f"{node.name}/{fn}", "float32", context.builder.shape(tensor), fn=fn
    )


def _binary(context: Context, node: Node, fn: str, a: str, b: str | float) -> str:
    other = context.scalar(b, len(context.builder.shape(a))) if isinstance(b, (int, float)) else b
    return context.binary(node.name, fn, a, other, f"{node.name}/{fn}")


def _clamp(context: Context, node: Node, tensor: str, low: float, high: float) -> str:
    return context.builder.add(
        ir.Clamp, node.name, [tensor], f"{node.name}/clamp", "float32", context.builder.shape(tensor),
        low=max(low, -_LARGEST), high=min(high, _LARGEST),
    )  # fmt: skip


def _reduce(context: Context, node: Node, tensor: str, fn: str, axis: int) -> str:
    shape = tuple(1 if i == axis else d for i, d in enumerate(context.builder.shape(tensor)))
    return context.builder.add(ir.Reduce, node.name, [tensor], f"{node.name}/{fn}", "float32", shape, fn=fn, axis=axis)


def _weights(context: Context, node: Node, index: int) -> Array:
    value = node.inputs[index]
    if value in context.weights:
        return context.weights[value].real.astype(np.float32)
    constant = context.source.constants.get(value)
    if constant is None or constant.dtype.name != "float32":
        raise Refused(f"its input {value!r} is not a float constant")
    return constant


def conv(context: Context, node: Node) -> None:
    """Dense and depthwise Conv."""
    w = _weights(context, node, 1)
    bias = _weights(context, node, 2) if len(node.inputs) > 2 and node.inputs[2] else np.zeros(w.shape[0], np.float32)
    win = window(node, context.shape(node.inputs[0])[2:], w.shape[2:])
    tensor = crop(context, node, spatial4(context, node, _in(context, node)), win.size)
    n, channels = context.builder.shape(tensor)[:2]
    group = int(node.attributes.get("group", 1))
    if group not in (1, channels):
        raise Refused("it has groups of several channels")
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
    _out(context, node, result)


def matmul(context: Context, node: Node) -> None:
    """MatMul of equal batches, and Gemm."""
    a, b = _in(context, node, 0), _in(context, node, 1)
    shape = context.shape(node.outputs[0])
    if node.op_type == "Gemm":
        a, b = (
            _turned(context, node, t) if node.attributes.get(flag, 0) else t
            for t, flag in ((a, "transA"), (b, "transB"))
        )
    shape_a, shape_b = context.builder.shape(a), context.builder.shape(b)
    lead = shape[:-2]
    if len(shape_a) < 2 or len(shape_b) < 2 or any(s[:-2] not in (lead, ()) for s in (shape_a, shape_b)):
        raise Refused("its inputs have different batches")
    if shape_a[:-2] == lead and shape_b[:-2] == ():
        rows = math.prod(shape_a[:-1])
        three = [(a, (1, rows, shape_a[-1])), (b, (1, *shape_b))]
        product = (1, rows, shape_b[-1])
    else:
        if shape_a[:-2] != lead or shape_b[:-2] != lead:
            raise Refused("its inputs have different batches")
        three = [(a, (math.prod(lead), *shape_a[-2:])), (b, (math.prod(lead), *shape_b[-2:]))]
        product = (math.prod(lead), shape_a[-2], shape_b[-1])
    names = [context.reshape(node.name, t, s, f"{t}/batched") for t, s in three]
    result = context.builder.add(ir.MatMul, node.name, names, f"{node.name}/product", "float32", product)
    result = context.reshape(node.name, result, shape, f"{node.name}/unbatched")
    if node.op_type == "Gemm":
        alpha, beta = float(node.attributes.get("alpha", 1.0)), float(node.attributes.get("beta", 1.0))
        result = result if alpha == 1 else _binary(context, node, "mul", result, alpha)
        if len(node.inputs) > 2 and node.inputs[2]:
            c = _in(context, node, 2)
            c = context.reshape(node.name, c, align(context.builder.shape(c), len(shape)), f"{c}/aligned")
            result = _binary(context, node, "add", result, c if beta == 1 else _binary(context, node, "mul", c, beta))
    _out(context, node, result)


def _turned(context: Context, node: Node, tensor: str) -> str:
    shape = context.builder.shape(tensor)
    return context.builder.add(
        ir.Transpose, node.name, [tensor], f"{tensor}/turned", "float32", shape[::-1], perm=(1, 0)
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
        tensor = _in(context, node, index)
        names.append(
            context.reshape(node.name, tensor, align(context.builder.shape(tensor), rank), f"{tensor}/aligned")
        )
    if node.op_type == "Div":
        names[1] = _unary(context, node, "reciprocal", names[1])
    result = names[0]
    for other in names[1:]:
        result = _binary(context, node, fn, result, other)
    _out(context, node, result)


def clip(context: Context, node: Node) -> None:
    """Relu and Clip."""
    _out(context, node, _clamp(context, node, _in(context, node), *bounds(context, node)))


_TOSA_UNARY = {
    "Exp": "exp", "Log": "log", "Sigmoid": "sigmoid", "Tanh": "tanh", "Reciprocal": "reciprocal", "Abs": "abs",
    "Neg": "negate", "Floor": "floor", "Ceil": "ceil", "Erf": "erf",
}  # fmt: skip


def unary(context: Context, node: Node) -> None:
    """Functions that TOSA has."""
    _out(context, node, _unary(context, node, _TOSA_UNARY[node.op_type], _in(context, node)))


def sqrt(context: Context, node: Node) -> None:
    """Sqrt as ``x ** 0.5``."""
    _out(context, node, _binary(context, node, "pow", _in(context, node), 0.5))


def leaky_relu(context: Context, node: Node) -> None:
    """LeakyRelu as ``max(x, 0) + alpha·min(x, 0)``."""
    x = _in(context, node)
    below = _clamp(context, node, x, -_LARGEST, 0.0)
    scaled = _binary(context, node, "mul", below, float(node.attributes.get("alpha", 0.01)))
    _out(context, node, _binary(context, node, "add", _clamp(context, node, x, 0.0, _LARGEST), scaled))


def hard_sigmoid(context: Context, node: Node) -> None:
    """HardSigmoid, and HardSwish as ``x`` times it."""
    x = _in(context, node)
    swish = node.op_type == "HardSwish"
    alpha = 1 / 6 if swish else float(node.attributes.get("alpha", 0.2))
    beta = 0.5 if swish else float(node.attributes.get("beta", 0.5))
    line = _binary(context, node, "add", _binary(context, node, "mul", x, alpha), beta)
    gate = _clamp(context, node, line, 0.0, 1.0)
    _out(context, node, _binary(context, node, "mul", x, gate) if swish else gate)


def pool(context: Context, node: Node) -> None:
    """MaxPool, and AveragePool that leaves padding out."""
    if further_outputs(context, node) or max(node.attributes.get("dilations", (1,))) > 1:
        raise Refused("it is dilated, or its indices are used")
    win = window(node, context.shape(node.inputs[0])[2:], node.attributes["kernel_shape"])
    if node.op_type == "AveragePool" and node.attributes.get("count_include_pad", 0) and max(win.pads):
        raise Refused("it counts padding")
    if any(p >= k for p, k in zip(win.pads, np.repeat(win.kernel, 2), strict=True)):
        raise Refused("its padding is as large as its window")
    tensor = crop(context, node, spatial4(context, node, _in(context, node)), win.size)
    kind = ir.MaxPool if node.op_type == "MaxPool" else ir.AvgPool
    result = context.builder.add(
        kind, node.name, [tensor], f"{node.name}/pooled", "float32", (*context.builder.shape(tensor)[:2], *win.out),
        kernel=win.kernel, strides=win.strides, pads=win.pads,
    )  # fmt: skip
    _out(context, node, result)


def reduce(context: Context, node: Node) -> None:
    """ReduceMean, ReduceSum, ReduceMax, ReduceMin and GlobalAveragePool."""
    result = _in(context, node)
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
    _out(context, node, result)


def softmax(context: Context, node: Node) -> None:
    """Softmax along one axis."""
    x = _in(context, node)
    shape = context.builder.shape(x)
    axis = int(node.attributes.get("axis", -1 if context.graph.opset >= 13 else 1)) % len(shape)
    if context.graph.opset < 13 and math.prod(shape[axis:]) != shape[axis]:
        raise Refused("it runs over several axes")
    powers = _unary(context, node, "exp", _binary(context, node, "sub", x, _reduce(context, node, x, "max", axis)))
    total = _unary(context, node, "reciprocal", _reduce(context, node, powers, "sum", axis))
    _out(context, node, _binary(context, node, "mul", powers, total))


def batch_normalization(context: Context, node: Node) -> None:
    """BatchNormalization in inference: one factor and one offset per channel."""
    if further_outputs(context, node):
        raise Refused("it is in training mode")
    scale, offset, mean, variance = (_weights(context, node, i).astype(np.float64) for i in range(1, 5))
    factor = scale / np.sqrt(variance + float(node.attributes.get("epsilon", 1e-5)))
    x = _in(context, node)
    along = (1, -1, *(1,) * (len(context.builder.shape(x)) - 2))
    for fn, numbers in (("mul", factor), ("add", offset - mean * factor)):
        constant = context.builder.constant(f"{node.name}/{fn}", numbers.astype(np.float32).reshape(along))
        x = _binary(context, node, fn, x, constant)
    _out(context, node, x)


FLOAT: dict[str, Callable[[Context, Node], None]] = {
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
"""Operators that compute; those that only move data are in :mod:`.movement`."""
