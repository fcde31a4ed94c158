"""Products whose activation is quantized in each inference, in the form that ONNX Runtime has a kernel for.

The plain form, ``DynamicQuantizeLinear -> DequantizeLinear -> MatMul`` with a dequantized weight, is fused only where
no bias follows: the runtime makes a float Gemm of the two before it looks for integer kernels. Written as
``DynamicQuantizeLinear -> MatMulInteger -> Cast -> Mul`` it becomes one kernel, or two where several products read one
value. The integers are the same; the scales are multiplied behind the sum rather than before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx

from inlay.model.graph import Graph, Node
from inlay.quant.notes import TRANSPOSED
from inlay.quant.qdq_graph import DYNAMIC_QUANTIZE, QDQGraph
from inlay.quant.rewrite import Rewrite
from inlay.targets.conditions import plain_product

PRODUCT = "MatMulInteger"
_TURNED = "_turned"  # ends the name of a product whose weight was transposed


@dataclass(frozen=True)
class DynamicProduct(Rewrite[bool]):
    """``MatMul`` and ``Gemm`` of a dynamically quantized activation and a quantized weight, as ``MatMulInteger``."""

    name = "dynamic product"
    exact = False
    reason = "ONNX Runtime fuses it to DynamicQuantizeMatMul; dequantized operands are multiplied in float"
    source = "128x384 by 384x1536: 0.84 ms, in float 2.57, in the plain form 3.48 (ONNX Runtime 1.31, AVX512-VNNI)"

    def applies(self, graph: Graph, node: Node) -> bool | None:
        """Whether ``node`` is such a product once it is quantized; the value says whether its weight is transposed."""
        if node.op_type not in ("MatMul", "Gemm") or plain_product(graph, node) is not None:
            return None
        return bool(node.op_type == "Gemm" and node.attributes.get("transB", 0))

    def apply(self, qdq: QDQGraph, forms: Mapping[str, bool]) -> None:
        """Rewrite products both of whose operands are dequantized, the first one from DynamicQuantizeLinear."""
        replaced: set[str] = set()
        for node in list(qdq.graph.node):
            data, weight = (qdq.dequantizer(v) for v in node.input[:2]) if node.name in forms else (None, None)
            if data is None or weight is None or not qdq.owns(weight):
                continue
            if data.input[0] not in qdq.producers or qdq.producers[data.input[0]].op_type != DYNAMIC_QUANTIZE:
                continue
            turned = forms[node.name]
            if turned:
                qdq.set_constant(weight.input[0], partial(_transposed, qdq, weight.input[0]), PRODUCT, TRANSPOSED)
            made = _integer(node, data, weight, turned, qdq)
            node.name = qdq.unique(f"{node.name}_float")  # it goes, and its name stays with the last of the others
            qdq.insert(made, before=node)
            replaced.add(node.name)
            for dq in (data, weight):
                qdq.release(dq)
        qdq.finish(unused=replaced)


def _transposed(qdq: QDQGraph, name: str) -> np.ndarray:
    return np.ascontiguousarray(qdq.constant(name).T)


def _integer(
    node: onnx.NodeProto, data: onnx.NodeProto, weight: onnx.NodeProto, turned: bool, qdq: QDQGraph
) -> list[onnx.NodeProto]:
    """The operators that compute what ``node`` does, the last of them with its name."""
    bias = node.input[2] if len(node.input) > 2 else ""

    def value(what: str) -> str:
        return qdq.unique(f"{node.name}_{what}")

    names = value("integers"), value("sums"), value("scale"), value("product") if bias else node.output[0]
    integers, sums, scale, product = names
    own = [qdq.unique(f"{node.name}_{PRODUCT}") + (_TURNED if turned else ""), value("Cast"), value("Scale")]
    make = onnx.helper.make_node
    zeros = [data.input[2], *weight.input[2:3]]
    if len(zeros) > 1 and not qdq.constant(zeros[1]).any():  # as if it were not given: one number for each channel
        qdq.drop(zeros.pop())
    made = [
        make(PRODUCT, [data.input[0], weight.input[0], *zeros], [integers], own[0]),
        make("Cast", [integers], [sums], own[1], to=onnx.TensorProto.FLOAT),
        make("Mul", [data.input[1], weight.input[1]], [scale], own[2]),
        make("Mul", [sums, scale], [product], value("Mul") if bias else node.name),
    ]
    return [*made, make("Add", [product, bias], [node.output[0]], node.name)] if bias else made
