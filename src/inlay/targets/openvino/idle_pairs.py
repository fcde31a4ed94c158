"""Q/DQ pairs that change nothing, behind operators that only move elements, which OpenVINO would compute all the same.

It moves the dequantization of what such an operator reads behind the operator, and then dequantizes and quantizes again
in a pass of its own over the data, although scale and zero point are the same. Its integer kernels find their bytes
through the operator without that pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from inlay.model.graph import Graph, Node
from inlay.quant.qdq_graph import DEQUANTIZE, QUANTIZE, QDQGraph
from inlay.quant.rewrite import Rewrite
from inlay.targets.openvino.profile import TAKEN_OVER

_ALL_INPUTS = "Concat"  # moves what all of its inputs hold, and other operators their first input


@dataclass(frozen=True)
class IdlePairs(Rewrite[bool]):
    """``DQ -> MaxPool -> Q -> DQ`` with equal qparams is ``DQ -> MaxPool``, which takes over the name behind it."""

    name = "idle pairs"
    reason = "an operator that only moves elements leaves quantized values as they are, and its readers their integers"
    source = "executed graphs of 2026.4.1: a kernel from uint8 to uint8 behind each MaxPool, Concat, Reshape, …"
    moves: frozenset[str]  # operators that only move elements, and Concat

    def applies(self, graph: Graph, node: Node) -> bool | None:
        """Whether ``node`` only moves elements."""
        return True if node.op_type in self.moves else None

    def apply(self, qdq: QDQGraph, forms: Mapping[str, bool]) -> None:
        """Drop the pairs behind what moves quantized elements, where nothing else reads the value between."""
        quantizers = {n.input[0]: n for n in qdq.graph.node if n.op_type == QUANTIZE}
        dequantizers = {n.input[0]: n for n in qdq.graph.node if n.op_type == DEQUANTIZE}
        held = {n.output[0]: _qparams(n, qdq) for n in dequantizers.values() if n.input[0] in qdq.producers}
        unused: set[str] = set()
        for node in qdq.graph.node:
            inputs = {held.get(v) for v in (node.input if node.op_type == _ALL_INPUTS else node.input[:1])}
            if node.name not in forms or len(inputs) > 1 or None in inputs:
                continue
            for slot, value in enumerate(node.output):
                q = quantizers.get(value)
                dq = None if q is None else dequantizers.get(q.output[0])
                if q is None or dq is None or dq.output[0] != value + TAKEN_OVER:
                    continue
                if qdq.uses[value] > 1 or qdq.uses[q.output[0]] > 1:
                    continue
                if {_qparams(q, qdq)} == inputs:
                    node.output[slot] = dq.output[0]
                    unused |= {q.name, dq.name}
        qdq.finish(unused)


def _qparams(node: onnx.NodeProto, qdq: QDQGraph) -> tuple[bytes, ...] | None:
    """Scale, zero point and type of a Q or DQ node, as a value to compare; None where one of them is computed."""
    if any(qdq.element(name) is None for name in node.input[1:]):
        return None
    arrays = [qdq.constant(name) for name in node.input[1:]]
    return (*(a.tobytes() for a in arrays), str(arrays[-1].dtype).encode())
