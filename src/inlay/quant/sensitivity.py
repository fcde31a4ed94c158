"""How much noise each value's quantization puts on the outputs, from one session that serves every probe.

Each value gets a switch: the model computes ``Where(switch, DQ(Q(v)), v)``, and the weights of the operator behind a
value follow its switch. The switches are one more input of the graph, so that one build answers every question "what if
this were quantized alone". Noise powers of different values add up, as rounding errors are nearly independent.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from inlay.data import Feed
from inlay.model.graph import Graph
from inlay.model.reference import Session
from inlay.model.store import WeightStore, tensor_proto
from inlay.quant.emit import ONNX_TYPE
from inlay.quant.qparams import STORAGE, QParamsTable, dequantize, quantize
from inlay.space.units import Unit
from inlay.targets.base import Rules
from inlay.types import Port

SWITCHES = "inlay.switches"
_WEIGHT_BYTES = 256_000_000  # dequantized copies of weights that a probe model may hold inline
_MOST_SAMPLES = 4

Noise = Mapping[str, tuple[float, ...]]
"""By value: noise power over signal power at each float output of the graph."""


def sensitivity(
    base: onnx.ModelProto,
    store: WeightStore,
    graph: Graph,
    units: Sequence[Unit],
    values: Sequence[str],
    rules: Rules,
    table: QParamsTable,
    feeds: Sequence[Feed],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Noise:
    """Noise of every value of ``values`` that can be quantized, each alone.

    Args:
        base: the normalized model, its weights in ``store``.
        store: weights.
        graph: index of the model.
        units: its units; weights of a unit follow the switch of its outputs.
        values: what to probe.
        rules: types.
        table: numbers.
        feeds: samples; as many are used as ``seconds`` allow, at least one.
        seconds: rough limit. Where one run per value does not fit, neighbours are probed together and share the noise.
        clock: tells seconds.

    Raises:
        CompileFailed, RunFailed: the probe model does not run.
    """
    known = [v for v in dict.fromkeys(values) if table.knows(v) and not graph.is_constant(v)]
    if not known or not feeds:
        return {}
    session = Session(probe_model(base, graph, units, known, rules, table), store)
    off = np.zeros(len(known), bool)
    names = [v for v in graph.outputs if graph.is_float(v)]
    start = clock()
    references = [session.run({**feeds[0], SWITCHES: off})]
    once = max(clock() - start, 1e-6)
    count = int(np.clip(seconds / (once * (len(known) + 1)), 1, min(_MOST_SAMPLES, len(feeds))))
    group = max(1, int(np.ceil(once * len(known) / max(seconds, once))))
    references += [session.run({**feed, SWITCHES: off}) for feed in feeds[1:count]]
    found: dict[str, tuple[float, ...]] = {}
    for first in range(0, len(known), group):
        members = known[first : first + group]
        switches = off.copy()
        switches[first : first + group] = True
        outputs = [session.run({**feed, SWITCHES: switches}) for feed in feeds[:count]]
        shared = tuple(_relative_noise(references, outputs, name) / len(members) for name in names)
        found.update(dict.fromkeys(members, shared))
    return found


def quiet_units(graph: Graph, units: Sequence[Unit], noise: Noise, limit: float) -> frozenset[str]:
    """Names of the units that remain when the loudest are left out until the noise of the others adds up to ``limit``.

    Args:
        graph: index of the model.
        units: those that may run in low precision.
        noise: of each value alone.
        limit: noise power over signal power that every output may have.
    """
    touched = {
        u.name: [v for v in dict.fromkeys([*map(graph.value_of, u.activations), *u.outputs]) if v in noise]
        for u in units
    }
    readers = Counter(v for values in touched.values() for v in values)
    total = sum((np.array(noise[v]) for v in readers), np.zeros(1))
    left = set(touched)
    for name in sorted(touched, key=lambda n: -max((max(noise[v], default=0.0) for v in touched[n]), default=0.0)):
        if (total <= limit).all():
            break
        left.discard(name)
        for value in touched[name]:
            readers[value] -= 1
            if not readers[value]:
                total = total - np.array(noise[value])
    return frozenset(left)


def _relative_noise(
    wanted: Sequence[Mapping[str, np.ndarray]], got: Sequence[Mapping[str, np.ndarray]], name: str
) -> float:
    signal = noise = 0.0
    for a, b in zip(wanted, got, strict=True):
        finite = np.isfinite(a[name])
        x, y = a[name][finite].astype(np.float64), b[name][finite].astype(np.float64)
        signal += float(x @ x)
        noise += float((x - y) @ (x - y))
    return noise / max(signal, 1e-300) if np.isfinite(noise) else 1e6


def probe_model(
    base: onnx.ModelProto,
    graph: Graph,
    units: Sequence[Unit],
    values: Sequence[str],
    rules: Rules,
    table: QParamsTable,
) -> onnx.ModelProto:
    """``base`` with one switch for each of ``values``; all off, it computes what ``base`` does."""
    model = onnx.ModelProto()
    model.CopyFrom(base)
    proto = model.graph
    nodes = list(proto.node)
    del proto.node[:]
    proto.input.append(helper.make_tensor_value_info(SWITCHES, TensorProto.BOOL, [len(values)]))
    raw = {v: f"{v}/raw" if graph.producer(v) is not None else v for v in values}
    read = {v: v if graph.producer(v) is not None else f"{v}/read" for v in values}
    weights = _weights(graph, units, values, rules, table)
    after: dict[str, list[onnx.NodeProto]] = {}
    for i, value in enumerate(values):
        made = _switch(proto, value, raw[value], read[value], i, rules, table)
        producer = graph.producer(value)
        after.setdefault("" if producer is None else producer.name, []).extend(made)
    for weight, (value, array) in weights.items():
        proto.initializer.append(tensor_proto(f"{weight}/rounded", array, TensorProto.FLOAT))
        switch = f"{value}/switch"
        after[""] = after.get("", [])
        after[""].append(helper.make_node("Where", [switch, f"{weight}/rounded", weight], [f"{weight}/read"]))
    switches = [n for made in after.values() for n in made if n.op_type == "Gather"]
    proto.node.extend(switches)
    proto.node.extend(n for n in after.get("", []) if n.op_type != "Gather")
    for node in nodes:
        bias = _corrected_bias(proto, graph, node, weights, rules, table)
        if bias is not None:
            proto.node.append(bias)
        for slot, value in enumerate(node.input):
            if value in weights:
                node.input[slot] = f"{value}/read"
            elif value in read and graph.producer(value) is None:
                node.input[slot] = read[value]
        for slot, value in enumerate(node.output):
            if value in raw:
                node.output[slot] = raw[value]
        proto.node.append(node)
        proto.node.extend(n for n in after.get(node.name, []) if n.op_type != "Gather")
    return model


def _corrected_bias(
    proto: onnx.GraphProto,
    graph: Graph,
    node: onnx.NodeProto,
    weights: Mapping[str, tuple[str, np.ndarray]],
    rules: Rules,
    table: QParamsTable,
) -> onnx.NodeProto | None:
    """A corrected bias follows the switch of the weight whose rounding it makes up for."""
    rule = rules.rule(graph.node(node.name))
    if rule is None or rule.bias is None or rule.weight is None or rule.bias >= len(node.input):
        return None
    weight, bias = node.input[rule.weight], node.input[rule.bias]
    if weight not in weights or not table.corrects(node.name) or not graph.is_constant(bias):
        return None
    numbers = table.bias(Port(node.name, rule.bias))
    assert numbers is not None
    proto.initializer.append(tensor_proto(f"{node.name}/corrected", numbers.astype(np.float32), TensorProto.FLOAT))
    node.input[rule.bias] = f"{node.name}/bias"
    switch = f"{weights[weight][0]}/switch"
    return helper.make_node("Where", [switch, f"{node.name}/corrected", bias], [f"{node.name}/bias"])


def _switch(
    proto: onnx.GraphProto, value: str, raw: str, read: str, index: int, rules: Rules, table: QParamsTable
) -> list[onnx.NodeProto]:
    params = table.params(value, rules.activation)
    dtype = ONNX_TYPE[params.qtype]
    proto.initializer.extend(
        [
            tensor_proto(f"{value}/scale", np.array(params.scale[0], np.float32), TensorProto.FLOAT),
            tensor_proto(f"{value}/zero", np.array(params.zero_point[0], STORAGE[params.qtype]), dtype),
            tensor_proto(f"{value}/index", np.array(index, np.int64), TensorProto.INT64),
        ]
    )
    numbers = [f"{value}/scale", f"{value}/zero"]
    return [
        helper.make_node("Gather", [SWITCHES, f"{value}/index"], [f"{value}/switch"]),
        helper.make_node("QuantizeLinear", [raw, *numbers], [f"{value}/q"]),
        helper.make_node("DequantizeLinear", [f"{value}/q", *numbers], [f"{value}/dq"]),
        helper.make_node("Where", [f"{value}/switch", f"{value}/dq", raw], [read]),
    ]


def _weights(
    graph: Graph, units: Sequence[Unit], values: Sequence[str], rules: Rules, table: QParamsTable
) -> dict[str, tuple[str, np.ndarray]]:
    """By weight: the value whose switch it follows, and its numbers after rounding."""
    switched = set(values)
    found: dict[str, tuple[str, np.ndarray]] = {}
    total = 0
    for unit in units:
        output = next((v for v in unit.outputs if v in switched), None)
        for port in unit.weights:
            name = graph.value_of(port)
            array = graph.constant(name)
            if output is None or array is None or name in found or total + array.nbytes > _WEIGHT_BYTES:
                continue
            total += array.nbytes
            params = table.params(name, rules.weight)
            found[name] = (output, dequantize(quantize(array, params), params))
    return found
