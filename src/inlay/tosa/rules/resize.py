"""Resize of rows and columns, nearest and bilinear.

ONNX gives a formula for the source position of each output position, TOSA a rational one. The positions that the ONNX
attributes specify are computed, and a rational form is taken only when it reproduces every one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from inlay.tosa import ir
from inlay.tosa.context import multipliers_and_shifts
from inlay.tosa.ir import Array, Shape
from inlay.tosa.quantized import QuantizedTensor, Unsupported
from inlay.tosa.rules._lookup import linear
from inlay.tosa.rules._node import NodeContext
from inlay.types import QParams

_NUMERATOR_LIMIT = 2048  # TOSA 1.0 RESIZE: a scale's numerator is at most 2^11
_LARGEST_RATIO = 16  # TOSA 1.0 RESIZE: scaling down is by less than 16, offset and border lie within 16 input steps


def resize(here: NodeContext) -> None:
    """Resize and Upsample of a 4-D tensor's last two axes."""
    mode = str(here.attribute("mode", "nearest"))
    if mode not in ("nearest", "linear", "bilinear"):
        raise Unsupported(f"its mode is {mode!r}")
    if here.attribute("antialias", 0):
        raise Unsupported("it filters (antialias)")
    x = here.quantized_input(wide=True)
    shape, out = here.shape(x.tensor), here.out_shape
    if len(shape) != 4 or shape[:2] != out[:2]:
        raise Unsupported("it resizes other axes than rows and columns of a 4-D tensor")
    scales = _scales(here, shape, out)
    axes = [_axis(here, mode, shape[2 + i], out[2 + i], scales[i]) for i in range(2)]
    (ny, dy, oy, by), (nx, dx, ox, bx) = axes
    attributes: dict[str, Any] = {"scale": (ny, dy, nx, dx), "offset": (oy, ox), "border": (by, bx)}
    if mode == "nearest":
        resized = here.add(ir.Resize, x.tensor, "resized", shape=out, mode="nearest", **attributes)
        here.set_output(resized, x.known_qparams)
        return

    def sums(tensor: str, _: int) -> str:
        return here.add(ir.Resize, tensor, "acc", "int32", out, mode="bilinear", **attributes)

    to = here.qparams_within(x.bound)
    acc = linear(here, x, x.tensor, sums)
    here.set_output(_mean(here, acc, x, to, ny * nx), to)


def _mean(here: NodeContext, acc: str, x: QuantizedTensor, to: QParams, weight: int) -> str:
    """Divide the weighted sum by its weights and requantize it, with one rounding.

    The weights of a position always add up to ``weight``, so unchanged qparams need no zero point in between.
    """
    if x.known_qparams == to:
        multiplier, shift = multipliers_and_shifts([1 / weight])
        return here.add(ir.Rescale, acc, "out", to.qtype.value, qparams=to, multiplier=multiplier, shift=shift)
    zero = here.constant("zero", np.full((1, 1, 1, 1), x.zp * weight, np.int32))
    return here.rescale(here.binary("sub", acc, zero, "centred"), [x.scale / (weight * to.scale[0])], to)


def _scales(here: NodeContext, shape: Shape, out: Shape) -> tuple[float, float]:
    """The height and width scale that the ONNX formulas use: given ones, else the quotient of the sizes."""
    given = None
    if here.node.op_type == "Upsample" and "scales" in here.node.attributes:
        given = np.asarray(here.node.attributes["scales"])
    elif here.node.op_type == "Upsample" or here.context.graph.opset < 11:
        given = here.constant_input(1)
    elif len(here.node.inputs) > 2:
        given = here.constant_input(2)
    if given is not None and given.size == 4:
        return float(given[2]), float(given[3])
    if given is not None and given.size:
        raise Unsupported("it names the axes that it resizes")
    return out[2] / shape[2], out[3] / shape[3]


def _axis(here: NodeContext, mode: str, size: int, out: int, scale: float) -> tuple[int, int, int, int]:
    """TOSA's numerator, denominator, offset and border for one axis."""
    positions = _positions(here, size, out, scale)
    if mode == "nearest":
        target: Array = _nearest(here, positions, size)
    else:
        target = np.clip(positions, 0, size - 1)
    for n, d, offset in _candidates(size, out, scale):
        border, limit = (out - 1) * d + offset - (size - 1) * n, _LARGEST_RATIO * n
        if not (1 <= n <= _NUMERATOR_LIMIT and 1 <= d < limit and -n <= offset < limit and -limit <= border < n):
            continue
        at = np.arange(out) * d + offset
        low, part = at // n, at % n
        if mode == "nearest":
            found: Array = np.clip(np.where(2 * part >= n, low + 1, low), 0, size - 1)
        else:
            found = np.clip(low, 0, size - 1) + (np.clip(low + 1, 0, size - 1) - np.clip(low, 0, size - 1)) * (part / n)
        if np.allclose(found, target, rtol=0, atol=1e-6):
            return n, d, offset, border
    raise Unsupported(f"TOSA has no {mode} resize of {size} to {out} with its coordinates")


def _positions(here: NodeContext, size: int, out: int, scale: float) -> Array:
    """Source position of each output position (ONNX Resize, ``coordinate_transformation_mode``)."""
    at = np.arange(out, dtype=np.float64)
    default = "asymmetric" if here.node.op_type == "Upsample" else "half_pixel"
    match here.attribute("coordinate_transformation_mode", default):
        case "asymmetric":
            return at / scale
        case "half_pixel":
            return (at + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (at + 0.5) / scale - 0.5 if out > 1 else at * 0
        case "align_corners":
            return at * (size - 1) / (out - 1) if out > 1 else at * 0
        case "half_pixel_symmetric":
            return (at + 0.5) / scale - 0.5 + (size - out / scale) / 2
        case other:
            raise Unsupported(f"its coordinates are {other!r}")


def _nearest(here: NodeContext, positions: Array, size: int) -> Array:
    default = "floor" if here.node.op_type == "Upsample" else "round_prefer_floor"
    match here.attribute("nearest_mode", default):
        case "floor":
            chosen = np.floor(positions)
        case "ceil":
            chosen = np.ceil(positions)
        case "round_prefer_ceil":
            chosen = np.floor(positions + 0.5)
        case _:
            chosen = np.ceil(positions - 0.5)
    return np.clip(chosen, 0, size - 1).astype(np.int64)


def _candidates(size: int, out: int, scale: float) -> Iterator[tuple[int, int, int]]:
    """Numerators, denominators and offsets of the usual coordinate formulas, doubled to make halves integers."""
    ratios = [Fraction(scale).limit_denominator(1024)]
    if size > 1 and out > 1:
        ratios.append(Fraction(out - 1, size - 1))
    for ratio in ratios:
        n, d = 2 * ratio.numerator, 2 * ratio.denominator
        # Half-pixel first: where several forms agree, this is the one that Ethos-U supports.
        for offset in ((d - n) // 2, 0, -(n // 2), 1 - n // 2, n // 2):
            yield n, d, offset
