"""Remove what does nothing at inference: Identity, Dropout, and Cast to the type that the value has already."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import IdentityEliminationPass, RemoveUnusedNodesPass


def remove_identities(model: ir.Model) -> tuple[ir.Model, int]:
    """Bypass no-op nodes. A no-op between a graph input and a graph output has to stay."""
    before = model.graph.num_nodes()
    for node in list(model.graph):
        if _does_nothing(node) and not node.outputs[0].is_graph_output():
            source = node.inputs[0]
            assert source is not None
            node.outputs[0].replace_all_uses_with(source)
    RemoveUnusedNodesPass()(model)
    IdentityEliminationPass()(model)
    return model, before - model.graph.num_nodes()


def _does_nothing(node: ir.Node) -> bool:
    if node.domain not in ("", "ai.onnx") or not node.inputs or node.inputs[0] is None:
        return False
    if node.op_type == "Dropout":
        mask_is_read = len(node.outputs) > 1 and bool(node.outputs[1].uses() or node.outputs[1].is_graph_output())
        training = len(node.inputs) > 2 and node.inputs[2] is not None and not _is_false(node.inputs[2])
        return not mask_is_read and not training
    if node.op_type == "Cast":
        source = node.inputs[0]
        return source.dtype is not None and node.attributes["to"].value == source.dtype
    return False


def _is_false(value: ir.Value) -> bool:
    return value.const_value is not None and not value.const_value.numpy().any()
