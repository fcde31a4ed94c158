"""``AveragePool`` that counts its padding, which comes out wrong in 8 bits, as one that does not, times a share.

The share is that of each window that lies inside the image.

OpenVINO 2026.4.1 takes padding for the least integer where the data come in 8 bits, whatever their zero point is: not
only between Q/DQ nodes, but behind operators that a dequantization is moved through, and where a Pad stands before the
pool. Data behind a Relu or the like have no zero point, and their pools stay as they are.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import Steps, constant_of, ints, replace_each

_FROM_ZERO = frozenset({"Relu", "Sigmoid", "HardSigmoid", "Softmax"})
_MOVES = frozenset({"MaxPool", "Transpose", "Reshape", "Slice", "Split", "Resize", "DepthToSpace"})


def leave_padding_out(model: ir.Model) -> tuple[ir.Model, int]:
    """Rewrite each float32 ``AveragePool`` of known sizes that counts padding of data below zero."""
    return replace_each(model, "AveragePool", _share, _counts)


def _counts(node: ir.Node) -> bool:
    get = node.attributes.get_int
    plain = not get("ceil_mode", 0) and all(d == 1 for d in ints(node, "dilations", []))
    padded = bool(get("count_include_pad", 0)) and any(ints(node, "pads", []))
    return plain and padded and "auto_pad" not in node.attributes and not _is_from_zero(node.inputs[0])


def _is_from_zero(value: ir.Value | None) -> bool:
    left, seen = [value], {value}
    while left:
        given = left.pop()
        maker = None if given is None else given.producer()
        if maker is None:
            return False
        if maker.op_type in _FROM_ZERO or _is_cut_off(maker):
            continue
        if maker.op_type != "Concat" and maker.op_type not in _MOVES:
            return False
        reads = {*(maker.inputs if maker.op_type == "Concat" else maker.inputs[:1])} - seen
        left += reads
        seen |= reads
    return True


def _is_cut_off(node: ir.Node) -> bool:
    low = constant_of(node.inputs[1]) if node.op_type == "Clip" and len(node.inputs) > 1 else None
    return low is not None and float(low.min()) >= 0.0


def _share(node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    assert x.shape is not None
    window, spatial = ints(node, "kernel_shape", []), [*x.shape][2:]
    pads, strides = ints(node, "pads", []), ints(node, "strides", [1] * len(window))
    shares = []
    for axis, size in enumerate(spatial):
        if not isinstance(size, int):
            return False
        before, after = pads[axis], pads[axis + len(window)]
        starts = np.arange(0, size + before + after - window[axis] + 1, strides[axis]) - before
        inside = np.minimum(starts + window[axis], size) - np.maximum(starts, 0)
        if inside.size == 0 or inside.min() < 1:  # nothing but padding
            return False
        shares.append(inside / window[axis])
    whole = reduce(np.multiply.outer, shares)
    kept = {"kernel_shape": window, "pads": pads, "strides": strides}
    means = steps.add("AveragePool", [x], "inside", kept)
    means.shape = ir.Shape([*list(x.shape)[:2], *whole.shape])
    steps.replace(steps.add("Mul", [means, steps.constant("shares", whole[None, None])]))
    return True
