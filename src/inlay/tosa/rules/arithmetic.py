"""Add, Sub, Sum, Mul, Div by a constant, PRelu, Min and Max, and Where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inlay.quant.qparams import dequantize, quantize
from inlay.tosa import ir
from inlay.tosa.ir import Array, Executor
from inlay.tosa.quantized import QuantizedTensor, Unsupported
from inlay.tosa.rules._node import NodeContext, expand_rank
from inlay.tosa.rules._windows import Window
from inlay.tosa.rules.functions import tabulate
from inlay.types import QParams, QType

_SUM_BITS = 20  # the operands of a sum become int32 with this many bits below twice the larger scale (FIELD §3)

_CONSTANT_BITS = 15
"""Bits of a float factor as an integer: with the 9 bits of the other operand the product stays far inside int32."""

_UNIT_WEIGHT = 127  # int8 weight that stands for a channel's factor; the factor itself goes into the channel's RESCALE

_COARSEST_UNIT = 0.25
"""Largest unit of a channel's int32 sum, in steps of the output, at which its rounding stays invisible."""

_LARGEST_OFFSET = 1 << 30  # offset of a channel in units of its int32 sum that leaves room for the product


@dataclass(frozen=True)
class _Operand:
    """A quantized activation, or a constant as real values (the other one is None)."""

    activation: QuantizedTensor | None
    constant: Array | None

    @property
    def largest(self) -> float:
        """Largest magnitude of a constant."""
        assert self.constant is not None
        return float(np.abs(self.constant).max(initial=0.0))

    @property
    def scale(self) -> float:
        """Scale of an 8-bit tensor that just holds the operand."""
        if self.activation is None:
            return max(self.largest / 255, 1e-30)
        return self.activation.scale * (256 if self.activation.wide else 1)

    @property
    def bound(self) -> float:
        """Largest magnitude that it can have."""
        return self.largest if self.activation is None else self.activation.bound

    @property
    def factor_unit(self) -> float:
        """Step in which the operand becomes an integer as a factor."""
        if self.activation is not None:
            return self.activation.scale
        single = self.constant is not None and self.constant.size == 1
        return (self.largest or 1.0) / (1 if single else (1 << _CONSTANT_BITS) - 1)

    def as_int32(self, here: NodeContext, unit: float, rank: int) -> str:
        """The operand as int32 in steps of ``unit``, with as many axes as the result."""
        if self.activation is None:
            assert self.constant is not None
            return _int32_constant(here, np.rint(self.constant / unit), rank)
        x = self.activation
        return here.to_int32(here.aligned(x.tensor, rank), x.zp, x.scale / unit)

    def requantized(self, here: NodeContext, to: QParams) -> str:
        """The operand with the qparams ``to``."""
        if self.activation is None:
            assert self.constant is not None
            return here.constant("constant", quantize(self.constant, to))
        return here.requantize(self.activation, to, f"{self.activation.tensor}/same")

    def in_output_steps(self, here: NodeContext, to: QParams, rank: int) -> str:
        """The operand as int32 in steps of ``to``, its zero point subtracted."""
        zero = to.zero_point[0]
        if self.activation is None:
            assert self.constant is not None
            return _int32_constant(here, quantize(self.constant, to).astype(np.int32) - zero, rank)
        return here.to_int32(here.aligned(self.requantized(here, to), rank), zero)


def _int32_constant(here: NodeContext, values: Array, rank: int) -> str:
    return here.constant("constant", values.astype(np.int32).reshape(expand_rank(values.shape, rank)))


def _operand(here: NodeContext, value: str) -> _Operand:
    constant, quantized = here.context.model.constants.get(value), here.context.constants.get(value)
    if quantized is not None:
        return _Operand(None, quantized.real)
    if constant is None:
        return _Operand(here.context.quantized_input(value, wide=True), None)
    if constant.dtype.kind != "f" or np.isnan(constant).any():
        raise Unsupported(f"its input {value!r} is a constant that is not a float number")
    return _Operand(None, constant.astype(np.float64))


def _operands(here: NodeContext) -> list[_Operand]:
    found = [_operand(here, value) for value in here.node.inputs]
    if all(o.activation is None for o in found):
        raise Unsupported("every input is constant")
    for value, operand in zip(here.node.inputs, found, strict=True):
        if operand.constant is not None and not np.isfinite(operand.constant).all():
            raise Unsupported(f"its input {value!r} is a constant that is not finite")
    return found


def add(here: NodeContext) -> None:
    """Add, Sub and Sum: all operands in int32 at one fine scale, one RESCALE."""
    operands = _operands(here)
    if len(operands) == 1:
        raise Unsupported("it adds nothing")
    to = here.qparams_within(sum(o.bound for o in operands))
    if len(operands) == 2 and (_of_one_value(here, operands, to) or _with_constant(here, operands, to)):
        return
    unit = len(operands) * max(o.scale for o in operands) / (1 << _SUM_BITS)
    steps = {None if o.activation is None else o.activation.scale for o in operands}
    if len(steps) == 1 and None not in steps:
        # The sum of equal steps is exact as it is; Ethos-U55 splits two equal factors above 1 into five operators
        # (at [1,8,8,8] 6720 cycles for 768, *run*).
        unit = operands[0].factor_unit  # the activation's scale
    total, *others = (o.as_int32(here, unit, len(here.out_shape)) for o in operands)
    for other in others:
        total = here.binary("sub" if here.node.op_type == "Sub" else "add", total, other, "acc")
    here.set_rescaled(total, unit, to, here.out)


