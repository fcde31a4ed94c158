"""What TensorRT runs in INT8 between explicit Q/DQ nodes, as the table that placement reads.

From the developer guide's chapter on explicit quantization (TensorRT 11), not from a device: networks are strongly
typed, so that these nodes alone decide what runs in INT8. Activations and weights are symmetric, activations with one
scale for the tensor, weights with one for each output channel. TensorRT moves Q backward and DQ forward through what
commutes with them, and fuses what is left into the weighted operators.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from inlay.model.graph import Graph, Node
from inlay.space.rules import Needs, OpRule, Rules
from inlay.targets.base import Capabilities, StatesCapabilities
from inlay.targets.conditions import constant_weight, moves_activation, one_output
from inlay.types import QType

REMARK = "Written after the documentation of TensorRT 11; nothing of it has run on a device yet"
_GUIDE = "TensorRT developer guide, working with quantized types"


def _guide(reason: str) -> str:
    return f"{_GUIDE}: {reason}"


def _two_computed(graph: Graph, node: Node) -> str | None:
    """Neither input follows from constants: the compiler takes a quantized constant right before its DQ alone."""
    fixed = any(graph.is_fixed(value) for value in node.inputs)
    return "one of its inputs is a constant, with which no Conv is fused" if fixed else None


_weighted = partial(
    OpRule,
    weight=1,
    output=Needs.EITHER,
    source=_guide("Q/DQ on all inputs of weighted operators; their outputs may stay in float"),
)
_moves = partial(
    OpRule,
    conditions=(moves_activation,),
    moves_data=True,
    propagates_qdq=True,
    source=_guide("it commutes with Q and DQ, which are moved through it"),
)
_MOVING = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Split", "Gather", "Expand", "Tile")
_ADDING = _guide("the skip input of a residual Add, which is fused with the Conv before it")
_POOLING = _guide("average pooling has an INT8 form")

_ROWS = (
    *(_weighted(op, conditions=(constant_weight,)) for op in ("Conv", "ConvTranspose", "Gemm")),
    _weighted("MatMul", source=_guide("both inputs, also where neither is a weight")),
    OpRule("Add", activations=(0, 1), conditions=(_two_computed,), source=_ADDING),
    *(OpRule(op, source=_POOLING) for op in ("AveragePool", "GlobalAveragePool")),
    OpRule("Concat", activations=None, source=_guide("all inputs or none: it copies bytes")),
    _moves("MaxPool", conditions=(moves_activation, one_output)),
    *(_moves(op) for op in _MOVING),
)

RULES = Rules(
    activation=QType.INT8,
    halves=frozenset({QType.FP16, QType.BF16}),  # networks are strongly typed: what ONNX calls float32 is computed so
    other_activations=frozenset({QType.FP8}),  # a search does not try it: GPUs before compute capability 8.9 lack it
    ops={row.op_type: row for row in _ROWS},
    symmetric_activations=True,
    share=frozenset({"Concat"}),  # bytes are copied as they are: one scale for all
    fuses_residual_add=True,  # Q/DQ on the Conv's branch would keep Conv, Add and Relu apart
    unfold_cost=0.0,  # a Relu is part of the Conv's kernel whatever the type's limits are
)
"""Biases stay in float: DQ of 32-bit integers is not taken in. Nothing goes between Conv, BatchNormalization, Relu."""

_FLOAT_IN_RTX = ("ConvTranspose", "AveragePool", "GlobalAveragePool")
RTX_RULES = replace(RULES, ops={op: row for op, row in RULES.ops.items() if op not in _FLOAT_IN_RTX})
"""Without what the compiler of TensorRT for RTX 1.7 runs in float between Q/DQ nodes, as its list of kernels shows."""


class ExplicitQuantization(StatesCapabilities):
    """What every way of running TensorRT takes: plain Q/DQ nodes, by one table."""

    table = RULES

    def capabilities(self) -> Capabilities:
        """What explicit Q/DQ nodes make TensorRT run in INT8."""
        return Capabilities(self.table)
