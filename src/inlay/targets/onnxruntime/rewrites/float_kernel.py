"""Operators between Q/DQ nodes of others, which ONNX Runtime would compute in integers, and wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inlay.model.graph import Graph, Node
from inlay.quant.keep_float import keep_alone
from inlay.quant.qdq_graph import QDQGraph
from inlay.quant.rewrite import Rewrite


def whole_windows(graph: Graph, node: Node) -> str | None:
    """Why an AveragePool stays in float; None where its integer kernel is right."""
    if any(step != 1 for step in node.attributes.get("dilations", ())):
        return "AveragePool with dilations has no integer kernel"
    if node.attributes.get("ceil_mode", 0) and node.attributes.get("count_include_pad", 0):
        return "with ceil_mode the integer kernel of AveragePool counts what lies beyond the padding"
    return None


@dataclass(frozen=True)
class FloatKernel(Rewrite[bool]):
    """``DQ -> AveragePool -> Q`` has a second reader, so that the runtime leaves the operator as it is."""

    name = "float kernel"
    reason = "what an integer kernel computes wrong runs in float"
    source = "random operators of ONNX Runtime 1.31.1 and 1.32.0, compared with their graphs without optimizations"

    def applies(self, graph: Graph, node: Node) -> bool | None:
        """Whether the integer kernel of ``node`` is wrong."""
        return True if node.op_type == "AveragePool" and whole_windows(graph, node) else None

    def apply(self, qdq: QDQGraph, forms: Mapping[str, bool]) -> None:
        """Keep all of them in float."""
        keep_alone(qdq.graph, qdq.unique, forms)
