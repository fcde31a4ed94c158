"""How each ONNX operator becomes integer operators: one function per operator family, found by this table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from inlay.model.graph import Node
from inlay.tosa.context import Context
from inlay.tosa.rules import dense, elementwise, movement, pool, resize, softmax, table
from inlay.tosa.rules.floats import FLOAT

Rule = Callable[[Context, Node], None]
"""Adds the node's integer operators and notes its outputs; raises Refused, with the reason, where it cannot."""

_MOVEMENT: Mapping[str, Rule] = {
    "Identity": movement.identity,
    "Dropout": movement.identity,
    "Reshape": movement.reshape,
    "Flatten": movement.reshape,
    "Squeeze": movement.reshape,
    "Unsqueeze": movement.reshape,
    "Transpose": movement.transpose,
    "SpaceToDepth": movement.space_to_depth,
    "DepthToSpace": movement.depth_to_space,
    "Concat": movement.concat,
    "Split": movement.split,
    "Slice": movement.slice_,
    "Gather": movement.gather,
    "Pad": movement.pad,
    "Expand": movement.expand,
    "Tile": movement.expand,
}

RULES: Mapping[str, Rule] = {
    "Conv": dense.conv,
    "ConvTranspose": dense.conv_transpose,
    "Gemm": dense.gemm,
    "MatMul": dense.matmul,
    "Add": elementwise.add,
    "Sub": elementwise.add,
    "Mul": elementwise.mul,
    "Div": elementwise.mul,
    "Min": elementwise.extreme,
    "Max": elementwise.extreme,
    "BatchNormalization": elementwise.batch_normalization,
    "Relu": elementwise.clip,
    "Clip": elementwise.clip,
    "MaxPool": pool.max_pool,
    "AveragePool": pool.average_pool,
    "GlobalAveragePool": pool.global_average_pool,
    "ReduceMean": pool.reduce_mean,
    "ReduceSum": pool.reduce_mean,
    "ReduceMax": pool.reduce_extreme,
    "ReduceMin": pool.reduce_extreme,
    **_MOVEMENT,
    "Resize": resize.resize,
    "Upsample": resize.resize,
    "Softmax": softmax.softmax,
    **dict.fromkeys(table.UNARY, table.table),
}

FLOAT_RULES: Mapping[str, Rule] = {**_MOVEMENT, **FLOAT}
"""The same in floating point, for profile ``INT+FP``."""
