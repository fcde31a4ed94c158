"""Sliding windows of convolutions and pools, as TOSA wants them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inlay.model.graph import Node
from inlay.tosa.quantized import Unsupported


@dataclass(frozen=True)
class Window:
    """A 2-D sliding window whose last step ends exactly on the padded input's edge, as TOSA demands.

    Attributes:
        kernel, strides, dilations: height and width.
        pads: top, bottom, left, right; never negative.
        size: how many rows and columns of the input the windows cover together.
        out: output height and width.
    """

    kernel: tuple[int, int]
    size: tuple[int, int]
    out: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)


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
    if {len(kernel), len(strides), len(dilations)} != {rank} or len(pads) != 2 * rank or min(strides) < 1:
        raise Unsupported(f"its window does not fit its {rank} spatial dimensions")  # no check of ONNX finds that
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
