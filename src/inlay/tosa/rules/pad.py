"""Pad."""

from __future__ import annotations

import numpy as np

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context
from inlay.tosa.oracle import quantize
from inlay.tosa.quantized import QuantizedTensor, Unsupported
from inlay.tosa.rules._common import axes_of
from inlay.tosa.rules._movement import integer_list, move, reversed_axis, set_moved, sliced, with_size


def pad(context: Context, node: Node) -> None:
    """Pad with a constant, the edge, or the reflection; negative pads crop."""
    mode = str(node.attributes.get("mode", "constant"))
    if mode not in ("constant", "edge", "reflect"):
        raise Unsupported(f"it pads in mode {mode!r}")
    x, out = context.quantized_input(node.inputs[0]), node.outputs[0]
    shape = context.builder.shape(x.tensor)
    pads = _pads(context, node, len(shape))
    cropped = {
        i: (max(-before, 0), size + min(before, 0) + min(after, 0))
        for i, (size, (before, after)) in enumerate(zip(shape, pads, strict=True))
        if before < 0 or after < 0
    }
    tensor = sliced(context, node, x.tensor, out, cropped)
    grown = tuple((max(before, 0), max(after, 0)) for before, after in pads)
    if mode == "constant":
        value = _pad_value(context, node, x)
        if any(before or after for before, after in grown):
            dtype = context.builder.tensors[tensor].dtype
            tensor = context.builder.add(
                ir.Pad, node.name, [tensor], out, dtype, context.shape(out), x.qparams, pads=grown, value=value
            )
    else:
        for axis, (before, after) in enumerate(grown):
            tensor = _extended(context, node, tensor, axis, before, after, mode)
    set_moved(context, node, x, tensor)


def _pads(context: Context, node: Node, rank: int) -> list[tuple[int, int]]:
    """Elements before and after each axis: an attribute up to opset 10, an input since."""
    attribute = node.attributes.get("pads")
    pads = integer_list(context, node, 1) if attribute is None else [int(p) for p in attribute]
    if pads is None:
        raise Unsupported("input 1 is missing")
    axes = axes_of(context, node, 3, rank) or tuple(range(rank))
    both = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        both[axis] = (pads[i], pads[i + len(axes)])
    return both


def _extended(context: Context, node: Node, tensor: str, axis: int, before: int, after: int, mode: str) -> str:
    """More elements on both sides of ``axis``: its outermost ones repeated, or what a mirror there shows."""
    out, dims = node.outputs[0], context.builder.shape(tensor)
    size = dims[axis]
    if mode == "reflect" and max(before, after) >= size:
        raise Unsupported(f"it reflects {max(before, after)} elements of {size}")

    def side(count: int, edge: int, mirrored: int) -> list[str]:
        if not count:
            return []
        if mode == "reflect":
            return [reversed_axis(context, node, sliced(context, node, tensor, out, {axis: (mirrored, count)}), axis)]
        one = sliced(context, node, tensor, out, {axis: (edge, 1)})
        multiples = with_size([1] * len(dims), axis, count)
        return [move(context, node, ir.Tile, one, out, with_size(dims, axis, count), multiples=multiples)]

    parts = [*side(before, 0, 1), tensor, *side(after, size - 1, size - 1 - after)]
    if len(parts) == 1:
        return tensor
    declared = context.builder.tensors[tensor]
    shape = with_size(dims, axis, before + size + after)
    return context.builder.add(ir.Concat, node.name, parts, out, declared.dtype, shape, declared.qparams, axis=axis)


def _pad_value(context: Context, node: Node, x: QuantizedTensor) -> float:
    given = context.constant_input(node, 2)
    real = float(node.attributes.get("value", 0.0)) if given is None else float(given.reshape(()))
    if context.builder.tensors[x.tensor].dtype == "float32":
        return real
    if x.qparams is None:
        return int(real) - (128 if x.unsigned else 0)
    steps = real / x.scale + x.zp
    if steps != round(steps) and not (steps < -128 or steps > 127):
        raise Unsupported(f"its value {real:g} is not a step of its input's scale")
    if not -128 <= steps <= 127:
        raise Unsupported(f"its value {real:g} lies outside its input's range")
    return int(quantize(np.array(real), x.known_qparams))
