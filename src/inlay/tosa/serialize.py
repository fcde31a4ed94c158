"""Integer graph to TOSA 1.0 flatbuffer: the form of each operator (operands, attributes: TOSA 1.0 specification)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inlay.tosa import ir, layout
from inlay.tosa.emitter import Emitter, TosaTensor
from inlay.tosa.ir import Array, Op, Tensor


def _inputs(e: Emitter, op: Op) -> list[str]:
    """The operands that an operator's inputs are, in the layout of its output."""
    return [e.read(name, op.out) for name in op.inputs]


def _nan(e: Emitter) -> object:
    return e.ts.NanPropagationMode.PROPAGATE


def _zero_point(e: Emitter, name: str, value: int) -> str:
    """A zero point operand: one element of the tensor's own type."""
    dtype = e.tensors[name].dtype
    return e.const(np.array([value]).astype(dtype).view("int8" if dtype == "uint8" else dtype))


def _acc(e: Emitter, op: Op) -> object:
    return e.ts.DType.FP32 if e.tensors[op.out].dtype == "float32" else e.ts.DType.INT32


def _conv2d(e: Emitter, op: ir.Conv2d) -> None:
    weight = e.constants[op.inputs[1]]
    if op.depthwise:
        # ONNX's output channel c·M + m is TOSA's (c, m) of [kh, kw, C, M].
        channels = e.tensors[op.inputs[0]].dims[1]
        stored = weight.reshape(channels, -1, *weight.shape[2:]).transpose(2, 3, 0, 1)
        _convolution(e, op, "DEPTHWISE_CONV2D", stored, op.pads, op.strides, op.dilations)
    else:
        _convolution(e, op, "CONV2D", weight.transpose(0, 2, 3, 1), op.pads, op.strides, op.dilations)


def _transpose_conv2d(e: Emitter, op: ir.TransposeConv2d) -> None:
    weight = e.constants[op.inputs[1]].transpose(0, 2, 3, 1)
    _convolution(e, op, "TRANSPOSE_CONV2D", weight, op.out_pads, op.strides)


def _convolution(
    e: Emitter, op: ir.Conv2d | ir.TransposeConv2d, name: str, weight: Array, *geometry: tuple[int, ...]
) -> None:
    x, w, b = op.inputs
    operands = [e.read(x, x), e.const(weight), e.const(e.constants[b])]
    operands += [_zero_point(e, x, op.in_zp), _zero_point(e, w, op.w_zp)]
    e.operator(name, operands, op.out, *map(list, geometry), False, _acc(e, op))


def _matmul(e: Emitter, op: ir.MatMul) -> None:
    a, b = op.inputs
    operands = [*_inputs(e, op), _zero_point(e, a, op.a_zp), _zero_point(e, b, op.b_zp)]
    e.operator("MATMUL", operands, op.out)


def _rescale(e: Emitter, op: ir.Rescale) -> None:
    x = op.inputs[0]
    operands = [*_inputs(e, op), e.const(np.array(op.multiplier, np.int32)), e.const(np.array(op.shift, np.int8))]
    operands += [_zero_point(e, x, op.in_zp), _zero_point(e, op.out, op.out_zp)]
    unsigned = [e.tensors[name].dtype == "uint8" for name in (x, op.out)]
    per_channel = op.axis is not None
    e.operator("RESCALE", operands, op.out, True, e.ts.RoundingMode.SINGLE_ROUND, per_channel, *unsigned)


def _clamp(e: Emitter, op: ir.Clamp) -> None:
    dtype = e.tensors[op.out].dtype
    low, high = (list(np.array([v], dtype).tobytes()) for v in (op.low, op.high))
    e.operator("CLAMP", _inputs(e, op), op.out, low, high, _nan(e))


_BINARY = {
    "add": "ADD", "sub": "SUB", "mul": "MUL", "min": "MINIMUM", "max": "MAXIMUM", "pow": "POW",
    "shr": "ARITHMETIC_RIGHT_SHIFT", "shl": "LOGICAL_LEFT_SHIFT",
}  # fmt: skip


