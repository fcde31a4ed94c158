"""ONNX Runtime's own operators on integers, and what stands for them in the plain form.

Its quantizers write them (``quantize_static`` with ``QuantFormat.QOperator``, ``quantize_dynamic``), and so does its
optimizer where a session's graph is saved. Slots are those of the runtime's operator documentation
(ContribOperators.md, 1.31).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import onnx_ir as ir

from inlay.quant.plain.graph import Bias, IntegerOperator, NotPlain, Operand, PlainGraph, input_of
from inlay.targets.onnxruntime.blocks import write_gather, write_matmul
from inlay.targets.onnxruntime.rewrites.dynamic_lstm import DOMAIN, DYNAMIC_LSTM, write_lstm

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
    IntegerOperator("QLinearConcat", DOMAIN, write=_concat),
    IntegerOperator("QGemm", DOMAIN, inputs=(_FIRST, _SECOND), write=_gemm),
    IntegerOperator("DynamicQuantizeMatMul", DOMAIN, write=_dynamic_product),
    IntegerOperator("MatMulIntegerToFloat", DOMAIN, inputs=(Operand(0, 2, 4),), write=_product_to_float),
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
    IntegerOperator(DYNAMIC_LSTM, DOMAIN, write=write_lstm),
    IntegerOperator("MatMulNBits", DOMAIN, write=write_matmul),
    IntegerOperator("GatherBlockQuantized", DOMAIN, write=write_gather),
    IntegerOperator("MatMulBnb4", DOMAIN, write=_no_integers),
)
"""The rows, besides those of ONNX."""
