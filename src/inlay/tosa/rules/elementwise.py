"""Add, Sub, Mul, Div by a constant, Min, Max, Relu and Clip."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context, Refused, Rep
from inlay.tosa.ir import Array
from inlay.tosa.oracle import quantize
from inlay.tosa.rules._common import align, further_outputs, settle, spatial4
from inlay.tosa.rules.table import tabulate
from inlay.types import QParams

_FRACTION = 20
"""Both sides of a sum are brought to int32 with this many bits below twice the larger scale (FIELD §3)."""

_TAP = 127
"""Weight that stands for the factor of a channel; the factor itself goes into the channel's RESCALE."""

_CONSTANT_BITS = 15
"""A float factor keeps this many bits: with the 9 bits of the other side the product stays far inside int32."""


@dataclass(frozen=True)
class _Side:
    """One operand: a quantized value, or a float constant that the model leaves unquantized."""

    rep: Rep | None
    real: Array | None

    @property
    def reach(self) -> float:
        """Scale of an 8-bit tensor that would just hold the operand."""
        if self.rep is not None:
            return self.rep.scale
        assert self.real is not None
        return max(float(np.abs(self.real).max(initial=0.0)) / 255, 1e-30)


def _side(context: Context, value: str) -> _Side:
    constant = context.source.constants.get(value)
    if constant is not None and value not in context.weights:
        if constant.dtype.kind != "f" or not np.isfinite(constant).all():
            raise Refused(f"its input {value!r} is a constant that is not finite float")
        return _Side(None, constant.astype(np.float64))
    weight = context.weights.get(value)
    if weight is not None:
        return _Side(None, weight.real)
    return _Side(context.quantized(value), None)


def _pair(context: Context, node: Node) -> tuple[_Side, _Side]:
    a, b = (_side(context, v) for v in node.inputs[:2])
    if a.rep is None and b.rep is None:
        raise Refused("both inputs are constant")
    return a, b


def _widened(context: Context, node: Node, side: _Side, unit: float, rank: int) -> str:
    """An operand as int32 in steps of ``unit``, with as many axes as the result."""
    if side.rep is None:
        assert side.real is not None
        ints = np.rint(side.real / unit).astype(np.int32)
        return context.builder.constant(f"{node.name}/constant", ints.reshape(align(ints.shape, rank)))
    aligned = _aligned(context, node, side.rep.tensor, rank)
    return context.widen(node.name, aligned, side.rep.zp, side.rep.scale / unit)


def _aligned(context: Context, node: Node, tensor: str, rank: int) -> str:
    shape = context.builder.shape(tensor)
    return context.reshape(node.name, tensor, align(shape, rank), f"{tensor}/aligned")


def add(context: Context, node: Node) -> None:
    """Add and Sub: both sides in int32 at one fine scale, one RESCALE."""
    want = context.wanted(node.outputs[0])
    a, b = _pair(context, node)
    if with_constant(context, node, a, b):
        return
    shape = context.shape(node.outputs[0])
    unit = 2 * max(a.reach, b.reach) / (1 << _FRACTION)
    if a.rep is not None and b.rep is not None and a.rep.scale == b.rep.scale:
        # The sum of equal steps is exact as it is; Ethos-U55 takes two equal factors above 1 apart into five operators
        # (at [1,8,8,8] 6720 cycles for 768, *run*).
        unit = a.rep.scale
    sides = [_widened(context, node, s, unit, len(shape)) for s in (a, b)]
    fn = "add" if node.op_type == "Add" else "sub"
    total = context.builder.add(ir.Binary, node.name, sides, f"{node.name}/acc", "int32", shape, fn=fn)
    settle(context, node, context.rescale(node.name, total, [unit / want.scale[0]], node.outputs[0], want), want)


