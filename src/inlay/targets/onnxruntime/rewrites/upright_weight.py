"""Gemm of float data and a transposed weight that is dequantized, whose kernel ONNX Runtime does not find.

It makes MatMulNBits, which reads the integers, of a product behind a DequantizeLinear; of Gemm only without ``transB``.
With it, the whole weight is dequantized in each inference. Stored transposed, the weight is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from inlay.model.graph import Graph, Node
from inlay.quant.notes import TRANSPOSED
from inlay.quant.qdq_graph import QDQGraph
from inlay.quant.rewrite import Rewrite
from inlay.targets.conditions import plain_product

_WEIGHT = 1  # input slot


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
                qdq.set_constant(name, partial(_transposed, qdq, name), self.name, TRANSPOSED)
            for attribute in dq.attribute:
                if attribute.name == "axis":
                    attribute.i = 1 - attribute.i % 2
            for attribute in node.attribute:
                if attribute.name == "transB":
                    attribute.i = 0
            dq.name = f"{dq.name}_upright"
            qdq.drop_shapes([dq.output[0]])


def _transposed(qdq: QDQGraph, name: str) -> np.ndarray:
    return np.ascontiguousarray(qdq.constant(name).T)
