"""A model in half precision (float16, bfloat16), computed in float32 between its inputs and outputs.

Runtimes without kernels for half precision convert before and after each operator, and none fuses Q/DQ on halves. With
the same weights in float32 every result is nearer to the exact one; inputs and outputs keep their types.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.identity import remove_identities

HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_FLOAT = ir.TensorType(ir.DataType.FLOAT)


def has_halves(model: ir.Model) -> bool:
    """Whether some value of the main graph is known to be in half precision."""
    graph = model.graph
    values = [*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs)]
    return any(v.dtype in HALVES for v in values)


def widen_halves(model: ir.Model) -> tuple[ir.Model, int]:
    """Let the main graph compute in float32; models with subgraphs or functions stay as they are."""
    graph = model.graph
    kinds = {a.type for n in graph for a in n.attributes.values()}
    if kinds & {ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS} or model.functions or not has_halves(model):
        return model, 0
    infer_shapes(model)
    types = {id(v): v.dtype for v in graph.outputs}
    for value in list(graph.initializers.values()):
        if value.dtype in HALVES and value.const_value is not None:
            _widen_constant(graph, value)
    for node in graph:
        _widen_attributes(node)
        for value in node.outputs:
            if value.dtype in HALVES:
                value.type = _FLOAT
    edits = sum(_cast_input(graph, v) for v in graph.inputs if v.dtype in HALVES)
    for k, value in enumerate(graph.outputs):
        wanted = types[id(value)]
        if wanted in HALVES and value.dtype is ir.DataType.FLOAT:
            _cast_output(graph, k, value, wanted)
            edits += 1
    model, removed = remove_identities(model)
    return model, max(1, edits + removed)


def _widen_constant(graph: ir.Graph, value: ir.Value) -> None:
    """Another constant in place of ``value``, under another name: weights are stored by name."""
    assert value.const_value is not None
    tensor = _widened(value.const_value, f"{value.name}_float32")
    wide = ir.Value(name=tensor.name, type=_FLOAT, shape=value.shape, const_value=tensor)
    graph.register_initializer(wide)
    value.replace_all_uses_with(wide, replace_graph_outputs=True)
    del graph.initializers[str(value.name)]


def _widened(tensor: ir.TensorProtocol, name: str | None = None) -> ir.TensorProtocol:
    return ir.tensor(np.asarray(tensor.numpy()).astype(np.float32), name=name or tensor.name)


def _widen_attributes(node: ir.Node) -> None:
    """What makes halves: a Cast, a generator with a type, a constant of its own."""
    for name, attribute in list(node.attributes.items()):
        if name in ("to", "dtype") and attribute.value in HALVES:
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))
        elif attribute.type is ir.AttributeType.TENSOR and attribute.value.dtype in HALVES:
            node.attributes[name] = ir.AttrTensor(name, _widened(attribute.value))


def _cast_input(graph: ir.Graph, value: ir.Value) -> int:
    uses = list(value.uses())
    if not uses:
        return 0
    wide = ir.Value(name=f"{value.name}_float32", type=_FLOAT, shape=value.shape)
    for node, slot in uses:
        node.replace_input_with(slot, wide)
    attributes = [ir.AttrInt64("to", int(ir.DataType.FLOAT))]
    graph.insert_before(graph[0], ir.Node("", "Cast", [value], attributes, outputs=[wide], name=f"{value.name}_cast"))
    return 1


def _cast_output(graph: ir.Graph, slot: int, value: ir.Value, wanted: ir.DataType) -> None:
    name = value.name
    narrow = ir.Value(name=name, type=ir.TensorType(wanted), shape=value.shape)
    value.name = f"{name}_float32"
    attributes = [ir.AttrInt64("to", int(wanted))]
    graph.append(ir.Node("", "Cast", [value], attributes, outputs=[narrow], name=f"{name}_cast"))
    graph.outputs[slot] = narrow
