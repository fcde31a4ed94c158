"""Which files beside a model hold some of its tensors: to be read where there is no graph library, too."""

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
