"""LSTMs whose weights are quantized and whose data are quantized in each inference, in the runtime's own operator.

``DynamicQuantizeLSTM`` takes 8-bit weights, transposed, and quantizes the data and the state of every step by their own
range. The plain form, an LSTM that reads dequantized values, runs in float.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from inlay.model.graph import Graph, Node
from inlay.quant.qdq_graph import DEQUANTIZE, DYNAMIC_QUANTIZE, QDQGraph
from inlay.quant.rewrite import Rewrite
from inlay.targets.onnxruntime.rewrites._undo import set_constant
from inlay.types import Port

LSTM, DYNAMIC_LSTM, DOMAIN = "LSTM", "DynamicQuantizeLSTM", "com.microsoft"
_OPERANDS = 8  # of LSTM; in the other operator scales and zero points come behind them
_AXIS = 1  # of the gates in the weights of LSTM, shape (directions, 4 hidden, inputs)


def lstm_form(graph: Graph, node: Node) -> str | None:
    """Why ``node``, an LSTM, has no dynamic form, or None."""
    if node.attributes.get("layout", 0):
        return "its batch comes first"
    if len(node.inputs) >= _OPERANDS and node.inputs[_OPERANDS - 1]:
        return "it has peepholes"
    if any(len(graph.consumers(v)) > 1 for v in node.inputs[1:3]):
        return "its weights have other readers"
    return None


@dataclass(frozen=True)
class DynamicLstm(Rewrite[bool]):
    """An LSTM of dynamically quantized data and quantized weights, as ``DynamicQuantizeLSTM``."""

    name = "dynamic LSTM"
    exact = False
    reason = "ONNX Runtime has an 8-bit LSTM as an operator of its own; LSTM reads dequantized weights in float"
    source = "two bidirectional layers of 256 over 64 steps: 0.34 of the time in float (ONNX Runtime 1.31, AVX512-VNNI)"

    def applies(self, graph: Graph, node: Node) -> bool | None:
        """Whether ``node`` is such an LSTM once it is quantized."""
        return True if node.op_type == LSTM and lstm_form(graph, node) is None else None

    def apply(self, qdq: QDQGraph, forms: Mapping[str, bool]) -> None:
        """Rewrite LSTMs whose data come from DynamicQuantizeLinear, and whose weights are dequantized."""
        unused: set[str] = set()
        for node in qdq.graph.node:
            dqs = [qdq.dequantizer(v) for v in node.input[:3]] if node.name in forms else []
            if not dqs or any(dq is None for dq in dqs):
                continue
            data, *weights = (dq for dq in dqs if dq is not None)
            source = qdq.producers.get(data.input[0])
            if source is None or source.op_type != DYNAMIC_QUANTIZE or not all(qdq.owns(dq) for dq in weights):
                continue
            node.op_type, node.domain = DYNAMIC_LSTM, DOMAIN
            node.input[0] = source.input[0]
            node.input.extend([""] * (_OPERANDS - len(node.input)))
            for slot, dq in enumerate(weights, 1):
                count = qdq.constant(dq.input[0]).shape[0]
                qdq.set_constant(dq.input[0], partial(_turned, qdq, dq.input[0]), DYNAMIC_LSTM)
                for name in dq.input[1:3]:
                    qdq.set_constant(name, partial(_by_direction, qdq.constant(name), count), DYNAMIC_LSTM)
                node.input[slot] = dq.input[0]
                node.input.extend(dq.input[1:3])
                unused.add(dq.name)
            qdq.uses[data.output[0]] -= 1
            if not qdq.uses[data.output[0]]:
                unused |= {data.name, source.name}
        if unused:
            nodes = [n for n in qdq.graph.node if n.name not in unused]
            del qdq.graph.node[:]
            qdq.graph.node.extend(nodes)

    def undo(self, graph: ir.Graph) -> Iterable[Port]:
        """Write such LSTMs with dequantized operands again."""
        for node in [n for n in graph if n.op_type == DYNAMIC_LSTM and n.domain == DOMAIN]:
            _undo(node, graph)
        return ()


def _turned(qdq: QDQGraph, name: str) -> np.ndarray:
    return np.ascontiguousarray(qdq.constant(name).swapaxes(1, 2))


def _by_direction(values: np.ndarray, directions: int) -> np.ndarray:
    """One row for each direction."""
    return np.tile(values.reshape(1, -1), (directions, 1)) if values.ndim else np.full(directions, values)


def _undo(node: ir.Node, graph: ir.Graph) -> None:
    given = list(node.inputs)
    parts = [(given[slot], given[_OPERANDS + 2 * slot - 2], given[_OPERANDS + 2 * slot - 1]) for slot in (1, 2)]
    if any(v is None or v.const_value is None or len(v.uses()) > 1 for part in parts for v in part):
        return
    if any(
        len(np.unique(v.const_value.numpy(), axis=0)) > 1 for _, *rest in parts for v in rest if v and v.const_value
    ):
        return  # other tools give each direction scales of its own, which no one axis can say
    data = given[0]
    assert data is not None
    shared = (use.node for use in data.uses() if use.node.op_type == DYNAMIC_QUANTIZE)
    source = next(shared, None)
    if source is None:
        source = ir.node(DYNAMIC_QUANTIZE, [data], num_outputs=3, name=f"{node.name}_{DYNAMIC_QUANTIZE}")
        for value, what in zip(source.outputs, ("quantized", "scale", "zero_point"), strict=True):
            value.name = f"{node.name}_{what}"
        graph.insert_before(node, source)
    operands: list[ir.Value | None] = [_dequantized(graph, node, source.outputs, f"{node.name}_data")]
    for slot, (weight, scale, zero) in enumerate(parts, 1):
        assert weight is not None
        assert weight.const_value is not None
        set_constant(weight, weight.const_value.numpy().swapaxes(1, 2))
        for number in (scale, zero):
            assert number is not None
            assert number.const_value is not None
            array = number.const_value.numpy()
            set_constant(number, array[0] if array.ndim == 2 else array[:1].reshape(()))
        operands.append(_dequantized(graph, node, [weight, scale, zero], f"{node.name}_weight_{slot}"))
    rest = given[3:_OPERANDS]
    while rest and rest[-1] is None:
        rest.pop()
    new = ir.Node(
        "", LSTM, [*operands, *rest], attributes=node.attributes.values(), num_outputs=len(node.outputs), name=node.name
    )
    for old, fresh in zip(node.outputs, new.outputs, strict=True):
        fresh.name, fresh.type, fresh.shape = old.name, old.type, old.shape
    graph.insert_before(node, new)
    for old, fresh in zip(node.outputs, new.outputs, strict=True):
        old.replace_all_uses_with(fresh, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _dequantized(graph: ir.Graph, before: ir.Node, values: Iterable[ir.Value | None], name: str) -> ir.Value:
    inputs = list(values)
    scale = inputs[1]
    per_channel = scale is not None and scale.const_value is not None and scale.const_value.numpy().ndim == 1
    dq = ir.node(DEQUANTIZE, inputs, {"axis": _AXIS} if per_channel else {}, name=name)
    dq.outputs[0].name, dq.outputs[0].type = f"{name}_dequantized", ir.TensorType(ir.DataType.FLOAT)
    graph.insert_before(before, dq)
    return dq.outputs[0]
