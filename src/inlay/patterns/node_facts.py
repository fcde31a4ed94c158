"""What of a node is part of the pattern of every region that holds it: everything but names and order in the file.

That is the operator, its attributes, the shape and dtype of every input and output, the values of small integer
constants (shapes, axes) and of a Clip's bounds, and which input ports are legal insertion points.
:class:`StructureDescriber` gathers less: what stays the same when a network is built for another resolution, width or
batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import onnx_ir as ir

from inlay.model.graph import Graph, Node
from inlay.patterns.canonical import hash_combine
from inlay.patterns.point_filters import Rejections
from inlay.types import Port

COMMUTATIVE = frozenset({"Add", "Mul", "Sum", "Mean", "Max", "Min", "And", "Or", "Xor", "Equal", "BitwiseAnd"})
"""Operators whose inputs may be exchanged."""

_MOST_VALUES = 64
"""Elements up to which an integer constant's values are part of the pattern: shapes and axes, not lookup tables."""

_INTEGERS = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})

_CAPTURED = -1  # in place of a slot


class Read(NamedTuple):
    """One value that a node reads; a tuple, since there is one for every port of the graph."""

    slot: int  # the input slot; -1 if a subgraph of the node reads the value
    value: str  # its name
    constant: bool  # whether it is an initializer
    producer: str  # name of the node that computes it; `""` if none does
    output: int  # index among the producer's outputs
    legal: bool  # whether the port is a legal insertion point
    label: int  # edge label; slots of one node have different ones unless they may be exchanged
    text: str  # description of the value, without its name


class NodeFacts(NamedTuple):
    """A node as part of patterns."""

    digest: bytes  # over all that is not an edge
    commutative: bool  # whether its inputs may be exchanged
    reads: tuple[Read, ...]  # present input slots, as written
    captured: tuple[Read, ...] = ()  # values that its subgraphs read; they have no slot, and so no insertion point


class NodeDescriber:
    """Gathers the facts of nodes and the descriptions of values; both are cached.

    Which ports are legal (``rejections``) is part of a pattern, so that a scheme fits every instance.
    """

    def __init__(self, graph: Graph, rejections: Rejections) -> None:
        self._graph = graph
        self._rejections = rejections
        self._described: dict[str, str] = {}
        self._constant_values: dict[str, str] = {}
        self._facts: dict[str, NodeFacts] = {}

    def facts(self, node: Node) -> NodeFacts:
        """The facts of ``node``."""
        found = self._facts.get(node.name)
        if found is None:
            found = self._facts[node.name] = self._gather(node)
        return found

    def describe(self, value: str) -> str:
        """Dtype and shape of a value, and whether it is constant."""
        found = self._described.get(value)
        if found is None:
            dtype = self._graph.dtypes.get(value)
            shape = self._graph.shape(value)
            known = "?" if shape is None else ",".join("?" if d is None else str(d) for d in shape)
            kind = "=" if self._graph.is_constant(value) else ""
            found = self._described[value] = f"{kind}{'?' if dtype is None else dtype.name}[{known}]"
        return found

    def _gather(self, node: Node) -> NodeFacts:
        commutative = node.op_type in COMMUTATIVE
        inputs = [self._describe_input(node, value) for value in node.inputs]
        reads = []
        for slot, value in enumerate(node.inputs):
            if value:
                producer, output = self._source(value)
                legal = self._is_legal(Port(node.name, slot))
                label = hash_combine(hash_combine(0 if commutative else slot + 1, legal), output)
                constant = self._graph.is_constant(value)
                reads.append(Read(slot, value, constant, producer, output, legal=legal, label=label, text=inputs[slot]))
        if commutative:
            inputs.sort()
        outputs = [self.describe(v) if v else "-" for v in node.outputs]
        text = f"{node.domain}|{node.op_type}|{self._attributes(node)!r}|{inputs}|{outputs}"
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        return NodeFacts(digest, commutative, tuple(reads), tuple(self._captured(node)))

    def marks_output(self, value: str) -> str:
        """What is noted of an output that leaves its region: ``O`` for a legal insertion point, else ``o``."""
        return "O" if self._rejections.outputs.get(value) is None else "o"

    def _is_legal(self, port: Port) -> bool:
        return self._rejections.allows(port)

    def _attributes(self, node: Node) -> list[tuple[str, Any]]:
        return sorted(node.attributes.items())

    def _captured(self, node: Node) -> Iterator[Read]:
        for value in sorted(node.captured):
            producer, output = self._source(value)
            label = hash_combine(hash_text(self.describe(value)), output)
            yield Read(
                _CAPTURED, value, self._graph.is_constant(value), producer, output, legal=False, label=label, text=""
            )

    def _source(self, value: str) -> tuple[str, int]:
        producer = self._graph.producer(value)
        return ("", 0) if producer is None else (producer.name, producer.outputs.index(value))

    def _describe_input(self, node: Node, value: str) -> str:
        if not value:
            return "-"
        if not self._graph.is_constant(value):
            return self.describe(value)
        part_of_operator = self._graph.dtypes.get(value) in _INTEGERS or node.op_type == "Clip"
        return f"const {self.describe(value)} {self._values_of(value) if part_of_operator else ''}"

    def _values_of(self, constant: str) -> str:
        found = self._constant_values.get(constant)
        if found is None:
            size = self._graph.size(constant)
            array = self._graph.constant(constant) if size is not None and size <= _MOST_VALUES else None
            found = self._constant_values[constant] = "" if array is None else repr(array.ravel().tolist())
        return found


