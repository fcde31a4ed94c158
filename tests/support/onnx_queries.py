"""Look-ups in an ONNX model, independent of ``inlay.model``."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper


def ops(model: onnx.ModelProto) -> list[str]:
    """Operator types, in order."""
    return [n.op_type for n in model.graph.node]


def producers(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    """The node that computes a value, by value."""
    return {v: n for n in model.graph.node for v in n.output if v}


def readers(model: onnx.ModelProto, value: str) -> list[onnx.NodeProto]:
    """The nodes that read ``value``, once for each input slot."""
    return [n for n in model.graph.node for v in n.input if v == value]


def constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Initializers by name."""
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def through_qdq(model: onnx.ModelProto, value: str) -> str:
    """The float value behind a DQ (of a Q), or the name of the constant behind a DQ; ``value`` where there is no DQ."""
    made = producers(model)
    dq = made.get(value)
    if dq is None or dq.op_type != "DequantizeLinear":
        return value
    q = made.get(dq.input[0])
    return dq.input[0] if q is None else q.input[0]
