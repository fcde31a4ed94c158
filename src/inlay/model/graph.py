"""The immutable index of a model's main graph that all analysis reads, keyed by names.

Nothing is keyed by list position. Units, rules, domains, regions and placements come from a :class:`Graph`. It is
built once from the normalized model in linear time; look-ups take constant time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from inlay.errors import ModelError
from inlay.model.flow import SCOPE, is_start, scope_of_input
from inlay.model.gc_pause import gc_paused
from inlay.model.metadata import has_entries
from inlay.model.pinned import DRAWS
from inlay.types import GRAPH_OUTPUT, Port

Shape = tuple[int | None, ...]
"""Dimensions of a tensor; None for an unknown one."""

_SIZES = frozenset({"Shape", "Size"})  # they do not read what their input holds


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One operator of the main graph."""

    name: str  # unique in the graph
    op_type: str  # the operator
    domain: str  # the default one is `""`
    inputs: tuple[str, ...]  # value names in slot order, `""` for an optional input that is absent
    outputs: tuple[str, ...]  # value names in slot order, `""` for an optional output that is absent
    # plain Python values (int, float, str, tuple) of the attributes that are not graphs or tensors
    attributes: Mapping[str, Any] = field(default_factory=dict, repr=False)
    captured: frozenset[str] = frozenset()  # values of this graph that the node's subgraphs (If, Loop, Scan) read
    index: int = -1  # position in topological order
    branch: str = ""  # in which body of which operator it is, as `flow` writes it; empty in none

    @property
    def has_subgraph(self) -> bool:
        """Whether the node carries If/Loop/Scan bodies."""
        return bool(self.captured) or "subgraph" in self.attributes

    def input_ports(self) -> Iterator[tuple[Port, str]]:
        """Each present input slot with the value that it reads."""
        return ((Port(self.name, i), value) for i, value in enumerate(self.inputs) if value)