_SIZES = frozenset({"pads", "output_shape", "output_padding", "shape", "split", "sizes", "scales", "hidden_size"})
"""Attributes that follow from sizes, whatever the operator."""

_WINDOW = ("kernel_shape", "strides", "dilations")
"""Attributes of sliding windows: what a Conv computes, but in pooling the size of what is pooled."""

_CONVS = frozenset({"Conv", "ConvTranspose"})
_AXES_SLOT = {"Squeeze": 1, "Unsqueeze": 1, "ReduceMean": 1, "ReduceSum": 1, "ReduceMax": 1, "ReduceMin": 1}
"""Operators with an input of axes; all other integer constants are taken for sizes."""


class StructureDescriber(NodeDescriber):
    """Gathers what does not depend on sizes: operators, attributes that matter, dtypes and ranks.

    A Conv's groups count as none, one for each channel, or some; its window as its weight has it, written out or not.
    Legality is left out, since it depends on sizes: what is not legal in one model is dropped from a scheme there.
    """

    def describe(self, value: str) -> str:
        """Dtype and rank of a value, and whether it is constant."""
        dtype, shape = self._graph.dtypes.get(value), self._graph.shape(value)
        kind = "=" if self._graph.is_constant(value) else ""
        return f"{kind}{'?' if dtype is None else dtype.name}[{'?' if shape is None else len(shape)}]"

    def marks_output(self, value: str) -> str:
        """An output that leaves its region, legal insertion point or not."""
        return "o"

    def _is_legal(self, port: Port) -> bool:
        return True

    def _attributes(self, node: Node) -> list[tuple[str, Any]]:
        found = {name: value for name, value in node.attributes.items() if name not in (*_SIZES, *_WINDOW, "auto_pad")}
        if node.op_type in _CONVS:
            weight = self._graph.shape(node.inputs[1]) or ()
            rank = max(0, len(weight) - 2)
            found["group"] = self._groups(node)
            found["kernel_shape"] = weight[2:]
            found |= {name: tuple(node.attributes.get(name) or (1,) * rank) for name in ("strides", "dilations")}
        rank_in = len(self._graph.shape(node.inputs[0]) or ()) if node.inputs else 0
        if isinstance(found.get("axis"), int) and found["axis"] < 0 < rank_in:
            found["axis"] += rank_in
        return sorted(found.items())

    def _groups(self, node: Node) -> str:
        groups = int(node.attributes.get("group", 1))
        shape = self._graph.shape(node.inputs[0])
        channels = None if shape is None or len(shape) < 2 else shape[1]
        return "one" if groups == 1 else "each" if groups == channels else "some"

    def _describe_input(self, node: Node, value: str) -> str:
        if not value:
            return "-"
        if not self._graph.is_constant(value):
            return self.describe(value)
        slot = _AXES_SLOT.get(node.op_type)
        matters = node.op_type == "Clip" or (slot is not None and node.inputs.index(value) == slot)
        return f"const {self.describe(value)} {self._values_of(value) if matters else ''}"


def hash_text(text: str) -> int:
    """A 64-bit hash of ``text``."""
    return hash_bytes(text.encode())


def hash_bytes(data: bytes) -> int:
    """A 64-bit hash of ``data``."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
