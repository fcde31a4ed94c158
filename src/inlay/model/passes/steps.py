"""Tools for passes that replace one operator by others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass


def constant_of(value: ir.Value | None) -> np.ndarray | None:
    """The array of a constant, or None."""
    return None if value is None or value.const_value is None else np.asarray(value.const_value.numpy())


def ints(node: ir.Node, name: str, default: Sequence[int]) -> list[int]:
    """An attribute that lists integers."""
    return [int(i) for i in node.attributes[name].as_ints()] if name in node.attributes else list(default)


def replace_each(
    model: ir.Model, op_type: str, replace: Callable[[ir.Node, ir.Value, Steps], bool]
) -> tuple[ir.Model, int]:
    """Call ``replace`` on each operator of a type whose first input is a float32 value of known rank.

    Args:
        model: is changed; shapes are inferred where they are missing.
        op_type: of the default domain.
        replace: edits around the operator, given its first input, and returns whether it did.
    """
    found = [n for n in model.graph if n.op_type == op_type and n.domain in ("", "ai.onnx")]
    if any(n.inputs[0] is not None and n.inputs[0].shape is None for n in found):
        ShapeInferencePass()(model)
    done = 0
    for node in found:
        x, graph = node.inputs[0], node.graph
        if x is not None and x.dtype is ir.DataType.FLOAT and x.shape is not None and isinstance(graph, ir.Graph):
            done += replace(node, x, Steps(node, graph, x))
    return model, done


class Steps:
    """Adds operators before ``node``, and constants to its graph, all named after it."""

    def __init__(self, node: ir.Node, graph: ir.Graph, like: ir.Value) -> None:
        self._node, self._graph, self._like = node, graph, like

    def add(self, op_type: str, inputs: list[ir.Value], what: str, attributes: Sequence[ir.Attr] = ()) -> ir.Value:
        """The result of a new operator, of the type and shape of the original's input."""
        name = f"{self._node.name}_{what}" if what else str(self._node.name)
        value = ir.Value(name=f"{name}_value", type=self._like.type, shape=self._like.shape)
        self._graph.insert_before(self._node, ir.Node("", op_type, inputs, attributes, outputs=[value], name=name))
        return value

    def constant(self, what: str, array: np.ndarray) -> ir.Value:
        """A float32 initializer."""
        tensor = ir.tensor(array.astype(np.float32), name=f"{self._node.name}_{what}")
        value = ir.Value(name=tensor.name, shape=ir.Shape(array.shape), type=self._like.type, const_value=tensor)
        self._graph.register_initializer(value)
        return value

    def replace(self, result: ir.Value) -> None:
        """Let ``result`` replace the original's first output, and remove the original from the graph."""
        output = self._node.outputs[0]
        output.replace_all_uses_with(result, replace_graph_outputs=True)
        self._graph.remove(self._node, safe=True)
        result.name, result.shape = output.name, output.shape
