"""Q/DQ pairs in floats of 8 bits, which ONNX Runtime takes for integers.

Its fusions of operators between DequantizeLinear and QuantizeLinear do not ask for the type: with ``float8e4m3fn`` a
session does not load (QLinearAdd, QLinearConv and others get operands that they do not take), and a Relu before such a
QuantizeLinear is silently dropped. Written as Div, Cast and Mul, the same numbers are computed, and nothing is fused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from inlay.model.graph import Graph, Node
from inlay.model.passes.steps import add_constant
from inlay.quant.qdq_graph import DEQUANTIZE, QUANTIZE, QDQGraph
from inlay.quant.rewrite import Rewrite
from inlay.targets.rewrites.undo import producer_of
from inlay.types import Port

_STEPS = "_steps"  # ends the name of a Div by the scale
_FLOAT8, _ONNX_FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn), int(onnx.TensorProto.FLOAT8E4M3FN)


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

    def undo(self, graph: ir.Graph) -> Iterable[Port]:
        """Write pairs again."""
        for cast in [n for n in graph if n.op_type == "Cast"]:
            div = producer_of(cast.inputs[0], "Div")
            if div is None or not str(div.name).endswith(_STEPS) or cast.attributes["to"].as_int() != _ONNX_FLOAT8:
                continue
            rounded = cast.outputs[0]
            zero = add_constant(graph, f"{rounded.name}_zero_point", np.zeros((), _FLOAT8))
            for use in list(rounded.uses()):
                mul = next((u.node for u in use.node.outputs[0].uses()), None)
                if use.node.op_type == "Cast" and mul is not None and mul.op_type == "Mul":
                    _replace(graph, mul, DEQUANTIZE, [rounded, mul.inputs[1], zero])
            _replace(graph, cast, QUANTIZE, [div.inputs[0], div.inputs[1], zero])
        return ()


def _is_float8(qdq: QDQGraph, node: onnx.NodeProto) -> bool:
    return len(node.input) > 2 and qdq.element(node.input[2]) == _ONNX_FLOAT8


def _replace(graph: ir.Graph, node: ir.Node, op_type: str, inputs: list[ir.Value | None]) -> None:
    """``node`` by an operator of its name and its output."""
    old = node.outputs[0]
    new = ir.Node("", op_type, inputs, name=node.name)
    new.outputs[0].name, new.outputs[0].shape, new.outputs[0].type = old.name, old.shape, old.type
    graph.insert_before(node, new)
    old.replace_all_uses_with(new.outputs[0], replace_graph_outputs=True)
    graph.remove(node, safe=True)
