"""A strided ``Conv`` over few channels as one over blocks of pixels: the form in which integer kernels are fast.

An integer convolution gathers a window's numbers channel by channel, a few bytes at a time where an image has three of
them. With ``SpaceToDepth`` before it, each block of ``b x b`` pixels lies in the channels, ``b*b`` times as many, and a
convolution of stride ``b`` becomes one of stride 1 whose window holds the same pixels in longer runs. The products are
the same ones, so every result is the same integer. In float, where kernels take images as they are, it would be
slower; that is why it is a matter of how low precision is written, and not of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from inlay.model.graph import Graph, Node
from inlay.model.store import WeightStore, tensor_proto

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
        outputs, channels, height, width = numbers.shape
        size, (top, left), (rows, columns) = self.size, self.front, self.kernel
        whole = np.zeros((outputs, channels, rows * size, columns * size), numbers.dtype)
        whole[:, :, top : top + height, left : left + width] = numbers
        split = whole.reshape(outputs, channels, rows, size, columns, size)
        return np.ascontiguousarray(split.transpose(0, 3, 5, 1, 2, 4)).reshape(outputs, -1, rows, columns)


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
    plain = node.attributes.get("auto_pad", "NOTSET") in ("NOTSET", b"NOTSET") and set(dilations) == {1}
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


def read_blocks(
    graph: onnx.GraphProto, blocks: Mapping[str, Blocks], store: WeightStore, free: Callable[[str], str]
) -> None:
    """Let convolutions whose data and weight are quantized read blocks: ``Q -> SpaceToDepth -> DQ -> Conv``.

    Args:
        graph: with Q/DQ nodes, some weights in ``store``; is changed.
        blocks: by node, the convolutions that may.
        store: takes the weights over blocks.
        free: makes a name that the graph does not have of a wish.
    """
    writers = {v: n for n in graph.node for v in n.output}
    uses = Counter(v for n in graph.node for v in n.input) + Counter(o.name for o in graph.output)
    tensors = {t.name: t for t in graph.initializer}
    before: dict[str, list[onnx.NodeProto]] = {}
    unread: set[str] = set()
    for node in graph.node:
        data, weight = (writers.get(v) for v in node.input[:2]) if node.name in blocks else (None, None)
        if data is None or weight is None or {data.op_type, weight.op_type} != {"DequantizeLinear"}:
            continue
        numbers = tensors.get(weight.input[0])
        if data.input[0] not in writers or data.attribute or numbers is None:
            continue
        if uses[numbers.name] > 1 or uses[weight.output[0]] > 1:  # somebody else reads it over pixels
            continue
        form = blocks[node.name]
        before[node.name] = _through(node.name, form, data, free)
        _set_weight(numbers, form, store)
        _set_window(node, form)
        uses[data.output[0]] -= 1
        if not uses[data.output[0]]:
            unread.add(data.name)
        node.input[0] = before[node.name][-1].output[0]
    if before:
        nodes = [m for n in graph.node if n.name not in unread for m in (*before.get(n.name, ()), n)]
        del graph.node[:]
        graph.node.extend(nodes)


def _through(name: str, blocks: Blocks, data: onnx.NodeProto, free: Callable[[str], str]) -> list[onnx.NodeProto]:
    """What takes the quantized value behind ``data`` to the convolution called ``name``."""
    own, quantized, read = (
        free(f"{name}_{suffix}") for suffix in (TO_BLOCKS, "blocks_quantized", "blocks_DequantizeLinear")
    )
    move = onnx.helper.make_node(TO_BLOCKS, [data.input[0]], [quantized], own, blocksize=blocks.size)
    return [move, onnx.helper.make_node("DequantizeLinear", [quantized, *data.input[1:]], [read], read)]


def _set_weight(tensor: onnx.TensorProto, blocks: Blocks, store: WeightStore) -> None:
    """Put the weight over blocks in the place of one over pixels."""
    where = {entry.key: entry.value for entry in tensor.external_data}
    stored = tensor.data_location == onnx.TensorProto.EXTERNAL
    data = store.read(tensor) if stored else tensor.raw_data
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    numbers = blocks.weight(np.frombuffer(data, dtype).reshape(tuple(tensor.dims)))
    if stored:
        key = f"blocks:{where['offset']}"
        store.put(key, numbers.tobytes)
        tensor.CopyFrom(store.reference(key, tensor.name, tensor.data_type, numbers.shape))
    else:
        tensor.CopyFrom(tensor_proto(tensor.name, numbers, tensor.data_type))


def _set_window(node: onnx.NodeProto, blocks: Blocks) -> None:
    window = {"kernel_shape": blocks.kernel, "pads": blocks.pads, "strides": (1, 1)}
    kept = [a for a in node.attribute if a.name not in window]
    del node.attribute[:]
    node.attribute.extend([*kept, *(onnx.helper.make_attribute(k, v) for k, v in window.items())])
