"""Fake quantization: a float model whose quantization can be switched; one build computes what any placement does.

Every group of ports that a placement quantizes together gets a switch: its ports read ``If(switch, DQ(Q(v)), v)``.
The switches are one more graph input. The result is what the emitted model computes with float kernels, so that its
noise is predicted to within the rounding of integer kernels, for an inference a question.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from inlay.data import AUTO_MASK, Feed
from inlay.model.graph import Graph
from inlay.model.reference import SharedSession
from inlay.model.store import WeightStore, tensor_proto
from inlay.quant.emit import ONNX_TYPE
from inlay.quant.parts import Parts, Reference
from inlay.quant.qdq_graph import DEQUANTIZE, DYNAMIC_QUANTIZE, QUANTIZE
from inlay.quant.qparams import STORAGE, QParamsTable, dequantize, scale_shape
from inlay.space.rules import Rules
from inlay.space.units import Unit, static_sites
from inlay.types import GRAPH_OUTPUT, Placement, Port, QType

SWITCHES = "inlay.switches"
_AXES_AS_INPUT = 18  # first opset in which ReduceMax takes its axes as an input
_CONSTANT_BYTES = 256_000_000  # dequantized constants inside a probe model: well below the 2 GiB limit of protobuf
_TINY = 1e-300  # keeps a division by no energy finite
_NO_MATCH = 1e6
"""Noise over signal where an output is not finite or of another shape: far worse than any real noise, and a number."""


@dataclass(frozen=True, kw_only=True)
class Switch:
    """Ports that read a value and are quantized together, in one type, by every labelling of the units.

    A port may have several, for several types; the placement's type says which is on. The data of a product whose
    kernel rounds them although the placement says nothing of them are rounded by one that is on with the ``weight``.
    """

    value: str  # what is read
    ports: tuple[Port, ...]  # that read it
    qtype: QType  # the type in which they do
    constant: bool = False  # the value is a constant
    # port whose type decides in place of the ports' own, which are bare then; None for most switches
    weight: Port | None = None
    types: frozenset[QType] = frozenset()  # of that port, with which it is on
    block: int = 0  # elements of a row that are rounded with one scale there

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
        size = 0 if array is None else array.nbytes * len(groups)
        if held + size > _CONSTANT_BYTES:
            continue
        held += size
        found += [
            Switch(value=value, ports=tuple(ports), qtype=qtype, constant=array is not None)
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
    """A switch for each port of a form that no other switch quantizes in its type.

    Like biases, what is read in half precision is left out.
    """
    sites = dict.fromkeys(site for u in units for sites in u.searched.values() for site in sites)
    left = _CONSTANT_BYTES
    for port, qtype in sites:
        if qtype is not QType.INT32 and not qtype.half and (port not in owners or owners[port][1] is not qtype):
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
                    weight=weight,
                    types=frozenset(types),
                    block=block,
                )


def fake_quantized(
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
        constants, steps = _rounding(graph, table, switch)
        proto.initializer.extend(tensor_proto(f"{prefix}/{name}", *of) for name, of in constants.items())
        made = [
            helper.make_node(
                op, [f"{prefix}/{v}" if v else source for v in given], [f"{prefix}/{v}" for v in results], **attributes
            )
            for op, given, results, attributes in steps
        ]
        passed = reads.get(switch.ports[0], source)  # of another type's switch at the same port
        same = [helper.make_node("Identity", [passed], [f"{prefix}/same"])]
        proto.initializer.append(tensor_proto(f"{prefix}/index", np.array(number, np.int64), TensorProto.INT64))
        yield helper.make_node("Gather", [SWITCHES, f"{prefix}/index"], [f"{prefix}/on"])
        read = value if number == last else f"{prefix}/read"  # the last one of several types takes the output's name
        yield helper.make_node(
            "If",
            [f"{prefix}/on"],
            [read],
            then_branch=_branch(made, f"{prefix}/rounded"),
            else_branch=_branch(same, f"{prefix}/same"),
        )
        reads.update(dict.fromkeys(switch.ports, read))


_Step = tuple[str, Sequence[str], Sequence[str], dict[str, Any]]  # A node: operator, inputs, outputs and attributes


def _rounding(
    graph: Graph, table: QParamsTable, switch: Switch
) -> tuple[dict[str, tuple[np.ndarray, int]], Sequence[_Step]]:
    """What computes ``rounded`` from a value, whose name is empty here: constants with their ONNX types, and nodes."""
    value, qtype, port = switch.value, switch.qtype, switch.ports[0]
    if switch.weight is not None:
        return _rounding_of_rows(graph, switch)
    if qtype.dynamic:
        grid = ["q", "scale", "zero"]
        return {}, [(DYNAMIC_QUANTIZE, [""], grid, {}), (DEQUANTIZE, grid, ["rounded"], {})]
    if not switch.constant:
        params = table.params(value, qtype)
        scale, zero = np.array(params.scale[0], np.float32), np.array(params.zero_point[0], STORAGE[qtype])
        return {"scale": (scale, TensorProto.FLOAT), "zero": (zero, ONNX_TYPE[qtype])}, [
            (QUANTIZE, ["", "scale", "zero"], ["q"], {}),
            (DEQUANTIZE, ["q", "scale", "zero"], ["rounded"], {}),
        ]
    if not qtype.block:
        bias = qtype is QType.INT32
        array = table.bias(port) if bias else dequantize(table.quantized(value, qtype), table.params(value, qtype))
        assert array is not None, "only constants have such a switch"
        return {"constant": (array.astype(np.float32), TensorProto.FLOAT)}, [
            ("Identity", ["constant"], ["rounded"], {})
        ]
    # integers of a byte each, in any opset: several types of one weight would exceed what a model may hold
    params, whole = table.params(value, qtype), table.quantized(value, qtype)
    axis, shape = params.axis or 0, whole.shape
    scale = np.expand_dims(np.asarray(params.scale, np.float32).reshape(scale_shape(shape, params)), axis + 1)
    integers = whole.reshape(*shape[:axis], -1, qtype.block, *shape[axis + 1 :])
    constants: dict[str, tuple[np.ndarray, int]] = {
        "integers": (integers, TensorProto.INT8),
        "scale": (scale, TensorProto.FLOAT),
        "shape": (np.array(shape, np.int64), TensorProto.INT64),
    }
    return constants, [
        ("Cast", ["integers"], ["steps"], {"to": TensorProto.FLOAT}),
        ("Mul", ["steps", "scale"], ["scaled"], {}),
        ("Reshape", ["scaled", "shape"], ["rounded"], {}),
    ]


def _rounding_of_rows(graph: Graph, switch: Switch) -> tuple[dict[str, tuple[np.ndarray, int]], Sequence[_Step]]:
    """The same of each block of a row by its own largest magnitude."""
    length = (graph.shape(switch.value) or (switch.block,))[-1] or switch.block
    constants: dict[str, tuple[np.ndarray, int]] = {
        "blocks": (np.array([-1, length // switch.block, switch.block], np.int64), TensorProto.INT64),
        "steps": (np.array(1.0 / switch.qtype.qmax, np.float32), TensorProto.FLOAT),
        "least": (np.array(np.finfo(np.float32).tiny, np.float32), TensorProto.FLOAT),
        "last": (np.array([-1], np.int64), TensorProto.INT64),
    }
    input_axes = graph.opset >= _AXES_AS_INPUT
    axes = {} if input_axes else {"axes": [-1]}
    return constants, [
        ("Reshape", ["", "blocks"], ["rows"], {}),
        ("Abs", ["rows"], ["magnitudes"], {}),
        ("ReduceMax", ["magnitudes", "last"] if input_axes else ["magnitudes"], ["largest"], {**axes, "keepdims": 1}),
        ("Mul", ["largest", "steps"], ["step"], {}),
        ("Max", ["step", "least"], ["scale"], {}),
        ("Div", ["rows", "scale"], ["quotients"], {}),
        ("Round", ["quotients"], ["integers"], {}),
        ("Mul", ["integers", "scale"], ["scaled"], {}),
        ("Shape", [""], ["shape"], {}),
        ("Reshape", ["scaled", "shape"], ["rounded"], {}),
    ]


def _branch(nodes: Sequence[onnx.NodeProto], output: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)])


class NoiseProbe:
    """Noise of any placement, by running the switchable model on a few samples.

    Args:
        briefly: it is asked a few questions only. Nothing is fused or arranged for the kernels then: on a BERT of 45 MB
            that is a build of 0.7 s instead of 3.1, for runs of 0.12 s instead of 0.10.

    Raises:
        CompileFailed, RunFailed: the probe model does not run.
    """

    def __init__(
        self,
        base: onnx.ModelProto,
        store: WeightStore,
        graph: Graph,
        units: Sequence[Unit],
        rules: Rules,
        table: QParamsTable,
        briefly: bool = False,
    ) -> None:
        self.switches = find_switches(graph, units, rules, table)
        self.outputs = self._whole = graph.float_outputs
        model = fake_quantized(base, graph, self.switches, table)
        self._session = SharedSession(model, store, optimize=None if briefly else True)
        self._feeds: tuple[Feed, ...] = ()
        self._reference = Reference((), (), AUTO_MASK, Parts(), self.outputs)
        self._signal = np.zeros(len(self.outputs))
        self._shares = np.zeros((0, len(self.outputs)))

    def use(self, feeds: Sequence[Feed], mask: str = AUTO_MASK, parts: Parts | None = None) -> None:
        """Set the samples to measure noise on, the noisiest first; raises RunFailed.

        Args:
            mask: as of ``Samples``.
            parts: how outputs are divided, as their judge does it: ``outputs`` are those parts then.
        """
        parts = Parts() if parts is None else parts
        self.outputs = parts.of_each(self._whole)
        off = np.zeros(len(self.switches), bool)
        whole: list[Mapping[str, np.ndarray]] = [*self._session.each({**feed, SWITCHES: off} for feed in feeds)]
        self._feeds, self._reference = tuple(feeds), Reference(feeds, whole, mask, parts, self.outputs)
        self._signal = self._reference.signal.sum(axis=0)
        if len(feeds) < 2:
            self._shares = np.ones((len(feeds), len(self.outputs)))
            return
        energies = next(self._energies([~off], len(feeds)))
        shares = energies / np.maximum(energies.sum(axis=0), _TINY)
        order = [int(i) for i in np.argsort(-shares.max(axis=1, initial=0.0), kind="stable")]
        self._feeds, self._shares = tuple(feeds[i] for i in order), shares[order]
        self._reference = Reference(self._feeds, [whole[i] for i in order], mask, parts, self.outputs)

    def noise(self, placement: Placement, samples: int | None = None) -> tuple[float, ...]:
        """Noise power over signal power at each float output when ``placement`` is quantized.

        Ports of the placement that no labelling of units quantizes are left alone.

        Args:
            samples: how many are run, the noisiest first; None for all. The others are taken to have the same share of
                the noise as where everything is quantized.

        Raises:
            RunFailed: the model does not run.
        """
        return next(self.noises([placement], samples))

    def noises(self, placements: Iterable[Placement], samples: int | None = None) -> Iterator[tuple[float, ...]]:
        """The same for several in turn, of which a few more are taken than are asked for. Raises RunFailed."""
        count = len(self._feeds) if samples is None else min(samples, len(self._feeds))
        share = np.maximum(self._shares[:count].sum(axis=0), _TINY) if count < len(self._feeds) else 1.0
        if not count:
            yield from ((0.0,) * len(self.outputs) for _ in placements)
            return
        switched = (np.array([switch.is_on(p) for switch in self.switches], bool) for p in placements)
        for energies in self._energies(switched, count):
            noise = energies.sum(axis=0) / share / np.maximum(self._signal, _TINY)
            yield tuple(float(x) for x in np.minimum(noise, _NO_MATCH))

    def _energies(self, switched: Iterable[np.ndarray], count: int) -> Iterator[np.ndarray]:
        """For each setting of the switches the energy of the difference that it makes, shape (count, outputs).

        Quantized durations, for instance, may make a sound longer: outputs of another shape are all noise.
        """
        feeds = self._feeds[:count]
        outputs = self._session.each({**feed, SWITCHES: on} for on in switched for feed in feeds)
        while several := [*islice(outputs, count)]:
            found = np.array([self._reference.noise(i, output) for i, output in enumerate(several)])
            yield np.where(np.isfinite(found), found, _NO_MATCH * np.maximum(self._signal, _TINY))
