"""What OpenVINO's CPU plugin runs in INT8: a table, each row verified against the compiled model.

The runtime moves each dequantization down to where it can be fused, so that an integer kernel writes bytes or floats as
its readers want, and a Q is fused into whatever kernel computes the value. ``tests/targets/openvino/test_rules.py``
builds each row's operator between convolutions and reads the executed graph back.

Elementwise operators have no rows but Add and Sub. Behind a convolution they are fused into its kernel and compute in
float there; Q/DQ nodes in between would force them into kernels of their own. A sum of two values is fused into the
convolution before it only where both of them are bytes.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from inlay.model.graph import Graph, Node
from inlay.space.rules import Condition, Needs, OpRule, Rules
from inlay.targets.conditions import constant_bias, constant_weight, moves_activation, one_output, weight_only_forms
from inlay.targets.machine import cpu_flags
from inlay.types import GRAPH_OUTPUT, QType

_SOURCE = "executed graphs of 2026.4.1"


def _nearest(graph: Graph, node: Node) -> str | None:
    mode = node.attributes.get("mode", "nearest")
    return None if mode == "nearest" else f"Resize runs in 8 bits only with mode nearest, not {mode}"


def _two_values(graph: Graph, node: Node) -> str | None:
    """Also of what is a constant once the sizes are known, as positions are: between Q and DQ, 2026.4.1 fails there."""
    return "a constant is added in float, in the kernel before" if any(map(graph.is_fixed, node.inputs)) else None


def _no_joined_rows(graph: Graph, node: Node) -> str | None:
    """2026.4.1 gives each joined part scales of its own, and fails to compile where these are a product's rows."""
    before = graph.producer(node.inputs[0])
    if before is None or before.op_type != "Concat":
        return None
    rank = len(graph.shape(node.inputs[0]) or ())
    if rank and int(before.attributes.get("axis", -1)) % rank == rank - 1:
        return None
    return f"its rows are joined by {before.name}, which does not compile in 8 bits"


_FEW_ROWS, _SMALL = 8, 256


def _not_tiny(graph: Graph, node: Node) -> str | None:
    """2026.4.1 reads what a small product without bias writes in 8 bits for another one as something else.

    Found by trying, on processors with and without AMX: where both have rank 2, up to 8 rows, and at most 256 channels
    and outputs. A bias, or an operator other than Relu between them, and it is right. They gain nothing in 8 bits.
    """
    data, weight = graph.shape(node.inputs[0]) or (), graph.shape(node.inputs[1]) or ()
    few = len(data) == 2 and len(weight) == 2 and 0 < (data[0] or 0) <= _FEW_ROWS
    if not few or max(n or 0 for n in weight) > _SMALL or _has_bias(graph, node):
        return None
    return f"products of up to {_FEW_ROWS} rows and {_SMALL} channels without a bias come out wrong in 8 bits"


def _has_bias(graph: Graph, node: Node) -> bool:
    if node.op_type == "Gemm":
        return len(node.inputs) > 2 and bool(node.inputs[2])
    readers = graph.consumers(node.outputs[0])
    after = graph.node(readers[0].node) if len(readers) == 1 and readers[0].node != GRAPH_OUTPUT else None
    return after is not None and after.op_type == "Add" and any(map(graph.is_constant, after.inputs))


_FROM_ZERO = frozenset({"Relu", "Sigmoid", "HardSigmoid", "Softmax"})


def _right_groups(graph: Graph, node: Node) -> str | None:
    """With AMX, 2026.4.1 gets some convolutions of groups wrong in 8 bits, most by more than their results.

    Found by trying: those of single pixels with more than 64 channels in a group that are no multiple of 64; and those
    of larger windows, where the data have a zero point, with fewer than 32 channels and more than 16 outputs in a
    group, though not of all sizes.
    """
    groups = int(node.attributes.get("group", 1))
    if groups == 1:
        return None
    outputs, channels, *window = [int(d or 0) for d in graph.shape(node.inputs[1]) or ()]  # it is a constant
    if math.prod(window) == 1:
        wrong = channels > 64 and channels % 64 != 0
    else:
        wrong = channels < 32 and outputs > 16 * groups and not _is_from_zero(graph, node.inputs[0])
    return f"with AMX, groups of {channels} to {outputs // groups} channels come out wrong in 8 bits" if wrong else None


def _zeros_around(graph: Graph, node: Node) -> str | None:
    """2026.4.1 counts padding as the least integer, whatever the zero point is: up to 142 of 255 steps off."""
    counted = node.attributes.get("count_include_pad", 0) and any(node.attributes.get("pads", ()))
    if not counted or _is_from_zero(graph, node.inputs[0]):
        return None
    return "padding that counts is not 0 in 8 bits, where data have a zero point"


def _is_from_zero(graph: Graph, value: str) -> bool:
    """Whether a value is none below zero by what computes it, so that its zero point is 0."""
    left, seen = [value], {value}
    while left:
        maker = graph.producer(left.pop())
        if maker is None:
            return False
        if maker.op_type in _FROM_ZERO or _is_cut_off(graph, maker):
            continue
        row = OPS.get(maker.op_type)
        if maker.op_type not in ("Concat", "Transpose") and (row is None or not row.moves_data):
            return False
        reads = {*(maker.inputs if maker.op_type == "Concat" else maker.inputs[:1])} - seen
        left += reads
        seen |= reads
    return True


