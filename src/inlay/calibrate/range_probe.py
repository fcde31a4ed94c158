"""A quantized model whose activation qparams are graph inputs: one build answers every question about ranges.

The model is what :func:`~inlay.quant.emit.Emitter.emit` writes, except that scales and zero points arrive with each
run, biases stay float, and nothing is fused: rounding is simulated, all else is computed in float. That differs from
integer kernels by the rounding of biases alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from inlay.data import Feed
from inlay.model.reference import SharedSession
from inlay.model.store import tensor_proto
from inlay.prepare.model import PreparedModel
from inlay.quant.emit import ONNX_TYPE
from inlay.quant.qdq_graph import DEQUANTIZE, QUANTIZE
from inlay.quant.qparams import STORAGE, QParamsTable
from inlay.types import Placement, Port, QParams, QType

_SCALES, _ZEROS = "inlay.scales", "inlay.zero_points"


class RangeProbe:
    """A session on ``placement`` that takes the qparams of its activations as inputs.

    Args:
        prepared: the model; the qparams of activations of its target's usual type are inputs.
        placement: what is quantized.
        table: qparams of weights and of constants, and corrected biases.
        domains: by value, the domain whose qparams it shares; a value that shares with none may be missing.

    Attributes:
        domains: those whose qparams are inputs, in the order of the model.

    Raises:
        CompileFailed: it cannot be built; where somebody helps, when it first runs.
        ModelError: the placement does not fit the model.
    """

    def __init__(
        self, prepared: PreparedModel, placement: Placement, table: QParamsTable, domains: Mapping[str, str]
    ) -> None:
        proto = prepared.emitter.emit(Placement((p, q) for p, q in placement if q is not QType.INT32), table)
        _correct(proto, [p for p, q in placement if q is QType.INT32], placement, table)
        self._qtype = prepared.rules.activation
        quantized = {prepared.graph.value_of(p) for p, _ in placement}
        self.domains = _qparams_to_inputs(proto, quantized, domains, self._qtype)
        self._session = SharedSession(proto, prepared.store, optimize=True, fuse_qdq=False)

    def each(self, questions: Iterable[tuple[Feed, Mapping[str, QParams]]]) -> Iterator[dict[str, np.ndarray]]:
        """Outputs by name for each sample, with ``qparams`` for each domain, in turn.

        Where somebody helps, a few more are taken than are asked for. Raises RunFailed.
        """
        return self._session.each(self._with_qparams(*question) for question in questions)

    def _with_qparams(self, feed: Feed, qparams: Mapping[str, QParams]) -> Feed:
        if not self.domains:
            return feed
        scales = np.array([qparams[d].scale[0] for d in self.domains], np.float32)
        zeros = np.array([qparams[d].zero_point[0] for d in self.domains], STORAGE[_given_as(self._qtype)])
        return {**feed, _SCALES: scales, _ZEROS: zeros}


def _correct(proto: onnx.ModelProto, ports: list[Port], placement: Placement, table: QParamsTable) -> None:
    """Replace the biases that ``placement`` quantizes by corrected ones; other readers keep the original."""
    nodes = {n.name: n for n in proto.graph.node}
    for port in ports:
        bias = table.bias(port, placement)
        if bias is not None:
            name = f"{nodes[port.node].input[port.slot]}/{port.node}/corrected"
            proto.graph.initializer.append(tensor_proto(name, bias.astype(np.float32), TensorProto.FLOAT))
            nodes[port.node].input[port.slot] = name


def _qparams_to_inputs(
    proto: onnx.ModelProto, known: Collection[str], domains: Mapping[str, str], qtype: QType
) -> tuple[str, ...]:
    """Make the qparams of all activations of ``qtype`` graph inputs, one element of each for every domain.

    Of ``known`` values: what a rewrite quantizes besides has the qparams of one of these.
    """
    inner = proto.graph
    types = {t.name: t.data_type for t in inner.initializer}
    read = {n.input[0]: n.output[0] for n in inner.node if n.op_type == DEQUANTIZE}
    position: dict[str, int] = {}
    replaced: dict[str, str] = {}
    for node in inner.node:
        if node.op_type != QUANTIZE or types.get(node.input[2]) != ONNX_TYPE[qtype]:
            continue
        # the DQ takes over the name of a graph output: the float value that the Q reads has another name
        value = node.input[0] if node.input[0] in known else read.get(node.output[0], "")
        if value not in known:
            continue  # conversion to the type of a graph input or output: its qparams belong to that boundary
        index = position.setdefault(domains.get(value, value), len(position))
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
    given = _given_as(qtype)
    pairs = ((_SCALES, int(TensorProto.FLOAT)), (_ZEROS, ONNX_TYPE[given]))
    nodes = [*(_split(name, count, proto) for name, _ in pairs), *inner.node]
    if given is not qtype:
        uncast, zeros = f"{_ZEROS}/uncast", nodes[1]
        casts = [helper.make_node("Cast", [f"{uncast}/{o}"], [o], to=ONNX_TYPE[qtype]) for o in zeros.output]
        zeros.output[:] = [f"{uncast}/{o}" for o in zeros.output]
        nodes[2:2] = casts
    del inner.node[:]
    inner.node.extend(nodes)
    inner.input.extend(helper.make_tensor_value_info(name, dtype, [count]) for name, dtype in pairs)
    return tuple(position)


def _given_as(qtype: QType) -> QType:
    """The type in which zero points are a graph input: runtimes split those of 8 and of 32 bits."""
    return qtype if qtype.bits == 8 and not qtype.floating else QType.INT32


def _split(name: str, count: int, proto: onnx.ModelProto) -> onnx.NodeProto:
    """One element for each domain; the sizes became an input with opset 13."""
    outputs = [f"{name}/{i}" for i in range(count)]
    opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)
    if opset < 13:
        return helper.make_node("Split", [name], outputs, axis=0, split=[1] * count)
    return helper.make_node("Split", [name, f"{_SCALES}/ones"], outputs, axis=0)
