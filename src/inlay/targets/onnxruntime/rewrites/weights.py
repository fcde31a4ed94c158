"""Constants stored so that ONNX Runtime finds a faster kernel: weights off zero or upright, and tables of embeddings.

Nonzero zero points: ONNX Runtime 1.31 (x86-64) runs a Conv whose weight's zero points are all 0 in a convolution
kernel, and any other by gathering windows for its matrix product. With AMX the latter takes 0.55 to 0.7 of the time
where windows hold hundreds of elements, and up to 5 times as long where they hold few. Shifting every integer and the
zero point by one gives the same products in the other kernel.

Upright weights of Gemm: It makes MatMulNBits, which reads the integers, of a product behind a DequantizeLinear; of Gemm
only without ``transB``. With it, the whole weight is dequantized in each inference. Stored transposed, the weight is
the same.

Tables: In the plain form, ``DequantizeLinear -> Gather``, the whole table would be given back in float, once and for
all where the runtime computes constants, and else in each inference. Scales belong to the columns, which a Gather of
rows leaves where they are: behind it they are those of the last axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx

from inlay.model.graph import Graph, Node
from inlay.quant.notes import TRANSPOSED
from inlay.quant.qdq_graph import DEQUANTIZE, QDQGraph
from inlay.quant.rewrite import Rewrite
from inlay.targets.conditions import plain_product

_WEIGHT = 1  # input slot


@dataclass(frozen=True)
class NonzeroZeroPoint(Rewrite[bool]):
    """Store a Conv's int8 weight one step lower (or higher), with zero points of -1 (or 1).

    One zero point serves all channels: ONNX Runtime 1.20 refuses zero points that differ between channels.
    """

    name = "off zero"  # as it stands in journals and recipes
    selectable = True
    reason = "weights with zero points of -1: the same values, in a kernel of the runtime that is faster there"
    source = "the search profiles full INT8 with and without it; whether it pays depends on the processor and the shape"

    def applies(self, graph: Graph, node: Node) -> bool | None:
        """Whether ``node`` is a Conv of one group with a constant weight."""
        dense = node.op_type == "Conv" and int(node.attributes.get("group", 1)) == 1
        return True if dense and len(node.inputs) > _WEIGHT and graph.is_constant(node.inputs[_WEIGHT]) else None

    def apply(self, qdq: QDQGraph, forms: Mapping[str, bool]) -> None:
        """Shift the weights; one whose integers use both ends of the type is left as it is."""
        for node in qdq.graph.node:
            dq = qdq.dequantizer(node.input[_WEIGHT]) if node.name in forms else None
            if dq is None or len(dq.input) < 3:
                continue
            weight, zero_point = qdq.constant(dq.input[0]), qdq.constant(dq.input[2])
            step = _step(weight)
            if np.any(zero_point) or not step:
                continue
            back = (("less", step),)
            qdq.set_constant(dq.input[0], partial(np.add, weight, np.asarray(step, weight.dtype)), self.name, back)
            qdq.set_constant(dq.input[2], partial(np.full_like, zero_point, step), self.name, back)


def _step(weight: np.ndarray) -> int:
    """-1 where every integer can be one lower, else 1 where every one can be one higher, else 0 (as of floats)."""
    if weight.dtype.kind not in "iu":
        return 0
    limits = np.iinfo(weight.dtype)
    if weight.min(initial=0) > limits.min:
        return -1
    return 1 if weight.max(initial=0) < limits.max else 0


_GEMM_WEIGHT = 1  # input slot


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
            dq = qdq.dequantizer(node.input[_GEMM_WEIGHT]) if node.name in forms and node.op_type == "Gemm" else None
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


_TABLE = 0  # input slot


def table_of_rows(graph: Graph, node: Node) -> str | None:
    """A Gather takes rows of a matrix that is worth it, by indices that a run computes or gets."""
    shape = graph.shape(node.inputs[_TABLE]) or ()
    if not graph.is_constant(node.inputs[_TABLE]) or len(shape) != 2 or node.attributes.get("axis", 0) not in (0, -2):
        return "it takes no rows of a constant matrix"
    if graph.is_fixed(node.outputs[0]):
        return "it only moves a constant"
    small = (shape[0] or 0) * (shape[1] or 0) < LEAST_TABLE
    return f"its table has less than {LEAST_TABLE} numbers" if small else None


LEAST_TABLE = 1 << 14  # elements from which on a table is quantized: 64 KiB of floats


@dataclass(frozen=True)
class QuantizedTable(Rewrite[bool]):
    """``Gather`` of rows of a dequantized matrix as ``Gather`` of its integers."""

    name = "quantized table"
    reason = "a quarter of the memory; the rows that are read are dequantized, not the table"
    source = "QDQ selectors of 1.31.1 leave a Gather whose table alone is quantized as it is"

    def applies(self, graph: Graph, node: Node) -> bool | None:
        """Whether ``node`` gathers rows of such a table."""
        return True if node.op_type == "Gather" and table_of_rows(graph, node) is None else None

    def apply(self, qdq: QDQGraph, forms: Mapping[str, bool]) -> None:
        """Move the DequantizeLinear of each such table behind the Gather."""
        for at, node in enumerate(list(qdq.graph.node)):
            dq = qdq.dequantizer(node.input[_TABLE]) if node.name in forms else None
            if dq is None or qdq.element(dq.input[0]) is None:
                continue
            output, name = node.output[0], qdq.unique(f"{node.output[0]}_integers")
            behind = onnx.helper.make_node(DEQUANTIZE, [name, *dq.input[1:]], [output], f"{node.name}_rows")
            if any(a.name == "axis" for a in dq.attribute):
                behind.attribute.append(onnx.helper.make_attribute("axis", -1))
            qdq.release(dq)
            node.input[_TABLE], node.output[0] = dq.input[0], name
            following = qdq.graph.node[at + 1] if at + 1 < len(qdq.graph.node) else None
            if following is None:
                qdq.graph.node.append(behind)
            else:
                qdq.insert([behind], before=following)
        qdq.finish()