def mul(here: NodeContext) -> None:
    """Mul, and Div by a constant: an int32 product at the product of the scales, one RESCALE."""
    divides, divisor = here.node.op_type == "Div", here.node.inputs[1]
    if divides and divisor not in here.context.constants and divisor not in here.context.model.constants:
        raise Unsupported("it divides by an activation")
    a, b = _operands(here)
    if divides:
        assert b.constant is not None
        if not b.constant.all():
            raise Unsupported("it divides by zero")
        b = _Operand(None, 1 / b.constant)
    to = here.qparams_within(a.bound * b.bound)
    if _of_one_value(here, [a, b], to) or _with_constant(here, [a, b], to):
        return
    first, second = (o.as_int32(here, o.factor_unit, len(here.out_shape)) for o in (a, b))
    here.set_rescaled(here.binary("mul", first, second, "acc"), a.factor_unit * b.factor_unit, to, here.out)


def prelu(here: NodeContext) -> None:
    """PRelu by constant slopes: a TABLE for one slope, else ``max(x, 0) + slope·min(x, 0)`` in int32, one RESCALE."""
    slope = _operand(here, here.node.inputs[1]).constant
    if slope is None or not np.isfinite(slope).all():
        raise Unsupported("its slopes are not constant finite numbers")
    if slope.size == 1:
        tabulate(here, 0)
        return
    x, largest = here.quantized_input(wide=True), max(1.0, float(np.abs(slope).max()))
    to = here.qparams_within(x.bound * largest)
    unit, rank = largest / ((1 << _CONSTANT_BITS) - 1), len(here.out_shape)
    value = here.to_int32(here.aligned(x.tensor, rank), x.zp)
    above, below = (
        here.binary("mul", here.binary(half, value, _int32_constant(here, np.zeros(1), rank)), factor)
        for half, factor in (
            ("max", _int32_constant(here, np.full(1, np.rint(1 / unit)), rank)),
            ("min", _int32_constant(here, np.rint(slope / unit), rank)),
        )
    )  # one of them is zero, so the sum is no larger than either
    here.set_rescaled(here.binary("add", above, below, "acc"), x.scale * unit, to, here.out)


def _of_one_value(here: NodeContext, operands: Sequence[_Operand], to: QParams) -> bool:
    """A gate ``x·f(x)``, a sum ``x + f(x)``: both operands are functions of one int8 value, and so is the result.

    Where every function on the way is a TABLE, so is the whole: rounded in the same places as the model rounds. Returns
    whether it is.
    """
    a, b = operands
    if a.activation is None or b.activation is None or to.qtype is not QType.INT8:
        return False
    (root, first), (other, second) = (_function_of(here, o.activation.tensor) for o in (a, b) if o.activation)
    shapes = {here.shape(t) for t in (root, a.activation.tensor, b.activation.tensor)}
    if root != other or shapes != {here.out_shape} or here.tensor(root).dtype != "int8":
        return False
    reals = dequantize(first, a.activation.known_qparams), dequantize(second, b.activation.known_qparams)
    results = _EXACT[here.node.op_type](*reals)
    values = tuple(int(v) for v in quantize(results, to))
    here.set_output(here.add(ir.Table, root, "", "int8", qparams=to, values=values), to)
    return True


_EXACT = {"Add": np.add, "Sum": np.add, "Sub": np.subtract, "Mul": np.multiply}


def _function_of(here: NodeContext, tensor: str) -> tuple[str, Array]:
    """The int8 tensor that TABLEs make ``tensor`` of, and its value for each of the 256 of that one."""
    values = np.arange(-128, 128, dtype=np.int8)
    while isinstance(op := here.context.builder.producer(tensor), ir.Table):
        table = np.asarray(op.values, np.int8)
        values = table[values.astype(np.int16) + 128]
        tensor = op.inputs[0]
    return tensor, values


