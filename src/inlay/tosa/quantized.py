"""Quantized values while a model is lowered: activations as int8 tensors, constants as integers with their qparams."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inlay.tosa.ir import Array
from inlay.types import QParams, QType


class Unsupported(Exception):
    """A rule cannot lower the node at hand; ``str()`` is the reason that the report gives.

    Args:
        unstated: the float value whose range no Q/DQ nodes state, where that is all that is missing.
    """

    def __init__(self, reason: str, unstated: str = "") -> None:
        super().__init__(reason)
        self.unstated = unstated


@dataclass(frozen=True)
class QuantizedTensor:
    """An ONNX value that equals ``(tensor − zero_point)·scale`` exactly."""

    tensor: str  # int8 (or int16) tensor of the integer graph
    # signed 8 bit, or 16 bit with the zero point 0; None for an integer value whose qparams only the DequantizeLinear
    # behind it gives
    qparams: QParams | None
    unsigned: bool = False  # the ONNX value is uint8; the tensor holds it less 128

    @property
    def known_qparams(self) -> QParams:
        """The qparams, which every quantized float value has (Unsupported where there are none)."""
        if self.qparams is None:
            raise Unsupported("an input is an integer tensor without quantization parameters")
        return self.qparams

    @property
    def scale(self) -> float:
        """Scale of a quantized float value."""
        return self.known_qparams.scale[0]

    @property
    def zp(self) -> int:
        """Zero point of a quantized float value."""
        return self.known_qparams.zero_point[0]

    @property
    def wide(self) -> bool:
        """Whether it holds a float value in 16 bits (:meth:`inlay.tosa.context.Context.wide_qparams`)."""
        return self.qparams is not None and self.qparams.qtype is QType.INT16

    @property
    def bound(self) -> float:
        """Largest magnitude that it can hold."""
        qtype = self.known_qparams.qtype
        return max(qtype.qmax - self.zp, self.zp - qtype.qmin) * self.scale


@dataclass(frozen=True, eq=False)
class QuantizedConstant:
    """A dequantized constant: ``(values − zero_point)·scale``, per tensor or per channel along ``axis``."""

    values: Array
    scale: Array
    zero_point: Array
    axis: int | None

    def __post_init__(self) -> None:
        for numbers in (self.scale, self.zero_point):
            fitting = self.axis in range(self.values.ndim) and numbers.size == self.values.shape[self.axis or 0]
            if numbers.size != 1 and not fitting:
                raise Unsupported(f"{numbers.size} scales do not fit axis {self.axis} of {list(self.values.shape)}")

    @property
    def real(self) -> Array:
        """The real values, in float64."""
        scale, zero = (_along(a, self.values.ndim, self.axis) for a in (self.scale, self.zero_point))
        return np.asarray((self.values.astype(np.int64) - zero) * scale.astype(np.float64))

    def int8(self) -> tuple[Array, int]:
        """The values as int8, and the zero point that remains.

        The zero point is subtracted where the result still fits 8 bits, which makes it 0. Otherwise a uint8 constant
        is shifted by 128, and a single zero point remains.
        """
        centred = self.values.astype(np.int64) - _along(self.zero_point, self.values.ndim, self.axis).astype(np.int64)
        if centred.min(initial=0) >= -128 and centred.max(initial=0) <= 127:
            return centred.astype(np.int8), 0
        if self.zero_point.size > 1 or self.values.dtype.name not in ("int8", "uint8"):
            raise Unsupported("its weight less the zero points does not fit 8 bit")
        shift = 128 if self.values.dtype.name == "uint8" else 0
        return (self.values.astype(np.int64) - shift).astype(np.int8), int(self.zero_point.reshape(())) - shift

    @classmethod
    def quantize(cls, real: Array, scale: Array, zero_point: Array, axis: int | None) -> QuantizedConstant:
        """What QuantizeLinear makes of a float constant; ``zero_point`` has the quantized type."""
        s, z = (_along(a, real.ndim, axis) for a in (scale, zero_point.astype(np.int64)))
        limits = np.iinfo(zero_point.dtype)
        ints = np.clip(np.rint(real.astype(np.float32) / s) + z, limits.min, limits.max).astype(zero_point.dtype)
        return cls(ints, scale, zero_point, axis)


def _along(values: Array, rank: int, axis: int | None) -> Array:
    """A scalar, or one value per channel that broadcasts along ``axis``."""
    if values.size == 1:
        return values.reshape(())
    shape = [1] * rank
    if axis is not None:
        shape[axis] = -1
    return values.reshape(shape)


def int8_qparams(scale: Array, zero_point: Array) -> QParams:
    """Per-tensor activation qparams as signed 8 bit: uint8 is the same grid with the zero point 128 lower."""
    if scale.size != 1:
        raise Unsupported("an activation is quantized per channel")
    if zero_point.size != 1:
        raise Unsupported(f"an activation has {zero_point.size} zero points for one scale")
    if zero_point.dtype.name not in ("int8", "uint8"):
        raise Unsupported(f"an activation is quantized to {zero_point.dtype.name}: only 8 bit is lowered")
    value = float(scale.reshape(()))
    if not (np.isfinite(value) and value > 0):
        raise Unsupported(f"an activation has the scale {value}")
    zero = int(zero_point.reshape(())) - (128 if zero_point.dtype.name == "uint8" else 0)
    return QParams(QType.INT8, (value,), (zero,))