def _binary(e: Emitter, op: ir.Binary) -> None:
    operands = _inputs(e, op)
    if op.fn == "mul":  # the shift of its product
        operands.append(e.const(np.zeros(1, np.int8)))
    attributes: dict[str, list[object]] = {"min": [_nan(e)], "max": [_nan(e)], "shr": [True]}
    e.operator(_BINARY[op.fn], operands, op.out, *attributes.get(op.fn, []))


def _unary(e: Emitter, op: ir.Unary) -> None:
    operands = _inputs(e, op)
    if op.fn == "negate":
        operands += [_zero_point(e, op.out, 0)] * 2
    e.operator(op.fn.upper(), operands, op.out)


def _max_pool(e: Emitter, op: ir.MaxPool) -> None:
    window = map(list, (op.kernel, op.strides, op.pads))
    e.operator("MAX_POOL2D", _inputs(e, op), op.out, *window, _nan(e))


def _avg_pool(e: Emitter, op: ir.AvgPool) -> None:
    window = map(list, (op.kernel, op.strides, op.pads))
    zero_points = [_zero_point(e, op.inputs[0], op.in_zp), _zero_point(e, op.out, op.out_zp)]
    e.operator("AVG_POOL2D", [*_inputs(e, op), *zero_points], op.out, *window, _acc(e, op))


def _reduce(e: Emitter, op: ir.Reduce) -> None:
    nan = [] if op.fn == "sum" else [_nan(e)]
    e.operator(f"REDUCE_{op.fn.upper()}", _inputs(e, op), op.out, _axis(e, op), *nan)


def _axis(e: Emitter, op: ir.Reduce | ir.Concat | ir.Reverse) -> int:
    """The stored axis."""
    return e.layout(op.out).index(op.axis)


def _slice(e: Emitter, op: ir.Slice) -> None:
    limits = (layout.stored_shape(s, e.layout(op.out)) for s in (op.start, op.size))
    e.operator("SLICE", [*_inputs(e, op), *map(e.shape, limits)], op.out)


def _pad(e: Emitter, op: ir.Pad) -> None:
    pads = [v for axis in e.layout(op.out) for v in op.pads[axis]]
    value = e.const(np.array([op.value], e.tensors[op.out].dtype))
    e.operator("PAD", [*_inputs(e, op), e.shape(pads), value], op.out)


def _tile(e: Emitter, op: ir.Tile) -> None:
    multiples = layout.stored_shape(op.multiples, e.layout(op.out))
    e.operator("TILE", [*_inputs(e, op), e.shape(multiples)], op.out)


def _resize(e: Emitter, op: ir.Resize) -> None:
    mode = e.ts.ResizeMode.NEAREST if op.mode == "nearest" else e.ts.ResizeMode.BILINEAR
    e.operator("RESIZE", [*_inputs(e, op), *map(e.shape, (op.scale, op.offset, op.border))], op.out, mode)


def _transpose(e: Emitter, op: ir.Transpose) -> None:
    x, source, target = op.inputs[0], e.layout(op.inputs[0]), e.layout(op.out)
    perm = layout.stored_permutation(op.perm, source, target)
    if layout.is_trivial(perm, e.stored(x)):
        _plain_reshape(e, e.read(x, x), e.stored(x), op.out)
    else:
        e.operator("TRANSPOSE", [e.read(x, x)], op.out, list(perm))


def _plain_reshape(e: Emitter, source: str, shape: ir.Shape, out: str) -> None:
    """RESHAPE to the stored form of ``out``; IDENTITY where nothing changes: each output is a tensor of its own."""
    if shape == e.stored(out):
        e.operator("IDENTITY", [source], out)
    else:
        e.operator("RESHAPE", [source, e.shape(e.stored(out))], out)


