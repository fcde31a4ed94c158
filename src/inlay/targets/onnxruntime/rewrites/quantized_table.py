"""Tables of embeddings in 8 bits: rows are gathered as integers, and only those are dequantized.

In the plain form, ``DequantizeLinear -> Gather``, the whole table would be given back in float, once and for all where
the runtime computes constants, and else in each inference. Scales belong to the columns, which a Gather of rows leaves
where they are: behind it they are those of the last axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from inlay.model.graph import Graph, Node
from inlay.quant.qdq_graph import DEQUANTIZE, QDQGraph
from inlay.quant.rewrite import Rewrite

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
