"""A strided ``Conv`` over few channels as one over blocks of pixels: the form in which integer kernels are fast.

An integer convolution gathers a window's numbers channel by channel, a few bytes at a time where an image has three of
them. With ``SpaceToDepth`` before it, each block of ``b x b`` pixels lies in the channels, ``b*b`` times as many, and a
convolution of stride ``b`` becomes one of stride 1 whose window holds the same pixels in longer runs. The products are
the same ones, so every result is the same integer. In float, where kernels take images as they are, it would be
slower; that is why it is a matter of how low precision is written, and not of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from inlay.model.graph import Graph, Node
from inlay.model.windows import read_in_blocks
from inlay.quant.draft import DEQUANTIZE, Draft, set_window

TO_BLOCKS = "SpaceToDepth"
_SIZES = (2, 4)  # blocks of 3x3 take 0.9 to 1.1 of the time that pixels take
_OPSET = 13  # from which runtimes take integers there


@dataclass(frozen=True)
class Blocks:
    """How a convolution reads blocks of pixels.

    Attributes:
        size: pixels along each edge of a block.
        front: rows and columns of zeros before the weight, so that its first pixel begins a block.
        kernel: blocks of a window, by axis.
        pads: blocks of padding: before by axis, then behind by axis.
    """

    size: int
    front: tuple[int, int]
    kernel: tuple[int, int]
    pads: tuple[int, int, int, int]

    def weight(self, numbers: np.ndarray) -> np.ndarray:
        """The weight over blocks, shape ``(outputs, size * size * channels, *kernel)``, of one over pixels."""
        return read_in_blocks(numbers, self.size, self.front, self.kernel)


def blocks_of(graph: Graph, node: Node, most_channels: int) -> Blocks | None:
    """The form of ``node`` over blocks; None where it has none, or reads more than ``most_channels`` channels.

    It takes a ``Conv`` of one group without dilation, whose two strides are equal (2 or 4) and divide a height and
    width that the model fixes.
    """
    if node.op_type != "Conv" or node.domain not in ("", "ai.onnx") or len(node.inputs) < 2:
        return None
    shape, weight = graph.shape(node.inputs[0]), graph.shape(node.inputs[1])
    if shape is None or weight is None or len(shape) != 4 or len(weight) != 4 or None in (*shape[1:], *weight):
        return None
    channels, *sizes = (int(d or 0) for d in shape[1:])
    kernel = [int(d or 0) for d in weight[2:]]
    strides, dilations, pads = (
        [int(i) for i in node.attributes.get(name, default)]
        for name, default in (("strides", (1, 1)), ("dilations", (1, 1)), ("pads", (0, 0, 0, 0)))
    )
    if graph.opset < _OPSET:
        return None
    plain = "auto_pad" not in node.attributes and set(dilations) == {1}
    size = strides[0]
    if not plain or int(node.attributes.get("group", 1)) != 1 or not 1 <= channels <= most_channels:
        return None
    if strides[1] != size or size not in _SIZES or any(s % size for s in sizes):
        return None
    front = [-pads[axis] % size for axis in (0, 1)]
    rows = [-(-(kernel[axis] + front[axis]) // size) for axis in (0, 1)]
    before = [(pads[axis] + front[axis]) // size for axis in (0, 1)]
    results = [(sizes[axis] + pads[axis] + pads[axis + 2] - kernel[axis]) // size + 1 for axis in (0, 1)]
    behind = [results[axis] - sizes[axis] // size - before[axis] + rows[axis] - 1 for axis in (0, 1)]
    if min(behind) < 0 or min(results) < 1:
        return None
    return Blocks(size, (front[0], front[1]), (rows[0], rows[1]), (before[0], before[1], behind[0], behind[1]))


def read_blocks(draft: Draft, blocks: Mapping[str, Blocks]) -> None:
    """Let convolutions whose data and weight are quantized read blocks: ``Q -> SpaceToDepth -> DQ -> Conv``.

    Args:
        draft: the candidate; is changed.
        blocks: by node, the convolutions that may.
    """
    unread: set[str] = set()
    for node in draft.graph.node:
        data, weight = (draft.dequantizer(v) for v in node.input[:2]) if node.name in blocks else (None, None)
        if data is None or weight is None or data.input[0] not in draft.writers or data.attribute:
            continue
        if not draft.owns(weight):  # somebody else reads it over pixels
            continue
        form = blocks[node.name]
        through = _through(node.name, form, data, draft)
        draft.insert(through, before=node)
        draft.rearrange(weight, form.weight, lambda numbers: numbers, TO_BLOCKS)
        set_window(node, {"kernel_shape": form.kernel, "pads": form.pads, "strides": (1, 1)}, keep=True)
        draft.uses[data.output[0]] -= 1
        if not draft.uses[data.output[0]]:
            unread.add(data.name)
        node.input[0] = through[-1].output[0]
    draft.finish(unread)


def _through(name: str, blocks: Blocks, data: onnx.NodeProto, draft: Draft) -> list[onnx.NodeProto]:
    """What takes the quantized value behind ``data`` to the convolution called ``name``."""
    own, quantized, read = (
        draft.free(f"{name}_{suffix}") for suffix in (TO_BLOCKS, "blocks_quantized", "blocks_DequantizeLinear")
    )
    move = onnx.helper.make_node(TO_BLOCKS, [data.input[0]], [quantized], own, blocksize=blocks.size)
    return [move, onnx.helper.make_node(DEQUANTIZE, [quantized, *data.input[1:]], [read], read)]
