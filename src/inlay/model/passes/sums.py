"""``Sum`` of n inputs to a chain of ``Add``: runtimes quantize and fuse Add, not Sum."""

from __future__ import annotations

import onnx_ir as ir


def split_sums(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each ``Sum`` by n - 1 ``Add`` nodes (n = 1: its input), adding from the left as Sum does."""
    done = 0
    for node in list(model.graph):
        if node.op_type != "Sum" or node.domain not in ("", "ai.onnx"):
            continue
        inputs = [v for v in node.inputs if v is not None]
        if len(inputs) < 2:
            continue  # an identity by another name; left, since it may feed a graph output
        left = inputs[0]
        output = node.outputs[0]
        for i, right in enumerate(inputs[1:], 1):
            last = i == len(inputs) - 1
            result = output if last else ir.Value(name=f"{output.name}_sum{i}", type=output.type, shape=output.shape)
            name = str(node.name) if last else f"{node.name}_sum{i}"
            add = _add(left, right, result, name, node)
            left = add.outputs[0]
        done += 1
    return model, done


def _add(left: ir.Value, right: ir.Value, result: ir.Value, name: str, before: ir.Node) -> ir.Node:
    """An Add in place of ``before``; it takes over ``result``'s name, uses and place among the graph's outputs."""
    fresh = ir.Value(name=result.name, type=result.type, shape=result.shape)
    add = ir.Node("", "Add", [left, right], outputs=[fresh], name=name)
    graph = before.graph
    assert isinstance(graph, ir.Graph)
    graph.insert_before(before, add)
    if result.producer() is before:
        result.replace_all_uses_with(fresh, replace_graph_outputs=True)
        graph.remove(before, safe=True)
    return add
