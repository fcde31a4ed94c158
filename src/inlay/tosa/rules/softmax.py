"""Softmax in integers, with int8 TABLEs only (Ethos-U55 has no 16-bit ones).

With ``d = x − max(x)`` in −255 … 0 there are only 256 exponentials ``e = round(2^E·exp(scale·d))``, looked up byte by
byte. Their sum ``S`` is normalized to ``M = S·2^up`` in [2^30, 2^31); ``r = 2^45 / M`` comes from a table over the
leading 8 bits behind M's first, improved by one Newton step in 16 bits. Then ``e/S = (e15·r) >> (30 − E − up)`` in
units of 2^-30, where ``e15`` is ``e`` with 15 bits.

Error: about 2^-14 of the result from ``r``, and ``n·2^-(E+1)`` of it from the sum of a row of ``n`` (E is as large as
the sum allows): a tenth of an 8-bit step for rows up to 1000.
"""

from __future__ import annotations

import math

import numpy as np

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context
from inlay.tosa.ir import Array
from inlay.tosa.quantized import Unsupported
from inlay.tosa.rules._common import set_rescaled

_PRODUCT_BITS = 15
"""Bits of an exponential in the last product, with 15 of the reciprocal: 30."""

_LONGEST_ROW = 1 << _PRODUCT_BITS
"""Elements per row: with 15 bits each their sum stays within 2^30."""

_MOST_BITS = 23
"""Most bits of an exponential: three tables of one byte each hold 2^23."""


def softmax(context: Context, node: Node) -> None:
    """Softmax over one axis (before opset 13: over all axes from ``axis`` on)."""
    to = context.output_qparams(node.outputs[0])
    x = context.quantized_input(node.inputs[0])
    shape = context.builder.shape(x.tensor)
    axis = int(node.attributes.get("axis", -1 if context.graph.opset >= 13 else 1)) % len(shape)
    tensor = x.tensor
    if context.graph.opset < 13 and math.prod(shape[axis:]) != shape[axis]:
        flat = (math.prod(shape[:axis]), math.prod(shape[axis:]))
        tensor, axis = context.reshape(node.name, tensor, flat, f"{node.name}/flat"), 1
    rows = _Rows(context, node, context.builder.shape(tensor), axis)
    if rows.shape[axis] > _LONGEST_ROW:
        raise Unsupported(f"its rows are longer than {_LONGEST_ROW}")
    bits = min(_MOST_BITS, 30 - (rows.shape[axis] - 1).bit_length())
    exponentials = rows.exponentials(tensor, x.scale, bits)
    total = rows.reduce(exponentials, "sum", "int32")
    reciprocal, up = rows.reciprocal(total)
    short = rows.shift_right(exponentials, bits - _PRODUCT_BITS)
    shift = rows.binary("sub", rows.scalar(30 - bits), up)
    quotient = rows.binary("shr", rows.binary("mul", short, reciprocal), shift)
    set_rescaled(context, node, quotient, 2.0**-30, to)


class _Rows:
    """Operators along one axis of one shape."""

    def __init__(self, context: Context, node: Node, shape: tuple[int, ...], axis: int) -> None:
        self.context, self.builder, self.node = context, context.builder, node
        self.shape, self.axis = shape, axis

    def binary(self, fn: str, a: str, b: str) -> str:
        shape = np.broadcast_shapes(self.builder.shape(a), self.builder.shape(b))
        return self.builder.add(ir.Binary, self.node.name, [a, b], f"{self.node.name}/{fn}", "int32", shape, fn=fn)

    def shift_right(self, tensor: str, by: int) -> str:
        """Rounding shift; not a RESCALE, whose int32 → int32 form not every compiler supports."""
        return self.binary("shr", tensor, self.scalar(by)) if by else tensor

    def scalar(self, value: int) -> str:
        return self.builder.constant(f"{self.node.name}/{value}", np.full((1,) * len(self.shape), value, np.int32))

    def reduce(self, tensor: str, fn: str, dtype: str) -> str:
        shape = tuple(1 if i == self.axis else d for i, d in enumerate(self.shape))
        return self.builder.add(
            ir.Reduce, self.node.name, [tensor], f"{self.node.name}/{fn}", dtype, shape, fn=fn, axis=self.axis
        )

    def to_int32(self, tensor: str, factor: float, in_zp: int = 0) -> str:
        return self.context.to_int32(self.node.name, tensor, in_zp, factor)

    def to_int8(self, tensor: str, factor: float, out_zp: int) -> str:
        multiplier, shift = self.context.multipliers_and_shifts([factor])
        return self.builder.add(
            ir.Rescale, self.node.name, [tensor], f"{self.node.name}/index", "int8", self.builder.shape(tensor),
            multiplier=multiplier, shift=shift, out_zp=out_zp,
        )  # fmt: skip

    def look_up(self, index: str, values: Array) -> str:
        """Non-negative ``values``, one for each int8 index, as int32: a table for each byte."""
        total = ""
        for byte in range((int(values.max()).bit_length() + 7) // 8):
            entry = tuple(int(v) - 128 for v in (values >> (8 * byte)) & 255)
            part = self.builder.add(
                ir.Table,
                self.node.name,
                [index],
                f"{self.node.name}/byte{byte}",
                "int8",
                self.builder.shape(index),
                values=entry,
            )
            wide = self.to_int32(part, float(1 << (8 * byte)), in_zp=-128)
            total = self.binary("add", total, wide) if total else wide
        return total

    def exponentials(self, tensor: str, scale: float, bits: int) -> str:
        """``round(2^bits·exp(scale·(x − max)))``."""
        largest = self.reduce(tensor, "max", "int8")
        below = self.binary("sub", self.to_int32(tensor, 1.0), self.to_int32(largest, 1.0))
        d = np.arange(-128, 128) - 127
        values = np.rint(2.0**bits * np.exp(scale * d.astype(np.float64))).astype(np.int64)
        return self.look_up(self.to_int8(below, 1.0, out_zp=127), values)

    def reciprocal(self, total: str) -> tuple[str, str]:
        """``r ≈ 2^45 / M`` in (2^14, 2^15], and the left shift ``up`` that makes M of the sum."""
        zeros = self.builder.add(
            ir.Unary, self.node.name, [total], f"{self.node.name}/clz", "int32", self.builder.shape(total), fn="clz"
        )
        up = self.binary("sub", zeros, self.scalar(1))
        normal = self.binary("shl", total, up)
        # The 8 bits behind the leading one, as an int8 index: floor(M / 2^22) − 384, where 2^21 undoes the rounding.
        centred = self.binary("sub", normal, self.scalar((384 << 22) + (1 << 21)))
        middles = (np.arange(256) + 256.5) * 2.0**22
        guess = self.look_up(self.to_int8(centred, 2.0**-22, out_zp=0), np.rint(2.0**45 / middles).astype(np.int64))
        # r·(2 − M·r/2^45) with M in 16 bits: r + r·(2^30 − M16·r)/2^30, kept inside int32 by shifting in two parts.
        error = self.binary("sub", self.scalar(1 << 30), self.binary("mul", self.shift_right(normal, 15), guess))
        step = self.shift_right(self.binary("mul", guess, self.shift_right(error, 6)), 24)
        return self.binary("add", guess, step), up
