"""GlobalAveragePool, ReduceMean, ReduceSum, ReduceMax and ReduceMin."""

from __future__ import annotations

import math

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context
from inlay.tosa.quantized import Unsupported
from inlay.tosa.rules._common import Window, axes_of, set_output
from inlay.tosa.rules._movement import with_size
from inlay.tosa.rules.pool import LARGEST_SUM, mean_of_windows

_LARGEST_KERNEL = 64
"""Largest window side that is summed by a convolution with ones (Ethos-U: kernel height ≤ 64, area ≤ 4096)."""


def global_average_pool(context: Context, node: Node) -> None:
    """GlobalAveragePool: the mean over every axis behind the channels."""
    _mean(context, node, tuple(range(2, len(context.shape(node.inputs[0])))))


def reduce_mean(context: Context, node: Node) -> None:
    """ReduceMean and ReduceSum over constant axes."""
    rank = len(context.shape(node.inputs[0]))
    axes = axes_of(context, node, 1, rank)
    if axes is None:
        axes = () if node.attributes.get("noop_with_empty_axes", 0) else tuple(range(rank))
    _mean(context, node, axes)


def _mean(context: Context, node: Node, axes: tuple[int, ...]) -> None:
    to = context.output_qparams(node.outputs[0])
    x = context.quantized_input(node.inputs[0])
    shape = context.builder.shape(x.tensor)
    total = math.prod(shape[a] for a in axes)
    count = 1 if node.op_type == "ReduceSum" else total
    if total > LARGEST_SUM:
        raise Unsupported(f"a sum of {total} elements does not fit int32")
    factor = x.scale / to.scale[0]
    if len(shape) == 4 and set(axes) == {2, 3} and max(shape[2:]) <= _LARGEST_KERNEL:
        size = (shape[2], shape[3])
        win = Window(size, (1, 1), (1, 1), (0, 0, 0, 0), size, (1, 1))
        mean = mean_of_windows(context, node, x.tensor, win, x.zp, factor * total / count, to)
    else:
        tensor = context.to_int32(node.name, x.tensor, x.zp)
        for axis in axes:
            tensor = _reduce(context, node, tensor, "sum", axis)
        mean = context.rescale(node.name, tensor, [factor / count], f"{node.name}/out", to)
    set_output(context, node, mean, to)


def reduce_extreme(context: Context, node: Node) -> None:
    """ReduceMax and ReduceMin: exact at the input's own qparams."""
    x = context.quantized_input(node.inputs[0])
    rank = len(context.builder.shape(x.tensor))
    axes = axes_of(context, node, 1, rank)
    tensor = x.tensor
    for axis in tuple(range(rank)) if axes is None else axes:
        tensor = _reduce(context, node, tensor, "max" if node.op_type == "ReduceMax" else "min", axis)
    set_output(context, node, tensor, x.known_qparams)


def _reduce(context: Context, node: Node, tensor: str, fn: str, axis: int) -> str:
    declared = context.builder.tensors[tensor]
    shape = with_size(declared.dims, axis, 1)
    return context.builder.add(
        ir.Reduce, node.name, [tensor], f"{node.name}/{fn}", declared.dtype, shape, declared.qparams, fn=fn, axis=axis
    )
