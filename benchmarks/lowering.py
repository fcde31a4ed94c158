"""How much of each model becomes integers on Ethos-U, for four ways of quantizing it: nodes and estimated cycles.

``own`` is Inlay's recipe for the NPU, ``own for ORT`` its recipe for ONNX Runtime, ``quantize_static`` that runtime's
own tool, and ``inputs only`` has Q/DQ nodes at the inputs of Conv, ConvTranspose, Gemm and MatMul alone, as TensorRT
wants them. Cycles are estimates: Vela's, plus the stated model of the host.
"""

from __future__ import annotations

import onnx

from inlay.space.recipe import WEIGHTED

ACCELERATOR = "ethos-u55-128"
_QDQ = ("QuantizeLinear", "DequantizeLinear")


def inputs_only(model: onnx.ModelProto) -> onnx.ModelProto:
    """A Q/DQ model with the pairs of activations at the inputs of weighted operators only."""
    made = {out: node for node in model.graph.node for out in node.output}
    copy = onnx.ModelProto()
    copy.CopyFrom(model)

    def source(name: str) -> str:
        """The float value behind a Q/DQ pair."""
        dq = made.get(name)
        q = None if dq is None or dq.op_type != "DequantizeLinear" else made.get(dq.input[0])
        return source(q.input[0]) if q is not None and q.op_type == "QuantizeLinear" else name

    for node in copy.graph.node:
        if node.op_type not in (*WEIGHTED, "DequantizeLinear"):
            for i, name in enumerate(node.input):
                node.input[i] = source(name)
    replaced = {o.name: source(o.name) for o in copy.graph.output}
    for node in copy.graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                for out, inner in replaced.items():
                    if inner != out and name in (out, inner):
                        names[i] = out if name == inner else f"{out}_dequantized"
    return _without_dead(copy)


def _without_dead(model: onnx.ModelProto) -> onnx.ModelProto:
    needed = {o.name for o in model.graph.output}
    kept = []
    for node in reversed(model.graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
    del model.graph.node[:]
    model.graph.node.extend(reversed(kept))
    return model
