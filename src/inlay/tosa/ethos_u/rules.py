"""What the Ethos-U target runs in INT8, as the table that placement reads, and what Vela supports, with reasons.

Of Vela: U85 supports all that the lowering emits; the table of U55 and U65 is ``vela --supported-ops-report`` of
version 5.2 (TOSA constraints), each row confirmed by compiling it (``tests/tosa/ethos_u/test_legality.py``). Limits
that the report names but the compiler works around are left out (strides above 3, kernels above 64 rows).
:func:`~.partitions.compile_partitions` finds what the table misses: it compiles operator by operator once Vela rejects
a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from inlay.model.graph import Graph, Node
from inlay.space.rules import Condition, OpRule, Rules
from inlay.targets.conditions import constant_bias, constant_weight, moves_activation, one_output
from inlay.tosa import ir
from inlay.tosa.integer_graph import LegalityCheck, all_legal
from inlay.tosa.ir import Array, Op, Tensor
from inlay.tosa.rules.functions import UNARY
from inlay.types import QType

Tensors = Mapping[str, Tensor]
Constants = Mapping[str, Array]

_LARGEST_PADDED_AVERAGE = 8  # largest side of an averaging window that reads padding

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


_SOURCE = "inlay.tosa, TOSA 1.0 and Vela 5.2"


def _two_dimensional(graph: Graph, node: Node) -> str | None:
    shape = graph.shape(node.inputs[0])
    if shape is not None and len(shape) not in (3, 4):
        return f"it has {len(shape) - 2} spatial dimensions; 1 or 2 are lowered"
    return None


def _gemm_form(graph: Graph, node: Node) -> str | None:
    return "it reads its first input transposed" if node.attributes.get("transA", 0) else None


def _scalar_others(graph: Graph, node: Node) -> str | None:
    for value in node.inputs[1:]:
        if value and graph.size(value) != 1:
            return "a table holds one function of one value; this one differs between channels"
    return None


def _not_dilated(graph: Graph, node: Node) -> str | None:
    return "dilated windows are not lowered" if max(node.attributes.get("dilations", (1,))) > 1 else None


def _constant_divisor(graph: Graph, node: Node) -> str | None:
    return None if graph.is_constant(node.inputs[1]) else "it divides by an activation"


def _supported_pad(graph: Graph, node: Node) -> str | None:
    mode = node.attributes.get("mode", "constant")
    return None if mode in ("constant", "edge", "reflect") else f"padding in mode {mode} is not lowered"


def _constant_parameters(graph: Graph, node: Node) -> str | None:
    constant = all(graph.is_constant(v) for v in node.inputs[1:] if v)
    return None if constant else "its factors and offsets are computed at run time"


def _constant_condition(graph: Graph, node: Node) -> str | None:
    constant = graph.is_constant(node.inputs[0])
    return None if constant else "its condition is computed at run time, which Ethos-U55/U65 do not select by"


_row = partial(OpRule, source=_SOURCE)


def _data_movement(op_type: str, *conditions: Condition) -> OpRule:
    return _row(op_type, conditions=(moves_activation, *conditions), moves_data=True)


_RESHAPING_AND_SLICING = (
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile", "Slice", "Split", "Gather",
    "SpaceToDepth", "DepthToSpace",
)  # fmt: skip

_ROWS: Iterable[OpRule] = (
    _row("Conv", conditions=(constant_weight, constant_bias, _two_dimensional), weight=1, bias=2),
    _row("ConvTranspose", conditions=(constant_weight, constant_bias, _two_dimensional), weight=1, bias=2),
    _row("Gemm", conditions=(constant_weight, constant_bias, _gemm_form), weight=1, bias=2),
    _row("MatMul", weight=1),
    _row("Add", activations=(0, 1)),
    _row("Sub", activations=(0, 1)),
    _row("Mul", activations=(0, 1)),
    _row("Div", conditions=(_constant_divisor,)),
    _row("Min", activations=None),
    _row("Max", activations=None),
    _row("Relu"),
    _row("Clip"),
    _row("Softmax"),
    _row("LogSoftmax"),
    _row("Where", conditions=(_constant_condition,), activations=(1, 2)),
    _row("BatchNormalization", conditions=(_constant_parameters, one_output)),
    _row("LayerNormalization", conditions=(_constant_parameters, one_output)),
    _row("AveragePool", conditions=(_two_dimensional, _not_dilated)),
    _row("GlobalAveragePool"),
    _row("ReduceMean"),
    _row("ReduceSum"),
    _row("Concat", activations=None),
    *(_row(op, conditions=(_scalar_others,)) for op in UNARY),
    _data_movement("MaxPool", _two_dimensional, one_output, _not_dilated),
    _data_movement("GlobalMaxPool"),
    _data_movement("ReduceMax"),
    _data_movement("ReduceMin"),
    *(_data_movement(op) for op in _RESHAPING_AND_SLICING),
    _data_movement("Pad", _supported_pad),
    _data_movement("Resize"),
)

RULES = Rules(
    activation=QType.INT8,
    other_activations=frozenset({QType.UINT8}),
    ops={row.op_type: row for row in _ROWS},
    share=frozenset({"Concat"}),  # a requantizing Concat costs a pass over each input
    unfold_cost=0.0,
)
"""Relu and Clip are folded into the operator before them whatever the zero point: a CLAMP costs no cycles.

uint8 activations are lowered as int8 with the zero point 128 lower, exactly; at a model boundary that is one RESCALE.
"""

_CYCLES_PER_ELEMENT: Mapping[str, float] = {
    "ethos-u55-32": 2.0, "ethos-u55-64": 2.0, "ethos-u55-128": 1.0, "ethos-u55-256": 0.5,
    "ethos-u65-256": 0.5, "ethos-u65-512": 0.25,
    "ethos-u85-128": 1.0, "ethos-u85-256": 0.5, "ethos-u85-512": 0.27, "ethos-u85-1024": 0.12,
    "ethos-u85-2048": 0.024,
}  # fmt: skip
"""What requantizing one input element of a Concat adds, by Vela 5.2 (one of two branches of 32x64x64, *run*;
``tests/tosa/ethos_u/test_target.py`` checks it)."""


def rules_for(accelerator: str, macs_per_cycle: int) -> Rules:
    """The table with an accelerator's prices, in estimated cycles."""
    ops = dict(RULES.ops)
    if accelerator.startswith("ethos-u85"):
        ops["Where"] = replace(ops["Where"], conditions=())
    return replace(RULES, ops=ops, requantize_cost=_CYCLES_PER_ELEMENT[accelerator], product_cost=1.0 / macs_per_cycle)
