"""What the host's share of a model costs: a stated model, every figure an ESTIMATE, never a measurement.

Vela prices what stays on the host at nothing, which would make leaving work there look free. The host is taken to be
a microcontroller-class core with float SIMD (Cortex-M55 with Helium) at the NPU's own clock; figures are cycles:

=============  ======  =================================================================================
work           cycles  per
=============  ======  =================================================================================
product        1.0     multiply-accumulate in float32 (Conv, ConvTranspose, Gemm, MatMul)
element-wise   2.0     output element (Add, Mul, Relu, Clip, pooling: per window element)
function       20.0    output element (Exp, Sigmoid, Softmax, Tanh, Erf, Div, Sqrt, Pow, normalizations)
movement       1.5     output element (Reshape, Transpose, Concat, Slice, Gather, Pad, Resize …)
Q or DQ        3.0     element converted between int8 and float32
call           200     node
NPU call       2000    partition: command set-up, cache maintenance, interrupt
crossing       0.25    byte that crosses between NPU and host; one more 1.0 per element where axes are permuted
=============  ======  =================================================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from inlay.tosa import ir
from inlay.tosa.ir import IntegerGraph, Op, Tensor
from inlay.tosa.layout import is_trivial
from inlay.tosa.lowering import Lowered, Partition

PRODUCT, ELEMENTWISE, FUNCTION, MOVEMENT, CONVERSION, NODE_CALL, NPU_CALL, CROSSING_BYTE, PERMUTED = (
    1.0, 2.0, 20.0, 1.5, 3.0, 200.0, 2000.0, 0.25, 1.0,
)  # fmt: skip

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_FUNCTIONS = frozenset(
    {
        "Exp", "Log", "Sigmoid", "Softmax", "LogSoftmax", "Tanh", "Erf", "Gelu", "Div", "Sqrt", "Pow", "Reciprocal",
        "Elu", "Selu",
        "Softplus", "HardSwish", "Mish", "LayerNormalization", "InstanceNormalization", "LRN", "Sin", "Cos",
    }
)  # fmt: skip
_POOLS = frozenset({"MaxPool", "AveragePool"})
_MOVEMENTS = frozenset(
    {
        "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Concat", "Split", "Slice", "Gather", "Pad",
        "Resize",
        "Upsample",
        "Expand", "Tile", "Identity", "DepthToSpace", "SpaceToDepth",
    }
)  # fmt: skip
_ITEM = {"int8": 1, "uint8": 1, "int16": 2, "float16": 2, "int32": 4, "float32": 4, "int64": 8, "float64": 8, "bool": 1}


@dataclass(frozen=True)
class HostCycles:
    """Estimated host cycles of one operator."""

    node: str
    op_type: str
    cycles: float


def _size(tensor: Tensor) -> int:
    return 0 if tensor.shape is None else math.prod(tensor.shape)


def operator(graph: IntegerGraph, op: Op) -> HostCycles:
    """Estimate of one operator on the host."""
    out = sum(_size(graph.tensors[n]) for n in op.outputs)
    if not isinstance(op, ir.Host):
        return HostCycles(op.source, type(op).__name__, NODE_CALL + CONVERSION * out)
    kind = op.node.op_type
    if kind in _PRODUCTS:
        work = PRODUCT * out * _depth(graph, op)
    elif kind in _FUNCTIONS:
        work = FUNCTION * out
    elif kind in _POOLS:
        kernel = next((a.ints for a in op.node.attribute if a.name == "kernel_shape"), [1])
        work = ELEMENTWISE * out * math.prod(kernel)
    elif kind in _MOVEMENTS:
        work = MOVEMENT * out
    else:
        # Unknown operators count what they read as well: reductions, sorts, custom ones.
        work = ELEMENTWISE * (out + sum(_size(graph.tensors[n]) for n in op.inputs if n))
    return HostCycles(op.source, kind, NODE_CALL + work)


def _depth(graph: IntegerGraph, op: ir.Host) -> float:
    """Multiply-accumulates per output element."""
    a, w = (graph.tensors[n] for n in op.inputs[:2])
    if op.node.op_type in ("Gemm", "MatMul"):
        return float(a.dims[-1]) if a.shape else 1.0
    if not w.shape:
        return 1.0
    return float(math.prod(w.shape[1:])) if op.node.op_type == "Conv" else float(w.shape[0] * math.prod(w.shape[2:]))


def crossing(graph: IntegerGraph, part: Partition, lowered: Lowered) -> float:
    """Estimate of calling the NPU for a partition and handing tensors over; the model's own boundary is not charged."""
    assert part.tosa is not None
    outside = {i.tensor for i in (*lowered.graph.inputs, *lowered.graph.outputs)}
    for op in graph.ops:
        if op.executor is ir.Executor.CALLER:
            outside.update((*op.inputs, *op.outputs))
    cycles = NPU_CALL
    for port in (*part.tosa.inputs, *part.tosa.outputs):
        if port.tensor in outside:
            continue
        size = math.prod(port.shape)
        cycles += CROSSING_BYTE * size * _ITEM.get(port.dtype, 4)
        if not is_trivial(port.permutation, graph.tensors[port.tensor].dims):
            cycles += PERMUTED * size
    return cycles
