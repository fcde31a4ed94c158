"""A file mended: in a form that its target takes better, or with some operators on integers put back to float.

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
from inlay.quant.qdq_fixes import make_unsigned
from inlay.quant.qdq_graph import DEQUANTIZE, DYNAMIC_QUANTIZE, QUANTIZE
from inlay.quant.site import Site, grid_of
from inlay.space.rules import Rules
from inlay.targets.preconditions import Precondition
from inlay.types import QType


def exact_form(model: ir.Model, rules: Rules, rows: Sequence[Precondition]) -> ir.Model | None:
    """A copy of a Q/DQ model with every exact mend, and activations in the target's own type where that is uint8.

    None where there is nothing to mend.
    """
    copy, _ = fix_names(model.clone())
    mended = False
    if rules.activation is QType.UINT8:
        for node in [n for n in copy.graph if n.op_type == QUANTIZE]:
            grid = grid_of(node)
            plain = all(u.node.op_type == DEQUANTIZE for u in node.outputs[0].uses())
            if grid is not None and grid.dtype is ir.DataType.INT8 and plain:
                make_unsigned(node)
                mended = True
    for node in list(copy.graph):
        if node.op_type in rules.ops:
            for row in rows:
                if row.exact and row.mend is not None and row.fault_at(Site(node, rules)) is not None:
                    row.mend(Site(node, rules))
                    mended = True
    RemoveUnusedNodesPass()(copy)
    return copy if mended else None


def put_back(model: ir.Model, operators: Sequence[IntegerOperator], names: Collection[str]) -> ir.Model | None:
    """A copy of ``model`` whose operators ``names`` are in float, where they quantize in each inference; None for none.

    Args:
        model: with operators on integers; is not changed.
        operators: rows of the targets, besides those of ONNX.
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
