"""Scales of weights in blocks: each block's is the one with which rounding makes the least squared error."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from inlay.types import QParams, QType

LEAST_SCALE = float(np.float32(2.0**-100))
"""Scales, and products of two of them, stay normal float32 values."""

_SLICE = 1 << 16  # elements that are looked at together
_CLIPPED = (1.0, 0.95, 0.9, 0.85, 0.8)
"""Shares of a block's largest magnitude that its integers may reach: of 4 bits, a large one costs all others."""


def block_params(weight: np.ndarray, axis: int, qtype: QType) -> QParams:
    """Symmetric qparams of blocks: of :data:`_CLIPPED`, each block gets the scale of least squared error.

    Args:
        weight: float array; its size along ``axis`` is a multiple of the block.
        axis: that of the blocks.
        qtype: a type of blocks.
    """
    shape = weight.shape
    blocks = np.where(np.isfinite(weight), weight, 0.0).astype(np.float32)
    blocks = blocks.reshape(*shape[:axis], -1, qtype.block, *shape[axis + 1 :])
    best = _least_error(blocks, axis + 1, qtype, _CLIPPED if qtype.bits < 8 else _CLIPPED[:1])
    flat = best.reshape(-1)
    return QParams(qtype, tuple(flat.tolist()), (0,) * flat.size, axis)


def _least_error(blocks: np.ndarray, axis: int, qtype: QType, shares: Sequence[float]) -> np.ndarray:
    """The scale of each block, float32, with which rounding the elements along ``axis`` makes the least squared error.

    Slice by slice: what is computed of one stays in the processor's cache.

    Args:
        blocks: finite float32 numbers.
        axis: that of a block's elements.
        qtype: of their integers.
        shares: of a block's largest magnitude, from which its scale is chosen; of equally good ones the first.
    """
    top = np.abs(blocks).max(axis=axis, initial=0.0) / qtype.qmax
    scales = [np.where(top > 0.0, np.maximum(share * top, LEAST_SCALE), 1.0).astype(np.float32) for share in shares]
    if len(scales) == 1:
        return scales[0]
    best = np.empty(top.shape, np.float32)
    step = max(1, _SLICE // max(1, math.prod(blocks.shape[1:])))
    for start in range(0, len(blocks), step):
        part = slice(start, start + step)
        choices = [scale[part] for scale in scales]
        errors = [_rounding_error(blocks[part], np.expand_dims(scale, axis), axis, qtype) for scale in choices]
        best[part] = np.choose(np.argmin(errors, axis=0), choices)
    return best


def _rounding_error(blocks: np.ndarray, scale: np.ndarray, axis: int, qtype: QType) -> np.ndarray:
    """The squared error of each block."""
    error = blocks / scale
    np.rint(error, out=error)
    np.clip(error, qtype.qmin, qtype.qmax, out=error)
    error *= scale
    error -= blocks
    return np.asarray(np.square(error, out=error).sum(axis=axis))
