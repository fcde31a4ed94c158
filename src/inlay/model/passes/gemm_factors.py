"""The factors of ``Gemm``, ``alpha A B + beta C``, in its constants: rows of targets ask for plain products.

Exporters write ``beta = 0`` where there is no C at all, and conditions on factors then keep a plain product in float.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import constant_of, is_standard, sole_use


def fold_gemm_factors(model: ir.Model) -> tuple[ir.Model, int]:
    """Make factors 1 where the operand is a constant that nothing else reads, or is not there.

    A C that ``beta = 0`` leaves without effect is dropped; where it is not finite, what the operator makes of it is up
    to the runtime.
    """
    folded = 0
    for node in model.graph:
        if is_standard(node, "Gemm"):
            folded += _fold(node, "alpha", 1)
            folded += _fold(node, "beta", 2)
    return model, folded


def _fold(node: ir.Node, name: str, slot: int) -> bool:
    factor = node.attributes.get_float(name, 1.0)
    if factor == 1.0:
        return False
    operand = node.inputs[slot] if len(node.inputs) > slot else None
    array = constant_of(operand)
    if operand is not None and factor == 0.0 and slot == 2:
        node.resize_inputs(slot)
    elif operand is not None:
        if array is None or not np.issubdtype(array.dtype, np.floating) or sole_use(operand) is None:
            return False
        operand.const_value = ir.Tensor((array * array.dtype.type(factor)).astype(array.dtype), name=operand.name)
    node.attributes.pop(name)
    return True
