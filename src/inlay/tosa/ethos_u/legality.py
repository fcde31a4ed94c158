"""What Vela supports on Ethos-U55 and U65, as a table with reasons; on U85 it supports all that the lowering emits.

Source: ``vela --supported-ops-report`` of version 5.2 (TOSA constraints), each row confirmed by compiling it
(``tests/tosa/ethos_u/test_legality.py``). Limits that the report names but the compiler works around are left out
(strides above 3, kernels above 64 rows). :func:`~.partitions.compile_partitions` finds what the table misses: it
compiles operator by operator once Vela rejects a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from inlay.tosa import ir
from inlay.tosa.integer_graph import LegalityCheck, all_legal
from inlay.tosa.ir import Array, Op, Tensor

Tensors = Mapping[str, Tensor]
Constants = Mapping[str, Array]

_LARGEST_PADDED_AVERAGE = 8
"""Largest side of an averaging window that reads padding."""

_LARGEST_WEIGHT_SUM = 127 * 65536
"""Largest sum of a channel's absolute weights: what the accumulator holds for 65536 products."""


def _conv(op: ir.Conv2d, tensors: Tensors, constants: Constants) -> str | None:
    w = constants[op.inputs[1]]
    if int(np.abs(w.astype(np.int64)).sum(axis=(1, 2, 3)).max(initial=0)) > _LARGEST_WEIGHT_SUM:
        return "the absolute weights of a channel add up to more than Ethos-U55/U65 accumulate"
    return None


def _transpose_conv(op: ir.TransposeConv2d, tensors: Tensors, constants: Constants) -> str | None:
    _, _, height, width = tensors[op.inputs[0]].dims
    kernel_h, kernel_w = constants[op.inputs[1]].shape[2:]
    if op.strides in ((1, 1), (2, 2)):
        return None
    if op.strides == (1, 2) and height == kernel_h == 1:
        return None
    if op.strides == (2, 1) and width == kernel_w == 1:
        return None
    return f"Ethos-U55/U65 have no transposed convolution with strides {list(op.strides)}"


def _avg_pool(op: ir.AvgPool, tensors: Tensors, constants: Constants) -> str | None:
    if tensors[op.out].dims[0] != 1:
        return "Ethos-U55/U65 average batches of one only"
    if max(op.pads) and max(op.kernel) > _LARGEST_PADDED_AVERAGE:
        return f"Ethos-U55/U65 average padded windows up to {_LARGEST_PADDED_AVERAGE}, not {max(op.kernel)}"
    return None


def _resize(op: ir.Resize, tensors: Tensors, constants: Constants) -> str | None:
    ny, dy, nx, dx = op.scale
    ups = (ny // dy, nx // dx)
    half_pixel = op.offset == ((dy - ny) // 2, (dx - nx) // 2)
    if op.mode == "nearest" and (ny, nx) == (ups[0] * dy, ups[1] * dx) and set(ups) <= {2, 4, 8} and half_pixel:
        return None
    return f"Ethos-U55/U65 resize 2, 4 or 8 times up by nearest pixel centres, not {op.mode} {ny}/{dy}, {nx}/{dx}"


def _reverse(op: ir.Reverse, tensors: Tensors, constants: Constants) -> str | None:
    if len(tensors[op.out].dims) == 4 and op.axis in (2, 3):
        return None
    return "Ethos-U55/U65 turn rows and columns only"


def _select(op: ir.Select, tensors: Tensors, constants: Constants) -> str | None:
    return "Ethos-U55/U65 do not select by what is computed at run time"


def _gather(op: ir.Gather, tensors: Tensors, constants: Constants) -> str | None:
    return "Ethos-U55/U65 do not look up what is numbered at run time or without a common step"


_LIMITS: Mapping[type[Op], Callable[[Any, Tensors, Constants], str | None]] = {
    ir.Conv2d: _conv,
    ir.TransposeConv2d: _transpose_conv,
    ir.AvgPool: _avg_pool,
    ir.Resize: _resize,
    ir.Reverse: _reverse,
    ir.Select: _select,
    ir.Gather: _gather,
}


def _u55(op: Op, tensors: Tensors, constants: Constants) -> str | None:
    limit = _LIMITS.get(type(op))
    return None if limit is None else limit(op, tensors, constants)


def legality_for(family: str) -> LegalityCheck:
    """The limits of an accelerator family (``EthosU55``, ``EthosU65``, ``EthosU85``)."""
    return all_legal if family == "EthosU85" else _u55
