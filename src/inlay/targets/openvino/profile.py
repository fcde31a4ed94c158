"""From the graph that the runtime executes to kernels with their causes: model nodes, a value's Q/DQ, or a layout.

The runtime describes its graph node by node: the operators of the model that each was made of
(``originalLayersNames``), the type it computes in (``runtimePrecision``) and its average time since it was built
(``execTimeMcs``, whole microseconds). Reorders that it inserts name no operator: they serve the value that they read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from inlay.targets.attribution import public_names
from inlay.targets.base import QDQ_KINDS, KernelKind, KernelTime

TAKEN_OVER = "_DequantizeLinear"
"""Ends the names of what DQ nodes write."""
_STEP_NS = 1000.0  # averages are cut off to whole microseconds
_PRECISIONS = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "u8": "uint8", "i8": "int8", "i4": "int4"}
_NO_KERNEL = frozenset({"Const", "Input", "Output"})
_INSERTED = frozenset({"Reorder", "Convert"})
_PRODUCTS = {
    "FullyConnected": frozenset({"MatMul", "Gemm"}),
    "MatMul": frozenset({"MatMul", "Gemm"}),
    "Convolution": frozenset({"Conv"}),
    "Deconvolution": frozenset({"ConvTranspose"}),
}
"""Operators of the model that each kernel of products computes one of."""
_RECURRENT, _RECURRENT_KERNEL = frozenset({"LSTM", "GRU", "RNN"}), "RNNSeq"


@dataclass(frozen=True)
class Kernel:
    """One node of the executed graph."""

    # name, op_type: its own
    name: str
    op_type: str
    origins: tuple[str, ...]  # names of the operators that it was made of, in the order of the computation
    precision: str  # type that it computes in, in the runtime's notation
    inputs: tuple[str, ...]  # type of each input, in the runtime's notation; constants included
    output: str  # type of its first output
    sources: tuple[int, ...]  # positions in the graph of the nodes that it reads
    ns: float | None  # average time; None where it did not run
    constant: bool  # it is computed once, when the model is built


def executed_graph(compiled: Any) -> list[Kernel]:
    """The nodes that a compiled model executes, constants included, in topological order."""
    kernels: list[Kernel] = []
    position: dict[str, int] = {}
    for node in compiled.get_runtime_model().get_ordered_ops():
        info = {key: str(value.astype(str)) for key, value in node.get_rt_info().items()}
        reads = [i.get_source_output().get_node().get_friendly_name() for i in node.inputs()]
        sources = tuple(position[name] for name in reads)
        op_type, time = info["layerType"], info.get("execTimeMcs", "")
        position[node.get_friendly_name()] = len(kernels)
        kernels.append(
            Kernel(
                name=node.get_friendly_name(),
                op_type=op_type,
                origins=tuple(name for name in info.get("originalLayersNames", "").split(",") if name),
                precision=info.get("runtimePrecision", ""),
                inputs=tuple(i.get_element_type().get_type_name() for i in node.inputs()),
                output=info.get("outputPrecisions", "").split(",")[0],
                sources=sources,
                ns=float(time) * _STEP_NS if time.isdigit() else None,
                constant=op_type == "Const" or (bool(sources) and all(kernels[s].constant for s in sources)),
            )
        )
    return kernels


def typical(averages: Sequence[Sequence[float | None]]) -> np.ndarray:
    """Typical nanoseconds of each kernel, shape (kernels,), by its averages over the first 1, 2, … inferences.

    The runtime tells nothing but averages, in which one inference that was interrupted stays for good. Differences of
    sums give single inferences back, as far as the averages' resolution allows: the median of these counts where it is
    less than the average by more than that. 0 for what did not run.
    """
    found = np.array([[0.0 if ns is None else ns + _STEP_NS / 2 for ns in row] for row in averages])
    count = np.arange(1, len(found) + 1)[:, None]
    single = np.diff(found * count, axis=0, prepend=0.0)
    median, last = np.median(single, axis=0), found[-1]
    outlier = last - median > _STEP_NS * np.sqrt(len(found))
    ran = np.array([ns is not None for ns in averages[-1]])
    return np.where(ran, np.where(outlier, np.maximum(median, 0.0), last), 0.0)


class Attribution:
    """Traces executed kernels back to the model that the runtime was given; its weights are not looked at."""

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self._nodes = {n.name: n for n in graph.node}
        self._place = {n.name: i for i, n in enumerate(graph.node)}
        self._producer = {v: n for n in graph.node for v in n.output if v}
        self._public = public_names(graph)

    def kernels(self, graph: Sequence[Kernel], ns: np.ndarray) -> list[KernelTime]:
        """What ran, with its cause and its time of ``ns``, in the order of the graph."""
        recurrent = self._recurrent(graph)
        return [
            self._kernel(graph, k, float(time), recurrent.get(k.name, ()))
            for k, time in zip(graph, ns, strict=True)
            if k.ns is not None and not k.constant and k.op_type not in _NO_KERNEL
        ]

    def _kernel(self, graph: Sequence[Kernel], kernel: Kernel, ns: float, known: tuple[str, ...] = ()) -> KernelTime:
        precision = _PRECISIONS.get(kernel.precision, kernel.precision)
        nodes, boundary = known or self.nodes(kernel), self._boundary(kernel)
        if nodes:
            return KernelTime(kernel.name, kernel.op_type, ns, precision, nodes)
        if boundary is not None:
            kind, value = boundary
            return KernelTime(kernel.name, kernel.op_type, ns, precision, values=(value,), kind=kind)
        if kernel.op_type in _INSERTED and kernel.sources:
            written = self._written(graph, kernel.sources[0])
            made = graph[kernel.sources[0]].output
            converts = {made, kernel.output} & {"u8", "i8"} and made != kernel.output
            kind = "layout" if not converts else "dequantize" if made in ("u8", "i8") else "quantize"
            values = () if written is None else (written,)
            return KernelTime(kernel.name, kernel.op_type, ns, precision, values=values, kind=kind)
        return KernelTime(kernel.name, kernel.op_type, ns, precision)

    def nodes(self, kernel: Kernel) -> tuple[str, ...]:
        """The model's nodes that a kernel computes, less Q/DQ.

        What the runtime tells of the origins of a product may lack the product, and may name the normalization whose
        last factor was merged with it; the kernel is called like the last operator that it was made of.
        """
        found = [n for n in map(self._node, kernel.origins) if n is not None and n.op_type not in QDQ_KINDS]
        kinds = _PRODUCTS.get(kernel.op_type, frozenset())
        if kinds and not any(n.op_type in kinds for n in found):
            last = self._node(kernel.name)
            product = None if last is None else self._product(last, kinds)
            if last is not None and product is not None:
                behind = [n for n in found if self._place[n.name] > self._place[product.name]]
                found = [product, *([] if last is product else [last]), *behind]
        return tuple(dict.fromkeys(n.name for n in found))

    def _recurrent(self, graph: Sequence[Kernel]) -> dict[str, tuple[str, ...]]:
        """The node that each kernel of an LSTM, GRU or RNN computes.

        The runtime makes names up for them (LSTMSequence_81), and has one kernel for each direction. That of a node
        comes behind nothing but what the node comes behind; of several such, in the order of the model.
        """
        left = {n.name: _directions(n) for n in self._nodes.values() if n.op_type in _RECURRENT}
        if not left:
            return {}
        above: list[set[str]] = []
        found: dict[str, tuple[str, ...]] = {}
        behind = {name: self._above(self._nodes[name]) for name in left}
        for kernel in graph:
            up = set[str]().union(*(above[s] for s in kernel.sources))
            nodes = self.nodes(kernel)
            if kernel.op_type == _RECURRENT_KERNEL and not nodes:
                kind = kernel.name.partition("Sequence")[0]
                mine = [name for name, count in left.items() if count and self._nodes[name].op_type == kind]
                nodes = next(((name,) for name in mine if up <= behind[name]), ())
                found[kernel.name] = nodes
                left.update((name, left[name] - 1) for name in nodes)
            above.append(up.union(nodes))
        return found

    def _above(self, node: onnx.NodeProto) -> set[str]:
        """Names of all nodes that ``node`` depends on."""
        found: set[str] = set()
        ahead = [node]
        while ahead:
            producers = (self._producer.get(value) for value in ahead.pop().input)
            new = {n.name: n for n in producers if n is not None and n.name not in found}
            found |= new.keys()
            ahead.extend(new.values())
        return found

    def _product(self, node: onnx.NodeProto, kinds: frozenset[str]) -> onnx.NodeProto | None:
        """The product that ``node`` is, or adds its bias to."""
        if node.op_type in kinds:
            return node
        before = [self._producer.get(value) for value in node.input] if node.op_type == "Add" else []
        products = [n for n in before if n is not None and n.op_type in kinds]
        return products[0] if len(products) == 1 else None

    def _node(self, origin: str) -> onnx.NodeProto | None:
        """The model's node that an operator was made of: by its name, or by that of a value that it computes.

        The runtime adds suffixes behind a slash, which may be part of a node's own name as well.
        """
        while True:
            node = self._nodes.get(origin) or self._producer.get(origin)
            if node is not None or "/" not in origin:
                return node
            origin = origin.rpartition("/")[0]

    def _boundary(self, kernel: Kernel) -> tuple[KernelKind, str] | None:
        """What a kernel of Q/DQ nodes alone does, and the value that it does it to."""
        found = [n for n in map(self._node, kernel.origins) if n is not None and n.op_type in QDQ_KINDS]
        if not found:
            return None
        return QDQ_KINDS[found[0].op_type], self._quantized_value(found[0])

    def _quantized_value(self, node: onnx.NodeProto) -> str:
        """The model's value around a Q or DQ node, by the name that it has in the model without them."""
        value = node.output[0] if node.op_type == "DequantizeLinear" else node.input[0]
        while (behind := self._producer.get(value)) is not None and behind.op_type == "DequantizeLinear":
            quantize = self._producer.get(behind.input[0])
            if quantize is None:  # a constant
                break
            value = quantize.input[0]  # there may be one pair behind another
        return self._public.get(value, value)

    def _written(self, graph: Sequence[Kernel], at: int) -> str | None:
        """The model's value that a kernel writes, looking through inserted kernels."""
        kernel = graph[at]
        while kernel.op_type in _INSERTED and not kernel.origins and kernel.sources:
            kernel = graph[kernel.sources[0]]
        if kernel.op_type == "Input":
            return kernel.name
        for origin in reversed(kernel.origins):
            node = self._node(origin)
            if node is not None:
                value = self._quantized_value(node) if node.op_type in QDQ_KINDS else node.output[0]
                value = value.removesuffix(TAKEN_OVER)
                return self._public.get(value, value)
        return None


def _directions(node: onnx.NodeProto) -> int:
    return 2 if any(a.name == "direction" and a.s == b"bidirectional" for a in node.attribute) else 1
