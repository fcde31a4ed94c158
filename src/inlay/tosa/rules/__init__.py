"""How each ONNX operator becomes integer operators: a row in a table here, a function in the file of its family.

To add an operator, write a :data:`Rule` and add its row. ``_node`` has what a rule works with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from inlay.tosa.rules import (
    arithmetic,
    floats,
    functions,
    movement,
    normalization,
    pool,
    products,
    resize,
)
from inlay.tosa.rules._node import NodeContext

__all__ = ["DATA_MOVEMENT", "FLOAT_RULES", "RULES", "Rule"]

Rule = Callable[[NodeContext], None]
"""Adds the node's integer operators and records its outputs; raises Unsupported, with the reason, where it cannot."""

DATA_MOVEMENT: Mapping[str, Rule] = {
    "Identity": movement.identity,
    "Dropout": movement.identity,
    "Reshape": movement.reshape,
    "Flatten": movement.reshape,
    "Squeeze": movement.reshape,
    "Unsqueeze": movement.reshape,
    "Transpose": movement.transpose,
    "SpaceToDepth": movement.space_to_depth,
    "DepthToSpace": movement.depth_to_space,
    "Expand": movement.expand,
    "Tile": movement.expand,
    "Concat": movement.concat,
    "Split": movement.split,
    "Slice": movement.slice_,
    "Gather": movement.gather,
    "Pad": movement.pad,
}
"""Rules of operators that only move their first input."""

RULES: Mapping[str, Rule] = {
    "Conv": products.conv,
    "ConvTranspose": products.conv_transpose,
    "Gemm": products.gemm,
    "MatMul": products.matmul,
    "Add": arithmetic.add,
    "Sub": arithmetic.add,
    "Sum": arithmetic.add,
    "Mul": arithmetic.mul,
    "Div": arithmetic.mul,
    "Min": arithmetic.min_max,
    "Max": arithmetic.min_max,
    "Where": arithmetic.where,
    "BatchNormalization": normalization.batch_normalization,
    "LayerNormalization": normalization.layer_normalization,
    "Relu": functions.clip,
    "Clip": functions.clip,
    "MaxPool": pool.max_pool,
    "AveragePool": pool.average_pool,
    "GlobalAveragePool": pool.reduce_mean,
    "ReduceMean": pool.reduce_mean,
    "ReduceSum": pool.reduce_mean,
    "ReduceMax": pool.reduce_extreme,
    "ReduceMin": pool.reduce_extreme,
    "GlobalMaxPool": pool.reduce_extreme,
    **DATA_MOVEMENT,
    "Resize": resize.resize,
    "Upsample": resize.resize,
    "Softmax": normalization.softmax,
    "LogSoftmax": normalization.log_softmax,
    **dict.fromkeys(functions.UNARY, functions.table),
    "PRelu": arithmetic.prelu,
}

FLOAT_RULES: Mapping[str, Rule] = {**DATA_MOVEMENT, **floats.RULES}  # the same in floating point, for profile `INT+FP`
