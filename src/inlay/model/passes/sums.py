"""Sums and products in the form that runtimes quantize and fuse: ``Sum`` as ``Add``, ``Gemm`` without factors."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import constant_of, is_standard, sole_use


def split_sums(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each ``Sum`` by n - 1 ``Add`` nodes (n = 1: its input), adding from the left as Sum does."""
    done = 0
    for node in [n for n in model.graph if is_standard(n, "Sum")]:
        left, *others = [v for v in node.inputs if v is not None]
        if not others:
            continue  # an identity by another name; left, since it may feed a graph output
        output = node.outputs[0]
        for i, right in enumerate(others, 1):
            part = "" if i == len(others) else f"_sum{i}"
            total = ir.Value(name=f"{output.name}{part}", type=output.type, shape=output.shape)
            add = ir.node("Add", [left, right], outputs=[total], name=f"{node.name}{part}")
            model.graph.insert_before(node, add)
            left = total
        output.replace_all_uses_with(left, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)
        done += 1
    return model, done


def fold_gemm_factors(model: ir.Model) -> tuple[ir.Model, int]:
    """Make the factors of ``alpha A B + beta C`` 1 where their operand is a constant of their own, or is not there.

    Rows of targets ask for plain products, and exporters write ``beta = 0`` where there is no C at all. A C that
    ``beta = 0`` leaves without effect is dropped; where it is not finite, what the operator makes of it is up to the
    runtime.
    """
    folded = 0
    for node in model.graph:
        if is_standard(node, "Gemm"):
            folded += _fold_factor(node, "alpha", 1)
            folded += _fold_factor(node, "beta", 2)
    return model, folded


def _fold_factor(node: ir.Node, name: str, slot: int) -> bool:
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
