"""What the host's share of a model costs: a stated model, every figure an ESTIMATE, never a measurement.

Vela prices what stays on the host at nothing, which would make leaving work there look free. The host is taken to be
a microcontroller-class core with float SIMD (Cortex-M55 with Helium) at the NPU's own clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from inlay.model.products import PRODUCTS, count
from inlay.tosa import ir
from inlay.tosa.ir import IntegerGraph, Op, Tensor
from inlay.tosa.layout import is_trivial
from inlay.tosa.lowering import Partition


@dataclass(frozen=True)
class HostCost:
    """Host cycles per unit of work; the target's fingerprint lists them in this order."""

    product: float = 1.0  # per multiply-accumulate in float32 (Conv, ConvTranspose, Gemm, MatMul)
    elementwise: float = 2.0  # per output element (Add, Mul, Relu, Clip …); in a pool, per element of each window
    function: float = 20.0  # per output element (Exp, Sigmoid, Softmax, Tanh, Erf, Div, Sqrt, Pow, normalizations)
    movement: float = 1.5  # per output element (Reshape, Transpose, Concat, Slice, Gather, Pad, Resize …)
    conversion: float = 3.0  # per element converted between int8 and float32 (Q or DQ)
    node_call: float = 200.0  # per node
    npu_call: float = 2000.0  # per TOSA partition: command set-up, cache maintenance, interrupt
    crossing_byte: float = 0.25  # per byte that crosses between NPU and host
    permuted: float = 1.0  # per crossing element whose axes are permuted, besides


HOST = HostCost()

_FUNCTIONS = frozenset(
    {
        "Exp", "Log", "Sigmoid", "Softmax", "LogSoftmax", "Tanh", "Erf", "Gelu", "Div", "Sqrt", "Pow", "Reciprocal",
        "Elu", "Selu", "Softplus", "HardSwish", "Mish", "LayerNormalization", "InstanceNormalization", "LRN", "Sin",
        "Cos",
    }
)  # fmt: skip
_POOLS = frozenset({"MaxPool", "AveragePool"})
_MOVEMENTS = frozenset(
    {
        "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Concat", "Split", "Slice", "Gather", "Pad",
        "Resize", "Upsample", "Expand", "Tile", "Identity", "DepthToSpace", "SpaceToDepth",
    }
)  # fmt: skip


def _size(tensor: Tensor) -> int:
    return 0 if tensor.shape is None else math.prod(tensor.shape)


def operator(graph: IntegerGraph, op: Op) -> tuple[str, float]:
    """Kind of one operator on the host, and its estimated cycles."""
    out = sum(_size(graph.tensors[n]) for n in op.outputs)
    if not isinstance(op, ir.Host):
        return type(op).__name__, HOST.node_call + HOST.conversion * out
    kind = op.node.op_type
    if kind in PRODUCTS:
        shapes = [graph.tensors[n].shape for n in op.inputs[:2]]
        attributes = {a.name: a.i for a in op.node.attribute}
        work = HOST.product * max(out, count(kind, attributes, shapes, graph.tensors[op.outputs[0]].shape))
    elif kind in _FUNCTIONS:
        work = HOST.function * out
    elif kind in _POOLS:
        kernel = next((a.ints for a in op.node.attribute if a.name == "kernel_shape"), [1])
        work = HOST.elementwise * out * math.prod(kernel)
    elif kind in _MOVEMENTS:
        work = HOST.movement * out
    else:
        # Unknown operators (reductions, sorts, custom ones) count what they read as well.
        work = HOST.elementwise * (out + sum(_size(graph.tensors[n]) for n in op.inputs if n))
    return kind, HOST.node_call + work


def crossing(graph: IntegerGraph, part: Partition) -> float:
    """Estimated cycles of calling the NPU for a partition and moving tensors there and back.

    The model's own inputs and outputs are not charged.
    """
    assert part.tosa is not None
    outside = {i.tensor for i in (*graph.inputs, *graph.outputs)}
    for op in graph.ops:
        if op.executor is ir.Executor.CALLER:
            outside.update((*op.inputs, *op.outputs))
    cycles = HOST.npu_call
    for stored in (*part.tosa.inputs, *part.tosa.outputs):
        if stored.tensor in outside:
            continue
        size = math.prod(stored.shape)
        cycles += HOST.crossing_byte * size * np.dtype(stored.dtype).itemsize
        if not is_trivial(stored.permutation, graph.tensors[stored.tensor].dims):
            cycles += HOST.permuted * size
    return cycles