@dataclass(frozen=True, eq=False, kw_only=True)
class Graph:
    """Nodes in topological order, with values, initializers and the graph's inputs and outputs."""

    nodes: tuple[Node, ...]  # every node of the main graph, in topological order
    inputs: tuple[str, ...]  # names of the graph's inputs (initializers excluded)
    outputs: tuple[str, ...]  # names of the graph's outputs, in order; a name may occur more than once
    initializers: Mapping[str, ir.TensorProtocol]  # constant tensors by name
    dtypes: Mapping[str, ir.DataType]  # element type by value name, if known
    # shape by value name, if its rank is known; dynamic dimensions have the sizes that the caller bound
    shapes: Mapping[str, Shape]
    opset: int  # version of the default ONNX domain
    infinite: frozenset[str] = frozenset()  # names of values that an inference showed to hold infinity or NaN
    masks: frozenset[str] = frozenset()  # names of values, constants among them, that hold masks (`masks`)
    # by name, why one scale does not do for a value whose parts differ in size (`uneven`)
    uneven: Mapping[str, str] = field(default_factory=dict)
    turns: Mapping[str, int] = field(default_factory=dict)  # how often an inference computed values of loops, by name

    @cached_property
    def _by_name(self) -> Mapping[str, Node]:
        table = {n.name: n for n in self.nodes}
        if len(table) != len(self.nodes):
            raise ModelError("two nodes have the same name: normalize the model first")
        return MappingProxyType(table)

    @cached_property
    def _producers(self) -> Mapping[str, Node]:
        return MappingProxyType({v: n for n in self.nodes for v in n.outputs if v})

    @cached_property
    def _consumers(self) -> Mapping[str, tuple[Port, ...]]:
        table: defaultdict[str, list[Port]] = defaultdict(list)
        for node in self.nodes:
            for port, value in node.input_ports():
                table[value].append(port)
        for i, value in enumerate(self.outputs):
            table[value].append(Port(GRAPH_OUTPUT, i))
        return MappingProxyType({v: tuple(ports) for v, ports in table.items()})

    @cached_property
    def captured(self) -> frozenset[str]:
        """Values that some subgraph reads. Such a read is no port: it always sees the original value."""
        return frozenset().union(*(n.captured for n in self.nodes))

    @cached_property
    def has_bodies(self) -> bool:
        """Whether there are branches of Ifs or bodies of loops."""
        return any(n.captured or n.branch for n in self.nodes)

    def is_read_below(self, value: str) -> bool:
        """Whether a body of a Loop or a Scan, or a branch of an If, reads ``value``, which is made outside of it."""
        if value in self.captured:
            return True
        producer = self._producers.get(value)
        ports = [p for p in self.consumers(value) if p.node != GRAPH_OUTPUT]
        return producer is not None and any(self._branch_of(p) != producer.branch for p in ports)

    def _branch_of(self, port: Port) -> str:
        """The body in which a port is, that of a result the body that it results from."""
        node = self._by_name[port.node]
        if is_start(node):
            return self._by_name[node.branch[1:]].branch
        scope = scope_of_input(node, port.slot, len(node.inputs))
        return node.branch if scope is None else scope

    @cached_property
    def _of_inputs(self) -> frozenset[str]:
        """Values whose elements depend on those of an input, on chance, or on the turn of a loop."""
        found = set(self.inputs)
        for node in self.nodes:
            reads = () if node.op_type in _SIZES else (*node.inputs, *node.captured)
            if node.op_type in DRAWS or is_start(node) or not found.isdisjoint(reads):
                found.update(v for v in node.outputs if v)
        return frozenset(found)

    def is_fixed(self, value: str) -> bool:
        """Whether constants and shapes alone decide what ``value`` is: a compiler that knows the sizes computes it."""
        return value not in self._of_inputs

    def node(self, name: str) -> Node:
        """The node called ``name``; KeyError if there is none."""
        return self._by_name[name]

    def has_node(self, name: str) -> bool:
        """Whether there is a node called ``name``."""
        return name in self._by_name

    def producer(self, value: str) -> Node | None:
        """The node that computes ``value``; None for graph inputs and initializers."""
        return self._producers.get(value)

    def consumers(self, value: str) -> tuple[Port, ...]:
        """Every port that reads ``value``: nodes in topological order, then graph outputs."""
        return self._consumers.get(value, ())

    def value_of(self, port: Port) -> str:
        """The value that ``port`` reads; KeyError if there is no such port."""
        names = self.outputs if port.node == GRAPH_OUTPUT else self._by_name[port.node].inputs
        if not 0 <= port.slot < len(names) or not names[port.slot]:
            raise KeyError(port)
        return names[port.slot]

    def successors(self, node: Node) -> Iterator[Node]:
        """Nodes that read an output of ``node``, once for each port."""
        for value in node.outputs:
            for port in self.consumers(value):
                if port.node != GRAPH_OUTPUT:
                    yield self._by_name[port.node]

    def predecessors(self, node: Node) -> Iterator[Node]:
        """Nodes whose outputs ``node`` reads, once for each port."""
        for value in node.inputs:
            producer = self._producers.get(value)
            if producer is not None:
                yield producer

    def is_constant(self, value: str) -> bool:
        """Whether ``value`` is an initializer."""
        return value in self.initializers

    def is_float(self, value: str) -> bool:
        """Whether ``value`` is known to be a float32 tensor, the only type that Q/DQ is inserted on."""
        return self.dtypes.get(value) is ir.DataType.FLOAT

    @cached_property
    def float_outputs(self) -> tuple[str, ...]:
        """Graph outputs of any floating-point type, each once."""
        kinds = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
        return tuple(dict.fromkeys(v for v in self.outputs if self.dtypes.get(v) in kinds))

    def shape(self, value: str) -> Shape | None:
        """Shape of ``value``, or None if not even its rank is known."""
        return self.shapes.get(value)

    def size(self, value: str) -> int | None:
        """Number of elements of ``value``, or None if a dimension is not known."""
        shape = self.shapes.get(value)
        if shape is None or any(d is None for d in shape):
            return None
        return math.prod(d for d in shape if d is not None)

    def constant(self, value: str) -> np.ndarray | None:
        """The content of initializer ``value``, or None if it is not one."""
        tensor = self.initializers.get(value)
        return None if tensor is None else tensor.numpy()


