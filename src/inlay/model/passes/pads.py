"""Padding as the operators' own explicit pads: automatic padding (``auto_pad``), and ``Pad`` nodes of zeros."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.steps import constant_of, ints, is_standard

_WINDOWED = frozenset({"Conv", "ConvTranspose", "MaxPool", "AveragePool"})


def write_out_pads(model: ir.Model) -> tuple[ir.Model, int]:
    """Write the pads out of each windowed operator where they do not depend on a size that is not known.

    Everything that looks at windows then has one form to know. ``SAME_UPPER`` and ``SAME_LOWER`` pad such that there is
    one result for each ``stride`` inputs (a ``ConvTranspose``: ``stride`` results for each input), the odd one behind
    or before (ONNX, Conv, ConvTranspose and the pools).
    """
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


def fold_pad_nodes(model: ir.Model) -> tuple[ir.Model, int]:
    """Remove each ``Pad`` of zeros around the rows and columns of what only Conv and AveragePool read.

    Runtimes do this in float by themselves, but not across the Q/DQ nodes that stand between the two operators of a
    quantized model: exporters of TensorFlow write such a Pad before each strided Conv. An AveragePool counts the zeros,
    as it did before: it takes them where all of its windows count what is padded.
    """
    pads = [n for n in model.graph if is_standard(n, "Pad")]
    return model, sum(_fold(n) for n in reversed(pads))  # of two in a row, the one that is read by the operator first


def _fold(pad: ir.Node) -> bool:
    x, padded = pad.inputs[0], pad.outputs[0]
    uses = list(padded.uses())
    more = _zeros_around(pad)
    if x is None or more is None or padded.is_graph_output() or not uses:
        return False
    if not all(use.idx == 0 and _takes(use.node, more) for use in uses):
        return False
    for use in uses:
        own = ints(use.node, "pads", [0] * len(more))
        total = [a + b for a, b in zip(own, more, strict=True)]
        use.node.attributes["pads"] = ir.AttrInt64s("pads", total)
        if use.node.op_type == "AveragePool":
            use.node.attributes["count_include_pad"] = ir.AttrInt64("count_include_pad", 1)
        use.node.replace_input_with(0, x)
    graph = pad.graph
    assert isinstance(graph, ir.Graph)
    graph.remove(pad, safe=True)
    return True


def _zeros_around(pad: ir.Node) -> list[int] | None:
    """Zeros before each axis behind the channels, then those behind it; None where it pads otherwise."""
    if pad.attributes.get_string("mode", "constant") != "constant" or len(pad.inputs) < 2:
        return None
    amounts, filled = constant_of(pad.inputs[1]), _given(pad, 2)
    if amounts is None or (filled is not None and (constant_of(filled) is None or constant_of(filled) != 0)):
        return None
    count = amounts.size // 2
    axes, rank = list(range(count)), count
    if (given := _given(pad, 3)) is not None:
        known, shape = constant_of(given), None if pad.inputs[0] is None else pad.inputs[0].shape
        if known is None or shape is None:
            return None
        rank = len(shape)
        axes = [int(a) % rank for a in known]
    before, behind = [0] * rank, [0] * rank
    for axis, less, more in zip(axes, amounts[:count], amounts[count:], strict=True):
        before[axis], behind[axis] = int(less), int(more)
    if rank < 3 or min(before + behind) < 0 or any(before[:2] + behind[:2]):
        return None
    return [*before[2:], *behind[2:]]


def _given(node: ir.Node, slot: int) -> ir.Value | None:
    return node.inputs[slot] if len(node.inputs) > slot else None


def _takes(node: ir.Node, more: Sequence[int]) -> bool:
    """Whether ``node`` computes the same with so many zeros padded by itself."""
    own = ints(node, "pads", [0] * len(more))
    if not is_standard(node, "Conv", "AveragePool") or "auto_pad" in node.attributes or len(own) != len(more):
        return False
    if node.op_type == "Conv":
        return True
    if node.attributes.get_int("ceil_mode", 0) or (any(own) and not node.attributes.get_int("count_include_pad", 0)):
        return False
    window = ints(node, "kernel_shape", ())
    totals = [a + b for a, b in zip(own, more, strict=True)]
    return all(t < k for t, k in zip(totals, [*window, *window], strict=True))  # runtimes refuse windows of zeros only
