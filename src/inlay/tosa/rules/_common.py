"""What several rules share: sliding windows, shapes, axes, and the output of a node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context
from inlay.tosa.ir import Shape
from inlay.tosa.quantized import Unsupported
from inlay.types import QParams


@dataclass(frozen=True)
class Window:
    """A 2-D sliding window whose last step ends exactly on the padded input's edge, as TOSA demands.

    Attributes:
        kernel, strides, dilations: height and width.
        pads: top, bottom, left, right; never negative.
        size: how many rows and columns of the input the window covers.
        out: output height and width.
    """

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int, int, int]
    size: tuple[int, int]
    out: tuple[int, int]


def window(node: Node, spatial: Sequence[int], kernel: Sequence[int]) -> Window:
    """The window of a Conv or pooling node over ``spatial`` (1 or 2 dimensions; 1-D becomes height 1).

    ``auto_pad`` and ``ceil_mode`` as in the ONNX specification of Conv and MaxPool.
    """
    rank = len(spatial)
    if rank not in (1, 2):
        raise Unsupported(f"it has {rank} spatial dimensions")
    strides = list(node.attributes.get("strides", ())) or [1] * rank
    dilations = list(node.attributes.get("dilations", ())) or [1] * rank
    pads = list(node.attributes.get("pads", ())) or [0] * (2 * rank)
    auto = node.attributes.get("auto_pad", "NOTSET")
    if min(pads) < 0:
        raise Unsupported("it has negative pads")
    axes = []
    for i, size in enumerate(spatial):
        reach = (kernel[i] - 1) * dilations[i] + 1
        begin, end = pads[i], pads[i + rank]
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            total = max((-(-size // strides[i]) - 1) * strides[i] + reach - size, 0)
            begin, end = total // 2, total - total // 2
            begin, end = (begin, end) if auto == "SAME_UPPER" else (end, begin)
        elif auto == "VALID":
            begin = end = 0
        axes.append(_fit(size, reach, strides[i], begin, end, bool(node.attributes.get("ceil_mode", 0))))
    if rank == 1:
        axes.insert(0, (1, 0, 0, 1))
        strides, dilations, kernel = [1, *strides], [1, *dilations], [1, *kernel]
    (h, top, bottom, oh), (w, left, right, ow) = axes
    if min(oh, ow) <= 0:
        raise Unsupported("its window does not fit into its input")
    if min(h, w) <= 0:
        raise Unsupported("its windows read padding only")
    return Window(
        kernel=(kernel[0], kernel[1]),
        strides=(strides[0], strides[1]),
        dilations=(dilations[0], dilations[1]),
        pads=(top, bottom, left, right),
        size=(h, w),
        out=(oh, ow),
    )


def _fit(size: int, reach: int, stride: int, begin: int, end: int, ceil: bool) -> tuple[int, int, int, int]:
    """Input size used, pads, and steps along one axis, so that the last step ends on the edge."""
    over = (size + begin + end - reach) % stride
    if ceil and over and (size + begin + end - reach + stride - 1) // stride * stride < size + begin:
        # ONNX drops a last window that would start in the end padding.
        return size, begin, end + stride - over, (size + begin + end - reach) // stride + 2
    unused = max(over - end, 0)
    return size - unused, begin, max(end - over, 0), (size + begin + end - reach) // stride + 1


def as_nchw(context: Context, node: Node, tensor: str) -> str:
    """``tensor`` as [N,C,H,W]; [N,C,W] gets height 1."""
    shape = context.builder.shape(tensor)
    if len(shape) == 4:
        return tensor
    return context.reshape(node.name, tensor, (*shape[:2], 1, *shape[2:]), f"{tensor}/2d")


def slice_spatial(context: Context, node: Node, tensor: str, size: tuple[int, int]) -> str:
    """The first ``size`` rows and columns of an [N,C,H,W] tensor (itself where that is all of it)."""
    declared = context.builder.tensors[tensor]
    n, c, h, w = declared.dims
    if (h, w) == size:
        return tensor
    return context.builder.add(
        ir.Slice, node.name, [tensor], f"{tensor}/crop", declared.dtype, (n, c, *size), declared.qparams,
        start=(0, 0, 0, 0), size=(n, c, *size),
    )  # fmt: skip


def set_output(context: Context, node: Node, tensor: str, qparams: QParams) -> None:
    """Record ``tensor``, in the output's own shape, as the node's quantized output."""
    out = node.outputs[0]
    if math.prod(context.shape(out)) != math.prod(context.builder.shape(tensor)):
        # Shape inference and ONNX Runtime differ on a last pooling window that would start in the padding.
        raise Unsupported(f"its declared shape {list(context.shape(out))} is not the one it computes")
    context.set_quantized(out, context.reshape(node.name, tensor, context.shape(out), out), qparams)


def set_rescaled(context: Context, node: Node, acc: str, unit: float, qparams: QParams, base: str = "") -> None:
    """Record int32 values in steps of ``unit`` as the node's quantized output, by one RESCALE."""
    tensor = context.rescale(node.name, acc, [unit / qparams.scale[0]], base or f"{node.name}/out", qparams)
    set_output(context, node, tensor, qparams)


def expand_rank(shape: Shape, rank: int) -> Shape:
    """``shape`` with leading ones up to ``rank``, as ONNX broadcasts it."""
    return (1,) * (rank - len(shape)) + shape


def axes_of(context: Context, node: Node, slot: int, rank: int) -> tuple[int, ...] | None:
    """The ``axes`` of a node, from its attribute or (newer opsets) from input ``slot``; None when absent."""
    axes = node.attributes.get("axes")
    if axes is None:
        given = context.constant_input(node, slot)
        axes = None if given is None else given.reshape(-1).tolist()
    return None if axes is None else tuple(int(a) % rank for a in axes)


def reads_extra_outputs(context: Context, node: Node) -> bool:
    """Whether anything reads an output of the node besides the first."""
    return any(value and context.graph.consumers(value) for value in node.outputs[1:])
