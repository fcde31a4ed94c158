"""Automatic padding (``auto_pad``) written out as explicit pads.

Everything that looks at windows then has one form to know. ``SAME_UPPER`` and ``SAME_LOWER`` pad such that there is one
result for each ``stride`` inputs (a ``ConvTranspose``: ``stride`` results for each input), the odd one behind or before
(ONNX, Conv, ConvTranspose and the pools).
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.steps import ints, is_standard

_WINDOWED = frozenset({"Conv", "ConvTranspose", "MaxPool", "AveragePool"})


def write_out_pads(model: ir.Model) -> tuple[ir.Model, int]:
    """Write the pads out of each windowed operator where they do not depend on a size that is not known."""
    found = [n for n in model.graph if is_standard(n, *_WINDOWED) and "auto_pad" in n.attributes]
    if any(n.inputs[0] is not None and n.inputs[0].shape is None for n in found):
        infer_shapes(model)
    return model, sum(_write_out(n) for n in found)


def _write_out(node: ir.Node) -> bool:
    mode = node.attributes["auto_pad"].as_string()
    if mode == "NOTSET":
        del node.attributes["auto_pad"]
        return True
    kernel = _kernel(node)
    if kernel is None or "output_shape" in node.attributes:
        return False
    totals = [0] * len(kernel) if mode == "VALID" else _totals(node, kernel)
    if totals is None:
        return False
    less, more = [t // 2 for t in totals], [t - t // 2 for t in totals]
    pads = [*less, *more] if mode == "SAME_UPPER" else [*more, *less]
    del node.attributes["auto_pad"]
    node.attributes["pads"] = ir.AttrInt64s("pads", pads)
    return True


def _totals(node: ir.Node, kernel: Sequence[int]) -> list[int] | None:
    """Rows of padding along each axis, before and after together; None where the shapes do not determine it."""
    rank, x = len(kernel), node.inputs[0]
    strides, dilations = ints(node, "strides", [1] * rank), ints(node, "dilations", [1] * rank)
    extent = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    if node.op_type == "ConvTranspose":
        extra = ints(node, "output_padding", [0] * rank)
        totals = [e + o - s for e, o, s in zip(extent, extra, strides, strict=True)]
        return totals if min(totals) >= 0 else None
    totals = []
    for axis, (span, stride) in enumerate(zip(extent, strides, strict=True)):
        size = 0 if stride == 1 else None if x is None or x.shape is None else x.shape[axis + 2]
        if not isinstance(size, int):
            return None
        results = -(-size // stride)
        totals.append(span - 1 if stride == 1 else max((results - 1) * stride + span - size, 0))
    return totals


def _kernel(node: ir.Node) -> list[int] | None:
    """Sizes of the window by axis; None where they are not known."""
    if "kernel_shape" in node.attributes:
        return ints(node, "kernel_shape", ())
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    sizes = [] if weight is None or weight.shape is None else list(weight.shape[2:])
    known = [int(s) for s in sizes if isinstance(s, int)]
    return known if known and len(known) == len(sizes) else None
