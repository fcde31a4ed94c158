"""Bias correction: the mean error that rounding a weight adds to each output channel, to be subtracted from the bias.

Rounding errors of weights do not average out over an activation whose mean is not zero: each output channel is shifted
by ``E[op(x, Wq) - op(x, W)]`` (Nagel et al., "Data-free quantization through weight equalization and bias correction",
2019, there from the moments of a normalization layer; here measured on the samples, pads of convolutions included, but
not the padding of texts). As the operator is linear in its weight, that is the mean of ``op(x, Wq - W)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from inlay.calibrate import policy
from inlay.data import Feed
from inlay.model.graph import Graph
from inlay.model.hands import Stored, each
from inlay.model.reference import Session, in_batches
from inlay.model.store import tensor_proto
from inlay.prepare.model import PreparedModel
from inlay.quant.positions import Positions
from inlay.quant.qparams import QParamsTable, dequantize
from inlay.space.units import Unit

_PREFIX = "inlay.bias/"
_SHARES = "inlay.shares"


def weight_error_means(
    prepared: PreparedModel,
    units: Sequence[Unit],
    table: QParamsTable,
    feeds: Sequence[Feed],
    positions: Positions | None = None,
) -> dict[str, np.ndarray]:
    """Mean error of every output channel that the rounded weights of each unit cause, with exact activations.

    Args:
        prepared: the model.
        units: some of its units; those with a weight and a constant bias of one element per channel are probed.
        table: qparams of the weights.
        feeds: samples, which count equally; they are streamed, and only one mean per channel is kept.
        positions: what of them is padding, which has no share.

    Returns:
        By node: float64, shape (channels,), in units of the output. A unit whose error is not finite is left out.

    Raises:
        CompileFailed, RunFailed: the probe model does not run.
    """
    graph, positions = prepared.graph, positions or Positions()
    found = {u.name: u for u in units if _correctable(graph, u)}
    sizes = {name: _weight(graph, unit).nbytes for name, unit in found.items()}
    batches = in_batches(list(found), sizes, policy.WEIGHT_ERROR_BYTES)
    probes = (_probe(prepared, [found[n] for n in batch], table, positions) for batch in batches)
    calls = ((Stored(probe, prepared.store), feeds, positions) for probe in probes)
    means = {node: mean for outcome in each(_means, calls) for node, mean in outcome.result().items()}
    return {node: mean for node, mean in means.items() if np.isfinite(mean).all()}


def _means(probe: Stored, feeds: Sequence[Feed], positions: Positions) -> dict[str, np.ndarray]:
    """By node the mean of what a probe model gives for ``feeds``."""
    session = Session(probe.proto, probe.store, optimize=True)
    names = {i.name for i in probe.proto.graph.input}
    means: dict[str, np.ndarray] = {}
    for feed in feeds:
        for name, mean in session.run({**feed, **_shares(feed, positions, names)}).items():
            node = name.removeprefix(_PREFIX)
            means[node] = means.get(node, 0.0) + mean.astype(np.float64) / len(feeds)
    return means


def _correctable(graph: Graph, unit: Unit) -> bool:
    if not (unit.selectable and unit.weights and unit.biases):
        return False
    bias = graph.constant(graph.value_of(unit.biases[0]))
    shape = graph.shape(graph.node(unit.name).outputs[0])
    return bias is not None and shape is not None and len(shape) >= 2 and bias.size == shape[1]


def _weight(graph: Graph, unit: Unit) -> np.ndarray:
    array = graph.constant(graph.value_of(unit.weights[0]))
    assert array is not None  # a unit's weight is constant
    return array


def _shares(feed: Feed, positions: Positions, names: set[str]) -> Feed:
    """The inputs of the probe that weigh positions, of mean 1: nothing for padding, the same for all others."""
    if _SHARES not in names:
        return {}
    kept = positions.kept(feed)
    shares = np.ones(feed[positions.mask].shape[1]) if kept is None else kept / kept.mean()
    return {_SHARES: shares.astype(np.float32)}


def _probe(
    prepared: PreparedModel, units: Sequence[Unit], table: QParamsTable, positions: Positions
) -> onnx.ModelProto:
    """The model with a copy of each unit that computes the mean error of its weight; these are the only outputs."""
    base, graph = prepared.emitter.base, prepared.graph
    model = onnx.ModelProto()
    model.CopyFrom(base)
    proto = model.graph
    del proto.output[:]
    originals = {n.name: n for n in base.graph.node}
    for unit in units:
        port = unit.weights[0]
        weight = _weight(graph, unit)
        value, qtype = graph.value_of(port), prepared.rules.weight
        error = dequantize(table.quantized(value, qtype), table.params(value, qtype)) - weight
        error_name, raw, mean = (f"{_PREFIX}{unit.name}{suffix}" for suffix in ("/weight", "/raw", ""))
        copy = onnx.NodeProto()
        copy.CopyFrom(originals[unit.name])
        copy.name = f"{_PREFIX}{unit.name}"
        copy.input[port.slot] = error_name
        del copy.input[unit.biases[0].slot :]
        copy.output[0] = raw
        proto.initializer.append(tensor_proto(error_name, error, TensorProto.FLOAT))
        proto.node.append(copy)
        output = graph.node(unit.name).outputs[0]
        rank, axis = len(graph.shape(output) or ()), positions.axes.get(output)
        if axis is not None:
            sizes, shares, counted = (f"{raw}/{what}" for what in ("sizes", "shares", "counted"))
            sized = np.array([-1 if i == axis else 1 for i in range(rank)], np.int64)
            proto.initializer.append(tensor_proto(sizes, sized, TensorProto.INT64))
            proto.node.append(helper.make_node("Reshape", [_SHARES, sizes], [shares]))
            proto.node.append(helper.make_node("Mul", [raw, shares], [counted]))
            raw = counted
        proto.node.extend(_mean(graph, raw, mean, [i for i in range(rank) if i != 1]))
        proto.output.add(name=mean)
    if any(_SHARES in n.input for n in proto.node):
        proto.input.append(helper.make_tensor_value_info(_SHARES, TensorProto.FLOAT, None))
    return model


def _mean(graph: Graph, raw: str, mean: str, axes: list[int]) -> Iterator[onnx.NodeProto]:
    """The mean over ``axes``, which became an input with opset 18."""
    if graph.opset < 18:
        yield helper.make_node("ReduceMean", [raw], [mean], axes=axes, keepdims=0)
        return
    yield helper.make_node("Constant", [], [f"{raw}/axes"], value_ints=axes)
    yield helper.make_node("ReduceMean", [raw, f"{raw}/axes"], [mean], keepdims=0)
