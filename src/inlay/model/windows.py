"""What a convolution's window becomes where pixels lie in blocks: arithmetic of weights, which changes no graph.

``SpaceToDepth`` puts a block of ``b x b`` pixels into the channels, ``DepthToSpace`` (DCR) takes it out again; the
block's row comes first, then its column, then the channel. All weights are of two-dimensional convolutions of one
group; what no pixel asks for is zero, so every result is the same sum of the same products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from inlay.model.graph import Graph, Node


def read_in_blocks(weight: np.ndarray, size: int, front: tuple[int, int], kernel: tuple[int, int]) -> np.ndarray:
    """The weight of the convolution that reads blocks, shape ``(outputs, size * size * channels, *kernel)``.

    Args:
        weight: shape ``(outputs, channels, height, width)``.
        size: pixels along each edge of a block.
        front: rows and columns of zeros before the weight, so that its first pixel begins a block.
        kernel: blocks of a window, by axis; together they hold the weight and its front.
    """
    outputs, channels, height, width = weight.shape
    (top, left), (rows, columns) = front, kernel
    whole = np.zeros((outputs, channels, rows * size, columns * size), weight.dtype)
    whole[:, :, top : top + height, left : left + width] = weight
    split = whole.reshape(outputs, channels, rows, size, columns, size)
    return np.ascontiguousarray(split.transpose(0, 3, 5, 1, 2, 4)).reshape(outputs, -1, rows, columns)


def written_in_blocks(weight: np.ndarray, size: int) -> np.ndarray:
    """The weight of the convolution of stride ``size`` that computes blocks of what ``weight`` computes at stride 1.

    Shape ``(size * size * outputs, channels, height + size - 1, width + size - 1)``, of one ``(outputs, channels,
    height, width)``: the weight shifted to each pixel of a block.
    """
    outputs, channels, height, width = weight.shape
    shifted = np.zeros((size, size, outputs, channels, height + size - 1, width + size - 1), weight.dtype)
    for i in range(size):
        for j in range(size):
            shifted[i, j, :, :, i : i + height, j : j + width] = weight
    return shifted.reshape(-1, *shifted.shape[3:])


def of_patches(weight: np.ndarray, starts: Sequence[tuple[int, int]], size: int) -> np.ndarray:
    """The weight over an image, ``size`` times as high and wide, of one over its patches joined along the channels.

    Args:
        weight: shape ``(outputs, len(starts) * channels, height, width)``.
        starts: first row and column of each patch, which takes every ``size``-th of both.
        size: the step.
    """
    outputs, joined, height, width = weight.shape
    channels = joined // len(starts)
    whole = np.zeros((outputs, channels, size * height, size * width), weight.dtype)
    for slot, (a, b) in enumerate(starts):
        whole[:, :, a::size, b::size] = weight[:, slot * channels : (slot + 1) * channels]
    return whole


@dataclass(frozen=True)
class Spread:
    """A ``ConvTranspose`` as a ``Conv`` of stride 1 that computes blocks of pixels, and ``DepthToSpace``.

    A pixel of what a transposed convolution of stride ``s`` makes reads every ``s``-th number of the weight, along each
    axis; which ones follows from its place in the block of ``s x s`` pixels that it is in.

    Attributes:
        size: pixels along each edge of a block: the stride.
        taps: by axis, ``(pixel of the block, tap of the Conv) -> tap of the weight``.
        kernel: taps of the Conv, by axis.
        pads: of the Conv: before by axis, then behind by axis.
    """

    size: int
    taps: tuple[Mapping[tuple[int, int], int], Mapping[tuple[int, int], int]]
    kernel: tuple[int, int]
    pads: tuple[int, int, int, int]

    def weight(self, numbers: np.ndarray) -> np.ndarray:
        """The Conv's, shape ``(size * size * outputs, channels, *kernel)``, of one ``(channels, outputs, ...)``."""
        channels, outputs = numbers.shape[:2]
        turned = numbers.swapaxes(0, 1)
        whole = np.zeros((self.size, self.size, outputs, channels, *self.kernel), numbers.dtype)
        for (a, d), k in self.taps[0].items():
            for (b, e), m in self.taps[1].items():
                whole[a, b, :, :, d, e] = turned[:, :, k, m]
        return whole.reshape(-1, channels, *self.kernel)

    def channels(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers of the outputs (a bias, scales) as those of the Conv's."""
        return np.tile(numbers, self.size * self.size)


def spread_of(graph: Graph, node: Node) -> Spread | str:
    """The form of ``node``, a ConvTranspose, as Conv and DepthToSpace; or why it has none.

    It takes a constant weight that nobody else reads, two dimensions, one group, two equal strides of at least 2, no
    dilation, and an image whose height and width are multiples of the stride, whatever the input's are.
    """
    if len(node.inputs) < 2 or not graph.is_constant(node.inputs[1]):
        return "its weight is computed at run time"
    window = [d for d in (graph.shape(node.inputs[1]) or ())[2:] if d is not None]
    if len(window) != 2:
        return "it is not two-dimensional"
    if len(graph.consumers(node.inputs[1])) > 1:
        return "its weight has other readers"
    if int(node.attributes.get("group", 1)) != 1 or {*node.attributes.get("dilations", (1,))} != {1}:
        return "it has groups or dilations"
    if "auto_pad" in node.attributes or "output_shape" in node.attributes:
        return "its pads follow from its output's shape"
    strides, pads, extra = (
        [int(i) for i in node.attributes.get(name, default)]
        for name, default in (("strides", (1, 1)), ("pads", (0, 0, 0, 0)), ("output_padding", (0, 0)))
    )
    size = strides[0]
    if size < 2 or strides[1] != size or min(pads) < 0:
        return "its strides are not equal, or 1"
    found = [_axis(size, window[i], pads[i], pads[i + 2], extra[i]) for i in (0, 1)]
    rows, columns = found
    if rows is None or columns is None:
        return "its output's height or width is no multiple of its stride"
    return Spread(size, (rows[0], columns[0]), (rows[1], columns[1]), (rows[2], columns[2], rows[3], columns[3]))


def _axis(
    size: int, kernel: int, before: int, behind: int, extra: int
) -> tuple[Mapping[tuple[int, int], int], int, int, int] | None:
    """Taps, how many there are, and the padding before and behind, along one axis; None where blocks do not fit.

    Result ``size * j + a`` sums input ``i`` times tap ``k`` over all ``size * j + a + before == size * i + k`` (ONNX,
    ConvTranspose): the Conv's tap ``i - j`` is ``(a + before - k) / size``. It has ``more`` results than inputs.
    """
    more, rest = divmod(kernel - before - behind + extra, size)
    if rest:
        return None
    more -= 1
    pairs = {
        (a, (a + before - k) // size): k for a in range(size) for k in range(kernel) if not (a + before - k) % size
    }
    low, high = min(0, *(d for _, d in pairs)), max(-more, *(d for _, d in pairs))
    return {(a, d - low): k for (a, d), k in pairs.items()}, high - low + 1, -low, more + high
