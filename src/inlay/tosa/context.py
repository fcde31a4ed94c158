"""What the lowering rules ask and tell: how a value is represented, how its result must be quantized, and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inlay.model.graph import Node
from inlay.tosa import ir, rescale
from inlay.tosa.builder import Builder
from inlay.tosa.ir import Array, Place, Shape
from inlay.tosa.prepare import Source
from inlay.types import GRAPH_OUTPUT, QParams, QType

THROUGH = frozenset(
    {"Relu", "Clip", "MaxPool", "Identity", "Dropout", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"}
)
"""Operators that quantization commutes with exactly, because rounding is monotonic and keeps zero: a producer's output
numbers are looked for through them (DESIGN §12)."""


class Refused(Exception):
    """A rule cannot lower the node at hand; ``str()`` is the reason."""


@dataclass(frozen=True)
class Rep:
    """An ONNX value that equals ``(tensor − zero_point)·scale`` exactly.

    Attributes:
        tensor: int8 tensor of the integer graph.
        qparams: signed 8-bit numbers; None for an integer value whose numbers the next DequantizeLinear gives.
        unsigned: the ONNX value is uint8; the tensor holds it less 128.
    """

    tensor: str
    qparams: QParams | None
    unsigned: bool = False

    @property
    def scale(self) -> float:
        """Scale of a quantized float value."""
        return self.numbers.scale[0]

    @property
    def zp(self) -> int:
        """Zero point of a quantized float value."""
        return self.numbers.zero_point[0]

    @property
    def numbers(self) -> QParams:
        """The qparams, which a float value always has."""
        if self.qparams is None:
            raise Refused("an input is an integer tensor without quantization parameters")
        return self.qparams


@dataclass(frozen=True, eq=False)
class Weight:
    """A dequantized constant: ``(values − zero_point)·scale`` along ``axis``."""

    values: Array
    scale: Array
    zero_point: Array
    axis: int | None

    @property
    def real(self) -> Array:
        """The numbers it stands for, in float64."""
        along = [1] * self.values.ndim
        if self.axis is not None and self.scale.size > 1:
            along[self.axis] = -1
        scale, zero = (a.reshape(along) if a.size > 1 else a.reshape(()) for a in (self.scale, self.zero_point))
        return np.asarray((self.values.astype(np.int64) - zero) * scale.astype(np.float64))


def int8_params(scale: Array, zero_point: Array) -> QParams:
    """Per-tensor activation numbers as signed 8 bit: uint8 is the same lattice, 128 lower."""
    if scale.size != 1:
        raise Refused("an activation is quantized per channel")
    if zero_point.dtype.name not in ("int8", "uint8"):
        raise Refused(f"an activation is quantized to {zero_point.dtype.name}: only 8 bit is lowered")
    value = float(scale.reshape(()))
    if not (np.isfinite(value) and value > 0):
        raise Refused(f"an activation has the scale {value}")
    zero = int(zero_point.reshape(())) - (128 if zero_point.dtype.name == "uint8" else 0)
    return QParams(QType.INT8, (value,), (zero,))


class Context:
    """The state of one lowering: the source model, the graph under construction, and how each value is represented.

    Attributes:
        source: the prepared ONNX model.
        builder: the integer graph so far.
        reps: exact integer form, by ONNX value.
        floats: tensors that hold a value as it is (float on the host or in TOSA; int64 …), by ONNX value.
        forced: names of nodes that must stay on the host.
        in_float: rules that only move data see float tensors instead of quantized ones.
    """

    def __init__(self, source: Source, forced: frozenset[str] = frozenset()) -> None:
        self.source = source
        self.graph = source.graph
        self.builder = Builder()
        self.reps: dict[str, Rep] = {}
        self.floats: dict[str, str] = {}
        self.weights: dict[str, Weight] = {}
        self.forced = forced
        self.in_float = False
        self._dequantized: dict[tuple[str, Place], str] = {}
        self._integer_inputs: dict[str, str] = {}

    # What a rule may ask of the source

    def shape(self, value: str) -> Shape:
        """Static shape of an ONNX value."""
        if value in self.source.constants:
            return tuple(self.source.constants[value].shape)
        shape = self.source.shape(value)
        if shape is None:
            raise Refused(f"the shape of {value!r} is not known")
        if 0 in shape:
            raise Refused(f"{value!r} is empty")
        return shape

    def constant(self, node: Node, index: int) -> Array | None:
        """The array at an input slot: None where the slot is empty; refused where it is not constant."""
        value = node.inputs[index] if index < len(node.inputs) else ""
        if not value:
            return None
        if value in self.source.constants:
            return self.source.constants[value]
        raise Refused(f"input {index} ({value!r}) is not constant")

    def weight(self, value: str) -> Weight | None:
        """The dequantized constant ``value``, or None where it is something else."""
        return self.weights.get(value)

    def quantized(self, value: str) -> Rep:
        """The exact integer form of a value."""
        if self.in_float:
            return Rep(self.as_float(value, Place.TOSA), None)
        rep = self.reps.get(value)
        if rep is None and value in self.weights:
            rep = self._constant_rep(value, self.weights[value])
        if rep is None and self.source.dtypes.get(value) in ("int8", "uint8"):
            return self.integers(value)
        if rep is None:
            what = "is a float constant" if value in self.source.constants else "is not quantized"
            raise Refused(f"its input {value!r} {what}")
        return rep

    def integers(self, value: str) -> Rep:
        """The int8 tensor that carries an ONNX integer value; an unsigned one crosses by an explicit requantize.

        That bridge is what keeps Concat, Slice, Reshape … behind a uint8 model input integer (FIELD §4).
        """
        rep = self.reps.get(value)
        if rep is not None and rep.tensor in self.builder.tensors:
            return rep
        tensor = self.floats.get(value)
        dtype = self.builder.tensors[tensor].dtype if tensor is not None else ""
        if tensor is None or dtype not in ("int8", "uint8"):
            raise Refused(f"its input {value!r} is not an 8-bit tensor of the integer graph")
        if dtype == "int8":
            rep = Rep(tensor, None)
        else:
            multiplier, shift = self.factors([1.0])
            inner = self.builder.add(
                ir.Rescale, self._maker(value), [tensor], f"{value}/int8", "int8", self.builder.shape(tensor),
                multiplier=multiplier, shift=shift, in_zp=0, out_zp=-128,
            )  # fmt: skip
            rep = Rep(inner, None, unsigned=True)
        self.reps[value] = rep
        return rep

    def _constant_rep(self, value: str, weight: Weight) -> Rep:
        numbers = int8_params(weight.scale.astype(np.float32), weight.zero_point)
        unsigned = weight.values.dtype.name == "uint8"
        ints = (weight.values.astype(np.int16) - (128 if unsigned else 0)).astype(np.int8)
        rep = Rep(self.builder.constant(value, ints, numbers), numbers)
        self.reps[value] = rep
        return rep

    def wanted(self, value: str) -> QParams:
        """The numbers that every reader of ``value`` quantizes it with, found through activations and data movement."""
        found: dict[QParams, str] = {}
        pending, seen = [value], set()
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in self.graph.captured:
                raise Refused(f"a subgraph reads {name!r} in float")
            for port in self.graph.consumers(name):
                if port.node == GRAPH_OUTPUT:
                    raise Refused(f"its output {name!r} is a float output of the model")
                node = self.graph.node(port.node)
                if node.op_type == "QuantizeLinear" and port.slot == 0:
                    found.setdefault(self.q_params(node), node.name)
                elif node.op_type in THROUGH and port.slot == 0 and node.name not in self.forced:
                    pending.append(node.outputs[0])
                else:
                    raise Refused(f"{node.name!r} ({node.op_type}) reads its output in float")
        if not found:
            raise Refused("nothing reads its output")
        if len(found) > 1:
            raise Refused(f"its output is quantized with {len(found)} different sets of numbers")
        return next(iter(found))

    def q_params(self, node: Node) -> QParams:
        """Activation numbers of a QuantizeLinear or DequantizeLinear node, as signed 8 bit."""
        scale, zero = self.q_arrays(node)
        return int8_params(scale, zero)

    def q_arrays(self, node: Node) -> tuple[Array, Array]:
        """Scale and zero point of a Q/DQ node; the zero point has the quantized type."""
        scale = self.constant(node, 1)
        zero = self.constant(node, 2)
        if scale is None:
            raise Refused("it has no scale")
        if node.attributes.get("block_size"):
            raise Refused("it quantizes in blocks")
        if zero is None:
            name = "uint8"
            if node.op_type == "DequantizeLinear":
                name = self.source.dtypes.get(node.inputs[0], "uint8")
            zero = np.zeros(scale.shape, name)
        return scale, zero

    # What a rule may tell

    def set(self, value: str, tensor: str, qparams: QParams) -> None:
        """From now on ``value`` is represented by the int8 ``tensor``."""
        self.reps[value] = Rep(tensor, qparams)

    def note(self, value: str, rep: Rep) -> None:
        """From now on ``value`` is what ``rep`` says, or the float tensor that it holds."""
        if self.builder.tensors[rep.tensor].dtype == "float32":
            self.floats[value] = rep.tensor
        else:
            self.reps[value] = rep

    def requantize(self, node: str, rep: Rep, to: QParams, base: str) -> str:
        """An int8 tensor with the numbers ``to``: the same one, or a RESCALE of it."""
        if rep.numbers == to:
            return rep.tensor
        return self.rescale(node, rep.tensor, [rep.scale / to.scale[0]], base, to, in_zp=rep.zp)

    def rescale(
        self,
        node: str,
        tensor: str,
        scales: Sequence[float],
        base: str,
        to: QParams,
        in_zp: int = 0,
        axis: int | None = None,
    ) -> str:
        """RESCALE to int8 with the numbers ``to``; ``scales`` are real factors, one per tensor or per channel."""
        multiplier, shift = self.factors(scales)
        return self.builder.add(
            ir.Rescale, node, [tensor], base, "int8", self.builder.shape(tensor), to,
            multiplier=multiplier, shift=shift, in_zp=in_zp, out_zp=to.zero_point[0],
            axis=axis if len(scales) > 1 else None,
        )  # fmt: skip

    def widen(self, node: str, tensor: str, in_zp: int, factor: float = 1.0) -> str:
        """``(tensor − in_zp)·factor`` as int32."""
        multiplier, shift = self.factors([factor])
        return self.builder.add(
            ir.Rescale, node, [tensor], f"{tensor}/wide", "int32", self.builder.shape(tensor),
            multiplier=multiplier, shift=shift, in_zp=in_zp,
        )  # fmt: skip

    @staticmethod
    def factors(scales: Sequence[float]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Multipliers and shifts of real factors."""
        try:
            return rescale.multipliers_and_shifts([float(s) for s in scales])
        except ValueError as error:
            raise Refused(str(error)) from error

    def reshape(self, node: str, tensor: str, shape: Sequence[int], base: str) -> str:
        """``tensor`` with other dimensions (itself when they are the same)."""
        declared = self.builder.tensors[tensor]
        if declared.dims == tuple(shape):
            return tensor
        return self.builder.add(ir.Reshape, node, [tensor], base, declared.dtype, tuple(shape), declared.qparams)

    def as_float(self, value: str, place: Place) -> str:
        """A tensor with the value itself, dequantized at ``place`` where only its integers exist."""
        if value in self.floats:
            return self.floats[value]
        if value in self.weights:
            weight = self.weights[value]
            name = self.builder.constant(f"{value}/float", weight.real.astype(np.float32))
            self.floats[value] = name
            return name
        if value in self.source.constants:
            name = self.builder.constant(value, self.source.constants[value])
            self.floats[value] = name
            return name
        rep = self.reps[value]
        if rep.qparams is None:
            return self.as_integer(value)
        key = (value, place)
        if key not in self._dequantized or self._dequantized[key] not in self.builder.tensors:
            base = value if place is Place.BOUNDARY else f"{value}/float"
            node, shape = self._maker(value), self.builder.shape(rep.tensor)
            if place is Place.TOSA:
                wide = self.builder.add(ir.Cast, node, [rep.tensor], base, "float32", shape)
                centred = self.binary(node, "sub", wide, self.scalar(float(rep.zp), len(shape)), base)
                name = self.binary(node, "mul", centred, self.scalar(rep.scale, len(shape)), base)
            else:
                name = self.builder.add(ir.Dequantize, node, [rep.tensor], base, "float32", shape, place=place)
            self._dequantized[key] = name
        return self._dequantized[key]

    def scalar(self, value: float, rank: int) -> str:
        """A float constant with one element."""
        return self.builder.constant("scalar", np.full((1,) * rank, value, np.float32))

    def binary(self, node: str, fn: str, a: str, b: str, base: str) -> str:
        """A float operator of two tensors of equal rank."""
        shape = np.broadcast_shapes(self.builder.shape(a), self.builder.shape(b))
        return self.builder.add(ir.Binary, node, [a, b], base, "float32", shape, fn=fn)

    def quantize_in_tosa(self, node: str, tensor: str, to: QParams, base: str) -> str:
        """Float to int8 in float TOSA: scale, limit, round half to even, and only then add the zero point.

        Multiplies by the reciprocal scale where ONNX divides: ties can fall the other way.
        """
        shape = self.builder.shape(tensor)
        zero = to.zero_point[0]
        steps = self.binary(node, "mul", tensor, self.scalar(1 / to.scale[0], len(shape)), f"{base}/steps")
        low, high = float(to.qtype.qmin - zero), float(to.qtype.qmax - zero)
        limited = self.builder.add(ir.Clamp, node, [steps], f"{base}/limited", "float32", shape, low=low, high=high)
        rounded = self.builder.add(ir.Cast, node, [limited], f"{base}/rounded", "int32", shape)
        offset = self.builder.constant(f"{base}/offset", np.full((1,) * len(shape), zero, np.int32))
        moved = self.builder.add(ir.Binary, node, [rounded, offset], f"{base}/moved", "int32", shape, fn="add")
        return self.builder.add(ir.Cast, node, [moved], base, "int8", shape, to)

    def as_integer(self, value: str) -> str:
        """A tensor with an integer ONNX value in its own type: int8 as it is, uint8 through an explicit RESCALE."""
        rep = self.reps[value]
        if not rep.unsigned:
            return rep.tensor
        if value not in self._integer_inputs or self._integer_inputs[value] not in self.builder.tensors:
            multiplier, shift = self.factors([1.0])
            self._integer_inputs[value] = self.builder.add(
                ir.Rescale, self._maker(value), [rep.tensor], value, "uint8", self.builder.shape(rep.tensor),
                multiplier=multiplier, shift=shift, in_zp=-128, out_zp=0,
            )  # fmt: skip
        return self._integer_inputs[value]

    def _maker(self, value: str) -> str:
        producer = self.graph.producer(value)
        return "" if producer is None else producer.name
