"""``BatchNormalization`` that stands alone, as a depthwise 1x1 ``Conv``.

``y = k x + d`` for each channel is a convolution with one weight a channel. Behind a convolution it is folded (see
:mod:`~inlay.model.passes.affine`); behind a Concat, as in DenseNet, or an Add, as in pre-activation residual nets, it
is not, and few runtimes have it in 8 bits: each becomes an island of float between convolutions. As a Conv it takes in
what scales and shifts its channels next, fuses with its activation, and runs in 8 bits like any other.
"""

from __future__ import annotations

import onnx_ir as ir

from inlay.model.passes.affine import batchnorm_numbers
from inlay.model.passes.steps import Steps, replace_each


def batchnorm_to_conv(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each float32 ``BatchNormalization`` with constant numbers and at least one axis behind the channels."""
    return replace_each(model, "BatchNormalization", _replace)


def _replace(node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    assert x.shape is not None
    spatial, numbers = len(x.shape) - 2, batchnorm_numbers(node)
    if spatial < 1 or numbers is None:
        return False
    factor, shift = numbers
    weight = steps.constant("factor", factor.reshape(-1, 1, *[1] * spatial))
    attributes = {"group": factor.size, "kernel_shape": [1] * spatial}
    steps.replace(steps.add("Conv", [x, weight, steps.constant("shift", shift)], "", attributes))
    return True
