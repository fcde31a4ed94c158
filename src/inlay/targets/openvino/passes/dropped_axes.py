"""Reductions and gathers that drop an axis, as ones that keep it, with a Squeeze behind them.

OpenVINO 2026.4.1 moves the scales of a product's channels behind what reads its result, with as many axes as the
product has, also where the reader has dropped one. The scales are then those of other channels, or the result has an
axis too many: the first row, gathered behind a product in 8 bits, had the shape (1, 2, 5) in place of (2, 5); the mean
of all rows, quantized again, 5 to 17 dB. With a Squeeze they are right.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import Steps, add_constant, axes_of, constant_of, replace_each

_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")
_AXES_ARE_INPUTS = 13  # the opset since which Squeeze reads its axes


def drop_axes_behind(model: ir.Model) -> tuple[ir.Model, int]:
    """Rewrite each reduction of given axes that does not keep them, and each Gather of one element by a constant."""
    if model.graph.opset_imports.get("", 1) < _AXES_ARE_INPUTS:
        return model, 0
    return replace_each(model, (*_REDUCTIONS, "Gather"), _squeeze_behind, _drops)


def _drops(node: ir.Node) -> bool:
    if node.op_type in _REDUCTIONS:
        return not node.attributes.get_int("keepdims", 1) and bool(axes_of(node))
    index = constant_of(node.inputs[1])
    return index is not None and index.ndim == 0 and constant_of(node.inputs[0]) is None


def _squeeze_behind(node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    assert x.shape is not None
    assert node.graph is not None
    if node.op_type == "Gather":
        axes = [node.attributes.get_int("axis", 0) % len(x.shape)]
        index = constant_of(node.inputs[1])
        assert index is not None
        listed = add_constant(node.graph, f"{node.name}_listed", index.reshape(1))
        kept = steps.add("Gather", [x, listed], "kept", {"axis": axes[0]})
    else:
        axes = sorted(axis % len(x.shape) for axis in axes_of(node))
        if len(axes) == len(x.shape):  # one number, whatever the channels are
            return False
        attributes = {**{a.name: a for a in node.attributes.values()}, "keepdims": 1}
        kept = steps.add(node.op_type, [v for v in node.inputs if v is not None], "kept", attributes)
    kept.shape = ir.Shape([1 if i in axes else d for i, d in enumerate(x.shape)])
    result = steps.add("Squeeze", [kept, add_constant(node.graph, f"{node.name}_dropped", np.array(axes, np.int64))])
    steps.replace(result)
    result.shape = ir.Shape([d for i, d in enumerate(x.shape) if i not in axes])
    return True
