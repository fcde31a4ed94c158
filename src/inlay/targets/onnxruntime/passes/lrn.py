"""``LRN`` spelled out, for runtimes whose kernel for it is slow.

``y = x / (bias + alpha / size * S) ^ beta``, where ``S`` sums the squares of ``size`` neighbouring channels (ONNX
operator ``LRN``). The window is a 1x1 convolution with a band of ``alpha / size`` as its weight; a power of a quarter,
a half or three quarters is made of square roots. On ONNX Runtime's CPU kernels that takes a tenth of the time, and it
ends an island between convolutions.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import Steps, replace_each

MOST_CHANNELS = 512
"""Beyond, the products of the band's zeros would cost as much as the kernel that they replace."""


def spell_out_lrn(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each float32 ``LRN`` over a known number of channels, at most :data:`MOST_CHANNELS`."""
    return replace_each(model, "LRN", _replace)


def _replace(node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    assert x.shape is not None
    channels = x.shape[1] if len(x.shape) >= 3 else None
    if not isinstance(channels, int) or not 1 <= channels <= MOST_CHANNELS:
        return False
    squares = steps.add("Mul", [x, x], "squares")
    size = node.attributes.get_int("size", 0)
    band = window(channels, size).reshape(channels, channels, *[1] * (len(x.shape) - 2))
    share = node.attributes.get_float("alpha", 1e-4) / size
    bias = np.full(channels, node.attributes.get_float("bias", 1.0))
    total = steps.add("Conv", [squares, steps.constant("band", band * share), steps.constant("bias", bias)], "total")
    power = _power(steps, total, node.attributes.get_float("beta", 0.75))
    steps.replace(steps.add("Div", [x, power]))
    return True


def _power(steps: Steps, total: ir.Value, beta: float) -> ir.Value:
    """``total ^ beta``."""
    match beta:
        case 1.0:
            return total
        case 0.25 | 0.5 | 0.75:
            half = steps.add("Sqrt", [total], "half")
            if beta == 0.5:
                return half
            quarter = steps.add("Sqrt", [half], "quarter")
            return quarter if beta == 0.25 else steps.add("Mul", [half, quarter], "power")
        case _:
            return steps.add("Pow", [total, steps.constant("beta", np.array(beta))], "power")


def window(channels: int, size: int) -> np.ndarray:
    """Ones where channel ``j`` is in the window of channel ``i``, shape (channels, channels).

    The operator has it at ``i - floor((size - 1) / 2) .. i + ceil((size - 1) / 2)``, cut at the ends.
    """
    offset = np.arange(channels)[None, :] - np.arange(channels)[:, None]
    return ((offset >= -((size - 1) // 2)) & (offset <= size // 2)).astype(np.float64)
