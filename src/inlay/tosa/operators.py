"""TOSA 1.0 form of each integer operator (operands and attributes: TOSA 1.0 specification)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from inlay.tosa import ir, layout
from inlay.tosa.emitter import EmitFunction, Emitter
from inlay.tosa.ir import Op

_PROPAGATE = "PROPAGATE"


def _nan(e: Emitter) -> object:
    return getattr(e.ts.NanPropagationMode, _PROPAGATE)


def _zero_point(e: Emitter, name: str, value: int) -> str:
    """A zero point operand: one element of the tensor's own type."""
    dtype = e.tensors[name].dtype
    return e.const(np.array([value]).astype(dtype).view("int8" if dtype == "uint8" else dtype))


def _acc(e: Emitter, op: Op) -> object:
    return e.ts.DType.FP32 if e.tensors[op.out].dtype == "float32" else e.ts.DType.INT32


def _conv2d(e: Emitter, op: ir.Conv2d) -> None:
    x, w, b = op.inputs
    weight = e.constants[w]
    if op.depthwise:
        channels = e.tensors[x].dims[1]
        # ONNX's output channel c·M + m is TOSA's (c, m) of [kh, kw, C, M].
        weight = weight.reshape(channels, -1, *weight.shape[2:]).transpose(2, 3, 0, 1)
        name, attribute = "DEPTHWISE_CONV2D", "DepthwiseConv2dAttribute"
    else:
        weight = weight.transpose(0, 2, 3, 1)
        name, attribute = "CONV2D", "Conv2dAttribute"
    operands = [
        e.read(x, x),
        e.const(weight),
        e.const(e.constants[b]),
        _zero_point(e, x, op.in_zp),
        _zero_point(e, w, op.w_zp),
    ]
    e.operator(
        name, operands, op.out, attribute, list(op.pads), list(op.strides), list(op.dilations), False, _acc(e, op)
    )


def _transpose_conv2d(e: Emitter, op: ir.TransposeConv2d) -> None:
    x, w, b = op.inputs
    operands = [
        e.read(x, x), e.const(e.constants[w].transpose(0, 2, 3, 1)), e.const(e.constants[b]),
        _zero_point(e, x, op.in_zp), _zero_point(e, w, op.w_zp),
    ]  # fmt: skip
    e.operator(
        "TRANSPOSE_CONV2D",
        operands,
        op.out,
        "TransposeConv2dAttribute",
        list(op.out_pads),
        list(op.strides),
        False,
        _acc(e, op),
    )


def _matmul(e: Emitter, op: ir.MatMul) -> None:
    a, b = op.inputs
    operands = [e.read(a, op.out), e.read(b, op.out), _zero_point(e, a, op.a_zp), _zero_point(e, b, op.b_zp)]
    e.operator("MATMUL", operands, op.out, "MatMulAttribute")


def _rescale(e: Emitter, op: ir.Rescale) -> None:
    x = op.inputs[0]
    operands = [
        e.read(x, op.out),
        e.const(np.array(op.multiplier, np.int32)),
        e.const(np.array(op.shift, np.int8)),
        _zero_point(e, x, op.in_zp),
        _zero_point(e, op.out, op.out_zp),
    ]
    e.operator(
        "RESCALE", operands, op.out, "RescaleAttribute",
        True, e.ts.RoundingMode.SINGLE_ROUND, op.axis is not None,
        e.tensors[x].dtype == "uint8", e.tensors[op.out].dtype == "uint8",
    )  # fmt: skip


def _clamp(e: Emitter, op: ir.Clamp) -> None:
    dtype = e.tensors[op.out].dtype
    low, high = (list(np.array([v], dtype).tobytes()) for v in (op.low, op.high))
    e.operator("CLAMP", [e.read(op.inputs[0], op.out)], op.out, "ClampAttribute", low, high, _nan(e))


def _table(e: Emitter, op: ir.Table) -> None:
    operands = [e.read(op.inputs[0], op.out), e.const(np.array(op.values, np.int8))]
    e.operator("TABLE", operands, op.out, "TableAttribute")


