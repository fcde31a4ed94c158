"""``MatMul`` by a constant and ``Add`` of a constant row, gathered as the ``Gemm`` that they are.

ONNX Runtime does so itself, before it looks for integer kernels: a MatMul whose weight alone is quantized then becomes
a float Gemm that gives its weight back in float in every inference. As one operator, with its bias quantized along, it
has an integer kernel.
"""

from __future__ import annotations

import onnx_ir as ir

from inlay.model.passes.steps import Steps, constant_of, is_standard, replace_each, sole_use


def gather_gemm(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each such pair over two-dimensional float32 data, where nothing else reads the product."""
    return replace_each(model, "MatMul", _replace)


def _replace(node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    weight, use = constant_of(node.inputs[1]), sole_use(node.outputs[0])
    if weight is None or weight.ndim != 2 or x.shape is None or len(x.shape) != 2:
        return False
    if use is None or not is_standard(use[0], "Add"):
        return False
    add, slot = use
    bias = constant_of(add.inputs[1 - slot])
    if bias is None or bias.dtype != weight.dtype or bias.size != weight.shape[1] or bias.ndim > 2:
        return False
    assert node.inputs[1] is not None
    result = steps.add("Gemm", [x, node.inputs[1], steps.constant("bias", bias.reshape(-1))])
    steps.replace(result, add)
    return True
