"""The same model in a form that its target takes better: what can be mended without changing a number."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from inlay.model.passes.names import fix_names
from inlay.quant.qdq_fixes import make_unsigned
from inlay.quant.qdq_graph import DEQUANTIZE, QUANTIZE
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
