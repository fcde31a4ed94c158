"""How many multiply-accumulates an operator takes: one count for prices, budgets, baselines and ceilings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from inlay.model.graph import Graph, Node, Shape

AS_FLOAT: Mapping[str, tuple[str, Sequence[int]]] = {
    "ConvInteger": ("Conv", (0, 1)),
    "DynamicQuantizeLSTM": ("LSTM", (0, 1, 2, 3, 4)),
    "DynamicQuantizeMatMul": ("MatMul", (0, 1)),
    "FusedConv": ("Conv", (0, 1)),
    "FusedGemm": ("Gemm", (0, 1)),
    "FusedMatMul": ("MatMul", (0, 1)),
    "MatMulInteger": ("MatMul", (0, 1)),
    "MatMulIntegerToFloat": ("MatMul", (0, 1)),
    "QGemm": ("Gemm", (0, 3)),
    "QLinearConv": ("Conv", (0, 3)),
    "QLinearMatMul": ("MatMul", (0, 3)),
}
"""Products that a file may hold besides ONNX's own in float: the operator that they stand for, and its inputs."""
RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
PRODUCTS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm", "Attention"}) | RECURRENT


def multiply_accumulates(graph: Graph, node: Node, *, padding: bool = True) -> float:
    """Those of one run of ``node``, in float or on integers; 0 where it has none, or shapes are not known.

    Kernels mostly compute those with padding, and the steps behind the end of a sequence, but need not:
    ``padding`` says whether they count.
    """
    node = as_float(node)
    shapes = [graph.shape(v) if v else None for v in node.inputs[:3]]
    if not padding and node.op_type in RECURRENT and len(node.inputs) > 4 and node.inputs[4] and shapes[0]:
        shapes[0] = (1, 1, *shapes[0][2:])  # each sequence may end behind its first step, and so may the batch
    return count(node.op_type, node.attributes, shapes, graph.shape(node.outputs[0]), padding)


def count(
    op_type: str,
    attributes: Mapping[str, Any],
    inputs: Sequence[Shape | None],
    output: Shape | None,
    padding: bool = True,
) -> float:
    """Multiply-accumulates of an operator in float with ``inputs`` and ``output`` of these shapes."""
    first, second, again = [known_shape(shape) for shape in (*inputs, None, None, None)][:3]
    if op_type not in PRODUCTS or not first or not second:
        return 0.0
    if op_type in RECURRENT:
        return float(math.prod(first[:2]) * (math.prod(second) + math.prod(again or (0,))))
    written = known_shape(output)
    if written is None:
        return 0.0
    if op_type == "Attention":
        both = (math.prod(first) + math.prod(written)) * second[-2]
        return both / 2.0 if attributes.get("is_causal") else float(both)
    if op_type in ("Conv", "ConvTranspose"):
        wide, narrow = (first, written) if op_type == "Conv" else (written, first)
        taps = math.prod(narrow[2:]) * math.prod(second[2:])
        if not padding:
            visited = visits(attributes, wide[2:], narrow[2:], second[2:])
            taps = math.prod(int(np.count_nonzero(inside)) for _, inside in visited)
        return float(first[0] * second[0] * second[1] * taps)
    return float(math.prod(written) * first[0 if op_type == "Gemm" and attributes.get("transA") else -1])


def as_float(node: Node) -> Node:
    """A product as the operator in float that it stands for; any other node as it is."""
    if node.op_type not in AS_FLOAT:
        return node
    op_type, slots = AS_FLOAT[node.op_type]
    return replace(node, op_type=op_type, inputs=tuple(node.inputs[i] for i in slots if i < len(node.inputs)))


def visits(
    attributes: Mapping[str, Any], wide: Sequence[int], narrow: Sequence[int], window: Sequence[int]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each axis, the positions that a window visits, and which of them are no padding, shape (moves, window).

    The window lies in ``wide`` and moves on for each position of ``narrow``.
    """
    axes = len(window)
    strides = attributes.get("strides") or (1,) * axes
    dilations = attributes.get("dilations") or (1,) * axes
    pads = attributes.get("pads") or (0,) * (2 * axes)
    auto = attributes.get("auto_pad", "NOTSET")
    for i in range(axes):
        before, span = pads[i], (window[i] - 1) * dilations[i] + 1
        if auto.startswith("SAME"):
            padded = max(0, (narrow[i] - 1) * strides[i] + span - wide[i])
            before = padded // 2 if auto == "SAME_UPPER" else padded - padded // 2
        at = np.arange(narrow[i])[:, None] * strides[i] + np.arange(window[i])[None, :] * dilations[i] - before
        yield at, (at >= 0) & (at < wide[i])


def known_shape(shape: Shape | None) -> list[int] | None:
    """A shape without unknown dimensions; None where it has some."""
    return None if shape is None or any(d is None for d in shape) else [d for d in shape if d is not None]
