"""The state of one lowering: how each ONNX value is represented so far."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from inlay.model.graph import Node
from inlay.tosa import ir, rescale
from inlay.tosa.builder import Builder
from inlay.tosa.ir import Array, Executor, Shape
from inlay.tosa.quantized import QuantizedConstant, QuantizedTensor, Unsupported, int8_qparams
from inlay.tosa.static_model import StaticModel
from inlay.types import GRAPH_OUTPUT, QParams, QType

_COMMUTES_WITH_QUANTIZATION = frozenset(
    {
        "Relu", "Clip", "MaxPool", "GlobalMaxPool", "Identity", "Dropout", "Reshape", "Flatten", "Squeeze", "Unsqueeze",
        "Transpose", "Slice", "Split", "Gather", "Expand", "Tile", "DepthToSpace", "SpaceToDepth", "Concat",
    }
)  # fmt: skip
"""Rounding is monotonic and keeps zero: a producer may take the qparams found behind these operators (DESIGN §12)."""

WIDE_LIMIT = 127 << 8  # integer of the largest float value in 16 bits: its upper byte, rounded, fits 8 bits
_LEAST_RANGE = 1e-6  # range of a float value that is all zeros, so that its step stays a number

_HEADROOM = 16.0
"""Largest magnitude of a summand, over that of every quantized value that it ends in, at which it saturates.

