"""``Conv`` whose windows fill the rows of AMX tiles exactly, which comes out wrong, with a column of zeros more.

OpenVINO 2026.4.1 gets such a convolution wrong, in bfloat16 and in 8 bits, as it was given as well: where there are few
channels, those of a window's row are multiplied as one row, and where these are several tile rows without a rest, the
results have nothing to do with the right ones (8 channels, 3x8: -1 dB). One column more leaves a rest. The sums are the
same.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import Steps, constant_of, ints, replace_each

_ROW_BYTES = 64
_ELEMENT_BYTES = (2, 1)
"""Bfloat16 and 8 bits: which of them a convolution is computed in is not known yet."""
_GROUP_BYTES = 4
"""The kernel takes channels by as many as have four bytes; with others it multiplies them another way."""


def leave_a_rest(model: ir.Model) -> tuple[ir.Model, int]:
    """Widen the weight of each float32 ``Conv`` that the runtime would get wrong."""
    return replace_each(model, "Conv", _widen, _fills_rows)


def fills_rows(channels: int, columns: int) -> bool:
    """Whether a convolution without dilation of its columns comes out wrong.

    Found by trying 1 to 39 channels of a group with 1 to 64 columns in bfloat16, and 11 of these widths in 8 bits.
    Rows, outputs and groups make no difference; with some strides it comes out right, and is widened all the same.

    Args:
        channels: of one group, that are read.
        columns: of the window.
    """
    rows = [(_ROW_BYTES // size, _GROUP_BYTES // size) for size in _ELEMENT_BYTES]
    return any(
        channels % group == 0 and 2 * channels < row and channels * columns > row and channels * columns % row == 0
        for row, group in rows
    )


def _fills_rows(node: ir.Node) -> bool:
    weight = node.inputs[1].shape if len(node.inputs) > 1 and node.inputs[1] is not None else None
    if weight is None or len(weight) < 3 or not weight.is_static() or "auto_pad" in node.attributes:
        return False
    _, channels, *window = weight.numpy()
    return ints(node, "dilations", [1])[-1] == 1 and fills_rows(channels, window[-1])


def _widen(node: ir.Node, _: ir.Value, steps: Steps) -> bool:
    weight = constant_of(node.inputs[1])
    if weight is None:
        return False
    wider = np.pad(weight, [(0, 0)] * (weight.ndim - 1) + [(0, 1)])
    spatial = weight.ndim - 2
    pads = ints(node, "pads", [0] * (2 * spatial))
    node.replace_input_with(1, steps.constant("wider", wider))
    node.attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", list(wider.shape[2:]))
    node.attributes["pads"] = ir.AttrInt64s("pads", [*pads[:-1], pads[-1] + 1])
    return True
