"""``ReduceMean`` over all pixels of each channel, as the ``GlobalAveragePool`` that it is.

Exporters write the mean of a gate's input (squeeze and excitation) or before a classifier so. In float both take the
same time. ONNX Runtime has an integer GlobalAveragePool and no integer ReduceMean: four blocks with gates, 96 channels
of 28x28 and all in 8 bits, take 0.72 of the time (one thread, x86-64 with AVX512-VNNI, ONNX Runtime 1.31).

The means of a normalization that an exporter wrote out stay: of three-dimensional values, as transformers have them,
they look the same, and the runtime makes one kernel of the whole chain only as it was written.
"""

from __future__ import annotations

import onnx_ir as ir

from inlay.model.passes.steps import Steps, axes_of, is_standard, replace_each, squared_by


def mean_to_pool(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each float32 ``ReduceMean`` whose constant axes are all but the first two, except in normalizations."""
    return replace_each(model, "ReduceMean", _replace, _may)


def _may(node: ir.Node) -> bool:
    """Whether it names at least one axis; its data is not looked at."""
    return bool(axes_of(node))


def _replace(node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    assert x.shape is not None
    rank, kept = len(x.shape), bool(node.attributes.get_int("keepdims", 1))
    if {a % rank for a in axes_of(node)} != set(range(2, rank)) or _normalizes(node, x):
        return False
    pooled = steps.add("GlobalAveragePool", [x], "" if kept else "pool")
    pooled.shape = ir.Shape([*list(x.shape)[:2], *[1] * (rank - 2)])
    if not kept:
        shape = ir.Shape(list(x.shape)[:2])
        pooled = steps.add("Flatten", [pooled], "", {"axis": 1})
        pooled.shape = shape
    steps.replace(pooled)
    return True


def _normalizes(node: ir.Node, x: ir.Value) -> bool:
    """Whether it is the mean that is taken off ``x``, or one of squares."""
    before = x.producer()
    if before is not None and squared_by(before) is not None:
        return True
    return any(is_standard(use.node, "Sub") and use.node.inputs[0] is x for use in node.outputs[0].uses())
