"""What is told of a model where there is no graph library, too: files that hold its tensors, and half precision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx


def tensors_of(graphs: Iterable[onnx.GraphProto | onnx.FunctionProto]) -> Iterator[onnx.TensorProto]:
    """Every tensor of graphs, or functions, and of the graphs in their nodes."""
    for graph in graphs:
        yield from graph.initializer if isinstance(graph, onnx.GraphProto) else ()  # a function has none
        for node in graph.node:
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors)
                yield from tensors_of([attribute.g, *attribute.graphs])


def external_locations(proto: onnx.ModelProto) -> tuple[str, ...]:
    """The files that tensors of ``proto`` lie in, as the model names them, each once."""
    external = (t for t in tensors_of([proto.graph, *proto.functions]) if t.data_location == onnx.TensorProto.EXTERNAL)
    return tuple(dict.fromkeys(e.value for t in external for e in t.external_data if e.key == "location"))


def holds_halves(graph: onnx.GraphProto) -> bool:
    """Whether an input, a constant or a Cast of a graph itself is in half precision: then something computes in it."""
    halves = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
    stated = {t.data_type for t in graph.initializer} | {v.type.tensor_type.elem_type for v in graph.input}
    casts = {a.i for n in graph.node if n.op_type == "Cast" for a in n.attribute if a.name == "to"}
    return bool(halves & (stated | casts))
