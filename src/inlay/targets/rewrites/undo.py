"""What undoing rewrites has in common: constants behind DequantizeLinear nodes of an ``onnx_ir`` graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir


def producer_of(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """The node that produces ``value`` if it is an ``op_type``, else None."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == op_type else None


def own_constants(dq: ir.Node | None) -> tuple[np.ndarray, ...] | None:
    """The integers, scale and zero point of ``dq``; None unless all are constants that only ``dq`` reads."""
    if dq is None or len(dq.inputs) < 3:
        return None
    found = [None if v is None or len(v.uses()) > 1 or v.const_value is None else v.const_value for v in dq.inputs]
    return None if any(t is None for t in found) else tuple(np.asarray(t.numpy()) for t in found if t is not None)


def set_constant(value: ir.Value | None, array: np.ndarray) -> None:
    """Let the initializer ``value`` hold ``array``."""
    assert value is not None
    value.const_value = ir.tensor(np.ascontiguousarray(array), name=value.name)
    value.shape = ir.Shape(array.shape)


def trimmed(
    weight: np.ndarray, values: np.ndarray, pads: Sequence[int], spare: int = 0
) -> tuple[np.ndarray, dict[str, list[int]]]:
    """``weight`` without the rows and columns of zeros at its edges that padding makes up for, and its attributes then.

    Args:
        weight: shape ``(…, …, rows, columns)``.
        values: the weight relative to its zero point.
        pads: before by axis, then after by axis.
        spare: rows (columns) by which the last window may end before the padded image does.
    """
    left, kept = list(pads), []
    for axis in (0, 1):
        leading, trailing = _zero_edges(values, axis + 2)
        leading, trailing = min(leading, left[axis]), min(trailing, left[axis + 2] + spare)
        left[axis], left[axis + 2] = left[axis] - leading, max(left[axis + 2] - trailing, 0)
        kept.append(slice(leading, weight.shape[axis + 2] - trailing))
    smaller = weight[:, :, kept[0], kept[1]]
    return smaller, {"kernel_shape": list(smaller.shape[2:]), "pads": left}


def _zero_edges(weight: np.ndarray, axis: int) -> tuple[int, int]:
    """How many leading and trailing slices of ``weight`` along ``axis`` hold only zeros, leaving one slice at least."""
    used = np.flatnonzero(np.any(weight != 0, axis=tuple(i for i in range(weight.ndim) if i != axis)))
    if not used.size:
        return 0, weight.shape[axis] - 1
    return int(used[0]), int(weight.shape[axis] - 1 - used[-1])
