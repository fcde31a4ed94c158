"""ONNX Runtime's quantized rewrites: same integers, written so that a faster kernel takes them.

May import ``quant`` and ``model``. Offers :func:`rewrites_for`, the list in the order in which ``emit`` applies them.
"""

from __future__ import annotations

from collections.abc import Collection

from inlay.quant.rewrite import Rewrite
from inlay.targets.onnxruntime.rewrites.dynamic import DynamicLstm, DynamicProduct
from inlay.targets.onnxruntime.rewrites.floats import Float8Pairs, FloatKernel, FloatProduct, FloatWeight
from inlay.targets.onnxruntime.rewrites.row_tiling import RowTiling
from inlay.targets.onnxruntime.rewrites.saturating_hard_sigmoid import SaturatingHardSigmoid
from inlay.targets.onnxruntime.rewrites.space_to_depth import SpaceToDepth
from inlay.targets.onnxruntime.rewrites.transposed_conv import TransposedConv
from inlay.targets.onnxruntime.rewrites.weights import NonzeroZeroPoint, QuantizedTable, UprightWeight

__all__ = [
    "DynamicLstm",
    "DynamicProduct",
    "Float8Pairs",
    "FloatKernel",
    "FloatProduct",
    "FloatWeight",
    "NonzeroZeroPoint",
    "QuantizedTable",
    "RowTiling",
    "SaturatingHardSigmoid",
    "SpaceToDepth",
    "TransposedConv",
    "UprightWeight",
    "rewrites_for",
]


def rewrites_for(absorbed: Collection[str], cache_bytes: int, wraps: bool = False) -> tuple[Rewrite, ...]:
    """The rewrites, given the activations that the runtime fuses into the operator before them.

    ``cache_bytes`` is the second-level cache of one core; ``wraps`` says that sums of products of two activations
    may wrap around.

    Where the first one was applied, the others find no pairs. Row tiling reads the zero points that NonzeroZeroPoint
    sets, and leaves alone what SpaceToDepth takes, which comes behind it because it lets several nodes read one value's
    integers.
    """
    fused = frozenset(absorbed)
    blocked = SpaceToDepth()
    return (
        Float8Pairs(),
        SaturatingHardSigmoid(),
        FloatWeight(),
        FloatKernel(),
        *([FloatProduct()] if wraps else []),
        NonzeroZeroPoint(),
        TransposedConv(fused),
        RowTiling.for_cache(cache_bytes, fused, blocked),
        blocked,
        DynamicProduct(),
        DynamicLstm(),
        UprightWeight(),
        QuantizedTable(),
    )