def mul(context: Context, node: Node) -> None:
    """Mul, and Div by a constant: an int32 product at the product of the scales, one RESCALE."""
    want = context.wanted(node.outputs[0])
    if (
        node.op_type == "Div"
        and node.inputs[1] not in context.weights
        and node.inputs[1] not in context.source.constants
    ):
        raise Refused("it divides by an activation")
    a, b = _pair(context, node)
    if node.op_type == "Div":
        assert b.real is not None
        if not b.real.all():
            raise Refused("it divides by zero")
        b = _Side(None, 1 / b.real)
    if with_constant(context, node, a, b):
        return
    shape = context.shape(node.outputs[0])
    factor = 1.0
    names = []
    for side in (a, b):
        if side.rep is not None:
            unit = side.rep.scale
        else:
            assert side.real is not None
            largest = float(np.abs(side.real).max(initial=0.0)) or 1.0
            unit = largest if side.real.size == 1 else largest / ((1 << _CONSTANT_BITS) - 1)
        factor *= unit
        names.append(_widened(context, node, side, unit, len(shape)))
    product = context.builder.add(ir.Binary, node.name, names, f"{node.name}/acc", "int32", shape, fn="mul")
    settle(context, node, context.rescale(node.name, product, [factor / want.scale[0]], node.outputs[0], want), want)


def with_constant(context: Context, node: Node, a: _Side, b: _Side) -> bool:
    """An activation and a constant, where something cheaper than int32 arithmetic does it; tells whether it was done.

    One factor and one offset per channel are a 1×1 depthwise convolution (on Ethos-U55 a sixteenth of the cycles of a
    broadcast int32 operator, *run*); a scalar function of one value is a TABLE.
    """
    at = 0 if a.rep is not None else 1
    activation, constant = (a, b) if at == 0 else (b, a)
    if constant.real is None or activation.rep is None:
        return False
    shape = context.builder.shape(activation.rep.tensor)
    along = align(constant.real.shape, len(shape))
    if shape != context.shape(node.outputs[0]) or len(along) > len(shape):
        return False
    per_channel = len(shape) in (3, 4) and all(d == 1 or i == 1 for i, d in enumerate(along))
    if per_channel and node.op_type not in ("Min", "Max"):
        reals = np.broadcast_to(constant.real.reshape(-1), (shape[1],))
        ones = np.ones(shape[1])
        match node.op_type:
            case "Add":
                done = _affine(context, node, activation.rep, ones, reals)
            case "Sub":
                done = _affine(context, node, activation.rep, *((ones, -reals) if at == 0 else (-ones, reals)))
            case _:
                done = _affine(context, node, activation.rep, reals, 0 * ones)
        if done:
            return True
    if constant.real.size == 1 and node.inputs[1 - at] in context.source.constants:
        tabulate(context, node, at)
        return True
    return False


def _affine(context: Context, node: Node, rep: Rep, factor: Array, offset: Array) -> bool:
    """``factor[c]·x + offset[c]`` as a depthwise convolution; not where its integers would be too coarse."""
    want = context.wanted(node.outputs[0])
    unit = np.where(factor == 0, want.scale[0], rep.scale * np.abs(factor)) / _TAP
    bias = np.rint(offset / unit)
    if (unit / want.scale[0]).max() > 0.25 or np.abs(bias).max() >= 1 << 30:
        return False
    builder, tensor = context.builder, spatial4(context, node, rep.tensor)
    taps = (np.sign(factor) * _TAP).astype(np.int8).reshape(-1, 1, 1, 1)
    acc = builder.add(
        ir.Conv2d, node.name,
        [
            tensor,
            builder.constant(f"{node.name}/factor", taps),
            builder.constant(f"{node.name}/offset", bias.astype(np.int32)),
        ],
        f"{node.name}/acc", "int32", builder.shape(tensor),
        pads=(0, 0, 0, 0), strides=(1, 1), dilations=(1, 1), depthwise=True, in_zp=rep.zp,
    )  # fmt: skip
    factors = unit / want.scale[0]
    scales = factors[:1] if (factors == factors[0]).all() else factors
    settle(context, node, context.rescale(node.name, acc, scales.tolist(), f"{node.name}/out", want, axis=1), want)
    return True


def batch_normalization(context: Context, node: Node) -> None:
    """BatchNormalization in inference, where it stands alone: one factor and one offset per channel."""
    if further_outputs(context, node) or node.attributes.get("training_mode", 0):
        raise Refused("it is in training mode")
    rep = context.quantized(node.inputs[0])
    if len(context.builder.shape(rep.tensor)) not in (3, 4):
        raise Refused("its input has no rows and columns")
    scale, offset, mean, variance = (_numbers(context, node, i) for i in range(1, 5))
    factor = scale / np.sqrt(variance + float(node.attributes.get("epsilon", 1e-5)))
    if not _affine(context, node, rep, factor, offset - mean * factor):
        raise Refused("its factors are too large for the steps of its output")


