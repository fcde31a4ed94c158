"""Operators that a placement leaves in float stay in float, also on a runtime that quantizes weights by itself.

Some runtimes take a Conv, ConvTranspose or Gemm with a float weight that reads a DequantizeLinear and is read by a
QuantizeLinear for a quantized one whose weight was forgotten, and quantize it with one scale for the whole weight. They
look for a DequantizeLinear of one scale in front, and for a single reader behind. Hence the operator gets a
DequantizeLinear of its own with the same scale stated for each channel, which takes the same time. Where the number of
channels does not tell the two forms apart, a Size that nobody needs is a second reader of the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from math import prod

import numpy as np
import onnx

from inlay.model.passes.opset import QDQ_OPSET
from inlay.model.store import tensor_proto
from inlay.quant.qdq_graph import DEQUANTIZE, QUANTIZE

_CLAMPS = ("Relu", "Clip")
_MOVES = ("MaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice")  # Q and DQ are moved through them
_BEFORE = (*_MOVES, "Pad")  # becomes part of a Conv
_DATA, _WEIGHT = 0, 1  # input slots


def keep_float(graph: onnx.GraphProto, unique: Callable[[str], str], opset: int = QDQ_OPSET) -> None:
    """Rewrite ``graph`` in place so that its operators with float weights stay in float.

    Args:
        unique: derives from a wished name one that the graph does not use yet.
    """
    constants = {t.name: t for t in graph.initializer}
    producers = {v: n for n in graph.node for v in n.output}
    readers = {v: n for n in graph.node for v in n.input}
    uses = Counter(v for n in graph.node for v in n.input) + Counter(o.name for o in graph.output)
    made: dict[str, onnx.NodeProto] = {}
    forms: dict[str, tuple[int, int]] = {}
    nodes: list[onnx.NodeProto] = []
    at_end: list[onnx.NodeProto] = []
    unused: set[str] = set()
    for node in graph.node:
        nodes.append(node)
        weight = constants.get(node.input[_WEIGHT]) if node.op_type in _CHANNELS and len(node.input) > _WEIGHT else None
        if weight is None or node.domain not in ("", "ai.onnx") or len(weight.dims) < _LEAST_RANK[node.op_type]:
            continue
        source = producers.get(node.input[_DATA])
        moved = False
        while source is not None and source.op_type in _BEFORE:
            source, moved = producers.get(source.input[_DATA]), True
        result = _before_quantizer(node, readers, uses, constants)
        if source is None or source.op_type != DEQUANTIZE or source.attribute or result is None:
            continue
        axis, channels = _CHANNELS[node.op_type](node, list(weight.dims))
        read = source.output[0]
        scalars = all(v in constants and prod(constants[v].dims) == 1 for v in source.input[1:])
        tells = channels > 1 and opset >= QDQ_OPSET and scalars and not moved
        if not tells or forms.setdefault(read, (axis, channels)) != (axis, channels):
            name = unique(f"{node.name}_Size")
            at_end.append(onnx.helper.make_node("Size", [result], [name], name))
            continue
        if read not in made:
            made[read] = _by_channel(graph, source, axis, channels, constants, unique)
            nodes.insert(-1, made[read])
        uses[read] -= 1
        if not uses[read]:
            unused.add(read)
        node.input[_DATA] = made[read].output[0]
    if made or at_end:
        kept = [n for n in nodes if n.op_type != DEQUANTIZE or n.output[0] not in unused]
        del graph.node[:]
        graph.node.extend([*kept, *at_end])


def keep_alone(graph: onnx.GraphProto, unique: Callable[[str], str], names: Collection[str]) -> None:
    """Rewrite ``graph`` in place so that no integer kernel takes the place of operators of these names.

    Where Q/DQ nodes of others stand around one, a Size that nobody needs is a second reader of what it computes.
    """
    constants = {t.name for t in graph.initializer}
    producers = {v: n for n in graph.node for v in n.output}
    readers = {v: n for n in graph.node for v in n.input}
    uses = Counter(v for n in graph.node for v in n.input) + Counter(o.name for o in graph.output)
    for node in [n for n in graph.node if n.name in names]:
        result = _before_quantizer(node, readers, uses, constants)
        if is_dequantized(node.input[_DATA], producers) and result is not None:
            name = unique(f"{node.name}_Size")
            graph.node.append(onnx.helper.make_node("Size", [result], [name], name))


def is_dequantized(value: str, producers: Mapping[str, onnx.NodeProto]) -> bool:
    """Whether a DequantizeLinear computes ``value``, at once or before operators that it is moved through."""
    source = producers.get(value)
    while source is not None and source.op_type in _BEFORE:
        source = producers.get(source.input[_DATA])
    return source is not None and source.op_type == DEQUANTIZE


def _before_quantizer(
    node: onnx.NodeProto, readers: dict[str, onnx.NodeProto], uses: Counter[str], constants: Collection[str]
) -> str | None:
    """What ``node`` and its clamps compute, given that a QuantizeLinear alone reads it, at once or behind moves."""

    def only_reader(value: str, *op_types: str) -> onnx.NodeProto | None:
        reader = readers.get(value)
        return reader if reader is not None and uses[value] == 1 and reader.op_type in op_types else None

    value = node.output[0]
    if node.op_type == "MatMul":  # becomes a Gemm, given a bias
        bias = only_reader(value, "Add")
        if bias is None or not any(v in constants for v in bias.input):
            return None
        value = bias.output[0]
    while (clamp := only_reader(value, *_CLAMPS)) is not None:
        value = clamp.output[0]
    result = value
    while (move := only_reader(value, *_MOVES)) is not None:
        value = move.output[0]
    return result if only_reader(value, QUANTIZE) is not None else None


def _by_channel(
    graph: onnx.GraphProto,
    dq: onnx.NodeProto,
    axis: int,
    channels: int,
    constants: dict[str, onnx.TensorProto],
    unique: Callable[[str], str],
) -> onnx.NodeProto:
    inputs = [dq.input[0]]
    for name in dq.input[1:]:
        tensor = constants[name]
        one = onnx.numpy_helper.to_array(tensor).reshape(())
        inputs.append(unique(f"{name}_by_channel"))
        graph.initializer.append(tensor_proto(inputs[-1], np.full(channels, one), tensor.data_type))
    name = unique(f"{dq.output[0]}_by_channel")
    return onnx.helper.make_node(DEQUANTIZE, inputs, [name], name, axis=axis)


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), default)


def _conv_channels(node: onnx.NodeProto, weight: list[int]) -> tuple[int, int]:
    group = _attribute(node, "group", 1)  # no more than results, where a runtime takes it
    return 1, weight[1] * group if 1 <= group <= weight[0] else 0


def _gemm_channels(node: onnx.NodeProto, weight: list[int]) -> tuple[int, int]:
    return 1 - _attribute(node, "transA", 0), weight[_attribute(node, "transB", 0)]


_CHANNELS: dict[str, Callable[[onnx.NodeProto, list[int]], tuple[int, int]]] = {
    "Conv": _conv_channels,
    "ConvTranspose": lambda node, weight: (1, weight[0]),
    "Gemm": _gemm_channels,
    "MatMul": lambda node, weight: (-1, weight[-2] if len(weight) > 1 else weight[0]),
}
"""By operator: axis and number of the channels of its data."""

_LEAST_RANK = {"Conv": 3, "ConvTranspose": 3, "Gemm": 2, "MatMul": 1}
"""Of a weight: a model may hold operators that no runtime takes, which stay as they are."""

OPERATORS = frozenset(_CHANNELS)  # those whose float weights are quantized
