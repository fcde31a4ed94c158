"""A model in half precision (float16, bfloat16), computed in float32 between its inputs and outputs.

Runtimes without kernels for half precision convert before and after each operator, and none fuses Q/DQ on halves. With
the same weights in float32 every result is nearer to the exact one; inputs and outputs keep their types.

With each result rounded to halves, float32 shows what kernels for half precision compute that add up in float32. ONNX
Runtime 1.31 on a CPU does not: it computes in float32 what lies between its own Casts, whose pairs it leaves out, so
that nothing overflows, and it has next to no operators in bfloat16.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from inlay.model.external import holds_halves
from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.identity import remove_identities

HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_FLOAT = ir.TensorType(ir.DataType.FLOAT)


def has_halves(model: ir.Model) -> bool:
    """Whether some value of the main graph is known to be in half precision."""
    graph = model.graph
    values = [*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs)]
    casts = (n.attributes["to"].value for n in graph if n.op_type == "Cast" and "to" in n.attributes)
    return any(v.dtype in HALVES for v in values) or any(kind in HALVES for kind in casts)


def rounded_halves(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model that computes in float32 what kernels for half precision make of ``proto``; without such, that itself.

    Its larger tensors may be anywhere: they are not read.
    """
    if not holds_halves(proto.graph):
        return proto
    model, _ = widen_halves(ir.from_proto(proto), rounding=True)
    return ir.to_proto(model)


def rounded_file(path: Path) -> Path:
    """The file of such a model: ``path`` itself, or one beside it, which finds the same external data."""
    proto = onnx.load(str(path), load_external_data=False)
    rounded = rounded_halves(proto)
    if rounded is proto:
        return path
    twin = path.with_name(f"{path.stem}.rounded.onnx")
    twin.write_bytes(rounded.SerializeToString())
    return twin


def widen_halves(model: ir.Model, rounding: bool = False) -> tuple[ir.Model, int]:
    """Let the main graph compute in float32; models with subgraphs or functions stay as they are.

    Args:
        rounding: each result is rounded to what it was a half of, and constants stay halves, with a Cast.
    """
    graph = model.graph
    kinds = {a.type for n in graph for a in n.attributes.values()}
    if kinds & {ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS} or model.functions or not has_halves(model):
        return model, 0
    infer_shapes(model)
    types = [v.dtype for v in graph.outputs]
    for value in list(graph.initializers.values()):
        if value.dtype in HALVES and value.const_value is not None and not rounding:
            _widen_constant(graph, value)
    for node in list(graph):
        _widen_attributes(node)
        for value in node.outputs:
            if value.dtype in HALVES:
                kind, value.type = value.dtype, _FLOAT
                if rounding:
                    _round(graph, node, value, kind)
    given = [*graph.inputs, *(v for v in graph.initializers.values() if not v.is_graph_input())]
    edits = sum(_cast_input(graph, v) for v in given if v.dtype in HALVES)
    for k, value in enumerate(graph.outputs):
        wanted = types[k]
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


def _round(graph: ir.Graph, node: ir.Node, value: ir.Value, kind: ir.DataType) -> None:
    """Let what reads ``value``, a result of ``node``, read it rounded to ``kind``; the rounded one has its name."""
    name, slot = value.name, value.index()
    assert slot is not None, "a node makes it"
    narrow, rounded = ir.Value(name=f"{name}_half", type=ir.TensorType(kind)), ir.Value(name=name, type=_FLOAT)
    value.replace_all_uses_with(rounded, replace_graph_outputs=True)
    value.name = f"{name}_exact"
    to = [[ir.AttrInt64("to", int(t))] for t in (kind, ir.DataType.FLOAT)]
    down = ir.Node("", "Cast", [value], to[0], outputs=[narrow], name=f"{node.name}_{slot}_down")
    graph.insert_after(node, [down, ir.Node("", "Cast", [narrow], to[1], outputs=[rounded], name=f"{down.name}_up")])


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
