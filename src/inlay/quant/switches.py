"""A model whose quantization can be switched: one build computes what any placement does.

Every group of ports that a placement quantizes together gets a switch: its ports read ``If(switch, DQ(Q(v)), v)``.
The switches are one more graph input. The result is what the emitted model
computes with float kernels, so that its noise is predicted to within the rounding of integer kernels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from inlay.model.graph import Graph
from inlay.model.store import tensor_proto
from inlay.quant.emit import ONNX_TYPE
from inlay.quant.qdq_graph import DEQUANTIZE, DYNAMIC_QUANTIZE
from inlay.quant.qparams import STORAGE, QParamsTable, dequantize, scale_shape
from inlay.space.rules import Rules
from inlay.space.units import Unit, static_sites
from inlay.types import GRAPH_OUTPUT, Placement, Port, QParams, QType

SWITCHES = "inlay.switches"
_AXES_AS_INPUT = 18  # first opset in which ReduceMax takes its axes as an input
_CONSTANT_BYTES = 256_000_000  # dequantized constants inside a probe model: well below the 2 GiB limit of protobuf


@dataclass(frozen=True, kw_only=True)
class Switch:
    """Ports that read a value and are quantized together, in one type, by every labelling of the units.

    A port may have several, for several types; the placement's type says which is on. The data of a product whose
    kernel rounds them although the placement says nothing of them are rounded by one that is on with the ``weight``.

    Attributes:
        value: what is read.
        ports: that read it.
        qtype: the type in which they do.
        constant: the value is a constant.
        weight: port whose type decides in place of the ports' own, which are bare then; None for most switches.
        types: of that port, with which it is on.
        block: elements of a row that are rounded with one scale there.
    """

    value: str
    ports: tuple[Port, ...]
    qtype: QType
    constant: bool = False
    weight: Port | None = None
    types: frozenset[QType] = frozenset()
    block: int = 0

    def is_on(self, placement: Placement) -> bool:
        """Whether ``placement`` quantizes its ports so."""
        if self.weight is None:
            return placement.qtype(self.ports[0]) is self.qtype
        return placement.qtype(self.weight) in self.types and self.ports[0] not in placement


def find_switches(graph: Graph, units: Sequence[Unit], rules: Rules, table: QParamsTable) -> tuple[Switch, ...]:
    """The groups of ports that labellings of ``units`` quantize: by value, the reads of each unit, and all others.

    Biases are left out (32 bits make no noise), except those that make up for the mean error of a rounded weight. So
    are constants beyond the size that a probe model may hold.
    """
    found: list[Switch] = []
    owners: dict[Port, tuple[int, QType]] = {}
    produced: dict[str, list[QType]] = {}
    for i, unit in enumerate(units):
        if unit.selectable:
            biases = set(unit.biases)
            owners.update((port, (i, qtype)) for port, qtype in static_sites(unit, rules) if port not in biases)
            types = [unit.activation or rules.activation, *(t for t in rules.fast if t.value in unit.searched)]
            produced.update(dict.fromkeys(unit.outputs, types))
    values = dict.fromkeys([*(graph.value_of(p) for p in owners), *(v for u in units for v in u.outputs)])
    held = 0
    for value in values:
        if not table.knows(value):
            continue
        groups: defaultdict[tuple[int, QType], list[Port]] = defaultdict(list)
        for port in graph.consumers(value):
            if port in owners:
                groups[owners[port]].append(port)
            for qtype in produced.get(value, ()) if port not in owners else ():
                groups[-1, qtype].append(port)
        array = graph.constant(value)
        if array is not None:
            held += array.nbytes * len(groups)
            if held > _CONSTANT_BYTES:
                held -= array.nbytes * len(groups)
                continue
        constant = array is not None
        found += [
            Switch(value=value, ports=tuple(ports), qtype=qtype, constant=constant)
            for (_, qtype), ports in groups.items()
        ]
    for unit in units:
        if unit.selectable and table.corrects(unit.name):
            found += [
                Switch(value=graph.value_of(port), ports=(port,), qtype=QType.INT32, constant=True)
                for port in unit.biases
            ]
    return (*found, *_form_switches(graph, units, owners), *_kernel_switches(graph, units, rules))


def _form_switches(graph: Graph, units: Sequence[Unit], owners: Mapping[Port, tuple[int, QType]]) -> Iterator[Switch]:
    """A switch for each port of a form that no other switch quantizes in its type."""
    sites = dict.fromkeys(site for u in units for sites in u.searched.values() for site in sites)
    left = _CONSTANT_BYTES
    for port, qtype in sites:
        if qtype is not QType.INT32 and (port not in owners or owners[port][1] is not qtype):
            value = graph.value_of(port)
            array = graph.constant(value)
            held = 0 if array is None else array.size if qtype.block else array.nbytes
            if held <= left:
                left -= held
                yield Switch(value=value, ports=(port,), qtype=qtype, constant=array is not None)


def _kernel_switches(graph: Graph, units: Sequence[Unit], rules: Rules) -> Iterator[Switch]:
    """A switch for the data of each product that some forms' kernels round in blocks of one size."""
    rounding = {form.name: form.rounds_data for form in rules.forms if form.activation is None}
    for unit in units:
        found: defaultdict[tuple[Port, int], set[QType]] = defaultdict(set)
        for name, sites in unit.searched.items():
            for port, qtype in sites if rounding.get(name) else ():
                found[port, rounding[name]].add(qtype)
        data = Port(unit.name, 0)
        for (weight, block), types in found.items():
            length = (graph.shape(graph.value_of(data)) or (None,))[-1]
            if length:
                block = block if length % block == 0 else length
                yield Switch(
                    value=graph.value_of(data),
                    ports=(data,),
                    qtype=QType.INT8,
                    constant=False,
                    weight=weight,
                    types=frozenset(types),
                    block=block,
                )


