"""Add, Sub, Mul, Div by a constant, Min and Max, and BatchNormalization where it stands alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context
from inlay.tosa.ir import Array
from inlay.tosa.oracle import quantize
from inlay.tosa.quantized import QuantizedTensor, Unsupported
from inlay.tosa.rules._common import as_nchw, expand_rank, reads_extra_outputs, set_output, set_rescaled
from inlay.tosa.rules.table import tabulate
from inlay.types import QParams

_SUM_BITS = 20
"""Both operands of a sum become int32 with this many bits below twice the larger scale (FIELD §3)."""

_CONSTANT_BITS = 15
"""Bits of a float factor as an integer: with the 9 bits of the other operand the product stays far inside int32."""

_UNIT_WEIGHT = 127
"""int8 weight that stands for a channel's factor; the factor itself goes into the channel's RESCALE."""

_COARSEST_UNIT = 0.25
"""Largest unit of a channel's int32 sum, in steps of the output, at which its rounding stays invisible."""

_LARGEST_OFFSET = 1 << 30
"""Offset of a channel in units of its int32 sum that leaves room for the product."""


@dataclass(frozen=True)
class _Operand:
    """A quantized activation, or a constant as real values (the other one is None)."""

    activation: QuantizedTensor | None
    constant: Array | None

    @property
    def scale(self) -> float:
        """Scale of an 8-bit tensor that just holds the operand."""
        if self.activation is not None:
            return self.activation.scale
        assert self.constant is not None
        return max(float(np.abs(self.constant).max(initial=0.0)) / 255, 1e-30)


def _operand(context: Context, value: str) -> _Operand:
    constant = context.model.constants.get(value)
    if constant is not None and value not in context.constants:
        if constant.dtype.kind != "f" or not np.isfinite(constant).all():
            raise Unsupported(f"its input {value!r} is a constant that is not finite float")
        return _Operand(None, constant.astype(np.float64))
    quantized = context.constants.get(value)
    if quantized is not None:
        return _Operand(None, quantized.real)
    return _Operand(context.quantized_input(value), None)


def _two_operands(context: Context, node: Node) -> tuple[_Operand, _Operand]:
    a, b = (_operand(context, v) for v in node.inputs[:2])
    if a.activation is None and b.activation is None:
        raise Unsupported("both inputs are constant")
    return a, b


def _as_int32(context: Context, node: Node, operand: _Operand, unit: float, rank: int) -> str:
    """An operand as int32 in steps of ``unit``, with as many axes as the result."""
    if operand.activation is None:
        assert operand.constant is not None
        return _int32_constant(context, node, np.rint(operand.constant / unit).astype(np.int32), rank)
    x = operand.activation
    return context.to_int32(node.name, _with_rank(context, node, x.tensor, rank), x.zp, x.scale / unit)


def _int32_constant(context: Context, node: Node, ints: Array, rank: int) -> str:
    return context.builder.constant(f"{node.name}/constant", ints.reshape(expand_rank(ints.shape, rank)))


def _with_rank(context: Context, node: Node, tensor: str, rank: int) -> str:
    shape = context.builder.shape(tensor)
    return context.reshape(node.name, tensor, expand_rank(shape, rank), f"{tensor}/aligned")


def add(context: Context, node: Node) -> None:
    """Add and Sub: both operands in int32 at one fine scale, one RESCALE."""
    out_qparams = context.output_qparams(node.outputs[0])
    a, b = _two_operands(context, node)
    if _with_constant(context, node, a, b):
        return
    shape = context.shape(node.outputs[0])
    unit = 2 * max(a.scale, b.scale) / (1 << _SUM_BITS)
    if a.activation is not None and b.activation is not None and a.activation.scale == b.activation.scale:
        # The sum of equal steps is exact as it is; Ethos-U55 splits two equal factors above 1 into five operators
        # (at [1,8,8,8] 6720 cycles for 768, *run*).
        unit = a.activation.scale
    sides = [_as_int32(context, node, o, unit, len(shape)) for o in (a, b)]
    fn = "add" if node.op_type == "Add" else "sub"
    total = context.builder.add(ir.Binary, node.name, sides, f"{node.name}/acc", "int32", shape, fn=fn)
    set_rescaled(context, node, total, unit, out_qparams, node.outputs[0])


def mul(context: Context, node: Node) -> None:
    """Mul, and Div by a constant: an int32 product at the product of the scales, one RESCALE."""
    out_qparams = context.output_qparams(node.outputs[0])
    divisor = node.inputs[1]
    if node.op_type == "Div" and divisor not in context.constants and divisor not in context.model.constants:
        raise Unsupported("it divides by an activation")
    a, b = _two_operands(context, node)
    if node.op_type == "Div":
        assert b.constant is not None
        if not b.constant.all():
            raise Unsupported("it divides by zero")
        b = _Operand(None, 1 / b.constant)
    if _with_constant(context, node, a, b):
        return
    shape = context.shape(node.outputs[0])
    units = [_factor_unit(a), _factor_unit(b)]
    sides = [_as_int32(context, node, o, unit, len(shape)) for o, unit in zip((a, b), units, strict=True)]
    product = context.builder.add(ir.Binary, node.name, sides, f"{node.name}/acc", "int32", shape, fn="mul")
    set_rescaled(context, node, product, units[0] * units[1], out_qparams, node.outputs[0])


def _factor_unit(operand: _Operand) -> float:
    """Step in which a factor becomes an integer."""
    if operand.activation is not None:
        return operand.activation.scale
    assert operand.constant is not None
    largest = float(np.abs(operand.constant).max(initial=0.0)) or 1.0
    return largest if operand.constant.size == 1 else largest / ((1 << _CONSTANT_BITS) - 1)


