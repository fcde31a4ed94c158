"""Conditions of rows that several targets have: why an operator stays in float, or None."""

from __future__ import annotations

from inlay.model.graph import Graph, Node


def constant_weight(graph: Graph, node: Node) -> str | None:
    """The weight, input 1, is a constant."""
    constant = len(node.inputs) > 1 and graph.is_constant(node.inputs[1])
    return None if constant else "its weight is computed at run time"


def constant_bias(graph: Graph, node: Node) -> str | None:
    """The bias, input 2, is a constant or left out."""
    given = len(node.inputs) > 2 and node.inputs[2]
    return "its bias is computed at run time" if given and not graph.is_constant(node.inputs[2]) else None


def moves_activation(graph: Graph, node: Node) -> str | None:
    """The elements that the operator moves are no constant's."""
    return "it only moves a constant" if node.inputs and graph.is_constant(node.inputs[0]) else None


def one_output(graph: Graph, node: Node) -> str | None:
    """Nothing but the first output is asked for."""
    return "its index output needs the float values" if len([v for v in node.outputs if v]) > 1 else None
