"""``MatMul`` by a constant and ``Add`` of a constant row, gathered as the ``Gemm`` that they are.

ONNX Runtime does so itself, before it looks for integer kernels: a MatMul whose weight alone is quantized then becomes
a float Gemm that gives its weight back in float in every inference. As one operator, with its bias quantized along, it
has an integer kernel. A Gemm takes matrices; what has more dimensions is reshaped before and behind it, as the runtime
does.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import Steps, add_constant, constant_of, is_standard, replace_each, sole_use


def gather_gemm(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each such pair over float32 data, where nothing else reads the product.

    Data of more than two dimensions may have one of them unknown, besides the last.
    """
    return replace_each(model, "MatMul", _replace)


def _replace(node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    given, use = node.inputs[1], sole_use(node.outputs[0])
    weight = None if given is None else given.const_value
    if given is None or weight is None or len(weight.shape) != 2 or x.shape is None or len(x.shape) < 2:
        return False
    if use is None or not is_standard(use[0], "Add"):
        return False
    add, slot = use
    bias = constant_of(add.inputs[1 - slot])
    depth, columns = weight.shape.numpy()  # its numbers are not read: there may be many
    if bias is None or bias.dtype != weight.dtype.numpy() or bias.shape != (*[1] * (bias.ndim - 1), columns):
        return False
    leading = [d if isinstance(d, int) else -1 for d in x.shape[:-1]]
    if bias.ndim > len(x.shape) or (len(leading) > 1 and leading.count(-1) > 1):
        return False
    offset = steps.constant("bias", bias.reshape(-1))
    if len(leading) == 1:
        steps.replace(steps.add("Gemm", [x, given, offset]), add)
        return True
    rows = None if -1 in leading else math.prod(leading)
    matrix = steps.add("Reshape", [x, _sizes(node, "matrix", [-1, depth])], "matrix")
    matrix.shape = ir.Shape([rows, depth])
    product = steps.add("Gemm", [matrix, given, offset], "product")
    product.shape = ir.Shape([rows, columns])
    steps.replace(steps.add("Reshape", [product, _sizes(node, "shape", [*leading, columns])]), add)
    return True


def _sizes(node: ir.Node, what: str, sizes: list[int]) -> ir.Value:
    assert isinstance(node.graph, ir.Graph)
    return add_constant(node.graph, f"{node.name}_{what}_sizes", np.array(sizes, np.int64))
