"""A file with some of its operators on integers put back to float, and everything else as it was.

Where an operator quantizes what it reads in each inference, and its weight is an integer constant, the float operator
between the float values is what it approximates: it rounds nothing, so that nothing is lost but the size of the file.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from inlay.model.passes.names import fix_names
from inlay.quant.plain.form import constant_behind, write_plain
from inlay.quant.plain.graph import IntegerOperator, PlainGraph
from inlay.quant.qdq_graph import DEQUANTIZE, DYNAMIC_QUANTIZE


def put_back(model: ir.Model, operators: Sequence[IntegerOperator], names: Collection[str]) -> ir.Model | None:
    """A copy of ``model`` whose operators ``names`` are in float, where they quantize in each inference; None for none.

    Args:
        model: with operators on integers; is not changed.
        operators: rows of the targets, besides those of ONNX.
        names: of operators in the plain form.
    """
    given, _ = fix_names(model.clone())
    found = write_plain(given.clone(), operators).replaced
    plain = write_plain(given, operators, {found[name][0] for name in names if name in found})
    nodes = {str(n.name): n for n in given.graph}
    changed = [name for name in plain.replaced if _unrounded(nodes[name], plain)]
    RemoveUnusedNodesPass()(given)
    return given if changed else None


def _unrounded(node: ir.Node, plain: PlainGraph) -> bool:
    """Let ``node`` read floats where they are quantized in each inference, and its constants in float."""
    floats: dict[int, ir.Value] = {}
    is_dynamic = False
    for slot, value in enumerate(node.inputs):
        dequantize = None if value is None else value.producer()
        integers = dequantize.inputs[0] if dequantize is not None and dequantize.op_type == DEQUANTIZE else None
        if integers is None or dequantize is None:
            continue
        source, array = integers.producer(), constant_behind(dequantize)
        if source is not None and source.op_type == DYNAMIC_QUANTIZE and source.inputs[0] is not None:
            floats[slot], is_dynamic = source.inputs[0], True
        elif array is not None:
            floats[slot] = plain.constant(f"{integers.name}_in_float", array)
    for slot, value in floats.items() if is_dynamic else ():
        node.replace_input_with(slot, value)
    return is_dynamic
