"""The plain form of a quantized graph of any origin: float operators between Q/DQ nodes.

A walk in topological order puts float operators in the place of operators on integers (:class:`IntegerOperator`),
behind DequantizeLinear nodes and before QuantizeLinear nodes with the same numbers, so that :mod:`inlay.quant.extract`
can take the pairs out. An operator that only moves integers moves what they stand for instead. What has no plain form
stays as it is, and is listed with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from inlay.model.passes.steps import is_standard
from inlay.quant.plain.constants import write_signed
from inlay.quant.plain.graph import IntegerOperator, Leftover, NotPlain, PlainGraph
from inlay.quant.plain.moves import follow, write_move
from inlay.quant.plain.operators import OPERATORS
from inlay.quant.qdq_graph import DEQUANTIZE, DYNAMIC_QUANTIZE, QUANTIZE


def is_quantized(model: ir.Model, operators: Sequence[IntegerOperator] = ()) -> bool:
    """Whether the main graph holds Q or DQ nodes, or operators of ONNX or of ``operators`` that work on integers."""
    return any(map(known_integer(operators), model.graph))


def known_integer(operators: Sequence[IntegerOperator] = ()) -> Callable[[ir.Node], bool]:
    """What tells whether a node makes integers or works on them: by ONNX, or by one of ``operators``."""
    known = {(row.domain, row.op_type) for row in (*OPERATORS, *operators)}
    known |= {("", QUANTIZE), ("", DEQUANTIZE), ("", DYNAMIC_QUANTIZE)}
    return lambda node: node.op_type in (QUANTIZE, DEQUANTIZE) or (node.domain, node.op_type) in known


def write_plain(model: ir.Model, operators: Sequence[IntegerOperator] = ()) -> PlainGraph:
    """Write the main graph of ``model`` in its plain form, in place.

    Args:
        model: node and value names are unique.
        operators: rows of the targets, besides those of ONNX.
    """
    plain = PlainGraph(model.graph, (*OPERATORS, *operators))
    for node in list(model.graph):
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
