"""Give every node and value a name, unique over the whole model (case 1: none; case 2: shared by two nodes)."""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir


def fix_names(model: ir.Model) -> tuple[ir.Model, int]:
    """Name what has no name; rename later holders of a node name that is taken. Counts the names given."""
    nodes = list(model.graph.all_nodes())
    taken_values = {v.name for node in nodes for v in (*node.inputs, *node.outputs) if v is not None and v.name}
    taken_values |= {v.name for v in (*model.graph.inputs, *model.graph.initializers.values()) if v.name}
    renamed = 0
    for node in nodes:
        for position, value in enumerate(node.outputs):
            if value.name is None or (value.name == "" and value.uses()):
                value.name = free_name(f"{node.op_type}_out{position}", taken_values)
                taken_values.add(value.name)
                renamed += 1
    taken_nodes: set[str] = set()
    for node in nodes:
        if not node.name or node.name in taken_nodes:
            first = next((v.name for v in node.outputs if v.name), "")
            node.name = free_name(node.name or f"{node.op_type}_{first}", taken_nodes)
            renamed += 1
        taken_nodes.add(node.name)
    return model, renamed


def free_name(wish: str, taken: Container[str]) -> str:
    """``wish``, with a number appended where it is taken."""
    name, n = wish, 1
    while name in taken:
        n += 1
        name = f"{wish}_{n}"
    return name
