"""The plain form of a quantized graph of any origin: float operators between Q/DQ nodes.

A walk in topological order puts float operators in the place of operators on integers (:class:`IntegerOperator`),
behind DequantizeLinear nodes and before QuantizeLinear nodes with the same numbers, so that :mod:`inlay.quant.extract`
can take the pairs out. An operator that only moves integers moves what they stand for instead. What has no plain form
stays as it is, and is listed with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence

import ml_dtypes
import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from inlay.model.flow import in_bodies
from inlay.model.passes.steps import constant_of, is_standard
from inlay.quant.plain.graph import IntegerOperator, Leftover, NotPlain, PlainGraph, input_of
from inlay.quant.plain.moves import follow, write_move
from inlay.quant.plain.operators import OPERATORS
from inlay.quant.qdq_graph import DEQUANTIZE, DYNAMIC_QUANTIZE, QUANTIZE


def is_quantized(model: ir.Model, operators: Sequence[IntegerOperator] = ()) -> bool:
    """Whether a model holds Q or DQ nodes, or operators of ONNX or of ``operators`` that work on integers."""
    return any(map(known_integer(operators), in_bodies(model.graph)))


def known_integer(operators: Sequence[IntegerOperator] = ()) -> Callable[[ir.Node], bool]:
    """What tells whether a node makes integers or works on them: by ONNX, or by one of ``operators``."""
    known = {(row.domain, row.op_type) for row in (*OPERATORS, *operators)}
    known |= {("", QUANTIZE), ("", DEQUANTIZE), ("", DYNAMIC_QUANTIZE)}
    return lambda node: node.op_type in (QUANTIZE, DEQUANTIZE) or (node.domain, node.op_type) in known


def write_plain(
    model: ir.Model, operators: Sequence[IntegerOperator] = (), only: Container[str] | None = None
) -> PlainGraph:
    """Write the main graph of ``model`` in its plain form, in place.

    Args:
        model: node and value names are unique.
        operators: rows of the targets, besides those of ONNX.
        only: names of the nodes to look at; None for all.
    """
    plain = PlainGraph(model.graph, (*OPERATORS, *operators))
    for node in list(model.graph):
        if only is not None and str(node.name) not in only:
            continue
        row = plain.row(node)
        try:
            if row is not None:
                if row.write is None:
                    plain.write_row(node, row)
                else:
                    row.write(node, plain)
            elif is_standard(node, DYNAMIC_QUANTIZE):
                plain.knows(node)
            elif is_standard(node, DEQUANTIZE):
                follow(node, plain)
                write_signed(node, plain)
            else:
                write_move(node, plain)
        except NotPlain as reason:
            plain.leftovers.append(Leftover(str(node.name), f"{node.op_type}: {reason}"))
    RemoveUnusedNodesPass()(model)
    return plain


# --- constants behind DequantizeLinear nodes, in whatever integers and blocks they are stored

_INTEGERS = frozenset({"INT4", "UINT4", "INT8", "UINT8", "INT16", "UINT16", "INT32"})
_SIGNED = {ir.DataType.UINT4: np.dtype(ml_dtypes.int4), ir.DataType.UINT8: np.dtype(np.int8)}


def constant_behind(dq: ir.Node) -> np.ndarray | None:
    """The float32 values of a constant that ``dq`` dequantizes; None where it has no integers or scales do not fit."""
    found = _parts(dq)
    if found is None:
        return None
    integers, scale, zero = (np.asarray(a) for a in found)
    if scale.size == zero.size == 1 and not dq.attributes.get_int("block_size", 0):
        scale, zero = scale.reshape(()), zero.reshape(())
    else:
        axis = dq.attributes.get_int("axis", 1)
        if axis not in range(-integers.ndim, integers.ndim):
            return None
        size, block = integers.shape[axis], dq.attributes.get_int("block_size", 0) or 1
        whole = (
            integers.shape if block > 1 else [size if i == axis % integers.ndim else 1 for i in range(integers.ndim)]
        )
        blocks = [-(-n // block) if i == axis % integers.ndim else n for i, n in enumerate(whole)]
        if {a.size for a in (scale, zero)} != {math.prod(blocks)}:
            return None  # the numbers do not fit the tensor: a runtime refuses it
        scale, zero = (np.repeat(a.reshape(blocks), block, axis).take(np.arange(size), axis) for a in (scale, zero))
    return np.asarray((integers.astype(np.int64) - zero.astype(np.int64)).astype(np.float32) * scale, np.float32)


def write_signed(dq: ir.Node, plain: PlainGraph) -> None:
    """Let ``dq`` read signed integers where it dequantizes a constant in unsigned 4-bit ones or in blocks.

    Labels have only signed integers there.
    """
    value, found = dq.inputs[0], _parts(dq)
    if value is None or value.const_value is None or value.const_value.dtype not in _SIGNED or found is None:
        return
    if value.const_value.dtype is ir.DataType.UINT8 and not dq.attributes.get_int("block_size", 0):
        return
    signed = _SIGNED[value.const_value.dtype]
    middle = 1 << (value.const_value.dtype.bitwidth - 1)
    integers, _, zeros = found
    shifted = [(np.asarray(a).astype(np.int32) - middle).astype(signed) for a in (integers, zeros)]
    dq.replace_input_with(0, plain.constant(str(value.name), shifted[0]))
    if len(dq.inputs) < 3:
        dq.resize_inputs(3)
    dq.replace_input_with(2, plain.constant(f"{value.name}_zero_point", shifted[1]))


def _parts(dq: ir.Node) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    value, scale = input_of(dq, 0), constant_of(input_of(dq, 1))
    integers, zero = constant_of(value), constant_of(input_of(dq, 2))
    if value is None or integers is None or value.dtype is None or value.dtype.name not in _INTEGERS or scale is None:
        return None
    if zero is None and input_of(dq, 2) is not None:
        return None
    return integers, scale.astype(np.float32), np.zeros(scale.shape, np.int32) if zero is None else zero