A summand sixteen times as large as the largest sum would have to be cancelled by another one; a step of 16 bits is then
an eighth of one of 8 bits. Relu, Clip and movements add nothing to that, so only sums rely on it."""

_SUMS = frozenset({"Add", "Sub", "Sum"})


class Context:
    """The state of one lowering."""

    def __init__(self, model: StaticModel, on_host: frozenset[str] = frozenset(), widens: bool = True) -> None:
        self.model = model  # the ONNX model
        self.graph = model.graph  # its nodes, shapes and consumers
        self.builder = Builder()  # the integer graph so far
        self.quantized: dict[str, QuantizedTensor] = {}  # exact int8 form, by ONNX value
        self.constants: dict[str, QuantizedConstant] = {}  # quantized constants, by ONNX value
        # tensors that hold a value as it is (float on the host or in TOSA; int64 …), by ONNX value
        self.unquantized: dict[str, str] = {}
        self.on_host = on_host  # names of nodes that must stay on the host
        self.in_float = False  # data movement rules see float tensors instead of quantized ones
        self.widens = widens  # float values between integer operators are held in 16 bits (`wide_qparams`)
        self._dequantized: dict[tuple[str, Executor], str] = {}
        self._uint8: dict[str, str] = {}

    # The ONNX model

    def shape(self, value: str) -> Shape:
        """Static shape of an ONNX value."""
        if value in self.model.constants:
            return tuple(self.model.constants[value].shape)
        shape = self.model.shape(value)
        if shape is None:
            raise Unsupported(f"the shape of {value!r} is not known")
        if 0 in shape:
            raise Unsupported(f"{value!r} is empty")
        return shape

    def constant_input(self, node: Node, index: int) -> Array | None:
        """The array at an input slot: None where the slot is empty, Unsupported where it is not constant."""
        value = node.inputs[index] if index < len(node.inputs) else ""
        if not value:
            return None
        if value in self.model.constants:
            return self.model.constants[value]
        raise Unsupported(f"input {index} ({value!r}) is not constant")

    def scale_and_zero_point(self, node: Node) -> tuple[Array, Array]:
        """Scale and zero point of a Q/DQ node; the zero point has the quantized type."""
        scale = self.constant_input(node, 1)
        zero = self.constant_input(node, 2)
        if scale is None:
            raise Unsupported("it has no scale")
        if node.attributes.get("block_size"):
            raise Unsupported("it quantizes in blocks")
        if zero is None:
            name = "uint8"
            if node.op_type == "DequantizeLinear":
                name = self.model.dtypes.get(node.inputs[0], "uint8")
            zero = np.zeros(scale.shape, name)
        return scale, zero

    def output_qparams(self, value: str) -> QParams:
        """The qparams that every consumer of ``value`` quantizes it with, found through activations and data movement.

        Raises:
            Unsupported: a consumer reads it in float, there is none, or they quantize it differently.
        """
        found: dict[QParams, str] = {}
        pending, seen = [value], set()
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in self.graph.captured:
                raise Unsupported(f"a subgraph reads {name!r} in float")
            for port in self.graph.consumers(name):
                if port.node == GRAPH_OUTPUT:
                    raise Unsupported(f"its output {name!r} is a float output of the model", name)
                node = self.graph.node(port.node)
                if node.op_type == "QuantizeLinear" and port.slot == 0:
                    found.setdefault(int8_qparams(*self.scale_and_zero_point(node)), node.name)
                elif self._commutes(node, port.slot):
                    pending.extend(v for v in node.outputs if v)
                else:
                    raise Unsupported(f"{node.name!r} ({node.op_type}) reads its output in float", name)
        if not found:
            raise Unsupported("nothing reads its output")
        if len(found) > 1:
            raise Unsupported(f"its output is quantized with {len(found)} different sets of qparams", value)
        return next(iter(found))

    def _commutes(self, node: Node, slot: int) -> bool:
        data = slot == 0 or node.op_type == "Concat"
        return data and node.op_type in _COMMUTES_WITH_QUANTIZATION and node.name not in self.on_host

    def wide_qparams(self, value: str, bound: float) -> QParams:
        """16-bit qparams of a float value of at most ``bound`` that the model does not quantize.

        Where Q/DQ nodes stand at the inputs of weighted operators only, what lies between those is float: sums,
        activations, gates. Its integers have 16 bits with the zero point 0, over a range that no value can leave: of a
        sum of products, the one that its weights allow. Where every way on ends in a QuantizeLinear, values that
        saturate there need no more range than :data:`_HEADROOM` allows.
        """
        bound = max(min(bound, self._largest_needed(value)), _LEAST_RANGE)
        return QParams(QType.INT16, (bound / WIDE_LIMIT,), (0,))

    def _largest_needed(self, value: str) -> float:
        """:data:`_HEADROOM` times the range of the Q nodes that all ways from ``value`` end in; infinite otherwise."""
        largest, pending, seen = 0.0, [value], {value}
        while pending:
            name = pending.pop()
            if name in self.graph.captured:
                return math.inf
            for port in self.graph.consumers(name):
                node = None if port.node == GRAPH_OUTPUT else self.graph.node(port.node)
                if node is not None and node.op_type == "QuantizeLinear" and port.slot == 0:
                    to = int8_qparams(*self.scale_and_zero_point(node))
                    largest = max(largest, QuantizedTensor("", to).bound)
                elif node is not None and (node.op_type in _SUMS or self._commutes(node, port.slot)):
                    fresh = [v for v in node.outputs if v and v not in seen]
                    seen.update(fresh)
                    pending.extend(fresh)
                else:
                    return math.inf
        return largest * _HEADROOM

    # How a value is represented

    def quantized_input(self, value: str, wide: bool = False) -> QuantizedTensor:
        """The exact int8 form of a value, or with ``wide`` its 16-bit form where it has no other."""
        if self.in_float:
            return QuantizedTensor(self.unquantized_tensor(value, Executor.TOSA), None)
        tensor = self.quantized.get(value)
        if tensor is None and value in self.constants:
            tensor = self._int8_constant(value, self.constants[value])
        if tensor is None and self.model.dtypes.get(value) in ("int8", "uint8"):
            return self.int8_tensor(value)
        if tensor is None:
            what = "is a float constant" if value in self.model.constants else "is not quantized"
            raise Unsupported(f"its input {value!r} {what}", value)
        if tensor.wide and not wide:
            raise Unsupported(f"its input {value!r} is not quantized", value)
        return tensor

    def int8_tensor(self, value: str) -> QuantizedTensor:
        """The int8 tensor that carries an ONNX integer value; uint8 is converted by an explicit RESCALE.

        That conversion keeps Concat, Slice, Reshape … behind a uint8 model input integer (FIELD §4).
        """
        known = self.quantized.get(value)
        if known is not None and known.tensor in self.builder.tensors:
            return known
        tensor = self.unquantized.get(value)
        dtype = self.builder.tensors[tensor].dtype if tensor is not None else ""
        if tensor is None or dtype not in ("int8", "uint8"):
            raise Unsupported(f"its input {value!r} is not an 8-bit tensor of the integer graph")
        if dtype == "int8":
            self.quantized[value] = QuantizedTensor(tensor, None)
        else:
            inner = self._shifted(value, tensor, f"{value}/int8", "int8", in_zp=0, out_zp=-128)
            self.quantized[value] = QuantizedTensor(inner, None, unsigned=True)
        return self.quantized[value]

    def onnx_integer_tensor(self, value: str) -> str:
        """A tensor with an integer ONNX value in its own type: int8 as it is, uint8 through an explicit RESCALE."""
        known = self.quantized[value]
        if not known.unsigned:
            return known.tensor
        if self._uint8.get(value) not in self.builder.tensors:
            self._uint8[value] = self._shifted(value, known.tensor, value, "uint8", in_zp=-128, out_zp=0)
        return self._uint8[value]

    def _shifted(self, value: str, tensor: str, base: str, dtype: str, in_zp: int, out_zp: int) -> str:
        """uint8 as int8 or the other way round: the same integers, 128 lower or higher."""
        multiplier, shift = multipliers_and_shifts([1.0])
        return self.builder.add(
            ir.Rescale, self._producer(value), [tensor], base, dtype, self.builder.shape(tensor),
            multiplier=multiplier, shift=shift, in_zp=in_zp, out_zp=out_zp,
        )  # fmt: skip

    def _int8_constant(self, value: str, constant: QuantizedConstant) -> QuantizedTensor:
        qparams = int8_qparams(constant.scale.astype(np.float32), constant.zero_point)
        offset = 128 if constant.values.dtype.name == "uint8" else 0
        ints = (constant.values.astype(np.int16) - offset).astype(np.int8)
        self.quantized[value] = QuantizedTensor(self.builder.constant(value, ints, qparams), qparams)
        return self.quantized[value]

    def unquantized_tensor(self, value: str, executor: Executor) -> str:
        """A tensor with the value itself, dequantized by ``executor`` where only its integers exist."""
        if value in self.unquantized:
            return self.unquantized[value]
        if value in self.constants:
            real = self.constants[value].real.astype(np.float32)
            self.unquantized[value] = self.builder.constant(f"{value}/float", real)
            return self.unquantized[value]
        if value in self.model.constants:
            self.unquantized[value] = self.builder.constant(value, self.model.constants[value])
            return self.unquantized[value]
        quantized = self.quantized[value]
        if quantized.qparams is None:
            return self.onnx_integer_tensor(value)
        key = (value, executor)
        if self._dequantized.get(key) not in self.builder.tensors:
            self._dequantized[key] = self._dequantize(value, quantized, executor)
        return self._dequantized[key]

    def _dequantize(self, value: str, quantized: QuantizedTensor, executor: Executor) -> str:
        base = value if executor is Executor.CALLER else f"{value}/float"
        node, shape = self._producer(value), self.builder.shape(quantized.tensor)
        if executor is not Executor.TOSA:
            return self.builder.add(ir.Dequantize, node, [quantized.tensor], base, "float32", shape, executor=executor)
        real = self.builder.add(ir.Cast, node, [quantized.tensor], base, "float32", shape)
        for fn, number in (("sub", float(quantized.zp)), ("mul", quantized.scale)):
            operands = [real, self.scalar(number, len(shape))]
            real = self.builder.add(ir.Binary, node, operands, base, "float32", shape, fn=fn)
        return real

    def forget(self, values: Sequence[str]) -> None:
        """Drop what was recorded of ``values``."""
        for value in values:
            self.quantized.pop(value, None)
            self.unquantized.pop(value, None)

    def scalar(self, value: float, rank: int) -> str:
        """A float constant with one element."""
        return self.builder.constant("scalar", np.full((1,) * rank, value, np.float32))

    def _producer(self, value: str) -> str:
        producer = self.graph.producer(value)
        return "" if producer is None else producer.name


def multipliers_and_shifts(factors: Sequence[float]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Fixed-point form of real factors, for a RESCALE."""
    try:
        return rescale.multipliers_and_shifts([float(f) for f in factors])
    except ValueError as error:
        raise Unsupported(str(error)) from error
