"""A placement in which the numbers of every activation are inputs: one build answers every question about ranges.

The model is what :func:`~inlay.quant.emit.Emitter.emit` writes, but scales and zero points arrive with each run, the
biases stay float, and nothing is fused: rounding is simulated, all else is computed in float. That differs from integer
kernels by the rounding of biases alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from inlay.data import Feed
from inlay.model.graph import Graph
from inlay.model.reference import Session
from inlay.model.store import WeightStore, tensor_proto
from inlay.quant.emit import ONNX_TYPE, Emitter
from inlay.quant.qdq_graph import DEQUANTIZE, QUANTIZE
from inlay.quant.qparams import STORAGE, QParamsTable
from inlay.types import Placement, Port, QParams, QType

_SCALES, _ZEROS = "inlay.scales", "inlay.zero_points"


class RangeProbe:
    """One session on ``placement`` with the numbers of its activations still open.

    Args:
        emitter: writes the placement.
        graph: index of the model.
        store: weights.
        placement: what is quantized.
        table: numbers of weights and of constants, corrections of biases.
        classes: by value, the name of the class of values that share its numbers; a value of its own may be missing.
        qtype: type of the activations whose numbers are open.

    Attributes:
        classes: those with open numbers, in the order of the model.

    Raises:
        CompileFailed: it cannot be built.
        ModelError: the placement does not fit the model.
    """

    def __init__(
        self,
        emitter: Emitter,
        graph: Graph,
        store: WeightStore,
        placement: Placement,
        table: QParamsTable,
        classes: Mapping[str, str],
        qtype: QType,
    ) -> None:
        proto = emitter.emit(Placement((p, q) for p, q in placement if q is not QType.INT32), table)
        _correct(proto, [p for p, q in placement if q is QType.INT32], placement, table)
        self._qtype = qtype
        self.classes = _open(proto, graph, classes, qtype)
        self._session = Session(proto, store, optimize=True, fuse_qdq=False)

    def run(self, feed: Feed, numbers: Mapping[str, QParams]) -> dict[str, np.ndarray]:
        """Outputs by name, with ``numbers`` for each class. Raises RunFailed."""
        if not self.classes:
            return self._session.run(feed)
        scales = np.array([numbers[c].scale[0] for c in self.classes], np.float32)
        zeros = np.array([numbers[c].zero_point[0] for c in self.classes], STORAGE[self._qtype])
        return self._session.run({**feed, _SCALES: scales, _ZEROS: zeros})


def _correct(proto: onnx.ModelProto, ports: list[Port], placement: Placement, table: QParamsTable) -> None:
    """Put corrected biases in place of those that ``placement`` quantizes; other readers keep the original."""
    nodes = {n.name: n for n in proto.graph.node}
    for port in ports:
        numbers = table.bias(port, placement)
        if numbers is not None:
            name = f"{nodes[port.node].input[port.slot]}/{port.node}/corrected"
            proto.graph.initializer.append(tensor_proto(name, numbers.astype(np.float32), TensorProto.FLOAT))
            nodes[port.node].input[port.slot] = name


def _open(proto: onnx.ModelProto, graph: Graph, classes: Mapping[str, str], qtype: QType) -> tuple[str, ...]:
    """Make the numbers of all activations of ``qtype`` inputs of the graph, one pair for each class."""
    inner = proto.graph
    types = {t.name: t.data_type for t in inner.initializer}
    read = {n.input[0]: n.output[0] for n in inner.node if n.op_type == DEQUANTIZE}
    position: dict[str, int] = {}
    replaced: dict[str, str] = {}
    known = {v for n in graph.nodes for v in n.outputs} | set(graph.inputs)
    for node in inner.node:
        if node.op_type != QUANTIZE or types.get(node.input[2]) != ONNX_TYPE[qtype]:
            continue
        # an output of the graph hands its name to the DQ: the float value behind the Q has another
        value = node.input[0] if node.input[0] in known else read.get(node.output[0], "")
        if value not in known:
            continue  # a bridge to the type that a model boundary is given in: its numbers are that boundary's
        index = position.setdefault(classes.get(value, value), len(position))
        replaced.update({node.input[1]: f"{_SCALES}/{index}", node.input[2]: f"{_ZEROS}/{index}"})
    if not position:
        return ()
    for node in inner.node:
        for slot, name in enumerate(node.input):
            if name in replaced:
                node.input[slot] = replaced[name]
    count = len(position)
    kept = [t for t in inner.initializer if t.name not in replaced]
    del inner.initializer[:]
    inner.initializer.extend(kept)
    inner.initializer.append(tensor_proto(f"{_SCALES}/ones", np.ones(count, np.int64), TensorProto.INT64))
    pairs = ((_SCALES, int(TensorProto.FLOAT)), (_ZEROS, ONNX_TYPE[qtype]))
    nodes = [*(_split(name, count, proto) for name, _ in pairs), *inner.node]
    del inner.node[:]
    inner.node.extend(nodes)
    inner.input.extend(helper.make_tensor_value_info(name, dtype, [count]) for name, dtype in pairs)
    return tuple(position)


def _split(name: str, count: int, proto: onnx.ModelProto) -> onnx.NodeProto:
    """One number for each class; the sizes became an input with opset 13."""
    outputs = [f"{name}/{i}" for i in range(count)]
    opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)
    if opset < 13:
        return helper.make_node("Split", [name], outputs, axis=0, split=[1] * count)
    return helper.make_node("Split", [name, f"{_SCALES}/ones"], outputs, axis=0)
