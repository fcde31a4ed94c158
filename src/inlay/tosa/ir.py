"""The integer graph: what a Q/DQ model computes, with every constant that the hardware needs on the operator.

Tensors keep ONNX's axis order (NCHW); where a tensor lies in memory is decided later, by :mod:`inlay.tosa.layout`.
Operators are frozen values close to TOSA 1.0: accumulators are int32, and requantization (:class:`Rescale`),
activation (:class:`Clamp`) and table lookup (:class:`Table`) are operators of their own, so nothing is implied.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from inlay.types import QParams

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]


class Executor(enum.Enum):
    """Who computes an operator."""

    TOSA = "tosa"  # the accelerator
    HOST = "host"  # ONNX, on the processor beside it
    CALLER = "caller"  # whoever runs the model: quantizes its inputs, dequantizes its outputs


class UnknownShape(Exception):
    """A tensor has no static shape: what needs one stays on the host."""


@dataclass(frozen=True)
class Tensor:
    """One value."""

    name: str  # unique in the graph
    dtype: str  # numpy's name of the element type: `int8`, `uint8` (model boundary only), `int32`, `float32` …
    shape: Shape | None  # static dimensions, in ONNX's axis order; None only for a host node's output of unknown shape
    qparams: QParams | None = None  # scale and zero point, where it is a quantized tensor (always signed 8 bit inside)

    @property
    def dims(self) -> Shape:
        """The shape. Raises UnknownShape where only a run tells it."""
        if self.shape is None:
            raise UnknownShape(f"the shape of {self.name!r} is not known")
        return self.shape


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operator; ``source`` names the ONNX node that it belongs to."""

    source: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    executor: Executor = Executor.TOSA

    @property
    def out(self) -> str:
        """Name of the first output."""
        return self.outputs[0]


@dataclass(frozen=True, kw_only=True)
class Conv2d(Op):
    """Inputs x[N,C,H,W], w[O,I,kh,kw], b[O]; accumulates ``Σ (x − in_zp)·(w − w_zp) + b``; padding reads ``in_zp``.

    ``depthwise``: w is [C·M, 1, kh, kw] and output channel ``c·M + m`` reads input channel ``c``.
    """

    pads: tuple[int, int, int, int]  # top, bottom, left, right
    strides: tuple[int, int]
    dilations: tuple[int, int]
    depthwise: bool = False
    in_zp: int = 0
    w_zp: int = 0


@dataclass(frozen=True, kw_only=True)
class TransposeConv2d(Op):
    """Inputs x[N,C,H,W], w[O,C,kh,kw], b[O]; ``out_pads`` (top, bottom, left, right) may be negative (crops)."""

    out_pads: tuple[int, int, int, int]
    strides: tuple[int, int]
    in_zp: int = 0
    w_zp: int = 0


@dataclass(frozen=True, kw_only=True)
class MatMul(Op):
    """Inputs a[B,M,K], b[B,K,N]; zero points are subtracted before multiplying."""

    a_zp: int = 0
    b_zp: int = 0


@dataclass(frozen=True, kw_only=True)
class Rescale(Op):
    """``clip(((x − in_zp)·multiplier + 2^(shift−1) >> shift) + out_zp)``, per tensor, or per channel of ``axis``."""

    multiplier: tuple[int, ...]
    shift: tuple[int, ...]
    in_zp: int = 0
    out_zp: int = 0
    axis: int | None = None


@dataclass(frozen=True, kw_only=True)
class Clamp(Op):
    """Clamps every element to ``[low, high]``."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Table(Op):
    """int8 to int8 by table lookup: ``values[x + 128]``."""

    values: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Binary(Op):
    """Element by element, broadcast between equal ranks: add, sub, mul, min, max, pow (float), shr (half up), shl."""

    fn: str


@dataclass(frozen=True, kw_only=True)
class Select(Op):
    """Element by element, of equal ranks: the second input where the first (boolean) is true, else the third."""


@dataclass(frozen=True, kw_only=True)
class Unary(Op):
    """Element by element: clz (int32); in float exp, log, sigmoid, tanh, reciprocal, abs, negate, ceil, floor, erf."""

    fn: str


@dataclass(frozen=True, kw_only=True)
class MaxPool(Op):
    """Maximum over windows of x[N,C,H,W]; padding never wins."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]


