"""What OpenVINO's CPU plugin gets wrong in 8 bits, or fails to compile: reasons to keep an operator in float.

Each is of 2026.4.1, and most were found by comparing what the runtime makes of random models with the same file node by
node. The tests in ``tests/targets/openvino`` show them in the runtime, and fail once one has gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from inlay.model.graph import Graph, Node
from inlay.quant.padding_propagation import axes_along
from inlay.types import GRAPH_OUTPUT

Found = TypeVar("Found")
Value = TypeVar("Value")


def _once_each(find: Callable[[Graph], Found]) -> Callable[[Graph], Found]:
    """``find``, called once for each graph: every node of it asks."""
    known: WeakKeyDictionary[Graph, Found] = WeakKeyDictionary()

    def found(graph: Graph) -> Found:
        if graph not in known:
            known[graph] = find(graph)
        return known[graph]

    return found


def no_joined_rows(graph: Graph, node: Node) -> str | None:
    """2026.4.1 gives each joined part scales of its own, and fails to compile where these are a product's rows."""
    before = graph.producer(node.inputs[0])
    if before is None or before.op_type != "Concat":
        return None
    rank = len(graph.shape(node.inputs[0]) or ())
    if rank and int(before.attributes.get("axis", -1)) % rank == rank - 1:
        return None
    return f"its rows are joined by {before.name}, which does not compile in 8 bits"


_FEW_ROWS, _SMALL = 8, 256


def not_tiny(graph: Graph, node: Node) -> str | None:
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


