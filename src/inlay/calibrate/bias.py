"""Bias correction: the mean error that rounding a weight adds to each output channel, to be subtracted from the bias.

Rounding errors of weights do not average out over an activation whose mean is not zero: each output channel is shifted
by ``E[op(x, Wq) - op(x, W)]`` (Nagel et al., "Data-free quantization through weight equalization and bias correction",
2019, there from the moments of a normalization layer; here measured on the samples, pads of convolutions included, but
not the padding of texts). As the operator is linear in its weight, that is the mean of ``op(x, Wq - W)``; as a product
is linear in its rows as well, there it is the product of their mean, and large weights stay where they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from inlay.calibrate import policy
from inlay.data import Feed
from inlay.model.graph import Graph
from inlay.model.reference import SharedSession, in_batches
from inlay.model.store import tensor_proto
from inlay.prepare.model import PreparedModel
from inlay.quant.padding_propagation import Positions
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
    sizes = {name: 0 if _is_product(graph, unit) else _weight(graph, unit).nbytes for name, unit in found.items()}
    means: dict[str, np.ndarray] = {}
    ran = Counter[str]()
    for batch in in_batches(list(found), sizes, policy.WEIGHT_ERROR_BYTES):
        probe = _probe(prepared, [found[n] for n in batch], table, positions)
        names = {i.name for i in probe.graph.input}
        given = ({**feed, **_shares(feed, positions, names)} for feed in feeds)
        for outputs in SharedSession(probe, prepared.store, optimize=True).each(given):
            for name, seen in outputs.items():
                node = name.removeprefix(_PREFIX)
                each: Any = seen  # of a loop it is a list, with one for each turn
                turns = [mean for mean in (each if isinstance(each, list) else [each]) if mean.size]
                if turns:  # not in a branch that this sample does not take
                    means[node] = means.get(node, 0.0) + np.mean(turns, axis=0, dtype=np.float64)
                    ran[node] += 1
    means = {node: mean / ran[node] for node, mean in means.items()}
    for name, unit in found.items():
        if name in means and _is_product(graph, unit):
            gemm, error = graph.node(name), _error(prepared, unit, table)
            error = error.T if gemm.attributes.get("transB", 0) else error
            means[name] = np.asarray(gemm.attributes.get("alpha", 1.0) * (means[name] @ error))
    return {node: mean for node, mean in means.items() if np.isfinite(mean).all()}


def _is_product(graph: Graph, unit: Unit) -> bool:
    """Whether the mean error follows from the mean of the rows that are read."""
    node = graph.node(unit.name)
    return node.op_type == "Gemm" and unit.weights[0].slot == 1 and not node.attributes.get("transA", 0)


def _error(prepared: PreparedModel, unit: Unit, table: QParamsTable) -> np.ndarray:
    """Of the weight of a unit, as large as that."""
    value, qtype = prepared.graph.value_of(unit.weights[0]), prepared.rules.weight
    rounded = dequantize(table.quantized(value, qtype), table.params(value, qtype))
    return np.asarray(rounded - _weight(prepared.graph, unit))


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
    """The model with the mean error of each unit's weight, or the mean of the rows that it reads, as its only outputs.

    The error is computed by a copy of the unit.
    """
    base, graph = prepared.emitter.base, prepared.graph
    model = onnx.ModelProto()
    model.CopyFrom(base)
    proto = model.graph
    del proto.output[:]
    originals = {n.name: n for n in base.graph.node}
    for unit in units:
        mean = f"{_PREFIX}{unit.name}"
        output = graph.node(unit.name).outputs[0]
        rank, axis = len(graph.shape(output) or ()), positions.axes.get(output)
        if _is_product(graph, unit):
            raw = graph.node(unit.name).inputs[0]
        else:
            error_name, raw = f"{mean}/weight", f"{mean}/raw"
            proto.initializer.append(tensor_proto(error_name, _error(prepared, unit, table), TensorProto.FLOAT))
            copy = onnx.NodeProto()
            copy.CopyFrom(originals[unit.name])
            copy.name = mean
            copy.input[unit.weights[0].slot] = error_name
            del copy.input[unit.biases[0].slot :]
            copy.output[0] = raw
            proto.node.append(copy)
        if axis is not None:
            sizes, shares, counted = (f"{mean}/{what}" for what in ("sizes", "shares", "counted"))
            sized = np.array([-1 if i == axis else 1 for i in range(rank)], np.int64)
            proto.initializer.append(tensor_proto(sizes, sized, TensorProto.INT64))
            proto.node.append(helper.make_node("Reshape", [_SHARES, sizes], [shares]))
            proto.node.append(helper.make_node("Mul", [raw, shares], [counted]))
            raw = counted
        proto.node.extend(_mean_over(graph, raw, mean, [i for i in range(rank) if i != 1]))
        proto.output.add(name=mean)
    if any(_SHARES in n.input for n in proto.node):
        proto.input.append(helper.make_tensor_value_info(_SHARES, TensorProto.FLOAT, None))
    return model


def _mean_over(graph: Graph, raw: str, mean: str, axes: list[int]) -> Iterator[onnx.NodeProto]:
    """The mean over ``axes``, which became an input with opset 18."""
    if graph.opset < 18:
        yield helper.make_node("ReduceMean", [raw], [mean], axes=axes, keepdims=0)
        return
    yield helper.make_node("Constant", [], [f"{mean}/axes"], value_ints=axes)
    yield helper.make_node("ReduceMean", [raw, f"{mean}/axes"], [mean], keepdims=0)
