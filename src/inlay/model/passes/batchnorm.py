"""``BatchNormalization`` that stands alone, as a depthwise 1x1 ``Conv``.

``y = k x + d`` for each channel is a convolution with one weight a channel. Behind a convolution it is folded (see
:mod:`~inlay.model.passes.affine`); behind a Concat, as in DenseNet, or an Add, as in pre-activation residual nets, it
is not, and few runtimes have it in 8 bits: each becomes an island of float between convolutions. As a Conv it takes in
what scales and shifts its channels next, fuses with its activation, and runs in 8 bits like any other.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from inlay.model.passes.affine import batchnorm_numbers
from inlay.model.passes.steps import Steps


def spell_out_batchnorm(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each float32 ``BatchNormalization`` with constant numbers and at least one axis behind the channels."""
    found = [n for n in model.graph if n.op_type == "BatchNormalization" and n.domain in ("", "ai.onnx")]
    if any(n.inputs[0] is not None and n.inputs[0].shape is None for n in found):
        ShapeInferencePass()(model)
    return model, sum(_replace(node) for node in found)


def _replace(node: ir.Node) -> bool:
    x, graph, numbers = node.inputs[0], node.graph, batchnorm_numbers(node)
    if x is None or x.dtype is not ir.DataType.FLOAT or x.shape is None or len(x.shape) < 3 or numbers is None:
        return False
    if not isinstance(graph, ir.Graph):
        return False
    factor, shift = numbers
    steps, spatial = Steps(node, graph, x), len(x.shape) - 2
    weight = steps.constant("factor", factor.reshape(-1, 1, *[1] * spatial))
    attributes = [ir.AttrInt64("group", factor.size), ir.AttrInt64s("kernel_shape", [1] * spatial)]
    steps.replace(steps.add("Conv", [x, weight, steps.constant("shift", shift)], "", attributes))
    return True