def _binary(e: Emitter, op: ir.Binary) -> None:
    operands = [e.read(name, op.out) for name in op.inputs]
    match op.fn:
        case "mul":
            shift = e.const(np.array([op.shift], np.int8))
            e.operator("MUL", [*operands, shift], op.out, "MulAttribute")
        case "min":
            e.operator("MINIMUM", operands, op.out, "MinimumAttribute", _nan(e))
        case "max":
            e.operator("MAXIMUM", operands, op.out, "MaximumAttribute", _nan(e))
        case "shr":
            e.operator("ARITHMETIC_RIGHT_SHIFT", operands, op.out, "ArithmeticRightShiftAttribute", True)
        case "shl":
            e.operator("LOGICAL_LEFT_SHIFT", operands, op.out, "LogicalLeftShiftAttribute")
        case "add":
            e.operator("ADD", operands, op.out, "AddAttribute")
        case "sub":
            e.operator("SUB", operands, op.out, "SubAttribute")
        case _:
            e.operator("POW", operands, op.out, "PowAttribute")


_UNARY = {
    "clz": ("CLZ", "ClzAttribute"),
    "exp": ("EXP", "ExpAttribute"),
    "log": ("LOG", "LogAttribute"),
    "sigmoid": ("SIGMOID", "SigmoidAttribute"),
    "tanh": ("TANH", "TanhAttribute"),
    "reciprocal": ("RECIPROCAL", "ReciprocalAttribute"),
    "rsqrt": ("RSQRT", "RsqrtAttribute"),
    "abs": ("ABS", "AbsAttribute"),
    "ceil": ("CEIL", "CeilAttribute"),
    "floor": ("FLOOR", "FloorAttribute"),
    "erf": ("ERF", "ErfAttribute"),
}


def _unary(e: Emitter, op: ir.Unary) -> None:
    operands = [e.read(op.inputs[0], op.out)]
    if op.fn == "negate":
        zero = _zero_point(e, op.out, 0)
        e.operator("NEGATE", [*operands, zero, zero], op.out, "NegateAttribute")
        return
    e.operator(_UNARY[op.fn][0], operands, op.out, _UNARY[op.fn][1])


def _max_pool(e: Emitter, op: ir.MaxPool) -> None:
    e.operator(
        "MAX_POOL2D", [e.read(op.inputs[0], op.out)], op.out, "MaxPool2dAttribute",
        list(op.kernel), list(op.strides), list(op.pads), _nan(e),
    )  # fmt: skip


def _avg_pool(e: Emitter, op: ir.AvgPool) -> None:
    x = op.inputs[0]
    operands = [e.read(x, op.out), _zero_point(e, x, op.in_zp), _zero_point(e, op.out, op.out_zp)]
    e.operator(
        "AVG_POOL2D",
        operands,
        op.out,
        "AvgPool2dAttribute",
        list(op.kernel),
        list(op.strides),
        list(op.pads),
        _acc(e, op),
    )


def _reduce(e: Emitter, op: ir.Reduce) -> None:
    axis = e.layout(op.out).index(op.axis)
    operands = [e.read(op.inputs[0], op.out)]
    match op.fn:
        case "sum":
            e.operator("REDUCE_SUM", operands, op.out, "ReduceSumAttribute", axis)
        case "max":
            e.operator("REDUCE_MAX", operands, op.out, "ReduceMaxAttribute", axis, _nan(e))
        case _:
            e.operator("REDUCE_MIN", operands, op.out, "ReduceMinAttribute", axis, _nan(e))


def _concat(e: Emitter, op: ir.Concat) -> None:
    operands = [e.read(name, op.out) for name in op.inputs]
    e.operator("CONCAT", operands, op.out, "ConcatAttribute", e.layout(op.out).index(op.axis))


def _slice(e: Emitter, op: ir.Slice) -> None:
    order = e.layout(op.out)
    start, size = layout.stored_shape(op.start, order), layout.stored_shape(op.size, order)
    e.operator("SLICE", [e.read(op.inputs[0], op.out), e.shape(start), e.shape(size)], op.out, "SliceAttribute")


def _pad(e: Emitter, op: ir.Pad) -> None:
    pads = [v for axis in e.layout(op.out) for v in op.pads[axis]]
    value = e.const(np.array([op.value], e.tensors[op.out].dtype))
    e.operator("PAD", [e.read(op.inputs[0], op.out), e.shape(pads), value], op.out, "PadAttribute")


