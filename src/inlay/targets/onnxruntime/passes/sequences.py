"""One-dimensional convolutions over images of one row, for whose kernels ONNX Runtime has a blocked layout.

The runtime computes a ``Conv`` over four-dimensional float tensors in blocks of channels (NCHWc), window by window.
Over three-dimensional ones it first copies all windows (im2col), which takes as long as the products where there are
few channels, or one for each output. What is between such convolutions follows, so that values stay in blocks from one
to the next. The sums are the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.axes import carried, rank_of, reorder_operands, reordered
from inlay.model.passes.steps import add_constant, constant_of, insert_behind, is_standard

BLOCK = 16
"""Channels of a block where vectors have 512 bits; 8 where they have 256. Others are filled up, which costs more than
it saves where they are few: 20 to 20 channels with 5 taps take 1.25 of the time, 24 to 24 1.09, 100 to 100 1.08."""
LEAST_TAPS = 2
"""Of one tap there are no windows to copy: 1.0 to 1.25 of the time, unless the values are in blocks already."""
LEAST_TAPS_DEPTHWISE = 5
"""Where each channel has a convolution of its own: over 2000 positions 3 taps take 1.0 to 1.6 of the time, 5 at most
1.06, 31 a quarter."""

_WIDENED = (0, 1, None, 2)  # batch, channels, one row, positions
_RANK, _ROW = 3, 2  # of a sequence; the axis of an image that has one row
_POOLS = frozenset({"AveragePool", "MaxPool", "GlobalAveragePool", "GlobalMaxPool"})


def widen_sequences(model: ir.Model) -> tuple[ir.Model, int]:
    """Compute float32 Convs of one dimension, and what is between them, over images of one row; how many Convs."""
    graph = model.graph
    if not any(_pays(n) for n in graph if _is_one_dimensional(n)):
        return model, 0
    if any(v.shape is None for n in graph for v in n.outputs if v.name):
        infer_shapes(model)
    images, done = _Images(graph), 0
    for node in list(graph):
        known = images.has(node.inputs[0]) if node.inputs else False
        if _is_one_dimensional(node):
            if _pays(node) or (known and _fits(node)):
                node.replace_input_with(1, images.weight(node.inputs[1]))
                _widen_window(node, images)
                done += 1
        elif known and is_standard(node, *_POOLS) and "auto_pad" not in node.attributes and len(node.outputs) == 1:
            _widen_window(node, images)
        elif any(map(images.has, node.inputs)):
            _follow(node, images)
    images.serve_sequences()
    return model, done


# --- which ----------------------------------------------------------------------------------------------------------


def _is_one_dimensional(node: ir.Node) -> bool:
    if not is_standard(node, "Conv") or "auto_pad" in node.attributes or rank_of(node.inputs[1]) != _RANK:
        return False
    weight = node.inputs[1]
    return weight is not None and weight.const_value is not None and weight.dtype is ir.DataType.FLOAT


def _sizes(conv: ir.Node) -> tuple[int, int, int]:
    """Outputs, inputs of each, and taps."""
    weight = conv.inputs[1]
    assert weight is not None
    assert weight.shape is not None
    outputs, inputs, taps = weight.shape.numpy()
    return outputs, inputs, taps


def _is_depthwise(conv: ir.Node) -> bool:
    return _sizes(conv)[1] == 1 < conv.attributes.get_int("group", 1)


def _fits(conv: ir.Node) -> bool:
    """Whether its channels fill whole blocks."""
    outputs, inputs, _ = _sizes(conv)
    return outputs % BLOCK == 0 and (inputs % BLOCK == 0 or _is_depthwise(conv))


def _pays(conv: ir.Node) -> bool:
    """Whether it is faster over an image, although its values are brought into blocks and back for it alone."""
    return _fits(conv) and _sizes(conv)[2] >= (LEAST_TAPS_DEPTHWISE if _is_depthwise(conv) else LEAST_TAPS)


# --- how ------------------------------------------------------------------------------------------------------------


class _Images:
    """Values as images of one row: such as are computed so, and others that are read so."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self._computed = dict[ir.Value, ir.Value]()  # by the sequence that others read
        self._read = dict[ir.Value, ir.Value]()
        self._weights = dict[ir.Value, ir.Value]()
        self._axes: ir.Value | None = None

    def has(self, value: ir.Value | None) -> bool:
        """Whether ``value`` is computed as an image."""
        return value in self._computed

    def of(self, value: ir.Value) -> ir.Value:
        """``value`` as an image: a view of it, where it is not computed so."""
        if value in self._computed:
            return self._computed[value]
        if value not in self._read:
            image = ir.Value(name=f"{value.name}_image", type=value.type, shape=_widened(value.shape))
            widen = ir.node("Unsqueeze", [value, self._row()], outputs=[image], name=f"{value.name}_widen")
            insert_behind(value, widen, self.graph)
            self._read[value] = image
        return self._read[value]

    def weight(self, value: ir.Value | None) -> ir.Value:
        """A constant weight whose window has one row."""
        assert value is not None
        if value not in self._weights:
            array = constant_of(value)
            assert array is not None
            self._weights[value] = add_constant(self.graph, f"{value.name}_image", np.expand_dims(array, _ROW))
        return self._weights[value]

    def compute(self, node: ir.Node) -> None:
        """Let the outputs of ``node`` be images, under the same names."""
        for value in node.outputs:
            sequence = ir.Value(name=f"{value.name}_flat", type=value.type, shape=value.shape)
            value.replace_all_uses_with(sequence, replace_graph_outputs=True)
            value.shape = _widened(value.shape)
            self._computed[sequence] = value

    def serve_sequences(self) -> None:
        """Give sequences to who still reads them."""
        for sequence, image in self._computed.items():
            if sequence.is_graph_output():
                sequence.name, image.name = image.name, sequence.name
            elif not sequence.uses():
                continue
            flatten = ir.node("Squeeze", [image, self._row()], outputs=[sequence], name=f"{sequence.name}_flatten")
            insert_behind(image, flatten, self.graph)

    def _row(self) -> ir.Value:
        if self._axes is None:
            self._axes = add_constant(self.graph, "row_of_images", np.array([_ROW], np.int64))
        return self._axes


def _widened(shape: ir.Shape | None) -> ir.Shape | None:
    return None if shape is None else ir.Shape([*shape[:_ROW], 1, *shape[_ROW:]])


def _widen_window(node: ir.Node, images: _Images) -> None:
    """Let a Conv or a pool slide over an image."""
    for name, one in (("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("pads", 0)):
        given: Sequence[int] = node.attributes.get_ints(name, ())
        if given:  # pads are those before, then those behind
            node.attributes[name] = ir.AttrInt64s(name, [n for number in given for n in (one, number)])
    assert node.inputs[0] is not None
    node.replace_input_with(0, images.of(node.inputs[0]))
    images.compute(node)


def _follow(node: ir.Node, images: _Images) -> None:
    """Let an operator that reads images compute images, where it can."""
    found, change = carried(node), None
    if found is not None and {*found[1]} == {v for v in node.outputs if v.name} and rank_of(found[1][0]) == _RANK:
        change = reordered(node, _WIDENED)
    if change is None or found is None:
        return
    reorder_operands(node, images.graph, _WIDENED)
    change.apply(node, images.graph)
    for slot in found[0]:
        value = node.inputs[slot]
        assert value is not None
        node.replace_input_with(slot, images.of(value))
    images.compute(node)
