"""``HardSwish`` as ``x * HardSigmoid(x)``: so ONNX defines it, and so ONNX Runtime runs it, which has no kernel for it.

Spelled out, both parts have an integer kernel (``rewrites/saturating_hard_sigmoid.py``).
"""

from __future__ import annotations

import onnx_ir as ir

from inlay.model.passes.steps import Steps, replace_each


def spell_out_hardswish(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each float32 ``HardSwish``."""
    return replace_each(model, "HardSwish", _replace)


def _replace(node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    gate = steps.add("HardSigmoid", [x], "gate", {"alpha": 1 / 6, "beta": 0.5})
    steps.replace(steps.add("Mul", [x, gate]))
    return True
