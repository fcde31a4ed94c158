"""Tools for passes that replace one operator by others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.names import free_name

FUNCTIONS = frozenset(
    {"Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Elu", "Selu", "Softplus"}
)
"""Operators that compute each element of one value by itself, as runtimes fuse them into what is before."""


def is_standard(node: ir.Node, *op_types: str) -> bool:
    """Whether ``node`` is one of these operators of ONNX's own domain."""
    return node.op_type in op_types and node.domain in ("", "ai.onnx")


def behind_identities(value: ir.Value, graph: ir.Graph) -> ir.Value:
    """What the Identities of ``graph`` pass on as ``value``; it itself where none does."""
    node = value.producer()
    while node is not None and node.graph is graph and is_standard(node, "Identity") and node.inputs[0] is not None:
        value, node = node.inputs[0], node.inputs[0].producer()
    return value


def constant_of(value: ir.Value | None) -> np.ndarray | None:
    """The array of a constant, or None."""
    return None if value is None or value.const_value is None else np.asarray(value.const_value.numpy())


def ints(node: ir.Node, name: str, default: Sequence[int]) -> list[int]:
    """An attribute that lists integers."""
    return list(node.attributes.get_ints(name, default))


def axes_of(node: ir.Node) -> list[int]:
    """The axes of a reduction, by attribute or by a constant; none where they are computed, or there are none."""
    given = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    return ints(node, "axes", []) if given is None else [int(a) for a in given.reshape(-1)]


def is_over_last_axis(node: ir.Node) -> bool:
    """Whether a reduction is over the last axis alone."""
    axes, x = axes_of(node), node.inputs[0]
    rank = None if x is None or x.shape is None else len(x.shape)
    return axes == [-1] or (rank is not None and axes == [rank - 1])


def number_of(value: ir.Value | None) -> float | None:
    """A floating constant of one element that widens nothing."""
    array = constant_of(value)
    if array is None or array.size != 1 or array.ndim > 1 or not np.issubdtype(array.dtype, np.floating):
        return None
    return float(array.ravel()[0])


def squared_by(node: ir.Node) -> ir.Value | None:
    """What ``node`` is the square of, as a product or as a power; None where it is none."""
    if is_standard(node, "Mul"):
        return node.inputs[0] if node.inputs[0] is node.inputs[1] else None
    return node.inputs[0] if is_standard(node, "Pow") and number_of(node.inputs[1]) == 2.0 else None


def sole_use(value: ir.Value | None) -> tuple[ir.Node, int] | None:
    """The only node that reads ``value``, and at which slot; None where there are more, or it is an output."""
    uses = () if value is None or value.is_graph_output() else tuple(value.uses())
    return (uses[0].node, uses[0].idx) if len(uses) == 1 else None


def add_constant(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    """A new initializer, called ``name`` or, where another one is, something like it."""
    name = free_name(name, graph.initializers)
    value = ir.val(name, const_value=ir.Tensor(array, name=name))
    graph.register_initializer(value)
    return value


def insert_behind(value: ir.Value, nodes: ir.Node | Sequence[ir.Node], graph: ir.Graph) -> None:
    """Put ``nodes`` directly behind what computes ``value``; at the graph's beginning where nothing does."""
    maker = value.producer()
    if maker is None:
        graph.insert_before(graph[0], nodes)
    else:
        graph.insert_after(maker, nodes)


def replace_each(
    model: ir.Model,
    op_types: str | Collection[str],
    replace: Callable[[ir.Node, ir.Value, Steps], bool],
    may: Callable[[ir.Node], bool] = lambda _: True,
) -> tuple[ir.Model, int]:
    """Call ``replace`` on each operator of these types whose first input is a float32 value of known rank.

    Args:
        model: is changed; shapes are inferred where they are missing.
        replace: edits around the operator, given its first input, and returns whether it did.
        may: whether it could: shapes are not inferred for others, which takes an eighth of the time of a large model.
    """
    wanted = (op_types,) if isinstance(op_types, str) else op_types
    found = [n for n in model.graph if is_standard(n, *wanted) and may(n)]
    if any(n.inputs[0] is not None and n.inputs[0].shape is None for n in found):
        infer_shapes(model)
    done = 0
    for node in found:
        x, graph = node.inputs[0], node.graph
        if x is not None and x.dtype is ir.DataType.FLOAT and x.shape is not None and isinstance(graph, ir.Graph):
            done += replace(node, x, Steps(node, graph, x))
    return model, done


def _integers(name: str, given: Any) -> Any:
    """An attribute that lists integers, with its type: the library finds out what it is by trying protocols first."""
    if isinstance(given, (list, tuple)) and given and all(isinstance(n, int) for n in given):
        return ir.AttrInt64s(name, given)
    return given


class Steps:
    """Adds operators before ``node``, and constants to its graph, all named after it."""

    def __init__(self, node: ir.Node, graph: ir.Graph, like: ir.Value) -> None:
        self._node, self._graph, self._like = node, graph, like

    def add(
        self, op_type: str, inputs: Sequence[ir.Value], what: str = "", attributes: Mapping[str, Any] | None = None
    ) -> ir.Value:
        """The result of a new operator, of the type and shape of the original's input.

        The operator is called like the original with ``_<what>`` behind it; without ``what``, like the original.
        """
        name = f"{self._node.name}_{what}" if what else str(self._node.name)
        value = ir.Value(name=f"{name}_value", type=self._like.type, shape=self._like.shape)
        typed = {key: _integers(key, given) for key, given in (attributes or {}).items()}
        self._graph.insert_before(self._node, ir.node(op_type, inputs, typed, outputs=[value], name=name))
        return value

    def constant(self, what: str, array: np.ndarray) -> ir.Value:
        """A float32 initializer."""
        return add_constant(self._graph, f"{self._node.name}_{what}", array.astype(np.float32))

    def replace(self, result: ir.Value, *others: ir.Node) -> None:
        """Let ``result`` replace what the original computes, and remove it from the graph.

        Where ``others`` read the original in turn, they are removed as well, and the last one's output is replaced.
        """
        output = (others[-1] if others else self._node).outputs[0]
        output.replace_all_uses_with(result, replace_graph_outputs=True)
        self._graph.remove([self._node, *others], safe=True)
        result.name, result.shape = output.name, output.shape
