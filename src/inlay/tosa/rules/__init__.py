"""How each ONNX operator becomes integer operators: a row in a table here, a function in the file of its family.

To add an operator, write a :data:`Rule` and add its row. Each family may import :mod:`inlay.tosa.context`,
:mod:`inlay.tosa.ir` and what its name says is shared (``_common``, ``_movement``, ``_products``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from inlay.model.graph import Node
from inlay.tosa.context import Context
from inlay.tosa.rules import (
    activation,
    arithmetic,
    concat,
    conv,
    floats,
    gemm,
    pad,
    pool,
    reduce,
    reshape,
    resize,
    slicing,
    softmax,
    table,
)

__all__ = ["FLOAT_RULES", "RULES", "Rule"]

Rule = Callable[[Context, Node], None]
"""Adds the node's integer operators and records its outputs; raises Unsupported, with the reason, where it cannot."""

_DATA_MOVEMENT: Mapping[str, Rule] = {
    "Identity": reshape.identity,
    "Dropout": reshape.identity,
    "Reshape": reshape.reshape,
    "Flatten": reshape.reshape,
    "Squeeze": reshape.reshape,
    "Unsqueeze": reshape.reshape,
    "Transpose": reshape.transpose,
    "SpaceToDepth": reshape.space_to_depth,
    "DepthToSpace": reshape.depth_to_space,
    "Expand": reshape.expand,
    "Tile": reshape.expand,
    "Concat": concat.concat,
    "Split": slicing.split,
    "Slice": slicing.slice_,
    "Gather": slicing.gather,
    "Pad": pad.pad,
}

RULES: Mapping[str, Rule] = {
    "Conv": conv.conv,
    "ConvTranspose": conv.conv_transpose,
    "Gemm": gemm.gemm,
    "MatMul": gemm.matmul,
    "Add": arithmetic.add,
    "Sub": arithmetic.add,
    "Mul": arithmetic.mul,
    "Div": arithmetic.mul,
    "Min": arithmetic.min_max,
    "Max": arithmetic.min_max,
    "BatchNormalization": arithmetic.batch_normalization,
    "Relu": activation.clip,
    "Clip": activation.clip,
    "MaxPool": pool.max_pool,
    "AveragePool": pool.average_pool,
    "GlobalAveragePool": reduce.global_average_pool,
    "ReduceMean": reduce.reduce_mean,
    "ReduceSum": reduce.reduce_mean,
    "ReduceMax": reduce.reduce_extreme,
    "ReduceMin": reduce.reduce_extreme,
    **_DATA_MOVEMENT,
    "Resize": resize.resize,
    "Upsample": resize.resize,
    "Softmax": softmax.softmax,
    **dict.fromkeys(table.UNARY, table.table),
}

FLOAT_RULES: Mapping[str, Rule] = {**_DATA_MOVEMENT, **floats.RULES}
"""The same in floating point, for profile ``INT+FP``."""
