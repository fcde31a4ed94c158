"""Q/DQ pairs in floats of 8 bits, which ONNX Runtime takes for integers.

Its fusions of operators between DequantizeLinear and QuantizeLinear do not ask for the type: with ``float8e4m3fn`` a
session does not load (QLinearAdd, QLinearConv and others get operands that they do not take), and a Relu before such a
QuantizeLinear is silently dropped. Written as Div, Cast and Mul, the same numbers are computed, and nothing is fused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from inlay.model.graph import Graph, Node
from inlay.quant.qdq_graph import DEQUANTIZE, QUANTIZE, QDQGraph
from inlay.quant.rewrite import Rewrite

_STEPS = "_steps"
_ONNX_FLOAT8 = int(onnx.TensorProto.FLOAT8E4M3FN)


@dataclass(frozen=True)
class Float8Pairs(Rewrite[bool]):
    """``Q -> DQ`` of an activation in floats of 8 bits as ``Div -> Cast -> Cast -> Mul``."""

    name = "float8 pairs"
    reason = "ONNX Runtime fuses operators between such pairs as if they were integers: it fails, or drops a Relu"
    source = "sessions and outputs of 1.31.1, by tests/targets/onnxruntime/test_float8_pairs.py"

    def applies(self, graph: Graph, node: Node) -> bool | None:
        """Any operator may read such values."""
        return True

    def apply(self, qdq: QDQGraph, forms: Mapping[str, bool]) -> None:
        """Write all of them out."""
        zeros: set[str] = set()
        for node in qdq.graph.node:
            if node.op_type not in (QUANTIZE, DEQUANTIZE) or not _is_float8(qdq, node):
                continue
            if node.op_type == QUANTIZE:
                value, scale, zero = node.input
                steps = qdq.unique(f"{node.output[0]}{_STEPS}")
                made = onnx.helper.make_node("Div", [value, scale], [steps], qdq.unique(f"{node.name}{_STEPS}"))
                node.op_type, node.input[:] = "Cast", [steps]
                node.attribute.append(onnx.helper.make_attribute("to", _ONNX_FLOAT8))
            elif node.input[0] in qdq.producers:
                rounded, scale, zero = node.input
                cast = qdq.unique(f"{node.output[0]}{_STEPS}")
                name = qdq.unique(f"{node.name}_Cast")
                made = onnx.helper.make_node("Cast", [rounded], [cast], name, to=onnx.TensorProto.FLOAT)
                node.op_type, node.input[:] = "Mul", [cast, scale]
            else:
                continue  # a constant's
            qdq.insert([made], before=node)
            zeros.add(zero)
        if zeros:
            kept = [t for t in qdq.graph.initializer if t.name not in zeros]
            del qdq.graph.initializer[:]
            qdq.graph.initializer.extend(kept)
            qdq.finish()


def _is_float8(qdq: QDQGraph, node: onnx.NodeProto) -> bool:
    return len(node.input) > 2 and qdq.element(node.input[2]) == _ONNX_FLOAT8