def _with_constant(here: NodeContext, operands: Sequence[_Operand], to: QParams) -> bool:
    """An activation and a constant, where something cheaper than int32 arithmetic computes it; returns whether.

    One factor and one offset per channel are a 1×1 depthwise convolution (on Ethos-U55 a sixteenth of the cycles of a
    broadcast int32 operator, *run*); a scalar function of one value is a TABLE.
    """
    a, b = operands
    slot = 0 if a.activation is not None else 1
    x, constant = (a.activation, b.constant) if slot == 0 else (b.activation, a.constant)
    if constant is None or x is None or x.wide or to.qtype is not QType.INT8:
        return False
    shape = here.shape(x.tensor)
    along = expand_rank(constant.shape, len(shape))
    if shape != here.out_shape or len(along) > len(shape):
        return False
    if constant.size == 1:
        tabulate(here, slot)
        return True
    per_channel = len(shape) in (3, 4) and all(d == 1 or i == 1 for i, d in enumerate(along))
    if per_channel and here.node.op_type not in ("Min", "Max"):
        values = np.broadcast_to(constant.reshape(-1), (shape[1],))
        ones = np.ones(shape[1])
        match here.node.op_type:
            case "Add" | "Sum":
                factor, offset = ones, values
            case "Sub":
                factor, offset = (ones, -values) if slot == 0 else (-ones, values)
            case _:
                factor, offset = values, 0 * ones
        if _depthwise(here, x, factor, offset, to):
            return True
    return False


def affine(here: NodeContext, x: QuantizedTensor, factor: Array, offset: Array, axis: int) -> None:
    """Record ``factor[i]·x + offset[i]``, ``i`` along an axis of the tensor, as the node's output.

    Raises:
        Unsupported: the offsets are too large for the steps of the input.
    """
    shape = here.shape(x.tensor)
    to = here.qparams_within(float((x.bound * np.abs(factor) + np.abs(offset)).max()))
    if axis == 1 and len(shape) in (3, 4) and _depthwise(here, x, factor, offset, to):
        return
    largest = float(np.abs(factor).max()) or 1.0
    unit = x.scale * largest / ((1 << _CONSTANT_BITS) - 1)
    if float(np.abs(offset).max()) / unit >= _LARGEST_OFFSET:
        raise Unsupported("its offsets are too large for the steps of its input")
    along = tuple(-1 if i == axis else 1 for i in range(len(shape)))
    factors, offsets = (
        here.constant(name, np.rint(values).astype(np.int32).reshape(along))
        for name, values in (("factor", factor * x.scale / unit), ("offset", offset / unit))
    )
    product = here.binary("mul", here.to_int32(x.tensor, x.zp), factors)
    here.set_rescaled(here.binary("add", product, offsets), unit, to)


def _depthwise(here: NodeContext, x: QuantizedTensor, factor: Array, offset: Array, to: QParams) -> bool:
    """The same per channel, as a depthwise convolution; False where its integers would be too coarse."""
    if x.wide:
        return False
    unit = np.where(factor == 0, to.scale[0], x.scale * np.abs(factor)) / _UNIT_WEIGHT
    bias = np.rint(offset / unit)
    factors = unit / to.scale[0]
    if factors.max() > _COARSEST_UNIT or np.abs(bias).max() >= _LARGEST_OFFSET:
        return False
    tensor = here.image(x.tensor)
    height, width = here.shape(tensor)[2:]
    weights = (np.sign(factor) * _UNIT_WEIGHT).astype(np.int8).reshape(-1, 1, 1, 1)
    win = Window((1, 1), (height, width), out=(height, width))
    acc = here.conv2d(tensor, weights, bias.astype(np.int32), win, x.zp, depthwise=True)
    scales = factors[:1] if (factors == factors[0]).all() else factors
    here.set_output(here.rescale(acc, scales.tolist(), to, axis=1), to)
    return True


def min_max(here: NodeContext) -> None:
    """Min and Max of any number of inputs, compared in int32 (TOSA compares no int8) in the output's own steps.

    Rounding is monotonic: the larger of two rounded values is the larger one rounded. So each input is requantized
    first, and widened without a factor (on Ethos-U55 a fifth of the cycles of a comparison at a finer scale, *run*).
    """
    operands = _operands(here)
    to = here.qparams_within(max(o.bound for o in operands))
    if len(operands) == 2 and _with_constant(here, operands, to):
        return
    result, *others = [o.in_output_steps(here, to, len(here.out_shape)) for o in operands]
    for other in others:
        result = here.binary(here.node.op_type.lower(), result, other, "acc")
    here.set_output(here.rescale(result, [1.0], to), to)


def where(here: NodeContext) -> None:
    """Where: of two values in the output's own steps, by a mask of ones and zeros or, at run time, by SELECT."""
    condition, *branches = here.node.inputs
    mask = here.context.model.constants.get(condition)
    a, b = (_operand(here, v) for v in branches)
    if a.activation is None and b.activation is None:
        raise Unsupported("both of its values are constant")
    to = here.qparams_within(max(a.bound, b.bound))
    rank = len(here.out_shape)
    if mask is None:
        chosen = here.context.unquantized_tensor(condition, Executor.TOSA)
        operands = [here.aligned(v, rank) for v in (chosen, *(o.requantized(here, to) for o in (a, b)))]
        here.set_output(here.add(ir.Select, operands, "", to.qtype.value, here.out_shape, to), to)
        return
    first, second = (o.in_output_steps(here, to, rank) for o in (a, b))
    ones = mask.astype(np.int32)
    parts = [
        here.binary("mul", value, _int32_constant(here, kept, rank))
        for value, kept in ((first, ones), (second, 1 - ones))
    ]
    here.set_output(here.rescale(here.binary("add", *parts), [1.0], to), to)
