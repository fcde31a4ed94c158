"""Remove what does nothing at inference: Identity, Dropout, and Cast to the type that the value has already."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.steps import is_standard
from inlay.model.pinned import is_trained


def remove_identities(model: ir.Model) -> tuple[ir.Model, int]:
    """Bypass no-op nodes of the main graph; bodies of subgraphs stay as they are.

    A no-op between a graph input (or a constant, or another graph output) and a graph output has to stay.
    """
    before = model.graph.num_nodes()
    casts = [n for n in model.graph if is_standard(n, "Cast") and n.inputs and n.inputs[0] is not None]
    if any(n.inputs[0] is not None and n.inputs[0].dtype is None for n in casts):  # nor is it stated in many files
        infer_shapes(model, strict=False)
    bypassed = 0
    for node in list(model.graph):
        if _does_nothing(node):  # which may depend on what was bypassed before
            _bypass(model.graph, node)
            bypassed += 1
    if bypassed:
        RemoveUnusedNodesPass()(model)
    return model, before - model.graph.num_nodes()


def _bypass(graph: ir.Graph, node: ir.Node) -> None:
    source, output = node.inputs[0], node.outputs[0]
    assert source is not None, "a no-op passes something on"
    if not output.is_graph_output():
        output.replace_all_uses_with(source)
        return
    if source.producer() is None or source.is_graph_output():
        return
    name = output.name
    source.shape = output.shape if output.shape is not None else source.shape
    source.type = output.type if output.type is not None else source.type
    output.replace_all_uses_with(source, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    source.name = name


def _does_nothing(node: ir.Node) -> bool:
    if not is_standard(node, "Identity", "Dropout", "Cast") or not node.inputs or node.inputs[0] is None:
        return False
    if node.op_type == "Dropout":
        mask_is_read = len(node.outputs) > 1 and bool(node.outputs[1].uses() or node.outputs[1].is_graph_output())
        return not mask_is_read and not is_trained(node)
    if node.op_type == "Cast":
        source = node.inputs[0]
        return source.dtype is not None and node.attributes["to"].value == source.dtype
    return True
