"""Relu and Clip."""

from __future__ import annotations

import numpy as np

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context
from inlay.tosa.oracle import quantize
from inlay.tosa.quantized import Unsupported
from inlay.types import QParams


def clip(context: Context, node: Node) -> None:
    """Relu and Clip: at the qparams of the result, a CLAMP where saturation does not do it already.

    The bounds are quantized like any value. ``Relu`` is redundant only where the zero point is the type's minimum,
    ``Clip``'s upper bound only where it reaches the type's maximum (DESIGN §12).
    """
    x = context.quantized_input(node.inputs[0])
    low, high = bounds(context, node)
    try:
        to = context.output_qparams(node.outputs[0])
    except Unsupported:
        to = x.known_qparams
        for bound in (low, high):
            if np.isfinite(bound) and not _representable(bound, to):
                raise Unsupported(
                    f"its bound {bound:g} is not a step of its input, and its output is not quantized"
                ) from None
    q_low, q_high = (int(v) for v in quantize(np.array([low, high]), to))
    tensor = context.requantize(node.name, x, to, f"{node.name}/rescaled")
    if q_low > to.qtype.qmin or q_high < to.qtype.qmax:
        shape = context.builder.shape(tensor)
        tensor = context.builder.add(
            ir.Clamp, node.name, [tensor], node.outputs[0], "int8", shape, to, low=q_low, high=q_high
        )
    context.set_quantized(node.outputs[0], tensor, to)


def _representable(bound: float, qparams: QParams) -> bool:
    """Whether clamping to ``bound`` is exact in integers: it lies on a step, or beyond the range."""
    steps = bound / qparams.scale[0] + qparams.zero_point[0]
    return steps == round(steps) or not qparams.qtype.qmin <= steps <= qparams.qtype.qmax


def bounds(context: Context, node: Node) -> tuple[float, float]:
    """Lower and upper limit of a Relu or Clip (infinite where absent)."""
    if node.op_type == "Relu":
        return 0.0, np.inf
    limits = []
    for slot, name, default in ((1, "min", -np.inf), (2, "max", np.inf)):
        given = context.constant_input(node, slot)
        limits.append(float(node.attributes.get(name, default)) if given is None else float(given.reshape(())))
    return limits[0], limits[1]
