"""ONNX Runtime's own operators on integers, and what stands for them in the plain form.

Its quantizers write them (``quantize_static`` with ``QuantFormat.QOperator``, ``quantize_dynamic``), and so does its
optimizer where a session's graph is saved. Slots are those of the runtime's operator documentation
(ContribOperators.md, 1.31).

``MatMulNBits`` keeps its weight transposed and packed into bytes, unsigned; what stands for it is a DequantizeLinear
with blocks of signed integers, and a MatMul. ``GatherBlockQuantized`` likewise, with a Gather.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import ml_dtypes
import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import constant_of
from inlay.quant.plain.graph import Bias, IntegerOperator, NotPlain, Operand, PlainGraph, input_of
from inlay.quant.qdq_graph import DEQUANTIZE
from inlay.targets.onnxruntime.rewrites.dynamic import DOMAIN, DYNAMIC_LSTM, write_lstm

_NAMED = re.compile(r"_(DQ_)?Q\d$")  # how the runtime's quantizer ends the names of such weights
_SIGNED = {2: np.dtype(ml_dtypes.int4), 4: np.dtype(ml_dtypes.int4), 8: np.dtype(np.int8)}


def write_matmul(node: ir.Node, plain: PlainGraph) -> None:
    """Put a MatMul, and an Add where there is a bias, in the place of a ``MatMulNBits``. Raises NotPlain."""
    packed, scales = constant_of(input_of(node, 1)), constant_of(input_of(node, 2))
    rows, columns, block = (node.attributes.get_int(name, 0) for name in ("K", "N", "block_size"))
    bits = node.attributes.get_int("bits", 4)
    if packed is None or scales is None:
        raise NotPlain("its weight or its scales are computed at run time")
    if bits not in _SIGNED or scales.dtype != np.float32:
        raise NotPlain(f"its weight has {bits} bits, and its scales are {scales.dtype}")
    if input_of(node, 4) is not None:
        raise NotPlain("its weight is quantized in groups that an index lists (g_idx)")
    count = -(-rows // block)
    zeros = np.full((columns, count), 1 << (bits - 1), np.uint8)
    if (given := input_of(node, 3)) is not None:
        stored = constant_of(given)
        if stored is None or stored.dtype != np.uint8:
            raise NotPlain("its zero points are no constant integers")
        zeros = _unpacked(stored.reshape(columns, -1), bits)[:, :count]
    integers = _unpacked(packed.reshape(columns, -1), bits)[:, :rows]
    weight = _in_blocks(node, plain, 1, (integers.T, scales.reshape(columns, count).T, zeros.T), 0, block, bits)
    product, bias = [node.inputs[0], weight], input_of(node, 5)
    if bias is None:
        plain.replace(node, "MatMul", product)
        return
    result = plain.insert(node, "MatMul", product, f"{node.outputs[0].name}_product", node.outputs[0].shape)
    plain.replace(node, "Add", [result, bias])


def write_gather(node: ir.Node, plain: PlainGraph) -> None:
    """Put a Gather in the place of a ``GatherBlockQuantized``. Raises NotPlain."""
    table, scales = constant_of(input_of(node, 0)), constant_of(input_of(node, 2))
    if table is None or scales is None:
        raise NotPlain("its table or its scales are computed at run time")
    bits, block = node.attributes.get_int("bits", 4), node.attributes.get_int("block_size", 128)
    axis = node.attributes.get_int("quantize_axis", 1) % table.ndim
    if bits not in _SIGNED or scales.dtype != np.float32:
        raise NotPlain(f"its table has {bits} bits, and its scales are {scales.dtype}")
    middle, given = 1 << (bits - 1), input_of(node, 3)
    stored = constant_of(given)
    if given is not None and stored is None:
        raise NotPlain("its zero points are computed at run time")
    if table.dtype == np.uint8:  # packed along the last axis
        table = _unpacked(table, bits)
        zeros = np.full(scales.shape, middle) if stored is None else _unpacked(stored, bits)[..., : scales.shape[-1]]
    else:  # of a type of as many bits
        lift = middle if table.dtype == ml_dtypes.int4 else 0
        table = table.astype(np.int32) + lift
        zeros = (np.zeros(scales.shape, np.int32) if stored is None else stored.astype(np.int32)) + lift
    weight = _in_blocks(node, plain, 0, (table, scales, zeros), axis, block, bits)
    gathers = ir.AttrInt64("axis", node.attributes.get_int("gather_axis", 0))
    plain.replace(node, "Gather", [weight, node.inputs[1]], [gathers])


def _unpacked(data: np.ndarray, bits: int) -> np.ndarray:
    """The unsigned integers in bytes, those in the lower bits first, along the last axis."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((data[..., None] >> shifts) & ((1 << bits) - 1)).reshape(*data.shape[:-1], -1)


