"""Relu and Clip."""

from __future__ import annotations

import numpy as np

from inlay.quant.qparams import quantize
from inlay.tosa import ir
from inlay.tosa.quantized import QuantizedTensor, Unsupported
from inlay.tosa.rules._node import NodeContext
from inlay.types import QParams


def clip(here: NodeContext) -> None:
    """Relu and Clip: at the qparams of the result, a CLAMP where saturation does not do it already.

    The bounds are quantized like any value. ``Relu`` is redundant only where the zero point is the type's minimum,
    ``Clip``'s upper bound only where it reaches the type's maximum (DESIGN §12).
    """
    x = here.quantized_input()
    low, high = bounds(here)
    try:
        to = here.output_qparams
    except Unsupported:
        to = x.known_qparams
        for bound in (low, high):
            if np.isfinite(bound) and not _representable(bound, to):
                raise Unsupported(
                    f"its bound {bound:g} is not a step of its input, and its output is not quantized"
                ) from None
    q_low, q_high = (int(v) for v in quantize(np.array([low, high]), to))
    tensor = here.requantize(x, to, f"{here.node.name}/rescaled")
    if q_low > to.qtype.qmin or q_high < to.qtype.qmax:
        tensor = here.add(ir.Clamp, tensor, low=q_low, high=q_high)
    here.context.quantized[here.out] = QuantizedTensor(tensor, to)


def _representable(bound: float, qparams: QParams) -> bool:
    """Whether clamping to ``bound`` is exact in integers: it lies on a step, or beyond the range."""
    steps = bound / qparams.scale[0] + qparams.zero_point[0]
    return steps == round(steps) or not qparams.qtype.qmin <= steps <= qparams.qtype.qmax


def bounds(here: NodeContext) -> tuple[float, float]:
    """Lower and upper limit of a Relu or Clip (infinite where absent)."""
    if here.node.op_type == "Relu":
        return 0.0, np.inf
    limits = []
    for slot, name, default in ((1, "min", -np.inf), (2, "max", np.inf)):
        given = here.constant_input(slot)
        limits.append(float(here.attribute(name, default)) if given is None else float(given.reshape(())))
    return limits[0], limits[1]