def probe_model(
    base: onnx.ModelProto, graph: Graph, switches: Sequence[Switch], table: QParamsTable
) -> onnx.ModelProto:
    """``base`` with ``switches``; all off, it computes what ``base`` does."""
    model = onnx.ModelProto()
    model.CopyFrom(base)
    proto = model.graph
    nodes = list(proto.node)
    del proto.node[:]
    proto.input.append(helper.make_tensor_value_info(SWITCHES, TensorProto.BOOL, [len(switches)]))
    by_value: defaultdict[str, list[tuple[int, Switch]]] = defaultdict(list)
    for number, switch in enumerate(switches):
        by_value[switch.value].append((number, switch))
    reads: dict[Port, str] = {}
    raw: dict[str, str] = {}
    after: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
    for value, group in by_value.items():
        producer = graph.producer(value)
        is_output = any(p.node == GRAPH_OUTPUT for _, switch in group for p in switch.ports)
        if is_output and producer is not None:
            raw[value] = f"{SWITCHES}/{value}/raw"
        if producer is None:
            group = [(n, replace(s, ports=tuple(p for p in s.ports if p.node != GRAPH_OUTPUT))) for n, s in group]
        after["" if producer is None else producer.name] += _switched(proto, graph, group, raw, reads, table)
    proto.node.extend(after[""])
    for node in nodes:
        for slot, value in enumerate(node.input):
            node.input[slot] = reads.get(Port(node.name, slot)) or raw.get(value, value)
        for slot, value in enumerate(node.output):
            node.output[slot] = raw.get(value, value)
        proto.node.append(node)
        proto.node.extend(after[node.name] if node.name else [])
    return model


def _switched(
    proto: onnx.GraphProto,
    graph: Graph,
    group: Sequence[tuple[int, Switch]],
    raw: Mapping[str, str],
    reads: dict[Port, str],
    table: QParamsTable,
) -> Iterator[onnx.NodeProto]:
    """For each switch a node that quantizes the value or passes it through; enters what its ports read in ``reads``."""
    value = group[0][1].value
    source = raw.get(value, value)
    last = max((n for n, s in group if any(p.node == GRAPH_OUTPUT for p in s.ports)), default=-1)
    for number, switch in group:
        prefix = f"{SWITCHES}/{value}/{number}"
        rounded = f"{prefix}/rounded"
        if switch.qtype is QType.INT32:
            made = _constant(proto, table.bias(switch.ports[0]), prefix)
        elif switch.weight is not None:
            made = _rounded_rows(proto, graph, switch, source, prefix)
        elif switch.qtype.block:
            made = _blocks(proto, table.quantized(value, switch.qtype), table.params(value, switch.qtype), prefix)
        elif switch.constant:
            integers, params = table.quantized(value, switch.qtype), table.params(value, switch.qtype)
            made = _constant(proto, dequantize(integers, params), prefix)
        elif switch.qtype.dynamic:
            names = [f"{prefix}/{what}" for what in ("q", "scale", "zero")]
            made = [
                helper.make_node(DYNAMIC_QUANTIZE, [source], names),
                helper.make_node(DEQUANTIZE, names, [rounded]),
            ]
        else:
            made = _rounding(proto, source, prefix, table.params(value, switch.qtype))
        passed = reads.get(switch.ports[0], source)  # of another type's switch at the same port
        same = [helper.make_node("Identity", [passed], [f"{prefix}/same"])]
        proto.initializer.append(tensor_proto(f"{prefix}/index", np.array(number, np.int64), TensorProto.INT64))
        yield helper.make_node("Gather", [SWITCHES, f"{prefix}/index"], [f"{prefix}/on"])
        read = value if number == last else f"{prefix}/read"  # the last one of several types takes the output's name
        yield helper.make_node(
            "If",
            [f"{prefix}/on"],
            [read],
            then_branch=_branch(made, rounded),
            else_branch=_branch(same, f"{prefix}/same"),
        )
        reads.update(dict.fromkeys(switch.ports, read))


