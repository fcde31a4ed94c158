"""``MatMul`` by a constant and ``Add`` of a constant row, gathered as the ``Gemm`` that they are.

ONNX Runtime does so itself, before it looks for integer kernels: a MatMul whose weight alone is quantized then becomes
a float Gemm that gives its weight back in float in every inference. As one operator, with its bias quantized along, it
has an integer kernel.
"""

from __future__ import annotations

import onnx_ir as ir

from inlay.model.passes.steps import Steps, constant_of, replace_each


def gather_gemm(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each such pair over two-dimensional float32 data, where nothing else reads the product."""
    return replace_each(model, "MatMul", _replace)


def _replace(node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    weight, uses = constant_of(node.inputs[1]), list(node.outputs[0].uses())
    if weight is None or weight.ndim != 2 or x.shape is None or len(x.shape) != 2:
        return False
    if len(uses) != 1 or node.outputs[0].is_graph_output():
        return False
    add, slot = uses[0]
    if add.op_type != "Add" or add.domain not in ("", "ai.onnx"):
        return False
    bias = constant_of(add.inputs[1 - slot])
    if bias is None or bias.dtype != weight.dtype or bias.size != weight.shape[1] or bias.ndim > 2:
        return False
    assert node.inputs[1] is not None
    result = steps.add("Gemm", [x, node.inputs[1], steps.constant("bias", bias.reshape(-1))], "")
    output = add.outputs[0]
    output.replace_all_uses_with(result, replace_graph_outputs=True)
    assert isinstance(node.graph, ir.Graph)
    node.graph.remove([node, add], safe=True)
    result.name, result.shape = output.name, output.shape
    return True
