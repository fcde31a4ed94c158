"""Float operators between Q/DQ nodes, which ONNX Runtime would compute in integers although the placement does not.

Its optimizer pass WeightBiasQuantization (version 1.23 and later, level 1, so in every default session) gives float
weights 8 bits with one scale: an output was left with 8.0 dB instead of 21.6. Other operators between Q/DQ nodes it
computes wrong in integers. :mod:`inlay.quant.keep_float` says how they are kept.

Of pairs in floats of 8 bits: Its fusions of operators between DequantizeLinear and QuantizeLinear do not ask for the
type: with ``float8e4m3fn`` a session does not load (QLinearAdd, QLinearConv and others get operands that they do not
take), and a Relu before such a QuantizeLinear is silently dropped. Written as Div, Cast and Mul, the same numbers are
computed, and nothing is fused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from inlay.model.graph import Graph, Node
from inlay.quant.keep_float import OPERATORS, is_dequantized, keep_alone, keep_float
from inlay.quant.qdq_graph import DEQUANTIZE, QUANTIZE, QDQGraph
from inlay.quant.rewrite import Rewrite


@dataclass(frozen=True)
class FloatWeight(Rewrite[bool]):
    """``DQ -> Conv -> Q`` with a float weight reads a DequantizeLinear whose scale is stated for each channel."""

    name = "float weight"
    reason = "what the placement leaves in float runs in float"
    source = (
        "ONNX Runtime 1.17, 1.20, 1.23 and 1.31, read from their optimized graphs; a DequantizeLinear by channel takes "
        "0 to 0.5 us longer"
    )

    def applies(self, graph: Graph, node: Node) -> bool | None:
        """Whether ``node`` has a weight that the runtime would quantize."""
        return True if node.op_type in OPERATORS and graph.is_constant(node.inputs[1]) else None

    def apply(self, qdq: QDQGraph, forms: Mapping[str, bool]) -> None:
        """Keep all of them in float."""
        keep_float(qdq.graph, qdq.unique)


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


def beside_a_weight(graph: Graph, node: Node) -> str | None:
    """Why a product stays in float where -128 times -128, twice, does not fit; None where it has a weight."""
    if graph.is_constant(node.inputs[1]):  # which goes down to -127
        return None
    return "both its inputs are activations: sums of products of -128 and -128 wrap around without dot products"


@dataclass(frozen=True)
class FloatProduct(Rewrite[bool]):
    """``MatMul`` of two dequantized values reads one through a ``Max`` of it alone, which no optimization takes out."""

    name = "float product"
    reason = "an integer kernel multiplies two activations also where only others are quantized"
    source = "ONNX Runtime 1.26.0 for ARM64 on an emulated Cortex-A72, by tests/targets/onnxruntime/test_arm.py"

    def applies(self, graph: Graph, node: Node) -> bool | None:
        """Whether ``node`` multiplies two activations."""
        return True if node.op_type == "MatMul" and beside_a_weight(graph, node) else None

    def apply(self, qdq: QDQGraph, forms: Mapping[str, bool]) -> None:
        """Keep all of them in float."""
        for node in [n for n in qdq.graph.node if n.name in forms]:
            if all(is_dequantized(value, qdq.producers) for value in node.input):
                apart = qdq.unique(f"{node.name}_apart")
                qdq.insert([onnx.helper.make_node("Max", [node.input[1]], [apart], apart)], before=node)
                node.input[1] = apart
        qdq.finish()


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