def _tile(e: Emitter, op: ir.Tile) -> None:
    multiples = layout.stored_shape(op.multiples, e.layout(op.out))
    e.operator("TILE", [e.read(op.inputs[0], op.out), e.shape(multiples)], op.out, "TileAttribute")


def _reverse(e: Emitter, op: ir.Reverse) -> None:
    e.operator("REVERSE", [e.read(op.inputs[0], op.out)], op.out, "ReverseAttribute", e.layout(op.out).index(op.axis))


def _resize(e: Emitter, op: ir.Resize) -> None:
    mode = e.ts.ResizeMode.NEAREST if op.mode == "nearest" else e.ts.ResizeMode.BILINEAR
    operands = [e.read(op.inputs[0], op.out), e.shape(op.scale), e.shape(op.offset), e.shape(op.border)]
    e.operator("RESIZE", operands, op.out, "ResizeAttribute", mode)


def _cast(e: Emitter, op: ir.Cast) -> None:
    e.operator("CAST", [e.read(op.inputs[0], op.out)], op.out, "CastAttribute")


def _transpose(e: Emitter, op: ir.Transpose) -> None:
    x, source, target = op.inputs[0], e.layout(op.inputs[0]), e.layout(op.out)
    perm = layout.stored_permutation(op.perm, source, target)
    if layout.is_trivial(perm, e.stored(x)):
        _plain_reshape(e, e.read(x, x), e.stored(x), op.out)
    else:
        e.operator("TRANSPOSE", [e.read(x, x)], op.out, "TransposeAttribute", list(perm))


def _plain_reshape(e: Emitter, source: str, shape: ir.Shape, out: str) -> None:
    """RESHAPE to the stored form of ``out``; IDENTITY where nothing changes: each output is a tensor of its own."""
    if shape == e.stored(out):
        e.operator("IDENTITY", [source], out, "IdentityAttribute")
    else:
        e.operator("RESHAPE", [source, e.shape(e.stored(out))], out, "ReshapeAttribute")


def _reshape(e: Emitter, op: ir.Reshape) -> None:
    x, out = op.inputs[0], op.out
    source, target = e.layout(x), e.layout(out)
    shape_x, shape_out = e.tensors[x].dims, e.tensors[out].dims
    if layout.reshape_keeps_bytes(shape_x, source, shape_out, target):
        _plain_reshape(e, e.read(x, x), e.stored(x), out)
        return
    # One transpose before or after, where some layout allows it; else by way of ONNX's own order, with two.
    dtype = e.tensors[out].dtype
    before = next(
        (o for o in layout.layouts(len(shape_x)) if layout.reshape_keeps_bytes(shape_x, o, shape_out, target)), None
    )
    middle = layout.identity(len(shape_x)) if before is None else before
    name, shape = e.read(x, x), e.stored(x)
    if middle != source:
        perm, shape = (
            layout.stored_permutation(layout.identity(len(shape_x)), source, middle),
            layout.stored_shape(shape_x, middle),
        )
        name = e.step("TRANSPOSE", [name], shape, dtype, "TransposeAttribute", list(perm))
    if before is not None:
        _plain_reshape(e, name, shape, out)
        return
    plain = e.step("RESHAPE", [name, e.shape(shape_out)], shape_out, dtype, "ReshapeAttribute")
    e.operator("TRANSPOSE", [plain], out, "TransposeAttribute", list(target))


EMITTERS: Mapping[type[Op], EmitFunction] = {
    ir.Conv2d: _conv2d,
    ir.TransposeConv2d: _transpose_conv2d,
    ir.MatMul: _matmul,
    ir.Rescale: _rescale,
    ir.Clamp: _clamp,
    ir.Table: _table,
    ir.Binary: _binary,
    ir.Unary: _unary,
    ir.MaxPool: _max_pool,
    ir.AvgPool: _avg_pool,
    ir.Reduce: _reduce,
    ir.Concat: _concat,
    ir.Slice: _slice,
    ir.Pad: _pad,
    ir.Tile: _tile,
    ir.Reverse: _reverse,
    ir.Resize: _resize,
    ir.Cast: _cast,
    ir.Transpose: _transpose,
    ir.Reshape: _reshape,
}
"""One function per operator of the integer graph. Quantize and Dequantize reach TOSA only in ``INT+FP``."""
