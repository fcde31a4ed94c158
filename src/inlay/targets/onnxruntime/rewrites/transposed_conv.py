"""A ``ConvTranspose`` as a ``Conv`` that computes blocks of pixels, and ``DepthToSpace``.

ONNX Runtime has no integer ConvTranspose. Each block of ``s x s`` pixels that one of stride ``s`` computes depends on
the same few inputs, so a convolution of stride 1 with ``s*s`` times as many outputs computes it, and ``DepthToSpace``
puts the pixels in their places, as bytes. The products are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx

from inlay.model.graph import Graph, Node
from inlay.quant.notes import Inverse
from inlay.quant.qdq_graph import QDQGraph, path_to_quantizer, set_attributes
from inlay.quant.rewrite import Rewrite

DEPTH_TO_SPACE = "DepthToSpace"


@dataclass(frozen=True)
class BlockConv:
    """The ``Conv`` of stride 1 that computes blocks of what a ``ConvTranspose`` computes.

    An output pixel of a transposed convolution of stride ``s`` reads every ``s``-th tap of the weight along each axis;
    which ones follows from its place in its block of ``s x s`` pixels.
    """

    size: int  # pixels along each edge of a block: the stride
    # by axis, `(pixel of the block, tap of the Conv) -> tap of the transposed weight`
    taps: tuple[Mapping[tuple[int, int], int], Mapping[tuple[int, int], int]]
    kernel: tuple[int, int]  # taps of the Conv, by axis
    pads: tuple[int, int, int, int]  # of the Conv: before by axis, then after by axis

    def weight(self, array: np.ndarray) -> np.ndarray:
        """The Conv's, shape ``(size * size * outputs, channels, *kernel)``, of one ``(channels, outputs, ...)``."""
        channels, outputs = array.shape[:2]
        turned = array.swapaxes(0, 1)
        blocks = np.zeros((self.size, self.size, outputs, channels, *self.kernel), array.dtype)
        for (a, d), k in self.taps[0].items():
            for (b, e), m in self.taps[1].items():
                blocks[a, b, :, :, d, e] = turned[:, :, k, m]
        return blocks.reshape(-1, channels, *self.kernel)

    def inverse(self, shape: tuple[int, ...]) -> Inverse:
        """Of :meth:`weight`, for arrays of ``shape``.

        Each pixel ``a`` of a block and tap ``d`` of the Conv stands for the same tap of the transposed weight, less an
        offset, in a window of ``size * kernel`` taps: ``a + size * (kernel - 1 - d)``.
        """
        (channels, outputs, *window), size, bounds = shape, self.size, []
        for taps, kernel, length in zip(self.taps, self.kernel, window, strict=True):
            (a, d), tap = next(iter(taps.items()))
            first = a + size * (kernel - 1 - d) - tap
            bounds.append((first, first + length))
        return (
            ("reshape", (size, size, outputs, channels, *self.kernel)),
            ("flip", (4, 5)),
            ("transpose", (3, 2, 4, 0, 5, 1)),
            ("reshape", (channels, outputs, size * self.kernel[0], size * self.kernel[1])),
            ("crop", ((0, channels), (0, outputs), *bounds)),
        )

    def channels(self, array: np.ndarray) -> np.ndarray:
        """One value per output channel (bias, scale) as one per channel of the Conv."""
        return np.tile(array, self.size * self.size)


