"""Gemm of float data and a transposed weight that is dequantized, whose kernel ONNX Runtime does not find.

It makes MatMulNBits, which reads the integers, of a product behind a DequantizeLinear; of Gemm only without ``transB``.
With it, the whole weight is dequantized in each inference. Stored transposed, the weight is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from inlay.model.graph import Graph, Node
from inlay.quant.qdq_graph import DEQUANTIZE, QDQGraph
from inlay.quant.rewrite import Rewrite
from inlay.targets.conditions import plain_product
from inlay.targets.rewrites.undo import producer_of, set_constant
from inlay.types import Port

_WEIGHT = 1  # input slot
_UPRIGHT = "_upright"  # ends the name of a DequantizeLinear whose weight was transposed


@dataclass(frozen=True)
class UprightWeight(Rewrite[bool]):
    """``Gemm(transB=1)`` of float data and a dequantized weight, as ``Gemm`` of the transposed weight."""

    name = "upright weight"
    exact = False
    reason = "ONNX Runtime fuses it to MatMulNBits; with transB the weight is dequantized in each inference"
    source = "optimized graphs of 1.31.1"

    def applies(self, graph: Graph, node: Node) -> bool | None:
        """Whether ``node`` is a Gemm with a transposed weight that a form of it may quantize."""
        turned = node.op_type == "Gemm" and node.attributes.get("transB", 0)
        return True if turned and plain_product(graph, node) is None else None

    def apply(self, qdq: QDQGraph, forms: Mapping[str, bool]) -> None:
        """Transpose dequantized weights of products whose data are not dequantized."""
        for node in qdq.graph.node:
            dq = qdq.dequantizer(node.input[_WEIGHT]) if node.name in forms and node.op_type == "Gemm" else None
            if dq is None or not qdq.owns(dq) or qdq.dequantizer(node.input[0]) is not None:
                continue
            for name in dq.input:
                qdq.set_constant(name, partial(_transposed, qdq, name), self.name)
            for attribute in dq.attribute:
                if attribute.name == "axis":
                    attribute.i = 1 - attribute.i % 2
            for attribute in node.attribute:
                if attribute.name == "transB":
                    attribute.i = 0
            dq.name = f"{dq.name}{_UPRIGHT}"
            qdq.drop_shapes([dq.output[0]])

    def undo(self, graph: ir.Graph) -> Iterable[Port]:
        """Transpose such weights again."""
        for node in [n for n in graph if n.op_type == "Gemm"]:
            dq = producer_of(node.inputs[_WEIGHT], DEQUANTIZE)
            if dq is None or not str(dq.name).endswith(_UPRIGHT):
                continue
            for value in dq.inputs:
                assert value is not None
                assert value.const_value is not None
                set_constant(value, value.const_value.numpy().T)
            if "axis" in dq.attributes:
                dq.attributes["axis"] = ir.AttrInt64("axis", 1 - dq.attributes["axis"].as_int() % 2)
            node.attributes["transB"] = ir.AttrInt64("transB", 1)
        return ()


def _transposed(qdq: QDQGraph, name: str) -> np.ndarray:
    return np.ascontiguousarray(qdq.constant(name).T)
