"""What OpenVINO's CPU plugin runs in INT8: a table, each row verified against the compiled model.

The runtime moves each dequantization down to where it can be fused, so that an integer kernel writes bytes or floats as
its readers want, and a Q is fused into whatever kernel computes the value. ``tests/targets/openvino/test_rules.py``
builds each row's operator between convolutions and reads the executed graph back.

Elementwise operators have no rows but Add and Sub. Behind a convolution they are fused into its kernel and compute in
float there; Q/DQ nodes in between would force them into kernels of their own. A sum of two values is fused into the
convolution before it only where both of them are bytes.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from inlay.model.graph import Graph, Node
from inlay.space.rules import Needs, OpRule, Recurrence, Rules
from inlay.targets.conditions import (
    constant_bias,
    constant_weight,
    moves_activation,
    no_interpolation,
    one_output,
    weight_only_forms,
)
from inlay.targets.machine import cpu_flags, is_x86
from inlay.targets.openvino.rewrites import LARGEST_STATE, integer_form, lstm_groups, same_kernel
from inlay.targets.openvino.wrong_kernels import (
    WRONG_CONVOLUTIONS,
    WRONG_PRODUCTS,
    no_maximum,
    no_scores,
    right_groups,
    whole_batch,
    zeros_around,
)
from inlay.types import ANY_INT8, QType

_SOURCE = "executed graphs of 2026.4.1"


def _nearest(graph: Graph, node: Node) -> str | None:
    mode = node.attributes.get("mode", "nearest")
    return None if mode == "nearest" else f"Resize runs in 8 bits only with mode nearest, not {mode}"


def _two_values(graph: Graph, node: Node) -> str | None:
    """Also of what is a constant once the sizes are known, as positions are: between Q and DQ, 2026.4.1 fails there."""
    return "a constant is added in float, in the kernel before" if any(map(graph.is_fixed, node.inputs)) else None


_compute = partial(OpRule, output=Needs.EITHER, source=_SOURCE)
_move = partial(_compute, conditions=(moves_activation,), moves_data=True)


_ROWS: Iterable[OpRule] = (
    _compute("Conv", weight=1, bias=2, conditions=(constant_weight, constant_bias, *WRONG_CONVOLUTIONS)),
    # of two activations one would have to be without a zero point
    _compute("MatMul", weight=1, conditions=(constant_weight, no_interpolation, *WRONG_PRODUCTS)),
    _compute("Gemm", weight=1, bias=2, conditions=(constant_weight, constant_bias, *WRONG_PRODUCTS)),
    _compute("Add", activations=(0, 1), conditions=(_two_values,)),
    _compute("Sub", activations=(0, 1), conditions=(_two_values,)),
    _compute("Concat", activations=None),
    _compute("AveragePool", conditions=(zeros_around,)),
    _compute("GlobalAveragePool"),
    _compute("ReduceMean", conditions=(whole_batch,)),
    _move("MaxPool", conditions=(moves_activation, one_output)),
    _move("ReduceMax"),
    _move("ReduceMin"),
    _move("Reshape"),
    _move("Flatten"),
    _move("Squeeze"),
    _move("Unsqueeze"),
    # no Transpose: of floats it is often a layout that the next kernel reads for nothing, of bytes a pass of its own
    # (deeplab_v3_mnv2 with all rows and without this one: 24.7 and 14.2 ms)
    _move("Expand"),
    _move("Slice"),
    _move("Gather"),
    _move("Split"),
    _move("DepthToSpace"),
    _move("Resize", conditions=(moves_activation, _nearest)),
)

OPS = {row.op_type: replace(row, conditions=(no_maximum, *row.conditions)) for row in _ROWS}

_GRU = Recurrence(further_weights=(2,), family=same_kernel, state=LARGEST_STATE)
_RECURRENT = tuple(
    _compute(op, weight=1, recurrence=scales, conditions=(no_maximum, integer_form))
    for op, scales in (("LSTM", replace(_GRU, scale_groups=lstm_groups)), ("GRU", _GRU))
)
_HAS_RECURRENT = "avx512_vnni"
"""On other processors LSTM and GRU stay in float: not looked at, and what is quantized in vain does not compile."""

# Without zero points of activations there is nothing to take off the sums: with AMX, BERT 6x384 takes 11.6 ms with its
# products in uint8, 9.6 in int8 without zero points, and 14.6 in float, which is bfloat16.
_PRODUCTS = frozenset({"MatMul", "Gemm"})

# On x86 a convolution reads signed data as such with one of these alone; elsewhere it becomes unsigned, with a zero
# point, as the compiled model shows on a processor that has AVX512-VNNI and neither.
_SIGNED_IMAGES = frozenset({"amx_int8", "avx_vnni_int8"})

# FullyConnected reads the integers, and with VNNI it rounds its data to 8 bits in blocks of 32. On BERT 6x384 (float
# 46.6 ms): per channel 30.4 ms and 24.8 dB; in blocks of 128 31.3 ms and 27.0 dB; 4 bits gain size, and no time.
_DATA_BLOCK = 32
_WEIGHTS = (QType.INT8, QType.INT8_128, QType.INT4_128)


def rules_for(machine: str | None = None, flags: frozenset[str] | None = None) -> Rules:
    """The rules on a CPU.

    On x86 without VNNI weights have 7 bits, as sums of two products saturate; with AMX some groups stay in float. By
    default it is this machine's.
    """
    machine = machine or platform.machine()
    flags = cpu_flags() if flags is None else flags
    x86 = is_x86(machine)
    wide = not x86 or bool(flags & {"avx512_vnni", "avx_vnni"})
    fast = _PRODUCTS | {"Conv"} if not x86 or flags & _SIGNED_IMAGES else _PRODUCTS
    conv = OPS["Conv"]
    if "amx_int8" in flags:
        conv = replace(conv, conditions=(*conv.conditions, right_groups))
    recurrent = _RECURRENT if x86 and _HAS_RECURRENT in flags else ()
    return Rules(
        activation=QType.UINT8,
        exact_limit=ANY_INT8 if wide else 63,
        ops={**OPS, conv.op_type: conv, **{row.op_type: row for row in recurrent}},
        share=frozenset({"Concat"}),
        unfold_cost=0.0,  # activations are computed in float before the Q, in the same kernel
        symmetric=frozenset({QType.INT8}),
        other_activations=frozenset({QType.INT8}),
        fast={QType.INT8: fast} if wide else {},
        forms=weight_only_forms(
            _WEIGHTS, _SOURCE, lambda _: _DATA_BLOCK if x86 and wide else 0, {QType.INT8}, [no_scores]
        ),
    )
