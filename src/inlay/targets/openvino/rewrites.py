"""LSTM and GRU in 8 bits: what OpenVINO's integer kernel asks of them, and the form in which the runtime finds it.

The kernel (2026.4.1, oneDNN's) reads data of uint8 and keeps the state between steps as such, in the scale of the data.
Both weights have one set of scales.

It takes the kernel where every operand is dequantized in the very way that it looks for. Where it looks in vain, a
model with quantized weights does not compile, or is computed in float (2026.4.1, ``ConvertFqRnnToQuantizedRnn``):

- The zero point of the data must be a constant of float32. A constant of uint8 is converted in vain, as the conversion
  is kept from being folded. What a zero is quantized to is the same number, and computed while the model is built.
- The state to begin with must be a constant, or dequantized like the data. Which of the two it is depends on whether
  the batch is known. It is the latter in both cases where it is part of a larger state: that of both directions, or of
  the same one twice.

Of operators that only move elements, it moves the dequantization of what they read behind them, and then dequantizes
and quantizes again in a pass of its own over the data, although scale and zero point are the same. Its integer kernels
find their bytes through the operator without that pair.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from inlay.model.graph import Graph, Node
from inlay.quant.qdq_graph import DEQUANTIZE, QUANTIZE, QDQGraph
from inlay.quant.rewrite import Rewrite
from inlay.targets.openvino.profile import TAKEN_OVER

GATES = {"LSTM": 4, "GRU": 3}
_FUNCTIONS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh")}  # of each direction
LARGEST_STATE = 1.0  # the state is a product of a sigmoid and a tanh (LSTM), or a mean of such (GRU)
WEIGHTS, STATE = (1, 2), 5  # input slots of the weights, and of the state to begin with
_LENGTHS, _PEEPHOLES = 4, 7  # input slots
_OTHERWISE = ("layout", "clip", "input_forget", "linear_before_reset")


def integer_form(graph: Graph, node: Node) -> str | None:
    """Why a recurrent operator has no integer kernel, or None."""
    functions, usual = node.attributes.get("activations", ()), _FUNCTIONS[node.op_type]
    stated = tuple(str(name).lower() for name in functions)  # some exporters state what is usual
    if any(node.attributes.get(name) for name in _OTHERWISE) or stated not in ((), usual, usual * 2):
        return f"its integer kernel is that of the plain {node.op_type}"
    given = [*node.inputs, *[""] * (_PEEPHOLES + 1 - len(node.inputs))]
    if given[_LENGTHS] or given[_PEEPHOLES]:
        return "its integer kernel knows neither lengths nor peepholes"
    if not all(graph.is_constant(value) for value in given[1:4] if value):
        return "a weight or its bias is computed at run time"
    if any(len(graph.consumers(given[slot])) > 1 for slot in WEIGHTS):
        return "its weights have other readers"
    return None


def same_kernel(graph: Graph, node: Node) -> Hashable:
    """The same for operators that 2026.4.1 computes by one kernel: with the scales of the first one that it builds.

    Sizes are its key, and types, but no scales (``RNNKey`` of its sources).
    """
    return tuple(tuple(graph.shape(node.inputs[slot]) or ())[1:] for slot in WEIGHTS)


def lstm_groups(graph: Graph, node: Node) -> np.ndarray:
    """Rows of an LSTM's weights that have one scale: those of a unit's input gate and of its forget gate.

    2026.4.1 orders weights as the kernel wants them (input, forget, cell, output; from forget, input, cell, output),
    but not their scales. Of equal ones it takes the right one.
    """
    hidden = int(node.attributes["hidden_size"])
    return np.concatenate([np.arange(hidden) + hidden * gate for gate in (0, 1, 0, 2)])  # input, output, forget, cell


_MARK = "_inlay.state/"  # in the names of what is set in, behind that of the operator: others' do not hold it
_SHIFT = 128  # from int8 to uint8
_BATCH = 1  # axis of the data


@dataclass(frozen=True)
class QuantizedStates(Rewrite[bool]):
    """The zero point of the data is what zero is quantized to, and the state to begin with is quantized as the data."""

    name = "quantized states"
    exact = False  # a state that is given is rounded
    reason = "the runtime finds its integer kernel by a zero point that is computed, and a state of the data's scale"
    source = "executed graphs of 2026.4.1; nnsplit_en, three layers of 128: 2.53 ms, and 4.21 in bfloat16"

    def applies(self, graph: Graph, node: Node) -> bool | None:
        """Whether ``node`` is recurrent."""
        return True if node.op_type in GATES else None

    def apply(self, qdq: QDQGraph, forms: Mapping[str, bool]) -> None:
        """Write those so whose data and weights are dequantized. Data in int8 are shifted to uint8, bit for bit."""
        written: dict[str, tuple[str, _Grid]] = {}
        for node in [n for n in qdq.graph.node if n.name in forms]:
            data, *weights = (qdq.dequantizer(node.input[slot]) for slot in (0, *WEIGHTS))
            if data is None or data.input[0] not in qdq.producers or None in weights or not qdq.in_bytes(data):
                continue
            parts = _Parts(qdq, node)
            if data.output[0] not in written:
                written[data.output[0]] = parts.data(data)
            node.input[0], grid = written[data.output[0]]
            qdq.release(data)
            state = node.input[STATE] if len(node.input) > STATE else ""
            if state in qdq.producers or (not state and _has_free_sizes(qdq)):
                node.input.extend([""] * (STATE + 1 - len(node.input)))
                node.input[STATE] = parts.state(state or parts.zeros(), grid)
        qdq.finish()


@dataclass(frozen=True)
class _Grid:
    """Names of a scale, of its zero point, and of the value that is the same number and computed."""

    scale: str
    zero: str
    computed: str


class _Parts:
    """Nodes that are set in before one operator."""

    def __init__(self, qdq: QDQGraph, node: onnx.NodeProto) -> None:
        self._qdq, self._node, self._count = qdq, node, 0
        self._attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        self._directions = 2 if self._attributes.get("direction") == b"bidirectional" else 1

    def data(self, dq: onnx.NodeProto) -> tuple[str, _Grid]:
        """What the operator reads in place of what ``dq`` writes, and its grid."""
        integers, scale, zero = dq.input
        signed = self._qdq.element(zero) == onnx.TensorProto.INT8
        if signed:
            shifted = self._qdq.constant(zero).astype(np.int16) + _SHIFT
            zero = self._constant("zero_point", np.asarray(shifted, np.uint8))
        grid = _Grid(scale, zero, self._node_of(QUANTIZE, self._constant("nothing", np.float32(0)), scale, zero))
        if signed or self._qdq.uses[dq.output[0]] > 1:  # two of different form behind one Q are not told apart
            integers = self._node_of(QUANTIZE, dq.output[0], scale, zero)
            self._qdq.uses[dq.output[0]] += 1
        return self._node_of(DEQUANTIZE, integers, scale, grid.computed), grid

    def state(self, value: str, grid: _Grid) -> str:
        """``value``, the state to begin with, dequantized like the data."""
        single = self._directions == 1
        if single:
            value = self._node_of("Concat", value, value, axis=0)
        value = self._node_of(QUANTIZE, value, grid.scale, grid.zero)
        value = self._node_of(DEQUANTIZE, value, grid.scale, grid.computed)
        if not single:
            return value
        first, end = self._constant("first", np.array([0])), self._constant("end", np.array([1]))
        return self._node_of("Slice", value, first, end, first)  # one of the two

    def zeros(self) -> str:
        """A state for as many sequences as there are."""
        sizes = (self._directions, _BATCH, int(self._attributes["hidden_size"]))
        directions, batch, hidden = (self._constant(f"size_{i}", np.array([n])) for i, n in enumerate(sizes))
        batch = self._node_of("Gather", self._node_of("Shape", self._node.input[0]), batch, axis=0)
        return self._node_of("ConstantOfShape", self._node_of("Concat", directions, batch, hidden, axis=0))

    def _constant(self, name: str, array: np.ndarray | np.float32) -> str:
        return self._qdq.add_constant(f"{self._node.name}{_MARK}{name}", np.asarray(array))

    def _node_of(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        self._count += 1
        name = self._qdq.unique(f"{self._node.name}{_MARK}{op_type}_{self._count}")
        output = self._qdq.unique(f"{name}_out")
        self._qdq.insert([onnx.helper.make_node(op_type, inputs, [output], name=name, **attributes)], self._node)
        return output


def _has_free_sizes(qdq: QDQGraph) -> bool:
    return not all(d.dim_value for i in qdq.graph.input for d in i.type.tensor_type.shape.dim)


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
