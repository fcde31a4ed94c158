"""What of a node is part of the pattern of every region that holds it: everything but names and order in the file.

That is the operator, its attributes, the shape and dtype of every input and output, the values of small integer
constants (shapes, axes) and of a Clip's bounds, and which input ports are legal insertion points.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import onnx_ir as ir

from inlay.model.graph import Graph, Node
from inlay.regions.canonical import hash_combine
from inlay.regions.point_filters import Rejections
from inlay.types import Port

COMMUTATIVE = frozenset({"Add", "Mul", "Sum", "Mean", "Max", "Min", "And", "Or", "Xor", "Equal", "BitwiseAnd"})
"""Operators whose inputs may be exchanged."""

_MOST_VALUES = 64
"""Elements up to which an integer constant's values are part of the pattern: shapes and axes, not lookup tables."""

_INTEGERS = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})

_CAPTURED = -1  # in place of a slot


class Read(NamedTuple):
    """One value that a node reads; a tuple, since there is one for every port of the graph.

    Attributes:
        slot: the input slot; -1 if a subgraph of the node reads the value.
        value: its name.
        constant: whether it is an initializer.
        producer: name of the node that computes it; ``""`` if none does.
        output: index among the producer's outputs.
        legal: whether the port is a legal insertion point.
        label: edge label; slots of one node have different ones unless they may be exchanged.
        text: description of the value, without its name.
    """

    slot: int
    value: str
    constant: bool
    producer: str
    output: int
    legal: bool
    label: int
    text: str


class NodeFacts(NamedTuple):
    """A node as part of patterns.

    Attributes:
        digest: over all that is not an edge.
        commutative: whether its inputs may be exchanged.
        reads: present input slots, as written.
        captured: values that its subgraphs read; they have no slot, and so no insertion point.
    """

    digest: bytes
    commutative: bool
    reads: tuple[Read, ...]
    captured: tuple[Read, ...] = ()


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
                legal = self._rejections.allows(Port(node.name, slot))
                label = hash_combine(hash_combine(0 if commutative else slot + 1, legal), output)
                constant = self._graph.is_constant(value)
                reads.append(Read(slot, value, constant, producer, output, legal, label, inputs[slot]))
        if commutative:
            inputs.sort()
        outputs = [self.describe(v) if v else "-" for v in node.outputs]
        text = f"{node.domain}|{node.op_type}|{sorted(node.attributes.items())!r}|{inputs}|{outputs}"
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        return NodeFacts(digest, commutative, tuple(reads), tuple(self._captured(node)))

    def _captured(self, node: Node) -> Iterator[Read]:
        for value in sorted(node.captured):
            producer, output = self._source(value)
            label = hash_combine(hash_text(self.describe(value)), output)
            yield Read(_CAPTURED, value, self._graph.is_constant(value), producer, output, False, label, "")

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


def hash_text(text: str) -> int:
    """A 64-bit hash of ``text``."""
    return hash_bytes(text.encode())


def hash_bytes(data: bytes) -> int:
    """A 64-bit hash of ``data``."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
