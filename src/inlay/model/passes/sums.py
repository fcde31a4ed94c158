"""``Sum`` of n inputs to a chain of ``Add``: runtimes quantize and fuse Add, not Sum."""

from __future__ import annotations

import onnx_ir as ir

from inlay.model.passes.steps import is_standard


def split_sums(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each ``Sum`` by n - 1 ``Add`` nodes (n = 1: its input), adding from the left as Sum does."""
    done = 0
    for node in [n for n in model.graph if is_standard(n, "Sum")]:
        left, *others = [v for v in node.inputs if v is not None]
        if not others:
            continue  # an identity by another name; left, since it may feed a graph output
        output = node.outputs[0]
        for i, right in enumerate(others, 1):
            part = "" if i == len(others) else f"_sum{i}"
            total = ir.Value(name=f"{output.name}{part}", type=output.type, shape=output.shape)
            add = ir.node("Add", [left, right], outputs=[total], name=f"{node.name}{part}")
            model.graph.insert_before(node, add)
            left = total
        output.replace_all_uses_with(left, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)
        done += 1
    return model, done
