"""Products and LSTMs whose data are quantized in each inference, as ONNX Runtime has kernels for them.

Of products: The plain form, ``DynamicQuantizeLinear -> DequantizeLinear -> MatMul`` with a dequantized weight, is fused
only where no bias follows: the runtime makes a float Gemm of the two before it looks for integer kernels. Written as
``DynamicQuantizeLinear -> MatMulInteger -> Cast -> Mul`` it becomes one kernel, or two where several products read one
value. The integers are the same; the scales are multiplied behind the sum rather than before.

Of LSTMs: ``DynamicQuantizeLSTM`` takes 8-bit weights, transposed, and quantizes the data and the state of every step by
their own range. The plain form, an LSTM that reads dequantized values, runs in float.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx
import onnx_ir as ir

from inlay.model.graph import Graph, Node
from inlay.model.passes.steps import constant_of
from inlay.quant.notes import TRANSPOSED
from inlay.quant.plain.graph import NotPlain, PlainGraph
from inlay.quant.qdq_graph import DEQUANTIZE, DYNAMIC_QUANTIZE, QDQGraph
from inlay.quant.rewrite import Rewrite
from inlay.targets.conditions import plain_product
from inlay.types import Port, QType

PRODUCT = "MatMulInteger"
_TURNED = "_turned"  # ends the name of a product whose weight was transposed


@dataclass(frozen=True)
class DynamicProduct(Rewrite[bool]):
    """``MatMul`` and ``Gemm`` of a dynamically quantized activation and a quantized weight, as ``MatMulInteger``."""

    name = "dynamic product"
    exact = False
    reason = "ONNX Runtime fuses it to DynamicQuantizeMatMul; dequantized operands are multiplied in float"
    source = "128x384 by 384x1536: 0.84 ms, in float 2.57, in the plain form 3.48 (ONNX Runtime 1.31, AVX512-VNNI)"

    def applies(self, graph: Graph, node: Node) -> bool | None:
        """Whether ``node`` is such a product once it is quantized; the value says whether its weight is transposed."""
        if node.op_type not in ("MatMul", "Gemm") or plain_product(graph, node) is not None:
            return None
        return bool(node.op_type == "Gemm" and node.attributes.get("transB", 0))

    def apply(self, qdq: QDQGraph, forms: Mapping[str, bool]) -> None:
        """Rewrite products both of whose operands are dequantized, the first one from DynamicQuantizeLinear."""
        replaced: set[str] = set()
        for node in list(qdq.graph.node):
            data, weight = (qdq.dequantizer(v) for v in node.input[:2]) if node.name in forms else (None, None)
            if data is None or weight is None or not qdq.owns(weight):
                continue
            if data.input[0] not in qdq.producers or qdq.producers[data.input[0]].op_type != DYNAMIC_QUANTIZE:
                continue
            turned = forms[node.name]
            if turned:
                qdq.set_constant(weight.input[0], partial(_transposed, qdq, weight.input[0]), PRODUCT, TRANSPOSED)
            made = _integer(node, data, weight, turned, qdq)
            node.name = qdq.unique(f"{node.name}_float")  # it goes, and its name stays with the last of the others
            qdq.insert(made, before=node)
            replaced.add(node.name)
            for dq in (data, weight):
                qdq.release(dq)
        qdq.finish(unused=replaced)


def _transposed(qdq: QDQGraph, name: str) -> np.ndarray:
    return np.ascontiguousarray(qdq.constant(name).T)


def _integer(
    node: onnx.NodeProto, data: onnx.NodeProto, weight: onnx.NodeProto, turned: bool, qdq: QDQGraph
) -> list[onnx.NodeProto]:
    """The operators that compute what ``node`` does, the last of them with its name."""
    bias = node.input[2] if len(node.input) > 2 else ""

    def value(what: str) -> str:
        return qdq.unique(f"{node.name}_{what}")

    names = value("integers"), value("sums"), value("scale"), value("product") if bias else node.output[0]
    integers, sums, scale, product = names
    own = [qdq.unique(f"{node.name}_{PRODUCT}") + (_TURNED if turned else ""), value("Cast"), value("Scale")]
    make = onnx.helper.make_node
    zeros = [data.input[2], *weight.input[2:3]]
    if len(zeros) > 1 and not qdq.constant(zeros[1]).any():  # as if it were not given: one number for each channel
        qdq.drop(zeros.pop())
    made = [
        make(PRODUCT, [data.input[0], weight.input[0], *zeros], [integers], own[0]),
        make("Cast", [integers], [sums], own[1], to=onnx.TensorProto.FLOAT),
        make("Mul", [data.input[1], weight.input[1]], [scale], own[2]),
        make("Mul", [sums, scale], [product], value("Mul") if bias else node.name),
    ]
    return [*made, make("Add", [product, bias], [node.output[0]], node.name)] if bias else made


LSTM, DYNAMIC_LSTM, DOMAIN = "LSTM", "DynamicQuantizeLSTM", "com.microsoft"
_OPERANDS = 8  # of LSTM; in the other operator scales and zero points come behind them
_LAYOUT = "layout"  # also stated where it is the usual one; the other operator does not know the attribute
_AXIS = 1  # of the gates in the weights of LSTM, shape (directions, 4 hidden, inputs)


def lstm_form(graph: Graph, node: Node) -> str | None:
    """Why ``node``, an LSTM, has no dynamic form, or None."""
    if node.attributes.get(_LAYOUT, 0):
        return "its batch comes first"
    if len(node.inputs) >= _OPERANDS and node.inputs[_OPERANDS - 1]:
        return "it has peepholes"
    if any(len(graph.consumers(v)) > 1 for v in node.inputs[1:3]):
        return "its weights have other readers"
    return None


@dataclass(frozen=True)
class DynamicLstm(Rewrite[bool]):
    """An LSTM of dynamically quantized data and quantized weights, as ``DynamicQuantizeLSTM``."""

    name = "dynamic LSTM"
    exact = False
    reason = "ONNX Runtime has an 8-bit LSTM as an operator of its own; LSTM reads dequantized weights in float"
    source = "two bidirectional layers of 256 over 64 steps: 0.34 of the time in float (ONNX Runtime 1.31, AVX512-VNNI)"

    def applies(self, graph: Graph, node: Node) -> bool | None:
        """Whether ``node`` is such an LSTM once it is quantized."""
        return True if node.op_type == LSTM and lstm_form(graph, node) is None else None

    def apply(self, qdq: QDQGraph, forms: Mapping[str, bool]) -> None:
        """Rewrite LSTMs whose data come from DynamicQuantizeLinear, and whose weights are dequantized.

        Data that a static Q/DQ pair rounds, because others read them so, stay behind it: there is no kernel that takes
        the integers, and in LSTM the weights would be dequantized in every inference.
        """
        unused: set[str] = set()
        for node in qdq.graph.node:
            dqs = [qdq.dequantizer(v) for v in node.input[:3]] if node.name in forms else []
            if not dqs or any(dq is None for dq in dqs):
                continue
            data, *weights = (dq for dq in dqs if dq is not None)
            source = qdq.producers.get(data.input[0])
            if source is None or not all(qdq.owns(dq) for dq in weights):
                continue
            node.op_type, node.domain = DYNAMIC_LSTM, DOMAIN
            attributes = [a for a in node.attribute if a.name != _LAYOUT]
            del node.attribute[:]
            node.attribute.extend(attributes)
            dynamic = source.op_type == DYNAMIC_QUANTIZE
            node.input[0] = source.input[0] if dynamic else data.output[0]
            node.input.extend([""] * (_OPERANDS - len(node.input)))
            for slot, dq in enumerate(weights, 1):
                count = qdq.constant(dq.input[0]).shape[0]
                turned = partial(_turned, qdq, dq.input[0])
                qdq.set_constant(dq.input[0], turned, DYNAMIC_LSTM, (("transpose", (0, 2, 1)),))
                axis = next((a.i for a in dq.attribute if a.name == "axis"), _AXIS)
                for name in dq.input[1:3]:
                    values = partial(_by_direction, qdq.constant(name), count, axis)
                    rows = qdq.shape(name) and axis == _AXIS
                    back = (("crop", ((0, 1),)), ("reshape", qdq.shape(name))) if rows else ()
                    qdq.set_constant(name, values, DYNAMIC_LSTM, back)
                node.input[slot] = dq.input[0]
                node.input.extend(dq.input[1:3])
                unused.add(dq.name)
            qdq.uses[data.output[0]] -= dynamic
            if not qdq.uses[data.output[0]]:
                unused |= {data.name, source.name}
        qdq.finish(unused)


def _turned(qdq: QDQGraph, name: str) -> np.ndarray:
    return np.ascontiguousarray(qdq.constant(name).swapaxes(1, 2))


def _by_direction(values: np.ndarray, directions: int, axis: int) -> np.ndarray:
    """One row, or one number, for each direction."""
    if values.ndim and axis == _AXIS:
        return np.tile(values.reshape(1, -1), (directions, 1))
    return np.broadcast_to(values, (directions,)).copy()


def write_lstm(node: ir.Node, plain: PlainGraph) -> None:
    """Put an LSTM of dequantized operands in the place of ``node``, whoever wrote it.

    Where each direction has scales of its own for all gates, which no one axis can state, the weights become floats, to
    be quantized anew.

    Raises:
        NotPlain: its weights or their scales are computed at run time.
    """
    given = [*node.inputs, *[None] * (_OPERANDS + 4 - len(node.inputs))]
    weights = [_Weight.of(given[slot], *given[_OPERANDS + 2 * slot - 2 :][:2]) for slot in (1, 2)]
    data = given[0]
    static = data is not None and (before := data.producer()) is not None and before.op_type == DEQUANTIZE
    operands: list[ir.Value | None] = [data if static else plain.dynamic(node, data)]
    for weight in weights:
        turned = weight.integers.swapaxes(1, 2)
        if weight.axis is None:
            array = (turned.astype(np.int64) - weight.zero[..., None]).astype(np.float32) * weight.scale[..., None]
            operands.append(plain.constant(str(weight.value.name).removesuffix("_quantized"), array))
            continue
        scale, zero = (plain.constant(f"{weight.value.name}_{n}", getattr(weight, n)) for n in ("scale", "zero"))
        integers = plain.changed(weight.value, turned)
        operands.append(plain.dequantized(node, integers, scale, zero, weight.axis))
    operands += given[3:_OPERANDS]
    while operands[-1] is None:
        operands.pop()
    new = plain.replace(node, LSTM, operands, node.attributes.values())
    for slot, weight in enumerate(weights, 1):
        if weight.axis is None:
            plain.anew[Port(str(new.name), slot)] = QType(str(weight.integers.dtype))


@dataclass(frozen=True, eq=False)
class _Weight:
    """A weight of the runtime's operator; ``axis``: of its scales, as LSTM has it, or None where there are two."""

    value: ir.Value
    integers: np.ndarray
    scale: np.ndarray
    zero: np.ndarray
    axis: int | None

    @classmethod
    def of(cls, value: ir.Value | None, scale: ir.Value | None, zero: ir.Value | None) -> _Weight:
        integers, scales, zeros = constant_of(value), constant_of(scale), constant_of(zero)
        if value is None or integers is None or scales is None:
            raise NotPlain("its weights or their scales are computed at run time")
        zeros = np.zeros_like(scales, integers.dtype) if zeros is None else zeros
        if all(np.all(a == a[:1]) for a in (scales, zeros)):  # one for all directions
            return cls(value, integers, scales[0], zeros[0], _AXIS)
        if scales.ndim == 1:
            return cls(value, integers, scales, zeros, 0)
        return cls(value, integers, scales, zeros, None)