def block_conv_of(graph: Graph, node: Node) -> BlockConv | str:
    """The form of ``node``, a ConvTranspose, or the reason why it has none.

    It takes a constant weight that no other node reads, two dimensions, one group, two equal strides of at least 2, no
    dilation, and an output whose height and width are multiples of the stride, whatever the input's are.
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
    return BlockConv(size, (rows[0], columns[0]), (rows[1], columns[1]), (rows[2], columns[2], rows[3], columns[3]))


def _axis(
    size: int, kernel: int, before: int, after: int, extra: int
) -> tuple[Mapping[tuple[int, int], int], int, int, int] | None:
    """Taps, their number, and the padding before and after, along one axis; None where blocks do not fit.

    Output ``size * j + a`` sums input ``i`` times tap ``k`` over all ``size * j + a + before == size * i + k`` (ONNX,
    ConvTranspose): the Conv's tap ``i - j`` is ``(a + before - k) / size``. It has ``more`` outputs than inputs.
    """
    more, rest = divmod(kernel - before - after + extra, size)
    if rest:
        return None
    more -= 1
    pairs = {
        (a, (a + before - k) // size): k for a in range(size) for k in range(kernel) if not (a + before - k) % size
    }
    low, high = min(0, *(d for _, d in pairs)), max(-more, *(d for _, d in pairs))
    return {(a, d - low): k for (a, d), k in pairs.items()}, high - low + 1, -low, more + high


@dataclass(frozen=True)
class TransposedConv(Rewrite[BlockConv]):
    """``DQ -> ConvTranspose [-> Relu] -> Q`` becomes ``DQ -> Conv [-> Relu] -> Q -> DepthToSpace``."""

    absorbed: frozenset[str] = frozenset()  # activations that the runtime fuses into the convolution before them

    name = "transposed convolution as convolution"
    reason = "ONNX Runtime has an integer Conv, but no integer ConvTranspose"
    source = (
        "every quantized ConvTranspose is otherwise computed in float; in float this form takes 1.0 to 2.0 times as "
        "long as ConvTranspose (ONNX Runtime 1.31, x86-64 with AVX512)"
    )

    def applies(self, graph: Graph, node: Node) -> BlockConv | None:
        """The Conv of a ConvTranspose whose output consists of whole blocks."""
        form = block_conv_of(graph, node) if node.op_type == "ConvTranspose" else None
        return form if isinstance(form, BlockConv) else None

    def apply(self, qdq: QDQGraph, forms: Mapping[str, BlockConv]) -> None:
        """Rewrite transposed convolutions all of whose inputs, and whose output, are quantized."""
        sole_reader = {v: n for n in qdq.graph.node for v in n.input}
        stale: set[str] = set()
        for node in list(qdq.graph.node):
            form = forms.get(node.name)
            parameters = [qdq.dequantizer(v) for v in node.input]
            if form is None or None in parameters:
                continue
            constants = [p for p in parameters[1:] if p is not None]
            if not all(qdq.owns(p) for p in constants):
                continue
            between, q = path_to_quantizer(node, sole_reader, qdq, self.absorbed)
            if q is None or not qdq.in_bytes(q):  # DepthToSpace has no kernel for wider ones
                continue
            node.op_type = "Conv"
            set_attributes(node, {"kernel_shape": form.kernel, "pads": form.pads, "strides": (1, 1)}, keep=False)
            for slot, dq in enumerate(constants):
                _rearrange(dq, form, qdq, is_weight=slot == 0)
            stale.update(n.output[0] for n in (node, *between))
            whole, blocks = q.output[0], qdq.unique(f"{node.name}_blocks_quantized")
            q.output[0] = blocks
            name = qdq.unique(f"{node.name}_{DEPTH_TO_SPACE}")
            move = onnx.helper.make_node(DEPTH_TO_SPACE, [blocks], [whole], name, blocksize=form.size)
            qdq.insert([move], before=sole_reader[whole])
        qdq.finish()
        qdq.drop_shapes(stale)


def _rearrange(dq: onnx.NodeProto, form: BlockConv, qdq: QDQGraph, is_weight: bool) -> None:
    """Put the constant behind ``dq``, and a scale per channel, in the order of the Conv's outputs."""
    if is_weight:
        inverse = form.inverse(qdq.shape(dq.input[0]))
        qdq.rearrange(dq, form.weight, form.channels, DEPTH_TO_SPACE, inverse)
    for name in dq.input[is_weight:]:
        array = qdq.constant(name)
        if array.ndim:
            back = (("crop", ((0, array.size),)),)
            qdq.set_constant(name, partial(form.channels, array), DEPTH_TO_SPACE, back)
    if is_weight and dq.attribute:
        set_attributes(dq, {}, keep=False)
        dq.attribute.append(onnx.helper.make_attribute("axis", 0))