def _constant(proto: onnx.GraphProto, rounded: np.ndarray | None, prefix: str) -> list[onnx.NodeProto]:
    """A node that computes ``<prefix>/rounded``, the rounded constant."""
    assert rounded is not None, "only constants have such a switch"
    proto.initializer.append(tensor_proto(f"{prefix}/constant", rounded.astype(np.float32), TensorProto.FLOAT))
    return [helper.make_node("Identity", [f"{prefix}/constant"], [f"{prefix}/rounded"])]


def _blocks(proto: onnx.GraphProto, whole: np.ndarray, params: QParams, prefix: str) -> list[onnx.NodeProto]:
    """Nodes that compute ``<prefix>/rounded`` from integers in blocks, in any opset: they take a byte for each element.

    Several types of one weight would exceed what a model may hold as floats.
    """
    axis, shape = params.axis or 0, whole.shape
    integers = whole.reshape(*shape[:axis], -1, params.qtype.block, *shape[axis + 1 :])
    scale = np.expand_dims(np.asarray(params.scale, np.float32).reshape(scale_shape(shape, params)), axis + 1)
    names = [f"{prefix}/{what}" for what in ("integers", "scale", "shape", "steps", "scaled")]
    proto.initializer.extend(
        [
            tensor_proto(names[0], integers, TensorProto.INT8),
            tensor_proto(names[1], scale, TensorProto.FLOAT),
            tensor_proto(names[2], np.array(shape, np.int64), TensorProto.INT64),
        ]
    )
    return [
        helper.make_node("Cast", names[:1], [names[3]], to=TensorProto.FLOAT),
        helper.make_node("Mul", [names[3], names[1]], [names[4]]),
        helper.make_node("Reshape", [names[4], names[2]], [f"{prefix}/rounded"]),
    ]


def _rounded_rows(
    proto: onnx.GraphProto, graph: Graph, switch: Switch, source: str, prefix: str
) -> list[onnx.NodeProto]:
    """Nodes that compute ``<prefix>/rounded``: each block of a row is rounded by its own largest magnitude."""
    length = (graph.shape(switch.value) or (switch.block,))[-1] or switch.block
    constants: dict[str, np.ndarray] = {
        "blocks": np.array([-1, length // switch.block, switch.block], np.int64),
        "steps": np.array(1.0 / switch.qtype.qmax, np.float32),
        "least": np.array(np.finfo(np.float32).tiny, np.float32),
        "last": np.array([-1], np.int64),
    }
    for name, array in constants.items():
        dtype = TensorProto.INT64 if array.dtype == np.int64 else TensorProto.FLOAT
        proto.initializer.append(tensor_proto(f"{prefix}/{name}", array, dtype))
    input_axes = graph.opset >= _AXES_AS_INPUT
    axes = {} if input_axes else {"axes": [-1]}
    largest = ["magnitudes", "last"] if input_axes else ["magnitudes"]
    steps: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("Reshape", ["", "blocks"], "rows", {}),
        ("Abs", ["rows"], "magnitudes", {}),
        ("ReduceMax", largest, "largest", {**axes, "keepdims": 1}),
        ("Mul", ["largest", "steps"], "step", {}),
        ("Max", ["step", "least"], "scale", {}),
        ("Div", ["rows", "scale"], "quotients", {}),
        ("Round", ["quotients"], "integers", {}),
        ("Mul", ["integers", "scale"], "scaled", {}),
        ("Shape", [""], "shape", {}),
        ("Reshape", ["scaled", "shape"], "rounded", {}),
    ]
    return [
        helper.make_node(op, [f"{prefix}/{v}" if v else source for v in inputs], [f"{prefix}/{output}"], **attributes)
        for op, inputs, output, attributes in steps
    ]


def _rounding(proto: onnx.GraphProto, source: str, prefix: str, params: QParams) -> list[onnx.NodeProto]:
    """Nodes that compute ``<prefix>/rounded`` from an activation."""
    zero = np.array(params.zero_point[0], STORAGE[params.qtype])
    proto.initializer.extend(
        [
            tensor_proto(f"{prefix}/scale", np.array(params.scale[0], np.float32), TensorProto.FLOAT),
            tensor_proto(f"{prefix}/zero", zero, ONNX_TYPE[params.qtype]),
        ]
    )
    grid = [f"{prefix}/scale", f"{prefix}/zero"]
    return [
        helper.make_node("QuantizeLinear", [source, *grid], [f"{prefix}/q"]),
        helper.make_node("DequantizeLinear", [f"{prefix}/q", *grid], [f"{prefix}/rounded"]),
    ]


def _branch(nodes: Sequence[onnx.NodeProto], output: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)])