@gc_paused()
def build_graph(model: ir.Model) -> Graph:
    """Index the main graph of ``model``, a normalized one: topologically sorted, unique node names.

    Raises:
        ModelError: a node or value has no name.
    """
    graph = model.graph
    dtypes: dict[str, ir.DataType] = {}
    known: dict[str, Shape] = {}
    same: dict[Shape, Shape] = {}  # a large model has few shapes and attributes, which its operators share
    attributes: dict[str, Mapping[str, Any]] = {}

    def note(value: ir.Value) -> None:
        if value.name is None:
            raise ModelError("a value has no name: normalize the model first")
        if value.dtype is not None:
            dtypes[value.name] = value.dtype
        if value.shape is not None:
            shape = tuple(d if isinstance(d, int) else None for d in value.shape)
            known[value.name] = same.setdefault(shape, shape)

    for value in (*graph.inputs, *graph.initializers.values()):
        note(value)
    nodes = []
    for index, node in enumerate(graph):
        if not node.name:
            raise ModelError(f"a {node.op_type} node has no name: normalize the model first")
        for value in node.outputs:
            note(value)
        nodes.append(_node(node, index, graph, attributes))
    constants = {name: v.const_value for name, v in graph.initializers.items() if v.const_value is not None}
    return Graph(
        nodes=tuple(nodes),
        inputs=tuple(str(v.name) for v in graph.inputs if v.name not in constants),
        outputs=tuple(str(v.name) for v in graph.outputs),
        initializers=MappingProxyType(constants),
        dtypes=MappingProxyType(dtypes),
        shapes=MappingProxyType(known),
        opset=model.opset_imports.get("", 0),
    )


def _node(node: ir.Node, index: int, graph: ir.Graph, known: dict[str, Mapping[str, Any]]) -> Node:
    attributes: dict[str, Any] = {}
    captured: set[str] = set()
    for name, attr in node.attributes.items():
        if attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            attributes["subgraph"] = True
            bodies = [attr.value] if attr.type is ir.AttributeType.GRAPH else attr.value
            for body in bodies:
                captured.update(_captured(body, graph))
        elif attr.type in _PLAIN:
            attributes[name] = tuple(attr.value) if isinstance(attr.value, (list, tuple)) else attr.value
    return Node(
        name=str(node.name),
        op_type=node.op_type,
        domain=node.domain,
        inputs=tuple("" if v is None else str(v.name) for v in node.inputs),
        outputs=tuple("" if v is None or v.name is None else v.name for v in node.outputs),
        attributes=known.setdefault(repr(attributes), MappingProxyType(attributes)),  # equal numbers differ in type
        captured=frozenset(captured) if captured else _NONE,
        index=index,
        branch=node.metadata_props.get(SCOPE, "") if has_entries(node, "metadata_props") else "",
    )


_NONE: frozenset[str] = frozenset()
_PLAIN = frozenset(
    {
        ir.AttributeType.INT,
        ir.AttributeType.INTS,
        ir.AttributeType.FLOAT,
        ir.AttributeType.FLOATS,
        ir.AttributeType.STRING,
        ir.AttributeType.STRINGS,
    }
)


def _captured(body: ir.Graph, graph: ir.Graph) -> Iterator[str]:
    """Names of values of the main ``graph`` that ``body``, or a body within it, reads or returns."""
    for node in body.all_nodes():
        for value in node.inputs:
            if value is not None and value.graph is graph and value.name:
                yield value.name
    for inner in (body, *body.subgraphs()):
        for value in inner.outputs:
            if value.graph is graph and value.name:
                yield value.name
