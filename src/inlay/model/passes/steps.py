"""What takes the place of an operator that is spelled out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir


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
        """Let ``result`` be what the original handed out first, and take the original out of the graph."""
        output = self._node.outputs[0]
        output.replace_all_uses_with(result, replace_graph_outputs=True)
        self._graph.remove(self._node, safe=True)
        result.name, result.shape = output.name, output.shape
