"""From the runtime's profiler events to kernels with their causes: model nodes, a value's Q/DQ, or a layout boundary.

The runtime writes the graph that it really runs; its node names are the event names. A kernel is traced back to the
model in this order: by its own name (fusions keep the anchor's, with a suffix), by the names of what it writes (a fused
node keeps the last value's), and, for what the runtime inserts (reorders between NCHW and its blocked layout,
transposes to NHWC, moved Q/DQ), by following its inputs to the nearest value of the model: that value's boundary
causes it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from inlay.targets.attribution import public_names
from inlay.targets.base import QDQ_KINDS, KernelKind, KernelTime

_KINDS: Mapping[str, KernelKind] = {**QDQ_KINDS, "ReorderInput": "layout", "ReorderOutput": "layout"}
_BAND = r"_band_\d+of\d+(_[A-Za-z]+)?"  # of the nodes that our own writer makes of one
_TOKEN = re.compile(rf"(_token_\d+|/duplicated|_nchwc|{_BAND})$")
_VALUE_SUFFIX = re.compile(
    r"(_token_\d+|/duplicated|_nchwc|_QuantizeLinear|_DequantizeLinear|_quantized|_q_to_dq|_post_dq|_pre_q|_q|_dq"
    rf"|_u?int8|_float|_by_channel|{_BAND})$"
)
_MOVES = ("SpaceToDepth", "DepthToSpace")  # pixels of quantized values, as forms of low precision do
_WRITTEN = re.compile(r"(.+)_MatMulInteger(_\d+)?(_turned)?")  # of a product's name, what it is written as
_PACKED = ("DynamicQuantize", "MatMulNBits")  # their weights are not among their inputs once they are packed


@dataclass(frozen=True)
class Event:
    """One kernel as the profiler saw it: nanoseconds in each inference, shape (runs,), warm-up included."""

    name: str
    op_type: str
    precision: str
    ns: np.ndarray


def read_events(events: Sequence[Mapping[str, Any]], runs: int) -> list[Event]:
    """The kernel events of a trace of ``runs`` inferences, in the order in which kernels first ran."""
    times: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    precision: dict[tuple[str, str], str] = {}
    for event in events:
        if event.get("cat") != "Node" or not str(event.get("name", "")).endswith("_kernel_time"):
            continue
        args = event["args"]
        key = (str(event["name"]).removesuffix("_kernel_time"), str(args["op_name"]))
        times[key].append(float(event["dur"]) * 1000.0)
        shapes = args.get("input_type_shape") or []
        if key not in precision and shapes:
            precision[key] = _largest(shapes, key[1])
    found = []
    for (name, op_type), values in times.items():
        whole = len(values) % runs == 0  # in a loop's body the number of calls may vary
        ns = np.array(values).reshape(runs, -1).sum(axis=1) if whole else np.full(runs, sum(values) / runs)
        found.append(Event(name, op_type, precision.get((name, op_type), ""), ns))
    return found


def _largest(shapes: Sequence[Mapping[str, Sequence[int]]], op_type: str) -> str:
    """Element type of the largest input: what a kernel computes in (a QLinearConcat's first input is a scale).

    A shape or an index may be larger than the data, and a vector of scales larger than a small image: an integer kernel
    computes in its 8-bit input's type, and 64-bit integers count only where there is nothing else.
    """
    if op_type.startswith(_PACKED):
        return "uint8"
    sized = [(int(np.prod(dims, dtype=np.int64)), dtype) for entry in shapes for dtype, dims in entry.items()]
    integer = op_type.startswith(("QLinear", "QGemm", "MatMulInteger", "QAttention"))

    def rank(found: tuple[int, str]) -> tuple[bool, bool, int]:
        return integer and found[1] in ("uint8", "int8"), found[1] != "int64", found[0]

    return max(sized, key=rank, default=(0, ""))[1]


def _parts_of_products(model: onnx.ModelProto, nodes: Mapping[str, onnx.NodeProto]) -> dict[str, str]:
    """By the name of each operator that a dynamic product is written as, the name of the product.

    What quantizes the data of several products counts for the first of them.
    """
    readers: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in model.graph.node:
        for value in node.input:
            readers[value].append(node)
    producer = {v: n for n in model.graph.node for v in n.output}
    found: dict[str, str] = {}
    for node in model.graph.node:
        named = _WRITTEN.fullmatch(node.name) if node.op_type == "MatMulInteger" else None
        if named is None or named[1] not in nodes:
            continue
        product = named[1]
        casts = readers[node.output[0]]
        scaled = [m for cast in casts for m in readers[cast.output[0]]]
        before = [producer[v] for n in (node, *scaled) for v in n.input if v in producer]
        scales = [n for n in before if n.op_type == "Mul"]
        quantizers = [n for n in before if n.op_type == "DynamicQuantizeLinear"]
        for part in (node, *casts, *scaled, *scales, *quantizers):
            found.setdefault(part.name, product)
    return found


def _bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]


def _in_bodies(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph, and those in its bodies, and in bodies within them."""
    for node in graph.node:
        yield node
        for body in _bodies(node):
            yield from _in_bodies(body)


class Attribution:
    """Traces kernels of an optimized graph back to the model that the runtime was given.

    Args:
        model: that model; weights are not looked at.
        optimized: the graph that the runtime wrote.
    """

    def __init__(self, model: onnx.ModelProto, optimized: onnx.ModelProto) -> None:
        given, ran = [*_in_bodies(model.graph)], [*_in_bodies(optimized.graph)]
        self._producer = {v: n for n in given for v in n.output if v}
        own = [n for n in given if not re.search(f"{_BAND}$", n.name)]
        self._nodes = {n.name: n for n in own if not self._at_boundary(n)}
        self._values = {v for n in self._nodes.values() for v in n.output if v}
        self._values.update(i.name for i in model.graph.input)
        self._product_of = _parts_of_products(model, self._nodes)
        self._public = public_names(model.graph)
        self._kernels = {n.name: n for n in ran}
        self._within = {n.name: [i.name for body in _bodies(n) for i in body.node] for n in ran}
        self._writer = {v: n for n in ran for v in n.output if v}
        self._readers: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in ran:
            for value in node.input:
                self._readers[value].append(node)

    def within(self, name: str) -> Sequence[str]:
        """The kernels in bodies of the operator called ``name``, whose time in all turns is in its own."""
        return self._within.get(name, ())

    def kernel(self, name: str, op_type: str, ns: float, precision: str) -> KernelTime:
        """One kernel with its cause; without nodes and values where none was found."""
        node = self._kernels.get(name)
        if node is None:
            source = self._own_node(name)
            return KernelTime(name, op_type, ns, precision, self._products(source))
        kind = self._kind(node)
        if kind == "compute":
            return KernelTime(name, op_type, ns, precision, self._products(self._sources(node)), kind=kind)
        value = self._value(node)
        if value is None:  # a constant's: it works for the kernel that reads it
            readers = [r for v in node.output for r in self._readers[v]]
            sources = next((s for s in map(self._named, readers) if s), ())
            return KernelTime(name, op_type, ns, precision, self._products(sources), kind=kind)
        return KernelTime(name, op_type, ns, precision, values=(self._public.get(value, value),), kind=kind)

    def _products(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """``nodes`` with products in place of the operators that they are written as."""
        return tuple(dict.fromkeys(self._product_of.get(n, n) for n in nodes))

    def _kind(self, node: onnx.NodeProto) -> KernelKind:
        if node.op_type in _KINDS:
            return _KINDS[node.op_type]
        moves = node.op_type in ("Transpose", *_MOVES)
        inserted = moves and not self._own_node(node.name) and not self._written(node)
        return "layout" if inserted else "compute"

    def _at_boundary(self, node: onnx.NodeProto) -> bool:
        """Whether a node of the model is there for a value's boundary: Q, DQ, and what moves pixels between the two."""
        before = self._producer.get(node.input[0]) if node.op_type in _MOVES else None
        return node.op_type in _KINDS or (before is not None and before.op_type == "QuantizeLinear")

    def _own_node(self, name: str) -> tuple[str, ...]:
        """The model's node that a kernel's name begins with."""
        while True:
            if name in self._nodes:
                return (name,)
            shorter = _TOKEN.sub("", name)
            if shorter == name:
                break
            name = shorter
        head, _, fusion = name.rstrip("/").rpartition("/")  # "<node>/<Name>Fusion/"
        return (head,) if fusion.endswith("Fusion") and head in self._nodes else ()

    def _written(self, node: onnx.NodeProto) -> tuple[str, ...]:
        """The model's nodes that compute what a kernel writes, as far back as the kernel's inputs."""
        found: dict[str, None] = {}
        stop = set(node.input)
        open_values = [v for v in node.output if v in self._producer]
        while open_values:
            producer = self._producer.get(open_values.pop())
            if producer is None or producer.name in found or self._at_boundary(producer):
                continue
            found[producer.name] = None
            open_values += [v for v in producer.input if v not in stop and v not in self._writer]
        return tuple(found)

    def _sources(self, node: onnx.NodeProto) -> tuple[str, ...]:
        found = self._named(node)
        if found:
            return found
        # helpers of a fusion (a Reshape, a Split): they work for the kernel that reads them, or else follow one
        around = [r for v in node.output for r in self._readers[v]]
        around += [self._writer[v] for v in node.input if v in self._writer]
        return next((s for s in map(self._named, around) if s), ())

    def _named(self, node: onnx.NodeProto) -> tuple[str, ...]:
        """The model's nodes by the kernel's name, or by those of the values that it writes."""
        own = self._own_node(node.name)
        if own:
            return own
        written = self._written(node)
        if written:
            return written
        for name in (node.name, *node.output):
            value = self._model_value(name)
            if value is not None and value in self._producer:
                return (self._producer[value].name,)
        return ()

    def _value(self, node: onnx.NodeProto) -> str | None:
        """The model's value whose boundary an inserted kernel serves: by names, else by what it reads."""
        seen = 0
        while seen < 16:  # chains of inserted kernels are short
            for name in (node.name, *node.output[:1], *node.input[:1]):
                value = self._model_value(name)
                if value is not None:
                    return value
            before = self._writer.get(node.input[0]) if node.input else None
            if before is None:
                return None
            if self._kind(before) == "compute":
                return self._output_of(before, node.input[0])
            node, seen = before, seen + 1
        return None

    def _output_of(self, kernel: onnx.NodeProto, name: str) -> str | None:
        sources = [self._nodes[s] for s in self._sources(kernel) if s in self._nodes]  # a band of rows is none
        if not sources:
            return None
        outputs = sources[0].output
        slot = list(kernel.output).index(name)
        return str(outputs[min(slot, len(outputs) - 1)])

    def _model_value(self, name: str) -> str | None:
        """The model's value that ``name`` begins with, less the suffixes of the runtime and of our own writer."""
        while name:
            if name in self._values:
                return name
            shorter = _VALUE_SUFFIX.sub("", name)
            if shorter == name:
                return None
            name = shorter
        return None


def kernels(events: Iterable[Event], attribution: Attribution, warm_up: int) -> list[KernelTime]:
    """Every kernel with its cause and its median time; one slow inference among many does not count.

    That of a kernel in a loop is of all turns together, and that of an If, Loop or Scan is without those in its bodies.
    """
    found = []
    events = list(events)
    ns_of = {e.name: float(np.median(e.ns[warm_up:])) for e in events}
    for event in events:
        ns = max(0.0, ns_of[event.name] - sum(ns_of.get(name, 0.0) for name in attribution.within(event.name)))
        found.append(attribution.kernel(event.name, event.op_type, ns, event.precision))
    return found
