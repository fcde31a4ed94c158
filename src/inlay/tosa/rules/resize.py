"""Resize of rows and columns, nearest and bilinear.

ONNX gives a formula for the source position of each output position, TOSA a rational one: the positions that the ONNX
attributes ask for are computed, and TOSA's numbers are taken only when they reproduce every one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context, Refused, Rep
from inlay.tosa.ir import Array
from inlay.tosa.rules._common import settle
from inlay.types import QParams

_NUMERATOR_LIMIT = 2048
"""TOSA 1.0: a scale's numerator is at most 2^11, and an input step is at most 16 output steps."""


def resize(context: Context, node: Node) -> None:
    """Resize and Upsample of a 4-D tensor's last two axes."""
    mode = str(node.attributes.get("mode", "nearest"))
    if mode not in ("nearest", "linear", "bilinear"):
        raise Refused(f"its mode is {mode!r}")
    if node.attributes.get("antialias", 0):
        raise Refused("it filters (antialias)")
    rep = context.quantized(node.inputs[0])
    shape, out = context.builder.shape(rep.tensor), context.shape(node.outputs[0])
    if len(shape) != 4 or shape[:2] != out[:2]:
        raise Refused("it resizes other axes than rows and columns of a 4-D tensor")
    scales = _scales(context, node, shape, out)
    axes = [_axis(node, mode, shape[2 + i], out[2 + i], scales[i]) for i in range(2)]
    (ny, dy, oy, by), (nx, dx, ox, bx) = axes
    attributes: dict[str, Any] = {"scale": (ny, dy, nx, dx), "offset": (oy, ox), "border": (by, bx)}
    if mode == "nearest":
        tensor = context.builder.add(
            ir.Resize,
            node.name,
            [rep.tensor],
            f"{node.name}/resized",
            "int8",
            out,
            rep.qparams,
            mode="nearest",
            **attributes,
        )
        settle(context, node, tensor, rep.numbers)
        return
    acc = context.builder.add(
        ir.Resize, node.name, [rep.tensor], f"{node.name}/acc", "int32", out, mode="bilinear", **attributes
    )
    want = context.wanted(node.outputs[0])
    settle(context, node, _mean(context, node, acc, rep, want, ny * nx), want)


def _mean(context: Context, node: Node, acc: str, rep: Rep, want: QParams, weight: int) -> str:
    """Divide the weighted sum by its weights, and requantize, with one rounding.

    The weights of a position always add up to ``weight``, so unchanged numbers need no zero point on the way.
    """
    if rep.numbers == want:
        multiplier, shift = context.factors([1 / weight])
        return context.builder.add(
            ir.Rescale, node.name, [acc], f"{node.name}/out", "int8", context.builder.shape(acc), want,
            multiplier=multiplier, shift=shift,
        )  # fmt: skip
    zero = context.builder.constant(f"{node.name}/zero", np.full((1, 1, 1, 1), rep.zp * weight, np.int32))
    centred = context.builder.add(
        ir.Binary, node.name, [acc, zero], f"{node.name}/centred", "int32", context.builder.shape(acc), fn="sub"
    )
    return context.rescale(node.name, centred, [rep.scale / (weight * want.scale[0])], f"{node.name}/out", want)


def _scales(context: Context, node: Node, shape: tuple[int, ...], out: tuple[int, ...]) -> tuple[float, float]:
    """The height and width scale that the ONNX formulas use: given ones, else the quotient of the sizes."""
    given = None
    if node.op_type == "Upsample":
        given = np.asarray(node.attributes["scales"]) if "scales" in node.attributes else context.constant(node, 1)
    elif len(node.inputs) > 2:
        given = context.constant(node, 2)
    elif context.graph.opset < 11:
        given = context.constant(node, 1)
    if given is not None and given.size == 4:
        return float(given[2]), float(given[3])
    if given is not None and given.size:
        raise Refused("it names the axes that it resizes")
    return out[2] / shape[2], out[3] / shape[3]


def _axis(node: Node, mode: str, size: int, out: int, scale: float) -> tuple[int, int, int, int]:
    """TOSA's numerator, denominator, offset and border for one axis."""
    positions = _positions(node, size, out, scale)
    if mode == "nearest":
        target: Array = _nearest(node, positions, size)
    else:
        target = np.clip(positions, 0, size - 1)
    for n, d, offset in _candidates(size, out, scale):
        border = (out - 1) * d + offset - (size - 1) * n
        if not (1 <= n <= _NUMERATOR_LIMIT and 1 <= d < 16 * n and -n <= offset < 16 * n and -16 * n <= border < n):
            continue
        at = np.arange(out) * d + offset
        low, part = at // n, at % n
        if mode == "nearest":
            found: Array = np.clip(np.where(2 * part >= n, low + 1, low), 0, size - 1)
        else:
            found = np.clip(low, 0, size - 1) + (np.clip(low + 1, 0, size - 1) - np.clip(low, 0, size - 1)) * (part / n)
        if np.allclose(found, target, rtol=0, atol=1e-6):
            return n, d, offset, border
    raise Refused(f"TOSA has no {mode} resize of {size} to {out} with its coordinates")


def _positions(node: Node, size: int, out: int, scale: float) -> Array:
    """Source position of each output position (ONNX Resize, ``coordinate_transformation_mode``)."""
    at = np.arange(out, dtype=np.float64)
    default = "asymmetric" if node.op_type == "Upsample" else "half_pixel"
    match node.attributes.get("coordinate_transformation_mode", default):
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
            raise Refused(f"its coordinates are {other!r}")


def _nearest(node: Node, positions: Array, size: int) -> Array:
    default = "floor" if node.op_type == "Upsample" else "round_prefer_floor"
    match node.attributes.get("nearest_mode", default):
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
    """Numerators, denominators and offsets of the usual coordinate formulas; doubled, so that halves are integers."""
    ratios = [Fraction(scale).limit_denominator(1024)]
    if size > 1 and out > 1:
        ratios.append(Fraction(out - 1, size - 1))
    for ratio in ratios:
        n, d = 2 * ratio.numerator, 2 * ratio.denominator
        # Half-pixel first: where several forms agree, this is the one that Ethos-U knows.
        for offset in ((d - n) // 2, 0, -(n // 2), 1 - n // 2, n // 2):
            yield n, d, offset