def _numbers(context: Context, node: Node, index: int) -> Array:
    weight = context.weight(node.inputs[index])
    if weight is not None:
        return weight.real.reshape(-1)
    given = context.constant(node, index)
    if given is None:
        raise Refused(f"input {index} is missing")
    return given.astype(np.float64).reshape(-1)


def extreme(context: Context, node: Node) -> None:
    """Min and Max of any number of inputs, compared in int32 (TOSA compares no int8) in the output's own steps.

    Rounding is monotonic: the larger of two rounded numbers is the larger one rounded. So each input is requantized
    first, and widened without a factor (on Ethos-U55 a fifth of the cycles of a comparison at a finer scale, *run*).
    """
    want = context.wanted(node.outputs[0])
    shape = context.shape(node.outputs[0])
    sides = [_side(context, v) for v in node.inputs]
    if all(s.rep is None for s in sides):
        raise Refused("every input is constant")
    if len(sides) == 2 and with_constant(context, node, *sides):
        return
    result, *others = [_in_steps(context, node, s, want, len(shape)) for s in sides]
    for other in others:
        both = np.broadcast_shapes(context.builder.shape(result), context.builder.shape(other))
        result = context.builder.add(
            ir.Binary, node.name, [result, other], f"{node.name}/acc", "int32", both, fn=node.op_type.lower()
        )
    settle(context, node, context.rescale(node.name, result, [1.0], f"{node.name}/out", want), want)


def _in_steps(context: Context, node: Node, side: _Side, want: QParams, rank: int) -> str:
    """An operand as int32 in the steps of ``want``, its zero point taken off."""
    if side.rep is None:
        assert side.real is not None
        ints = quantize(side.real, want).astype(np.int32) - want.zero_point[0]
        return context.builder.constant(f"{node.name}/constant", ints.reshape(align(ints.shape, rank)))
    tensor = context.requantize(node.name, side.rep, want, f"{side.rep.tensor}/same")
    return context.widen(node.name, _aligned(context, node, tensor, rank), want.zero_point[0])


def clip(context: Context, node: Node) -> None:
    """Relu and Clip: in the numbers that the result is quantized with, a CLAMP where saturation does not do it already.

    The bounds are quantized like any value. ``Relu`` is redundant only where the zero point is the type's minimum,
    ``Clip``'s upper bound only where it reaches the type's maximum (DESIGN §12).
    """
    rep = context.quantized(node.inputs[0])
    low, high = bounds(context, node)
    try:
        want = context.wanted(node.outputs[0])
    except Refused:
        want = rep.numbers
        for bound in (low, high):
            if np.isfinite(bound) and not _on_grid(bound, want):
                raise Refused(
                    f"its bound {bound:g} is not a step of its input, and its output is not quantized"
                ) from None
    q_low, q_high = (int(v) for v in quantize(np.array([low, high]), want))
    tensor = context.requantize(node.name, rep, want, f"{node.name}/rescaled")
    if q_low > want.qtype.qmin or q_high < want.qtype.qmax:
        tensor = context.builder.add(
            ir.Clamp,
            node.name,
            [tensor],
            node.outputs[0],
            "int8",
            context.builder.shape(tensor),
            want,
            low=q_low,
            high=q_high,
        )
    context.set(node.outputs[0], tensor, want)


def _on_grid(bound: float, numbers: QParams) -> bool:
    steps = bound / numbers.scale[0] + numbers.zero_point[0]
    return steps == round(steps) or not numbers.qtype.qmin <= steps <= numbers.qtype.qmax


def bounds(context: Context, node: Node) -> tuple[float, float]:
    """Lower and upper limit of a Relu or Clip (infinite where absent)."""
    if node.op_type == "Relu":
        return 0.0, np.inf
    bounds = []
    for slot, name, default in ((1, "min", -np.inf), (2, "max", np.inf)):
        given = context.constant(node, slot)
        bounds.append(float(node.attributes.get(name, default)) if given is None else float(given.reshape(())))
    return bounds[0], bounds[1]