def _with_constant(context: Context, node: Node, a: _Operand, b: _Operand) -> bool:
    """An activation and a constant, where something cheaper than int32 arithmetic computes it; returns whether.

    One factor and one offset per channel are a 1×1 depthwise convolution (on Ethos-U55 a sixteenth of the cycles of a
    broadcast int32 operator, *run*); a scalar function of one value is a TABLE.
    """
    at = 0 if a.activation is not None else 1
    x, constant = (a.activation, b.constant) if at == 0 else (b.activation, a.constant)
    if constant is None or x is None:
        return False
    shape = context.builder.shape(x.tensor)
    along = expand_rank(constant.shape, len(shape))
    if shape != context.shape(node.outputs[0]) or len(along) > len(shape):
        return False
    per_channel = len(shape) in (3, 4) and all(d == 1 or i == 1 for i, d in enumerate(along))
    if per_channel and node.op_type not in ("Min", "Max"):
        values = np.broadcast_to(constant.reshape(-1), (shape[1],))
        ones = np.ones(shape[1])
        match node.op_type:
            case "Add":
                factor, offset = ones, values
            case "Sub":
                factor, offset = (ones, -values) if at == 0 else (-ones, values)
            case _:
                factor, offset = values, 0 * ones
        if _affine(context, node, x, factor, offset):
            return True
    if constant.size == 1 and node.inputs[1 - at] in context.model.constants:
        tabulate(context, node, at)
        return True
    return False


def _affine(context: Context, node: Node, x: QuantizedTensor, factor: Array, offset: Array) -> bool:
    """``factor[c]·x + offset[c]`` as a depthwise convolution; False where its integers would be too coarse."""
    out_qparams = context.output_qparams(node.outputs[0])
    unit = np.where(factor == 0, out_qparams.scale[0], x.scale * np.abs(factor)) / _UNIT_WEIGHT
    bias = np.rint(offset / unit)
    factors = unit / out_qparams.scale[0]
    if factors.max() > _COARSEST_UNIT or np.abs(bias).max() >= _LARGEST_OFFSET:
        return False
    builder, tensor = context.builder, as_nchw(context, node, x.tensor)
    weights = (np.sign(factor) * _UNIT_WEIGHT).astype(np.int8).reshape(-1, 1, 1, 1)
    acc = builder.add(
        ir.Conv2d, node.name,
        [
            tensor,
            builder.constant(f"{node.name}/factor", weights),
            builder.constant(f"{node.name}/offset", bias.astype(np.int32)),
        ],
        f"{node.name}/acc", "int32", builder.shape(tensor),
        pads=(0, 0, 0, 0), strides=(1, 1), dilations=(1, 1), depthwise=True, in_zp=x.zp,
    )  # fmt: skip
    scales = factors[:1] if (factors == factors[0]).all() else factors
    result = context.rescale(node.name, acc, scales.tolist(), f"{node.name}/out", out_qparams, axis=1)
    set_output(context, node, result, out_qparams)
    return True


def batch_normalization(context: Context, node: Node) -> None:
    """BatchNormalization in inference: one factor and one offset per channel."""
    if reads_extra_outputs(context, node) or node.attributes.get("training_mode", 0):
        raise Unsupported("it is in training mode")
    x = context.quantized_input(node.inputs[0])
    if len(context.builder.shape(x.tensor)) not in (3, 4):
        raise Unsupported("its input has no rows and columns")
    scale, offset, mean, variance = (_real_vector(context, node, i) for i in range(1, 5))
    factor = scale / np.sqrt(variance + float(node.attributes.get("epsilon", 1e-5)))
    if not _affine(context, node, x, factor, offset - mean * factor):
        raise Unsupported("its factors are too large for the steps of its output")


def _real_vector(context: Context, node: Node, index: int) -> Array:
    quantized = context.constants.get(node.inputs[index])
    if quantized is not None:
        return quantized.real.reshape(-1)
    given = context.constant_input(node, index)
    if given is None:
        raise Unsupported(f"input {index} is missing")
    return given.astype(np.float64).reshape(-1)


def min_max(context: Context, node: Node) -> None:
    """Min and Max of any number of inputs, compared in int32 (TOSA compares no int8) in the output's own steps.

    Rounding is monotonic: the larger of two rounded values is the larger one rounded. So each input is requantized
    first, and widened without a factor (on Ethos-U55 a fifth of the cycles of a comparison at a finer scale, *run*).
    """
    out_qparams = context.output_qparams(node.outputs[0])
    shape = context.shape(node.outputs[0])
    operands = [_operand(context, v) for v in node.inputs]
    if all(o.activation is None for o in operands):
        raise Unsupported("every input is constant")
    if len(operands) == 2 and _with_constant(context, node, *operands):
        return
    result, *others = [_in_output_steps(context, node, o, out_qparams, len(shape)) for o in operands]
    for other in others:
        both = np.broadcast_shapes(context.builder.shape(result), context.builder.shape(other))
        result = context.builder.add(
            ir.Binary, node.name, [result, other], f"{node.name}/acc", "int32", both, fn=node.op_type.lower()
        )
    set_output(context, node, context.rescale(node.name, result, [1.0], f"{node.name}/out", out_qparams), out_qparams)


def _in_output_steps(context: Context, node: Node, operand: _Operand, to: QParams, rank: int) -> str:
    """An operand as int32 in steps of ``to``, its zero point subtracted."""
    zero = to.zero_point[0]
    if operand.activation is None:
        assert operand.constant is not None
        return _int32_constant(context, node, quantize(operand.constant, to).astype(np.int32) - zero, rank)
    tensor = context.requantize(node.name, operand.activation, to, f"{operand.activation.tensor}/same")
    return context.to_int32(node.name, _with_rank(context, node, tensor, rank), zero)
