"""A model on integers with the same results on a processor that saturates as on one that does not.

x86 without VNNI adds pairs of products of uint8 and int8 in 16 bits, and computes int8 with int8 as that. Products of
uint8 with uint8 it widens first. So every int8 becomes uint8 by an offset of 128, with zero points that are 128 higher:
``(x - zx) * (w - zw)`` is the same integer, and what is rounded is the same number. What ran here then is, bit for bit,
what kernels without saturation give: tests hold it against integers of numpy, and against the runtime on ARM64.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

_ZERO_POINTS = {
    "DequantizeLinear": (0, 2),
    "MatMulInteger": (1, 3),
    "ConvInteger": (1, 3),
    "DynamicQuantizeMatMul": (1, 3),
}
"""Inputs that are a weight and its zero point, which may be left out where it is zero, by operator."""


def has_int8(model: onnx.ModelProto) -> bool:
    """Whether the model computes on int8 at all, so that it has another form."""
    return any(t.data_type == TensorProto.INT8 for graph in _graphs(model.graph) for t in _tensors(graph))


def exact_form(model: onnx.ModelProto, folder: Path) -> bool:
    """Rewrite ``model`` in place; weights beside it in ``folder`` stay there, but for those in int8.

    Returns:
        Whether it has such a form: inputs, outputs and casts of int8 have not, and the model is then left as it was.
    """
    if any(not _has_form(graph) for graph in _graphs(model.graph)):
        return False
    int8 = {t.name for graph in _graphs(model.graph) for t in graph.initializer if t.data_type == TensorProto.INT8}
    int8 |= {
        node.output[0]
        for graph in _graphs(model.graph)
        for node in graph.node
        if node.op_type == "Constant" and any(a.t.data_type == TensorProto.INT8 for a in node.attribute)
    }
    for graph in _graphs(model.graph):
        for tensor in _tensors(graph):
            if tensor.data_type == TensorProto.INT8:
                _shift(tensor, folder)
        for info in graph.value_info:
            if info.type.tensor_type.elem_type == TensorProto.INT8:
                info.type.tensor_type.elem_type = TensorProto.UINT8
        _complete(graph, int8)
    return True


def _complete(graph: onnx.GraphProto, int8: set[str]) -> None:
    """State the zero points that are left out of operators on int8."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "output_dtype" and attribute.i == TensorProto.INT8:
                attribute.i = TensorProto.UINT8
                if len(node.input) < 3 or not node.input[2]:
                    _state(graph, node, 2, like=node.input[1])
        weight, zero = _ZERO_POINTS.get(node.op_type, (0, 0))
        if zero and node.input[weight] in int8 and (len(node.input) <= zero or not node.input[zero]):
            _state(graph, node, zero, like=node.input[1] if weight == 0 else "")


def _state(graph: onnx.GraphProto, node: onnx.NodeProto, at: int, like: str = "") -> None:
    """Add the zero point 128 as input ``at``, of the shape of the constant ``like``."""
    dims = next((list(t.dims) for t in graph.initializer if t.name == like), [])
    name = f"{node.name or node.output[0]}.exact_zero_point"
    graph.initializer.append(numpy_helper.from_array(np.full(dims, 128, np.uint8), name))
    node.input.extend([""] * (at + 1 - len(node.input)))
    node.input[at] = name


def _shift(tensor: onnx.TensorProto, folder: Path) -> None:
    array = numpy_helper.to_array(tensor, str(folder))
    shifted = numpy_helper.from_array((array.view(np.uint8) ^ 0x80).reshape(array.shape), tensor.name)
    tensor.CopyFrom(shifted)


def _has_form(graph: onnx.GraphProto) -> bool:
    ends = [*graph.input, *graph.output]
    casts = (n for n in graph.node if n.op_type in ("Cast", "CastLike"))
    to = (a.i for n in casts for a in n.attribute if a.name == "to")
    return TensorProto.INT8 not in {v.type.tensor_type.elem_type for v in ends} | set(to)


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    yield from (a.t for n in graph.node for a in n.attribute if a.type == onnx.AttributeProto.TENSOR)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [*([attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else ()), *attribute.graphs]:
                yield from _graphs(inner)