_MOVES = frozenset(
    {"DepthToSpace", "Expand", "Flatten", "Gather", "MaxPool", "ReduceMax", "ReduceMin", "Reshape", "Resize"}
)
_MOVES |= {"Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
_FROM_ZERO = frozenset({"Relu", "Sigmoid", "HardSigmoid", "Softmax"})


def right_groups(graph: Graph, node: Node) -> str | None:
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


def zeros_around(graph: Graph, node: Node) -> str | None:
    """2026.4.1 counts padding as the least integer, whatever the zero point is: up to 142 of 255 steps off."""
    counted = node.attributes.get("count_include_pad", 0) and any(node.attributes.get("pads", ()))
    if not counted or _is_from_zero(graph, node.inputs[0]):
        return None
    return "padding that counts is not 0 in 8 bits, where data have a zero point"


def _is_from_zero(graph: Graph, value: str) -> bool:
    return is_from_zero(value, graph.producer, lambda v: graph.constant(v) if v else None, _MOVES)


def is_from_zero(
    value: Value,
    producer: Callable[[Value], Any],
    constant: Callable[[Value], np.ndarray | None],
    moves: Collection[str],
) -> bool:
    """Whether a value is none below zero by what computes it, so that its zero point is 0.

    Args:
        producer: the operator that computes a value, with ``op_type`` and ``inputs``; None for none.
    """
    left, seen = [value], {value}
    while left:
        maker = producer(left.pop())
        if maker is None:
            return False
        low = constant(maker.inputs[1]) if maker.op_type == "Clip" and len(maker.inputs) > 1 else None
        if maker.op_type in _FROM_ZERO or (low is not None and float(low.min()) >= 0.0):
            continue
        if maker.op_type != "Concat" and maker.op_type not in moves:
            return False
        reads = {*(maker.inputs if maker.op_type == "Concat" else maker.inputs[:1])} - seen
        left += reads
        seen |= reads
    return True


_MAXIMA = frozenset({"ReduceMax", "ReduceMin", "GlobalMaxPool"})
_FUSED = frozenset({"Abs", "Clip", "Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "Neg", "PRelu", "Relu", "Sigmoid"})
_FUSED |= {"Add", "Div", "Mul", "Sqrt", "Sub", "Tanh"}


def no_maximum(graph: Graph, node: Node) -> str | None:
    """2026.4.1 gets a maximum in float wrong whose result is quantized, at once or by what is fused behind it.

    Its kernel then begins at the least integer of the result, or at 0, instead of below all of its data. Where the
    result is joined with others, quantizing them together is moved before that.
    """
    behind = _behind_maxima(graph)
    found = next((behind[value] for value in node.inputs if value in behind), None)
    return (
        None if found is None else f"the result of {found.op_type} {found.name} comes out wrong where it is quantized"
    )


@_once_each
def _behind_maxima(graph: Graph) -> dict[str, Node]:
    """By value, the maximum that it is, or that it is fused or joined with."""
    found: dict[str, Node] = {}
    for node in graph.nodes:
        computed = [v for v in node.inputs if v and not graph.is_constant(v)]
        if node.op_type in _MAXIMA:
            found[node.outputs[0]] = node
        elif node.op_type == "Concat" or (node.op_type in _FUSED and len(computed) == 1):
            found.update((node.outputs[0], found[v]) for v in computed if v in found)
    return found


def whole_batch(graph: Graph, node: Node) -> str | None:
    """2026.4.1 gets means of integers over the middle of three axes right for the first of a batch only."""
    shape = graph.shape(node.inputs[0])
    if shape is None or len(shape) != 3 or shape[0] == 1 or axes_along(graph, node, 3) not in ({1}, {1, 2}):
        return None
    return "means over the middle axis come out wrong in 8 bits behind the first of a batch"


_LINEAR = frozenset({"Add", "Sub", "Mul", "Div"})
_WINDOWS = frozenset({"AveragePool", "MaxPool", "LpPool"})


def _read_linearly(graph: Graph, node: Node) -> Iterator[tuple[str, Node]]:
    """What reads a result, or what this is times or plus constants: each with the value that it reads."""
    left = list(node.outputs)
    while left:
        value = left.pop()
        for port in graph.consumers(value):
            if port.node == GRAPH_OUTPUT:
                continue
            reader = graph.node(port.node)
            if reader.op_type in _LINEAR and any(map(graph.is_constant, reader.inputs)):
                left += reader.outputs
            else:
                yield value, reader


def no_new_last_axis(graph: Graph, node: Node) -> str | None:
    """2026.4.1 moves scales of a product, or factors behind it, to what reads it, with the axes that they have there.

    With a new axis behind them it fails to compile; windows along their own axis come out wrong, or fail as well.
    """
    for value, reader in _read_linearly(graph, node):
        shape = graph.shape(value)
        if shape is not None and graph.shape(reader.outputs[0]) == (*shape, 1):
            return f"{reader.name} adds an axis behind its channels, with which it does not compile in 8 bits"
        if reader.op_type in _WINDOWS:
            return f"{reader.name} has windows along its channels, which come out wrong in 8 bits"
    return None


def no_pixels_apart(graph: Graph, node: Node) -> str | None:
    """2026.4.1 gets convolutions of single pixels with strides wrong in 8 bits, where they have pads, or are turned.

    Turned: a Transpose reads the result, or what it is times or plus constants, but for one that puts channels last.
    """
    window, strides = (graph.shape(node.inputs[1]) or ())[2:], node.attributes.get("strides", ())
    if any(d != 1 for d in window) or all(s == 1 for s in strides):
        return None
    if any(node.attributes.get("pads", ())):
        return "single pixels with strides and pads come out wrong in 8 bits"
    last = (0, *range(2, len(window) + 2), 1)
    turns = (r for _, r in _read_linearly(graph, node) if r.op_type == "Transpose")
    turned = next((r for r in turns if tuple(r.attributes.get("perm", ())) != last), None)
    return f"{turned.name} turns single pixels with strides, which come out wrong in 8 bits" if turned else None


_POINTWISE = _FUSED | {"Ceil", "Cos", "Erf", "Exp", "Floor", "Log", "Max", "Min", "Pow", "Sign", "Sin", "Softplus"}


def no_function_of_words(graph: Graph, node: Node) -> str | None:
    """2026.4.1 computes functions of words for the whole table, once, and fails to compile a Conv in 8 bits behind."""
    words = _words(graph).get(node.inputs[0])
    return f"{words.name} is a function of words, behind which it does not compile in 8 bits" if words else None


@_once_each
def _words(graph: Graph) -> dict[str, Node | None]:
    """Values that are rows of a table, or computed from each element of these alone: by which operator, if so."""
    found: dict[str, Node | None] = {}
    for node in graph.nodes:
        computed = [v for v in node.inputs if v and not graph.is_constant(v)]
        if node.op_type == "Gather" and graph.is_constant(node.inputs[0]):
            found[node.outputs[0]] = None
        elif computed and all(v in found for v in computed):
            by = next((found[v] for v in computed if found[v]), None)
            if node.op_type == "Transpose" or (node.op_type in _LINEAR and len(computed) == 1):
                found[node.outputs[0]] = by
            elif node.op_type in _POINTWISE:
                found[node.outputs[0]] = node
    return found


def no_scores(graph: Graph, node: Node) -> str | None:
    """2026.4.1 reads something else than a Softmax, in products whose weights alone are quantized.

    Found behind a product in 8 bits: at the Softmax, and behind elementwise operators on it.
    """
    scores = _scores(graph)
    return "scores of a Softmax come out wrong in products of quantized weights" if node.inputs[0] in scores else None


@_once_each
def _scores(graph: Graph) -> set[str]:
    """Results of a Softmax, also computed on or moved, element by element."""
    found: set[str] = set()
    for node in graph.nodes:
        passes = node.op_type in _POINTWISE or node.op_type in _MOVES
        if node.op_type in ("Softmax", "LogSoftmax") or (passes and not found.isdisjoint(node.inputs)):
            found.update(node.outputs)
    return found


WRONG_PRODUCTS = (no_joined_rows, not_tiny, no_new_last_axis)  # of every product with a weight
WRONG_CONVOLUTIONS = (no_function_of_words, no_pixels_apart)  # on any processor; with AMX there are more
