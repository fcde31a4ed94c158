"""Conditions of rows that several targets have: why an operator stays in float, or None."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from inlay.model.graph import Graph, Node
from inlay.space.rules import Condition, Form, FormRow, weight_only
from inlay.types import QType

_SEVERAL, _NEIGHBORS = 4, 2
"""Rows and columns of a matrix that can be told to interpolate, and numbers that each of its results is made of."""


def constant_weight(graph: Graph, node: Node) -> str | None:
    """The weight, input 1, is a constant."""
    if len(node.inputs) > 1 and graph.is_constant(node.inputs[1]):
        return None
    maker = graph.producer(node.inputs[1]) if len(node.inputs) > 1 else None
    if maker is not None and maker.op_type == "DequantizeLinear":
        return "its weight is quantized in the given model, in a form that is kept as it is"
    return "its weight is computed at run time"


def constant_bias(graph: Graph, node: Node) -> str | None:
    """The bias, input 2, is a constant or left out."""
    given = len(node.inputs) > 2 and node.inputs[2]
    return "its bias is computed at run time" if given and not graph.is_constant(node.inputs[2]) else None


def plain_product(graph: Graph, node: Node) -> str | None:
    """A MatMul or Gemm is the product of its data and a matrix that nothing else reads, with nothing scaled."""
    if len(graph.shape(node.inputs[1]) or ()) != 2:
        return "its weight is not a matrix"
    if node.op_type == "Gemm":
        if node.attributes.get("transA", 0):
            return "its data are transposed"
        if node.attributes.get("alpha", 1.0) != 1.0 or node.attributes.get("beta", 1.0) != 1.0:
            return "its product or its bias is scaled"
    if len(graph.consumers(node.inputs[1])) > 1:
        return "its weight has other readers"
    return no_interpolation(graph, node)


def no_interpolation(graph: Graph, node: Node) -> str | None:
    """A product's constant is no matrix of :mod:`~inlay.targets.passes.upsampling`: means of one or two numbers each.

    As integers they are coarser, and the results that are next to each other too many to be quantized for nothing.
    """
    for slot, name in enumerate(node.inputs[:2]):
        matrix = graph.constant(name)
        if matrix is None or matrix.ndim != 2 or min(matrix.shape) < _SEVERAL:
            continue
        by_result = matrix if slot == 0 else matrix.T
        if not _averages(by_result[:1]):  # which tells of nearly all weights that they are something else
            continue
        if _averages(by_result):
            return "it interpolates: each result is the mean of one or two numbers"
    return None


def _averages(matrix: np.ndarray) -> bool:
    """Whether each row is that of a weighted mean of one or two numbers."""
    few = np.count_nonzero(matrix, axis=1).max() <= _NEIGHBORS
    return bool(few and matrix.min() >= 0.0 and np.allclose(matrix.sum(axis=1), 1.0, atol=1e-5))


def whole_blocks(block: int) -> Condition:
    """The sums of a plain product consist of whole blocks of so many elements."""

    def condition(graph: Graph, node: Node) -> str | None:
        shape = graph.shape(node.inputs[1]) or (1, 1)
        length = shape[1 if node.op_type == "Gemm" and node.attributes.get("transB", 0) else 0]
        return f"its sums of {length} are not a multiple of {block}" if (length or 1) % block else None

    return condition


def moves_activation(graph: Graph, node: Node) -> str | None:
    """The elements that the operator moves are no constant's, nor what follows from constants and sizes."""
    return "it only moves a constant" if node.inputs and graph.is_fixed(node.inputs[0]) else None


def one_output(graph: Graph, node: Node) -> str | None:
    """Nothing but the first output is asked for."""
    return "its index output needs the float values" if len([v for v in node.outputs if v]) > 1 else None


def weight_only_forms(
    searched: Collection[QType],
    source: str,
    rounds_data: Callable[[QType], int],
    worth: Collection[QType] = (),
    conditions: Sequence[Condition] = (),
) -> tuple[Form, ...]:
    """Forms of plain products whose weights alone are quantized: per channel in 8 bits, and in each type of blocks.

    Args:
        searched: types of weights that a search tries.
        rounds_data: of each type, as of :class:`Form`.
        worth: types that usually gain; the other forms are ``spare``.
    """
    types = [QType.INT8, *(t for t in QType if t.block)]
    return tuple(
        Form(
            weight_only(t),
            {
                op: FormRow(
                    op,
                    conditions=(plain_product, *([whole_blocks(t.block)] if t.block else []), *conditions),
                    source=source,
                )
                for op in ("MatMul", "Gemm")
            },
            weight=t,
            searched=t in searched,
            spare=t not in worth,
            rounds_data=rounds_data(t),
        )
        for t in types
    )