def _is_cut_off(graph: Graph, node: Node) -> bool:
    """Whether a node is a Clip that leaves nothing below zero."""
    given = node.op_type == "Clip" and len(node.inputs) > 1 and node.inputs[1]
    low = graph.constant(node.inputs[1]) if given else None
    return low is not None and float(low.min()) >= 0.0


_MAXIMA = frozenset({"ReduceMax", "ReduceMin", "GlobalMaxPool"})
_FUSED = frozenset({"Abs", "Clip", "Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "Neg", "PRelu", "Relu", "Sigmoid"})
_FUSED |= {"Add", "Div", "Mul", "Sqrt", "Sub", "Tanh"}


def _no_maximum(graph: Graph, node: Node) -> str | None:
    """2026.4.1 gets a maximum in float wrong whose result is quantized, at once or by what is fused behind it.

    Its kernel then begins at the least integer of the result, or at 0, instead of below all of its data. Where the
    result is joined with others, quantizing them together is moved before that.
    """
    behind = _behind_maxima(graph)
    found = next((behind[value] for value in node.inputs if value in behind), None)
    return (
        None if found is None else f"the result of {found.op_type} {found.name} comes out wrong where it is quantized"
    )


_of_graphs: WeakKeyDictionary[Graph, dict[str, Node]] = WeakKeyDictionary()  # every node of a graph asks


def _behind_maxima(graph: Graph) -> dict[str, Node]:
    """By value, the maximum that it is, or that it is fused or joined with."""
    if graph not in _of_graphs:
        found: dict[str, Node] = {}
        for node in graph.nodes:
            computed = [v for v in node.inputs if v and not graph.is_constant(v)]
            if node.op_type in _MAXIMA:
                found[node.outputs[0]] = node
            elif node.op_type == "Concat" or (node.op_type in _FUSED and len(computed) == 1):
                found.update((node.outputs[0], found[v]) for v in computed if v in found)
        _of_graphs[graph] = found
    return _of_graphs[graph]


def _compute(op_type: str, conditions: Sequence[Condition] = (), **details: object) -> OpRule:
    details["conditions"] = (_no_maximum, *conditions)
    return OpRule(op_type, output=Needs.EITHER, source=_SOURCE, **details)  # type: ignore[arg-type]


def _move(op_type: str, *conditions: Condition) -> OpRule:
    return _compute(op_type, moves_data=True, conditions=(moves_activation, *conditions))


_ROWS: Iterable[OpRule] = (
    _compute("Conv", weight=1, bias=2, conditions=(constant_weight, constant_bias)),
    # of two activations one would have to be without a zero point
    _compute("MatMul", weight=1, conditions=(constant_weight, _no_joined_rows, _not_tiny)),
    _compute("Gemm", weight=1, bias=2, conditions=(constant_weight, constant_bias, _no_joined_rows, _not_tiny)),
    _compute("Add", activations=(0, 1), conditions=(_two_values,)),
    _compute("Sub", activations=(0, 1), conditions=(_two_values,)),
    _compute("Concat", activations=None),
    _compute("AveragePool", conditions=(_zeros_around,)),
    _compute("GlobalAveragePool"),
    _compute("ReduceMean"),
    _move("MaxPool", one_output),
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
    _move("Resize", _nearest),
)

OPS = {row.op_type: row for row in _ROWS}

# Without zero points of activations there is nothing to take off the sums: with AMX, BERT 6x384 takes 11.6 ms with its
# products in uint8, 9.6 in int8 without zero points, and 14.6 in float, which is bfloat16.
_PRODUCTS = frozenset({"Conv", "MatMul", "Gemm"})

# FullyConnected reads the integers, and with VNNI it rounds its data to 8 bits in blocks of 32. On BERT 6x384 (float
# 46.6 ms): per channel 30.4 ms and 24.8 dB; in blocks of 128 31.3 ms and 27.0 dB; 4 bits gain size, and no time.
_DATA_BLOCK = 32
_WEIGHTS = (QType.INT8, QType.INT8_128, QType.INT4_128)


def rules_for(machine: str | None = None, flags: frozenset[str] | None = None) -> Rules:
    """The rules on a CPU.

    On x86 without VNNI weights have 7 bits, as sums of two products saturate; with AMX some groups stay in float.

    Args:
        machine: as :func:`platform.machine` names it; this one by default.
        flags: of its ISA.
    """
    machine = machine or platform.machine()
    flags = cpu_flags() if flags is None else flags
    x86 = machine.lower() in ("x86_64", "amd64", "i686")
    wide = not x86 or bool(flags & {"avx512_vnni", "avx_vnni"})
    conv = OPS["Conv"]
    if "amx_int8" in flags:
        conv = replace(conv, conditions=(*conv.conditions, _right_groups))
    return Rules(
        activation=QType.UINT8,
        weight=QType.INT8,
        weight_limit=127 if wide else 63,
        ops={**OPS, conv.op_type: conv},
        share=frozenset({"Concat"}),
        unfold_cost=0.0,  # activations are computed in float before the Q, in the same kernel
        symmetric=frozenset({QType.INT8}),
        other_activations=frozenset({QType.INT8}),
        fast={QType.INT8: _PRODUCTS} if wide else {},
        forms=weight_only_forms(_WEIGHTS, _SOURCE, lambda _: _DATA_BLOCK if x86 and wide else 0, {QType.INT8}),
    )
