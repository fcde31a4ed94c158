"""A second, simpler writer of Q/DQ nodes, independent of ``inlay.quant.emit``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper


def insert_qdq_everywhere(
    model: onnx.ModelProto, scales: Mapping[str, tuple[float, int]] | None = None
) -> onnx.ModelProto:
    """Q/DQ (uint8) on every float activation: each graph input and each node output.

    ``scales`` gives scale and zero point by value; 0.05 and 128 elsewhere.
    """
    inferred = onnx.shape_inference.infer_shapes(model)
    types = {v.name: v.type.tensor_type.elem_type for v in (*inferred.graph.value_info, *inferred.graph.input)}
    types |= {v.name: v.type.tensor_type.elem_type for v in inferred.graph.output}
    graph = onnx.GraphProto()
    graph.CopyFrom(model.graph)
    del graph.node[:]
    given = {t.name for t in graph.initializer}
    made: dict[str, str] = {}
    outputs = {o.name for o in graph.output}

    def pair(value: str, read: str, source: str) -> Iterator[onnx.NodeProto]:
        scale, zero = (scales or {}).get(value, (0.05, 128))
        graph.initializer.append(numpy_helper.from_array(np.array(scale, np.float32), f"{value}_s"))
        graph.initializer.append(numpy_helper.from_array(np.array(zero, np.uint8), f"{value}_z"))
        yield helper.make_node("QuantizeLinear", [source, f"{value}_s", f"{value}_z"], [f"{value}_q"])
        yield helper.make_node("DequantizeLinear", [f"{value}_q", f"{value}_s", f"{value}_z"], [read])

    for value in [i.name for i in graph.input if i.name not in given]:
        if types.get(value) == onnx.TensorProto.FLOAT:
            made[value] = f"{value}_dq"
            graph.node.extend(pair(value, made[value], value))
    for node in model.graph.node:
        new = graph.node.add()
        new.CopyFrom(node)
        for i, value in enumerate(node.input):
            new.input[i] = made.get(value, value)
        for i, value in enumerate(node.output):
            if value and types.get(value) == onnx.TensorProto.FLOAT:
                new.output[i] = f"{value}_float"
                made[value] = value if value in outputs else f"{value}_dq"
                graph.node.extend(pair(value, made[value], f"{value}_float"))
    done = onnx.ModelProto()
    done.CopyFrom(model)
    done.graph.CopyFrom(graph)
    return done