def _reshape(e: Emitter, op: ir.Reshape) -> None:
    x, out = op.inputs[0], op.out
    source, target = e.layout(x), e.layout(out)
    shape_x, shape_out = e.tensors[x].dims, e.tensors[out].dims
    if layout.reshape_keeps_bytes(shape_x, source, shape_out, target):
        _plain_reshape(e, e.read(x, x), e.stored(x), out)
        return
    # One transpose before or after, where some layout allows it; else by way of ONNX's own order, with two.
    dtype, plain = e.tensors[out].dtype, layout.identity(len(shape_x))
    before = next(
        (o for o in layout.layouts(len(shape_x)) if layout.reshape_keeps_bytes(shape_x, o, shape_out, target)), None
    )
    middle = plain if before is None else before
    name, shape = e.read(x, x), e.stored(x)
    if middle != source:
        perm, shape = layout.stored_permutation(plain, source, middle), layout.stored_shape(shape_x, middle)
        name = e.step("TRANSPOSE", [name], shape, dtype, list(perm))
    if before is not None:
        _plain_reshape(e, name, shape, out)
        return
    reshaped = e.step("RESHAPE", [name, e.shape(shape_out)], shape_out, dtype)
    e.operator("TRANSPOSE", [reshaped], out, list(target))


_EMITTERS: Mapping[type[Op], Callable[[Emitter, Any], None]] = {
    ir.Conv2d: _conv2d,
    ir.TransposeConv2d: _transpose_conv2d,
    ir.MatMul: _matmul,
    ir.Rescale: _rescale,
    ir.Clamp: _clamp,
    ir.Table: lambda e, op: e.operator("TABLE", [*_inputs(e, op), e.const(np.array(op.values, np.int8))], op.out),
    ir.Binary: _binary,
    ir.Select: lambda e, op: e.operator("SELECT", _inputs(e, op), op.out),
    ir.Unary: _unary,
    ir.MaxPool: _max_pool,
    ir.AvgPool: _avg_pool,
    ir.Reduce: _reduce,
    ir.Concat: lambda e, op: e.operator("CONCAT", _inputs(e, op), op.out, _axis(e, op)),
    ir.Slice: _slice,
    ir.Pad: _pad,
    ir.Tile: _tile,
    ir.Reverse: lambda e, op: e.operator("REVERSE", _inputs(e, op), op.out, _axis(e, op)),
    ir.Gather: lambda e, op: e.operator("GATHER", _inputs(e, op), op.out),
    ir.Resize: _resize,
    ir.Cast: lambda e, op: e.operator("CAST", _inputs(e, op), op.out),
    ir.Transpose: _transpose,
    ir.Reshape: _reshape,
}
"""One function per operator of the integer graph. Quantize and Dequantize reach TOSA only in ``INT+FP``."""

TOSA_VERSION = "1.0.0"  # version that the flatbuffer declares


@dataclass(frozen=True, eq=False)
class TosaBinary:
    """A serialized TOSA graph."""

    data: bytes  # the flatbuffer
    # inputs, outputs: in flatbuffer order
    inputs: tuple[TosaTensor, ...]
    outputs: tuple[TosaTensor, ...]
    sources: Mapping[str, str]  # ONNX node that each tensor of the flatbuffer stems from, by the tensor's name in it


def serialize(
    ops: Sequence[Op],
    tensors: Mapping[str, Tensor],
    constants: Mapping[str, Array],
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> TosaBinary:
    """Write ``ops`` (in topological order) as one TOSA basic block.

    Raises:
        UsageError: the extra ``arm`` is not installed.
    """
    emitter = Emitter(tensors, constants, layout.assign_layouts(ops, tensors, constants))
    for name in inputs:
        emitter.graph_input(name)
    for op in ops:
        emitter.source = op.source
        _EMITTERS[type(op)](emitter, op)
    for name in outputs:
        emitter.graph_output(name)
    return TosaBinary(
        data=bytes(emitter.serializer.serialize()),
        inputs=tuple(emitter.boundary(n) for n in inputs),
        outputs=tuple(emitter.boundary(n) for n in outputs),
        sources=dict(emitter.sources),
    )