@dataclass(frozen=True, kw_only=True)
class AvgPool(Op):
    """TOSA AVG_POOL2D: the mean over the part of each window that lies inside x[N,C,H,W]."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    in_zp: int = 0
    out_zp: int = 0


@dataclass(frozen=True, kw_only=True)
class Reduce(Op):
    """sum, max or min over one axis, which stays with size 1."""

    fn: str
    axis: int


@dataclass(frozen=True, kw_only=True)
class Concat(Op):
    """Concatenates the inputs along ``axis``."""

    axis: int


@dataclass(frozen=True, kw_only=True)
class Slice(Op):
    """``size`` elements from ``start`` on, per axis."""

    start: Shape
    size: Shape


@dataclass(frozen=True, kw_only=True)
class Pad(Op):
    """Adds ``pads[axis] = (before, after)`` elements of ``value``."""

    pads: tuple[tuple[int, int], ...]
    value: float


@dataclass(frozen=True, kw_only=True)
class Reshape(Op):
    """Same elements in row-major order of ONNX's axes, other dimensions (those of the output tensor)."""


@dataclass(frozen=True, kw_only=True)
class Transpose(Op):
    """Axis ``i`` of the output is axis ``perm[i]`` of the input."""

    perm: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Tile(Op):
    """Repeats the input ``multiples[axis]`` times along each axis."""

    multiples: Shape


@dataclass(frozen=True, kw_only=True)
class Reverse(Op):
    """Reverses the order along one axis."""

    axis: int


@dataclass(frozen=True, kw_only=True)
class RowNumbers(Op):
    """Computed by the host: an ONNX model's indices, which may count from the end, as int32 from 0 to ``size`` − 1."""

    size: int
    executor: Executor = Executor.HOST


@dataclass(frozen=True, kw_only=True)
class Gather(Op):
    """Inputs x[N,K,C] and row numbers r[N,W] (int32, each below K): ``out[n, w] = x[n, r[n, w]]``."""


@dataclass(frozen=True, kw_only=True)
class Resize(Op):
    """TOSA RESIZE of x[N,C,H,W]; ``scale`` (ny, dy, nx, dx), ``offset`` and ``border`` (y, x) in units of 1/n.

    Integer bilinear results are scaled up by ``ny·nx`` (int32).
    """

    mode: str
    scale: tuple[int, int, int, int]
    offset: tuple[int, int]
    border: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Cast(Op):
    """Converts to the output tensor's type; float to integer rounds half to even and saturates."""


@dataclass(frozen=True, kw_only=True)
class Quantize(Op):
    """float32 to int8 with the output tensor's qparams, as ONNX QuantizeLinear does it."""


@dataclass(frozen=True, kw_only=True)
class Dequantize(Op):
    """int8 to float32 with the input tensor's qparams, as ONNX DequantizeLinear does it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Host(Op):
    """An ONNX node that stays as it is; its inputs are listed by tensor name, constants included.

    ``captured``: ONNX names of the values that its subgraphs read; their tensors follow the node's own inputs.
    """

    node: onnx.NodeProto
    captured: tuple[str, ...] = ()
    executor: Executor = Executor.HOST


DATA_MOVEMENT = (Concat, Slice, Pad, Reshape, Transpose, Tile, Reverse, Gather)  # operators that only move bytes

COMPUTE = (Conv2d, TransposeConv2d, MatMul, Table, Binary, Select, Unary, MaxPool, AvgPool, Reduce, Resize)
"""Operators worth a call of the accelerator; a partition without any of them stays on the host."""


@dataclass(frozen=True)
class Interface:
    """One input or output of the whole model."""

    name: str  # the ONNX graph's own name for it
    dtype: str  # element type that the ONNX graph declares
    tensor: str  # the integer graph's tensor that carries it


@dataclass(frozen=True, eq=False)
class IntegerGraph:
    """Operators in topological order."""

    ops: tuple[Op, ...]  # every operator
    tensors: Mapping[str, Tensor]  # by name, constants included
    constants: Mapping[str, Array]  # arrays of the constant tensors, by name
    # inputs, outputs: the ONNX model's own, in order
    inputs: tuple[Interface, ...]
    outputs: tuple[Interface, ...]