def _in_blocks(
    node: ir.Node,
    plain: PlainGraph,
    slot: int,
    parts: tuple[np.ndarray, np.ndarray, np.ndarray],
    axis: int,
    block: int,
    bits: int,
) -> ir.Value:
    """What a DequantizeLinear of the constant at ``slot`` makes of unsigned integers, scales and zero points."""
    integers, scales, zeros = parts
    value = node.inputs[slot]
    assert value is not None
    name, middle = _NAMED.sub("", str(value.name)), 1 << (bits - 1)
    signed = [(a.astype(np.int32) - middle).astype(_SIGNED[bits]) for a in (integers, zeros)]
    inputs = [
        plain.constant(f"{name}_quantized", signed[0]),
        plain.constant(f"{name}_scale", np.asarray(scales, np.float32)),
    ]
    if np.any(zeros != middle):
        inputs.append(plain.constant(f"{name}_zero_point", signed[1]))
    attributes = {"axis": axis, "block_size": block}
    return plain.insert(node, DEQUANTIZE, inputs, f"{name}_dequantized", ir.Shape(integers.shape), attributes)


_DATA, _FIRST, _SECOND = Operand(0, 1, 2), Operand(0, 1, 2), Operand(3, 4, 5)
_LAST = "channels_last"


def _row(
    op_type: str, plain: str, inputs: tuple[Operand | Bias | int, ...], result: tuple[int, int]
) -> IntegerOperator:
    return IntegerOperator(op_type, DOMAIN, plain, inputs, result, dropped=frozenset({_LAST, "opset"}))


def _channels_first(node: ir.Node, plain: PlainGraph, row: IntegerOperator) -> None:
    if node.attributes.get_int(_LAST, 0):
        raise NotPlain("its channels come last, which no operator of ONNX has")
    plain.write_row(node, row)


def _gemm(node: ir.Node, plain: PlainGraph) -> None:
    weight = Operand(3, 4, 5, 0 if node.attributes.get_int("transB", 0) else 1)
    plain.write_row(node, _row(node.op_type, "Gemm", (_FIRST, weight, Bias(6)), (7, 8)))


def _concat(node: ir.Node, plain: PlainGraph) -> None:
    inputs = tuple(Operand(slot, slot + 1, slot + 2) for slot in range(2, len(node.inputs), 3))
    plain.write_row(node, _row(node.op_type, "Concat", inputs, (0, 1)))


def _dynamic_product(node: ir.Node, plain: PlainGraph) -> None:
    _product(node, plain, plain.dynamic(node, node.inputs[0]), plain.operand(node, Operand(1, 2, 3, -1)), 4)


def _product_to_float(node: ir.Node, plain: PlainGraph) -> None:
    _product(node, plain, plain.operand(node, Operand(0, 2, 4)), plain.operand(node, Operand(1, 3, 5, -1)), 6)


def _product(node: ir.Node, plain: PlainGraph, data: ir.Value, weight: ir.Value, slot: int) -> None:
    bias = input_of(node, slot)
    if bias is None:
        plain.replace(node, "MatMul", [data, weight])
        return
    wish = f"{node.outputs[0].name}_product"
    plain.replace(node, "Add", [plain.insert(node, "MatMul", [data, weight], wish, node.outputs[0].shape), bias])


def _no_integers(node: ir.Node, plain: PlainGraph) -> None:
    raise NotPlain("its weight is 4-bit floating point")


_POOLS = (
    _row("QLinearAveragePool", "AveragePool", (_DATA,), (3, 4)),
    _row("QLinearGlobalAveragePool", "GlobalAveragePool", (_DATA,), (3, 4)),
)

OPERATORS = (
    _row("QLinearAdd", "Add", (_FIRST, _SECOND), (6, 7)),
    _row("QLinearMul", "Mul", (_FIRST, _SECOND), (6, 7)),
    _row("QLinearLeakyRelu", "LeakyRelu", (_DATA,), (3, 4)),
    _row("QLinearSigmoid", "Sigmoid", (_DATA,), (3, 4)),
    _row("QLinearSoftmax", "Softmax", (_DATA,), (3, 4)),
    _row("QLinearWhere", "Where", (0, Operand(1, 2, 3), Operand(4, 5, 6)), (7, 8)),
    *(replace(row, write=partial(_channels_first, row=row)) for row in _POOLS),
    IntegerOperator("QLinearConcat", DOMAIN, "Concat", write=_concat),
    IntegerOperator("QGemm", DOMAIN, "Gemm", inputs=(_FIRST, _SECOND), write=_gemm),
    IntegerOperator("DynamicQuantizeMatMul", DOMAIN, "MatMul", write=_dynamic_product),
    IntegerOperator("MatMulIntegerToFloat", DOMAIN, "MatMul", inputs=(Operand(0, 2, 4),), write=_product_to_float),
    IntegerOperator(
        "QAttention", DOMAIN, "Attention", (Operand(0, 3, 6), Operand(1, 4, 7, 1), 2, 5, 8), plain_domain=DOMAIN
    ),
    IntegerOperator(
        "QEmbedLayerNormalization",
        DOMAIN,
        "EmbedLayerNormalization",
        (0, 1, *(Operand(slot, slot + 6, slot + 11) for slot in range(2, 7)), 7),
        plain_domain=DOMAIN,
    ),
    IntegerOperator(DYNAMIC_LSTM, DOMAIN, "LSTM", write=write_lstm),
    IntegerOperator("MatMulNBits", DOMAIN, "MatMul", write=write_matmul),
    IntegerOperator("GatherBlockQuantized", DOMAIN, "Gather", write=write_gather),
    IntegerOperator("MatMulBnb4", DOMAIN, "MatMul", write=_no_integers),
)
"""The rows, besides those of ONNX."""
