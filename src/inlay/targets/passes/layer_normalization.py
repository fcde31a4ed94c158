"""``LayerNormalization`` gathered from the operators that exporters write for it.

Below opset 17 there is no such operator: ``(x - mean(x)) / sqrt(mean((x - mean(x))^2) + e) * w + b`` is nine. Runtimes
make one kernel of them, so that gathering changes nothing in float. But what an operator's name says is known only of
the operator: that its scale can take in what evens out the channels behind it, for nothing, and which kernels of 8 bits
stand around it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import (
    add_constant,
    constant_of,
    is_over_last_axis,
    is_standard,
    sole_use,
    squared_by,
    with_number,
)
from inlay.targets.passes.gathering import gather, put_in_place

LAYER_NORMALIZATION_OPSET, LAYER_NORMALIZATION_IR = 17, 8
"""The first opset with the operator, and its IR version."""


@dataclass(frozen=True, eq=False)
class _Chain:
    """The operators of one normalization.

    Attributes:
        x: what is normalized.
        nodes: all of them; the last one computes the result.
        epsilon: what is added to the variance.
        scale: one number a channel.
        bias: the same; None for none.
    """

    x: ir.Value
    nodes: tuple[ir.Node, ...]
    epsilon: float
    scale: np.ndarray
    bias: np.ndarray | None = None


def gather_layer_normalization(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each such chain over the last axis whose parts nothing else reads; its factors must be constants.

    Args:
        model: is changed, and raised to ``LAYER_NORMALIZATION_OPSET`` where there is something to replace.
    """
    return gather(model, _chains, _replace, LAYER_NORMALIZATION_OPSET, LAYER_NORMALIZATION_IR)


def _chains(graph: ir.Graph) -> list[_Chain]:
    return [chain for node in graph if is_standard(node, "Sqrt") and (chain := _chain(node)) is not None]


def _chain(root: ir.Node) -> _Chain | None:
    """The normalization that ``root`` belongs to, which is the square root of its variance."""
    add = _producer(root.inputs[0], "Add")
    found = None if add is None else with_number(add)
    if add is None or found is None:
        return None
    variance, epsilon = found
    mean_of_squares = _producer(variance, "ReduceMean")
    if mean_of_squares is None or not _is_of_rows(mean_of_squares):
        return None
    square = _producer(mean_of_squares.inputs[0], "Pow", "Mul")
    centred = None if square is None else squared_by(square)
    taken = None if centred is None else centred.producer()
    quotient = _reader(root.outputs[0], "Div", slot=1)
    if square is None or taken is None or quotient is None or not is_standard(taken, "Sub"):
        return None
    again = quotient.inputs[0].producer() if quotient.inputs[0] is not None else None
    x, mean = taken.inputs
    average = None if mean is None else mean.producer()
    if x is None or x.dtype not in (None, ir.DataType.FLOAT) or again is None or average is None:
        return None
    if not is_standard(again, "Sub") or list(again.inputs) != [x, mean]:  # some exporters write the difference twice
        return None
    if not is_standard(average, "ReduceMean") or average.inputs[0] is not x or not _is_of_rows(average):
        return None
    inside = (average, *dict.fromkeys((taken, again)), square, mean_of_squares, add, root, quotient)
    if any(o.is_graph_output() for n in inside[:-1] for o in n.outputs):
        return None
    if any(use.node not in inside for n in inside[:-1] for use in n.outputs[0].uses()):
        return None
    return _with_factors(x, inside, epsilon)


def _with_factors(x: ir.Value, nodes: tuple[ir.Node, ...], epsilon: float) -> _Chain | None:
    """The chain with the product and the sum behind it, where their other operands are rows of constants.

    None where neither these nor the shape of ``x`` tell how many channels there are.
    """
    last = None if x.shape is None or not len(x.shape) else x.shape[-1]
    channels = last if isinstance(last, int) else None
    rank = 1 if x.shape is None else len(x.shape)
    scaled, scale = _next(nodes[-1], "Mul", channels, rank)
    if scaled is None or scale is None:
        return None if channels is None else _Chain(x, nodes, epsilon, np.ones(channels, np.float32))
    shifted, bias = _next(scaled, "Add", scale.size, rank)
    behind = (scaled,) if shifted is None else (scaled, shifted)
    return _Chain(x, (*nodes, *behind), epsilon, scale, bias)


def _next(node: ir.Node, op_type: str, size: int | None, rank: int) -> tuple[ir.Node | None, np.ndarray | None]:
    """The only reader of ``node`` where it is of this type, and its constant row of ``size`` numbers, or of several.

    One of more dimensions than ``rank`` would give the result more, too.
    """
    use = sole_use(node.outputs[0])
    if use is None or not is_standard(use[0], op_type):
        return None, None
    array = constant_of(use[0].inputs[1 - use[1]])
    if array is None or array.dtype != np.float32 or not 1 <= array.ndim <= rank or array.size != array.shape[-1]:
        return None, None
    return (use[0], array.reshape(-1)) if array.size > 1 and size in (None, array.size) else (None, None)


def _replace(graph: ir.Graph, chain: _Chain) -> None:
    """Put the operator in place of ``chain``."""
    last = chain.nodes[-1]
    arrays = [("scale", chain.scale), *([] if chain.bias is None else [("bias", chain.bias)])]
    constants = [add_constant(graph, f"{last.name}_{what}", np.array(a, np.float32)) for what, a in arrays]
    numbers = {"axis": -1, "epsilon": chain.epsilon}
    put_in_place(graph, chain.nodes, "LayerNormalization", [chain.x, *constants], numbers)


def _is_of_rows(node: ir.Node) -> bool:
    """Whether a mean is over the last axis alone, which it keeps."""
    return bool(node.attributes.get_int("keepdims", 1)) and is_over_last_axis(node)


def _producer(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The operator that computes ``value`` where it is of one of these types."""
    node = None if value is None else value.producer()
    return node if node is not None and any(is_standard(node, t) for t in op_types) else None


def _reader(value: ir.Value, op_type: str, slot: int) -> ir.Node | None:
    use = sole_use(value)
    return use[0] if use is not None and use[1] == slot and is_standard(use[0], op_type) else None
