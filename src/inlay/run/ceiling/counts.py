"""How much a kernel has to do at least: multiply-accumulates, and bytes that it reads and writes.

All counts are lower limits, so that what follows from them bounds times: a product with padding is not counted, nor is
a value that another kernel may have kept to itself, a part of an input that need not be read, or arithmetic outside of
products. Where a kernel computes on 8-bit integers, or it is not known on what, an element is a byte.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from inlay.model.graph import Graph, Node
from inlay.model.products import AS_FLOAT, PRODUCTS, as_float, known_shape, multiply_accumulates, visits
from inlay.targets.base import KernelTime
from inlay.types import GRAPH_OUTPUT

_HALVES = ("bf16", "bfloat16", "f16", "float16")
_WINDOWS = frozenset({"Conv", "MaxPool", "AveragePool", "LpPool"})
_NOTHING = frozenset(
    {
        *("Cast", "ConstantOfShape", "Dropout", "Flatten", "Identity", "If", "Loop", "Optional", "OptionalGetElement"),
        *("Range", "Reshape", "Scan", "ScatterElements", "ScatterND", "SequenceAt", "SequenceConstruct", "Shape"),
        *("Size", "Squeeze", "Unsqueeze"),
    }
)
"""Operators that may touch none of their data: they hand it on, write little of it, or do what is counted nowhere."""
_PARTS = frozenset(
    {
        *("Compress", "Crop", "Gather", "GatherElements", "GatherND", "GridSample", "NonMaxSuppression", "Resize"),
        *("RoiAlign", "Slice", "TopK", "Upsample"),
    }
)
"""Operators that read no more of their data than they write."""
_MOVES = frozenset({"Concat", "DepthToSpace", "Expand", "Pad", "Slice", "SpaceToDepth", "Split", "Tile", "Transpose"})
"""Operators that move elements: a runtime may hand on a view instead."""
_FUSED = 6  # operators, one behind another, that one kernel takes in at most


@dataclass(frozen=True)
class Work:
    """What one kernel has to do at least."""

    products: float = 0.0  # multiply-accumulates
    bytes: float = 0.0  # read and written
    node: Node | None = None  # the operator that it stands for; None of a conversion, or where it is not known
    moves: bool = False  # it does nothing but move or convert elements


def depth_and_columns(graph: Graph, node: Node) -> tuple[int, int]:
    """How many products a sum of a node has, and how many sums it makes of the same data; 0 where unknown."""
    node = as_float(node)
    written = known_shape(graph.shape(node.outputs[0]))
    weight = known_shape(graph.shape(node.inputs[1])) if len(node.inputs) > 1 else None
    if written is None or weight is None or node.op_type not in ("Conv", "MatMul", "Gemm"):
        return 0, 0
    if node.op_type == "Conv":
        return math.prod(weight[1:]), weight[0] // int(node.attributes.get("group", 1))
    turned = node.op_type == "Gemm" and node.attributes.get("transB")
    return weight[-1 if turned or len(weight) < 2 else -2], written[-1] if written else 1


class Counter:
    """Counts the work of kernels of one profile.

    Args:
        graph: of the model that was profiled, or of its float form, with sizes.
        kernels: all that ran: values between operators without kernels need not be stored.
    """

    def __init__(self, graph: Graph, kernels: Sequence[KernelTime]) -> None:
        self._graph = graph
        self._named = {n for k in kernels if k.kind == "compute" for n in k.nodes}
        self._nodes: dict[str, list[Node]] = {}
        self._ran = set(self._named)
        for kernel in kernels:
            if kernel.kind == "compute":
                self._nodes[kernel.name] = found = self._stands_for(kernel)
                self._ran.update(n.name for n in found)

    def _stands_for(self, kernel: KernelTime) -> list[Node]:
        """The nodes of a kernel: where it is named by what it ends with, those before it that it takes in as well."""
        known = [self._graph.node(n) for n in kernel.nodes if self._graph.has_node(n)]
        if kernel.op_type in _MOVES | _NOTHING:  # a runtime's own may be said to stand for all that it moved past
            alike = [n for n in known if _is_of(kernel, n)]
            return sorted(alike, key=lambda n: self._graph.size(n.outputs[0]) or 0)[:1]
        if not known or any(_is_of(kernel, n) for n in known):
            return known
        found = {n.name: n for n in known}
        edge = known
        for _ in range(_FUSED):
            before = [self._graph.producer(v) for n in edge for v in n.inputs if v]
            edge = [n for n in before if n is not None and n.name not in self._ran and n.name not in found]
            anchor = next((n for n in edge if _is_of(kernel, n)), None)
            found.update(
                {n.name: n for n in edge if n is anchor or not multiply_accumulates(self._graph, n, padding=False)}
            )
            if anchor is not None:
                return [*found.values()]
        return known

    def work(self, kernel: KernelTime) -> Work:
        """That of one kernel."""
        if kernel.kind != "compute":
            return Work(bytes=self._converted(kernel), moves=True)
        nodes = self._nodes.get(kernel.name, [])
        if not nodes:
            return Work()
        found = [multiply_accumulates(self._graph, n, padding=False) for n in nodes]
        node = nodes[int(np.argmax(found))] if any(found) else nodes[0]
        moved = self._moved(kernel, nodes)
        return Work(sum(found), moved, node, all(n.op_type in _MOVES | _NOTHING for n in nodes))

    def _converted(self, kernel: KernelTime) -> float:
        size = (self._graph.size(kernel.values[0]) or 0) if kernel.values else 0
        if kernel.kind == "layout":
            return 2.0 * size * (4 if kernel.precision == "float32" else 1)
        return 5.0 * size  # a float and a byte

    def _moved(self, kernel: KernelTime, nodes: Sequence[Node]) -> float:
        own = {n.name for n in nodes}
        total = 0.0
        for value in dict.fromkeys(v for n in nodes for v in n.inputs if v):
            before = self._graph.producer(value)
            if before is None or before.name not in own:
                total += min(self._read(kernel, n, value) for n in nodes if value in n.inputs)
        for node in nodes:
            if node.op_type in _NOTHING:
                continue
            for value in filter(None, node.outputs):
                ports = self._graph.consumers(value)
                if any(p.node not in own for p in ports):
                    total += self._size(kernel, self._stored(value))
        return total

    def _read(self, kernel: KernelTime, node: Node, value: str) -> float:
        """Bytes of ``value`` that ``node`` has to read."""
        if node.op_type in _NOTHING:
            return 0.0
        size = self._size(kernel, value)
        source = self._graph.producer(value)
        while source is not None and source.name not in self._ran and source.inputs and source.inputs[0]:
            size = min(size, self._size(kernel, source.inputs[0]))  # it may be part of this kernel
            source = self._graph.producer(source.inputs[0])
        written = sum(self._size(kernel, v) for v in node.outputs if v)
        if node.op_type in _PARTS or (self._graph.is_fixed(value) and node.op_type not in PRODUCTS | AS_FLOAT.keys()):
            return min(size, written)
        return size * _covered(node, self._graph) if value == node.inputs[0] else size

    def _stored(self, value: str) -> str:
        """What is stored of a value: what the operators that have no kernels of their own make of it."""
        least = value
        while True:
            ports = self._graph.consumers(value)
            if len({p.node for p in ports}) != 1 or ports[0].node in self._ran or ports[0].node == GRAPH_OUTPUT:
                return least
            node = self._graph.node(ports[0].node)
            if not node.outputs or not node.outputs[0]:
                return least
            value = node.outputs[0]
            if (self._graph.size(value) or 0) < (self._graph.size(least) or 0):
                least = value

    def _size(self, kernel: KernelTime, value: str) -> float:
        dtype = self._graph.dtypes.get(value)
        return (self._graph.size(value) or 0) * self._itemsize(kernel, dtype, self._graph.is_fixed(value))

    def _itemsize(self, kernel: KernelTime, dtype: ir.DataType | None, constant: bool) -> float:
        if dtype is None or dtype is ir.DataType.STRING:
            return 0.0
        if not dtype.is_floating_point():
            return float(dtype.itemsize)
        if kernel.family != "float":
            return 0.5 if constant and "NBits" in kernel.op_type else min(1.0, dtype.itemsize)
        return min(2.0, dtype.itemsize) if kernel.precision in _HALVES else float(dtype.itemsize)


def _is_of(kernel: KernelTime, node: Node) -> bool:
    """Whether a kernel is named after the operator of a node."""
    name = AS_FLOAT.get(node.op_type, (node.op_type,))[0]
    return kernel.op_type.endswith(node.op_type) or (name in PRODUCTS and name in kernel.op_type)


def _covered(node: Node, graph: Graph) -> float:
    """Share of its data that the windows of a node visit."""
    plain = as_float(node)
    if plain.op_type not in _WINDOWS or not plain.outputs[0]:
        return 1.0
    wide, narrow = (known_shape(graph.shape(v)) for v in (plain.inputs[0], plain.outputs[0]))
    window: Sequence[int] = plain.attributes.get("kernel_shape") or ()
    if not window and len(plain.inputs) > 1:
        window = (known_shape(graph.shape(plain.inputs[1])) or [])[2:]
    if wide is None or narrow is None or not window or 0 in wide:
        return 1.0
    visited = visits(plain.attributes, wide[2:], narrow[2:], window)
    return math.prod(len(np.unique(at[inside])) for at, inside in visited) / math.prod(wide[2:])
