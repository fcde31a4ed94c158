"""Relu and Clip."""

from __future__ import annotations

import numpy as np

from inlay.quant.qparams import quantize
from inlay.tosa import ir
from inlay.tosa.quantized import QuantizedTensor, Unsupported
from inlay.tosa.rules._node import NodeContext, outside, representable


def clip(here: NodeContext) -> None:
    """Relu and Clip: at the qparams of the result, a CLAMP where saturation does not do it already.

    The bounds are quantized like any value. ``Relu`` is redundant only where the zero point is the type's minimum,
    ``Clip``'s upper bound only where it reaches the type's maximum (DESIGN §12).
    """
    x = here.quantized_input(wide=True)
    low, high = bounds(here)
    own = x.known_qparams
    exact = x.wide or all(np.isinf(b) or representable(b, own) or outside(b, own) for b in (low, high))
    try:
        to = here.qparams_within(np.inf if exact else x.bound)
    except Unsupported as error:
        if not exact:
            raise Unsupported(f"its bounds are no steps of its input, and {error}", error.unstated) from error
        to = own
    q_low, q_high = (int(v) for v in quantize(np.array([low, high]), to))
    tensor = here.requantize(x, to, f"{here.node.name}/rescaled")
    if q_low > to.qtype.qmin or q_high < to.qtype.qmax:
        tensor = here.add(ir.Clamp, tensor, low=q_low, high=q_high)
    here.context.quantized[here.out] = QuantizedTensor(tensor, to)


def bounds(here: NodeContext) -> tuple[float, float]:
    """Lower and upper limit of a Relu or Clip (infinite where absent)."""
    if here.node.op_type == "Relu":
        return 0.0, np.inf
    limits = []
    for slot, name, default in ((1, "min", -np.inf), (2, "max", np.inf)):
        given = here.constant_input(slot)
        limits.append(float(here.attribute(name, default)) if given is None else float(given.reshape(())))
    low, high = limits
    if np.isnan(low) or np.isnan(high):
        raise Unsupported("one of its bounds is not a number")
    return min(low, high), high  # ONNX: where the bounds are crossed, every element is the upper one
