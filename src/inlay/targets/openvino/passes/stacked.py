"""``Concat`` of values with one element along the last axis, which stacks them, along the second axis instead.

The kernel copies element by element where it joins along the innermost axis. Joined along the second axis, whole images
are copied, and one Transpose puts the elements side by side; the runtime drops that one where another turns them back.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import Steps, add_constant, replace_each

LEAST_ELEMENTS = 1024
"""Of each value, as far as its sizes are known. One thread, AVX512: eight of 172x309 take 4.6 ms instead of 10.4, and
2.3 instead of 7.7 with a Transpose behind them; two of 172x36 take 0.11 ms instead of 0.20."""
_AXES_ARE_INPUTS = 13  # the opset since which Squeeze and Unsqueeze read their axes


def join_stacked(model: ir.Model) -> tuple[ir.Model, int]:
    """Rewrite each ``Concat`` along the last axis of float32 values that have one element there."""
    if model.graph.opset_imports.get("", 1) < _AXES_ARE_INPUTS:
        return model, 0
    return replace_each(model, "Concat", _replace)


def _replace(node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    assert x.shape is not None
    rank, graph = len(x.shape), node.graph
    values = [v for v in node.inputs if v is not None and v.dtype is ir.DataType.FLOAT and v.shape is not None]
    if rank < 3 or node.attributes.get_int("axis", 0) not in (-1, rank - 1) or not isinstance(graph, ir.Graph):
        return False
    if len(values) < max(2, len(node.inputs)) or any(v.shape is None or v.shape[-1] != 1 for v in values):
        return False
    sizes = [d for d in x.shape if isinstance(d, int)]
    if len(sizes) == rank and math.prod(sizes) < LEAST_ELEMENTS:
        return False
    last = add_constant(graph, f"{node.name}_last", np.array([rank - 1], np.int64))
    second = add_constant(graph, f"{node.name}_second", np.array([1], np.int64))
    images = []
    for i, value in enumerate(values):
        flat = steps.add("Squeeze", [value, last], f"flat_{i}")
        images.append(steps.add("Unsqueeze", [flat, second], f"image_{i}"))
        flat.shape = images[-1].shape = None
    joined = steps.add("Concat", images, "", {"axis": 1})
    joined.shape = None
    steps.replace(steps.add("Transpose", [joined], "beside", {"perm": [0, *range(2, rank), 1]}))
    return True
