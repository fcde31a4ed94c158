"""LSTM and GRU in 8 bits: what OpenVINO's integer kernel asks of them, and of their scales.

The kernel (2026.4.1, oneDNN's) reads data of uint8 and keeps the state between steps as such, in the scale of the data.
Both weights have one set of scales. How it is found is told in :mod:`~inlay.targets.openvino.quantized_states`.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from inlay.model.graph import Graph, Node

GATES = {"LSTM": 4, "GRU": 3}
_FUNCTIONS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh")}  # of each direction
LARGEST_STATE = 1.0
"""The state is a product of a sigmoid and a tanh (LSTM), or a mean of such (GRU)."""
WEIGHTS, STATE = (1, 2), 5
"""Input slots of the weights, and of the state to begin with."""
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
