"""What the passes have in common that gather one operator of a newer opset from its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import onnx_ir as ir

from inlay.model.passes.opset import raise_opset

Chain = TypeVar("Chain")


def gather(
    model: ir.Model,
    find: Callable[[ir.Graph], Sequence[Chain]],
    replace: Callable[[ir.Graph, Chain], None],
    opset: int,
    ir_version: int,
) -> tuple[ir.Model, int]:
    """Replace every chain.

    Args:
        model: is changed, and raised to ``opset`` where there is something to replace.
        find: chains of operators that have no part in common.
        replace: one of them.
        opset: the first one that has the operator, and ``ir_version`` its version.
        ir_version: see there.
    """
    if not find(model.graph):
        return model, 0
    model, _ = raise_opset(model, opset)
    model.ir_version = max(model.ir_version, ir_version)
    chains = find(model.graph)
    for chain in chains:
        replace(model.graph, chain)
    return model, len(chains)


def put_in_place(
    graph: ir.Graph,
    nodes: Sequence[ir.Node],
    op_type: str,
    inputs: Sequence[ir.Value],
    attributes: Mapping[str, int | float],
) -> None:
    """Put one operator in place of ``nodes``, of which the last one computes the result, and has the name."""
    last = nodes[-1]
    output = last.outputs[0]
    result = ir.Value(name=output.name, type=output.type, shape=output.shape)
    graph.insert_before(last, ir.node(op_type, inputs, attributes, outputs=[result], name=last.name))
    output.replace_all_uses_with(result, replace_graph_outputs=True)
    graph.remove(nodes, safe=True)
