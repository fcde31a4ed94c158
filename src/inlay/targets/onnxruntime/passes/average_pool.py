"""``AveragePool`` over small whole windows, as a depthwise ``Conv`` with equal weights.

The mean of a window is a convolution whose weights are one over its size, as long as every window is whole: at a border
that is not counted the divisor is another one. In float both take the same time; in 8 bits ONNX Runtime's convolution
is more than ten times as fast (26 against 411 us for 2x2 over 1x128x56x56), and the weight is exact.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import Steps, ints, replace_each

MOST_WINDOW = 16
"""Elements of a window; beyond, the products cost as much as they save."""
_KEPT = ("kernel_shape", "strides", "pads")


def averagepool_to_conv(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each float32 ``AveragePool`` over a known number of channels whose windows are whole and small."""
    return replace_each(model, "AveragePool", _replace)


def _replace(node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    assert x.shape is not None
    channels, window = x.shape[1], ints(node, "kernel_shape", ())
    if not isinstance(channels, int) or not 1 < math.prod(window) <= MOST_WINDOW or not _whole(node):
        return False
    weight = steps.constant("mean", np.full((channels, 1, *window), 1.0 / math.prod(window)))
    kept = {name: node.attributes[name] for name in _KEPT if name in node.attributes}
    steps.replace(steps.add("Conv", [x, weight], "", {"group": channels, **kept}))
    return True


def _whole(node: ir.Node) -> bool:
    """Whether no window is cut off: nothing is padded, or what is padded counts."""
    padded = any(ints(node, "pads", ())) or "auto_pad" in node.attributes
    dilated = any(d != 1 for d in ints(node, "dilations", ()))
    ceil, counted = (node.attributes.get_int(name, 0) for name in ("ceil_mode", "count_include_pad"))
    return not ceil and not dilated and (not padded or bool(counted))
