"""What ONNX Runtime's CPU provider runs in INT8: a table, each row verified against the runtime itself.

A Q/DQ pair pays only where the runtime replaces ``DQ -> op -> Q`` by an integer kernel. Each row here is checked by
``tests/targets/onnxruntime/test_rules.py``, which builds the op between Q/DQ nodes and reads the optimized graph back.
The remaining ops (Sub, Div, Tanh, linear Resize, LayerNormalization, …) keep their float kernel with the Q/DQ around
it, which is pure overhead, so they have no row.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from inlay.model.graph import Graph, Node
from inlay.space.rules import Form, FormRow, Needs, OpRule, ResultRange, Rules
from inlay.targets.conditions import (
    constant_bias,
    constant_weight,
    moves_activation,
    no_interpolation,
    one_output,
    plain_product,
    weight_only_forms,
)
from inlay.targets.machine import cpu_flags, is_x86
from inlay.targets.onnxruntime.float_fusions import in_float_fusion
from inlay.targets.onnxruntime.processors import exact_limit
from inlay.targets.onnxruntime.rewrites.dynamic import LSTM, lstm_form
from inlay.targets.onnxruntime.rewrites.floats import beside_a_weight, whole_windows
from inlay.targets.onnxruntime.rewrites.transposed_conv import block_conv_of
from inlay.targets.onnxruntime.rewrites.weights import table_of_rows
from inlay.types import ANY_INT8, QType


def _float_weight_or_activation(graph: Graph, node: Node) -> str | None:
    bad = [v for v in node.inputs if v and not graph.is_float(v)]
    return f"input {bad[0]} is not float32" if bad else None


def _gemm_form(graph: Graph, node: Node) -> str | None:
    if node.attributes.get("beta", 1.0) != 1.0 and len(node.inputs) > 2 and node.inputs[2]:
        return "its bias is scaled by beta, which the integer kernel does not do"
    return None


def _block_conv(graph: Graph, node: Node) -> str | None:
    found = block_conv_of(graph, node)
    return f"ConvTranspose runs in 8 bits only as Conv and DepthToSpace: {found}" if isinstance(found, str) else None


def _rises(graph: Graph, node: Node) -> str | None:
    return None if node.attributes.get("alpha", 0.2) > 0 else "HardSigmoid runs in 8 bits only where it rises"


def _nearest(graph: Graph, node: Node) -> str | None:
    mode = node.attributes.get("mode", "nearest")
    return None if mode == "nearest" else f"Resize runs in 8 bits only with mode nearest, not {mode}"


_UNIFORM_REACH = 2.0
"""Least end of the range of a Softmax, in shares of a row in which all are equal. Before 1.32 the integer kernel makes
zeros of rows of nearly equal elements where it is below 1.75 (1.20.1 to 1.31.1, x86, rows of 1 to 600 elements): their
sum in 32 bits overflows. A file that is tuned in a later version may run in an earlier one."""


def _uniform_reach(graph: Graph, node: Node) -> float:
    axis = node.attributes.get("axis", -1 if graph.opset >= 13 else 1)
    shape = graph.shape(node.inputs[0]) or ()
    lengths = shape[axis:] if graph.opset < 13 else shape[axis:][:1]
    elements = math.prod(n or 1 for n in lengths)
    return _UNIFORM_REACH / max(elements, 1)


_compute = partial(OpRule, source="QDQ selectors, checked against 1.31.1")
_move = partial(_compute, moves_data=True, conditions=(moves_activation,))


_ROWS: Iterable[OpRule] = (
    _compute("Conv", weight=1, bias=2, conditions=(constant_weight, constant_bias)),
    _compute("ConvTranspose", weight=1, bias=2, conditions=(_block_conv, constant_bias)),
    _compute("MatMul", weight=1, output=Needs.EITHER, conditions=(_float_weight_or_activation, no_interpolation)),
    _compute(
        "Gemm",
        weight=1,
        bias=2,
        output=Needs.EITHER,
        conditions=(constant_weight, _gemm_form, constant_bias),
    ),
    _compute("Add", activations=(0, 1), conditions=(in_float_fusion,)),
    _compute("Mul", activations=(0, 1), conditions=(in_float_fusion,)),
    _compute("Where", activations=(1, 2)),
    _compute("Concat", activations=None),
    _compute("AveragePool", slowdown_after_float=1.6, conditions=(whole_windows,)),
    _compute("GlobalAveragePool"),
    _compute("LeakyRelu"),
    _compute("Sigmoid"),
    _compute("HardSigmoid", conditions=(_rises,)),
    _compute("Softmax", result=ResultRange(reach=_uniform_reach)),
    # Operators that only move elements: the runtime drops the Q/DQ around them and runs them on bytes, given equal
    # qparams. An integer MaxPool in NCHW processes one element at a time; the vectorized kernel is the NHWC one, which
    # the runtime takes only where an integer convolution produced the value in NHWC.
    _move("MaxPool", conditions=(moves_activation, one_output), propagates_qdq=True, slowdown_after_float=75.0),
    _move("ReduceMax"),
    _move("ReduceMin"),
    _move("Reshape", propagates_qdq=True),
    _move("Flatten"),
    _move("Squeeze", propagates_qdq=True),
    _move("Unsqueeze", propagates_qdq=True),
    _move("Transpose", propagates_qdq=True),
    _move("Expand"),
    _move("Tile"),
    _move("Slice", propagates_qdq=True),
    _move("Gather"),
    _move("Split"),
    _move("DepthToSpace"),
    _move("Resize", conditions=(moves_activation, _nearest)),
)

OPS = {row.op_type: row for row in _ROWS}

WRITTEN_AS = {"ConvTranspose": "Conv and DepthToSpace", "HardSigmoid": "the saturation of a QuantizeLinear"}
"""By operators of these rows that have no integer kernel: as what the rewrites of ``rewrites/`` write them."""

_DYNAMIC = Form(
    "dynamic",
    {
        **{
            op: FormRow(op, conditions=(plain_product,), source="DynamicQuantizeMatMul in optimized graphs of 1.31.1")
            for op in ("MatMul", "Gemm")
        },
        LSTM: FormRow(LSTM, (1, 2), conditions=(lstm_form,), source="DynamicQuantizeLSTM of 1.31.1"),
        "Gather": FormRow("Gather", (0,), (), conditions=(table_of_rows,), source="Gather of int8 in 1.31.1"),
    },
    activation=QType.DYNAMIC,
)

# MatMulNBits reads the integers, and rounds its data to 8 bits in blocks as long as the weight's; those of a weight per
# channel are 32 long, with equal scales. On a decoder that takes a token at a time (float 8.6 ms): per channel 3.8 ms
# and 31.5 dB; in blocks of 128 3.3 ms and 32.9 dB; with 4 bits in blocks of 32 2.9 ms and 13.7 dB, in blocks of 128
# 2.5 ms and 11.2 dB. With 128 rows it is slower than float (BERT 6x384: 0.71 to 0.93 of its speed). Mixed by layer they
# keep 30 dB on a decoder at 3.5 times the speed of float, where blocks of 128 have 28.7 dB, and of 32 3.1 times.
_WEIGHT_ONLY = weight_only_forms(
    (QType.INT8_32, QType.INT8_128, QType.INT4_128),
    "MatMulNBits in optimized graphs of 1.31.1",
    lambda weight: weight.block or 32,
)

# Prices in nanoseconds (one thread, AVX512-VNNI; only ratios count). QLinearConcat copies an input that has its
# output's qparams, and maps every element of any other through a table: 80 against 15 us for 1x128x55x55 of uint8.
_TABLE_NS = 0.17
_PRODUCT_NS = 0.003
_FLOAT_AGAIN_NS = 100.0  # a Relu that does not fold keeps its convolution in float


_INT8_BLOCKS = {"DepthToSpace", "ConvTranspose"}
"""Operators that need DepthToSpace of int8, which is there from 1.28 on: before, such a model does not load. Of uint8
it is there in 1.23 already, and SpaceToDepth of neither."""


def precedes(version: str, minor: int) -> bool:
    """Whether a version of the runtime is older than 1.``minor``; an empty one is the last."""
    numbers = [int(part) for part in version.split(".")[:2] if part.isdecimal()]
    return len(numbers) == 2 and numbers < [1, minor]


def lacks_blocks(version: str) -> bool:
    """Whether a version has neither DepthToSpace of int8 nor SpaceToDepth of 8 bits."""
    return precedes(version, 28)


def _forms(version: str) -> tuple[Form, ...]:
    """Before 1.25 MatMulNBits comes of 4 bits and MatMul alone: other weights are dequantized in each inference."""
    if not precedes(version, 25):
        return _DYNAMIC, *_WEIGHT_ONLY
    narrow = (form for form in _WEIGHT_ONLY if form.weight.bits == 4)
    return _DYNAMIC, *(replace(form, ops={"MatMul": form.ops["MatMul"]}) for form in narrow)


def rules_for(
    machine: str | None = None, flags: frozenset[str] | None = None, limit: int | None = None, version: str = ""
) -> Rules:
    """The rules on a CPU: uint8 activations on x86, int8 elsewhere; 7-bit weights where 8-bit products saturate.

    How large weights may be is a matter of its ``flags``, unless ``limit`` says it, as of
    :func:`~.processors.exact_limit`. ``version`` is that of the runtime; empty for the last.
    """
    machine = machine or platform.machine()
    flags = cpu_flags() if flags is None else flags
    x86 = is_x86(machine)
    limit = exact_limit(machine, flags) if limit is None else limit
    ops = OPS if x86 or not lacks_blocks(version) else {n: r for n, r in OPS.items() if n not in _INT8_BLOCKS}
    if not x86 and limit < ANY_INT8:
        product = ops["MatMul"]
        ops = {**ops, "MatMul": replace(product, conditions=(*product.conditions, beside_a_weight))}
    return Rules(
        activation=QType.UINT8 if x86 else QType.INT8,
        exact_limit=limit,
        ops=ops,
        share=frozenset({"Concat"}),
        requantize_cost=_TABLE_NS,
        unfold_cost=_FLOAT_AGAIN_NS,
        product_cost=_PRODUCT_NS,
        forms=_forms(version),
        # 16 bits and floats of 8 run in float kernels between their Q/DQ nodes: they are for accuracy, and gain no time
        other_activations=frozenset({QType.UINT8, QType.INT8, QType.INT16, QType.UINT16, QType.FP8}),
    )
