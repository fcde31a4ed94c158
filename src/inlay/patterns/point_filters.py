"""Why a port or an output is not a legal insertion point: two tables of named filters, each with its reason.

A filter looks at one port (a consumer's input slot) or at one output value, and returns the reason for rejecting it,
or None. The first filter that gives a reason decides. Ports of constants are not filtered at all: whether they carry
Q/DQ follows from the activations that their operator reads (:class:`inlay.patterns.schemes.SchemeCompletion`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import onnx_ir as ir

from inlay.model.graph import Graph, Node
from inlay.space.rules import Needs, Rules
from inlay.space.units import CONVS, Unit, moved_to_body, residual_main_path, sole_producer
from inlay.types import GRAPH_OUTPUT, Port

TINY_ELEMENTS = 8
"""Tensors with fewer elements are rejected: the Q/DQ pair costs more than an operator on them could save."""

_Item = TypeVar("_Item", int, str)  # an input slot, or an output value


@dataclass(frozen=True)
class Rejection:
    """Why a port or an output is not a legal insertion point."""

    filter: str  # name of the filter that rejected it: a key of `PORT_FILTERS` or `OUTPUT_FILTERS`
    reason: str  # in words


class FilterContext:
    """What filters look at; built once per graph, in linear time.

    Attributes:
        graph, rules: the model and the target's table.
        unit_of: unit of each node, by node name.
        shape_arithmetic: values that are computed from tensor shapes alone.
        allowed: names of the nodes that the user restricted the search to; None means all.
    """

    def __init__(
        self, graph: Graph, rules: Rules, units: Collection[Unit], allowed: frozenset[str] | None = None
    ) -> None:
        self.graph, self.rules, self.allowed = graph, rules, allowed
        self.unit_of = {name: unit for unit in units for name in unit.nodes}
        self.shape_arithmetic = shape_arithmetic(graph)


@dataclass(frozen=True)
class Rejections:
    """For every port that reads a value computed at run time, and for every computed value: why it is rejected."""

    ports: Mapping[Port, Rejection | None]  # None where the port is a legal insertion point
    outputs: Mapping[str, Rejection | None]  # None where the value may be an output insertion point of a region

    def allows(self, port: Port) -> bool:
        """Whether ``port`` is a legal insertion point."""
        return port in self.ports and self.ports[port] is None


PortFilter = Callable[[FilterContext, Node, int], str | None]
OutputFilter = Callable[[FilterContext, Node, str], str | None]


def find_rejections(context: FilterContext) -> Rejections:
    """Apply all filters to all ports and outputs. Linear time."""
    graph = context.graph
    ports: dict[Port, Rejection | None] = {}
    outputs: dict[str, Rejection | None] = {}
    for node in graph.nodes:
        for port, value in node.input_ports():
            if not graph.is_constant(value):
                ports[port] = _first(PORT_FILTERS, context, node, port.slot)
        for value in node.outputs:
            if value:
                outputs[value] = _first(OUTPUT_FILTERS, context, node, value)
    return Rejections(MappingProxyType(ports), MappingProxyType(outputs))


def shape_arithmetic(graph: Graph) -> frozenset[str]:
    """Values computed from nothing but tensor shapes and constants, at least one shape among them."""
    found: set[str] = set()
    for node in graph.nodes:
        reads = [v for v in node.inputs if v and not graph.is_constant(v)]
        if node.op_type in ("Shape", "Size") or (reads and all(v in found for v in reads)):
            found.update(v for v in node.outputs if v)
    return frozenset(found)


def _outside_selection(context: FilterContext, node: Node, _: object) -> str | None:
    """The user restricted the search to other nodes."""
    if context.allowed is not None and node.name not in context.allowed:
        return "the search is restricted to other nodes (--nodes, --recipe)"
    return None


def _carries_subgraph(context: FilterContext, node: Node, slot: int) -> str | None:
    """Bodies of If, Loop and Scan are copied untouched, and so are the values passed to them."""
    return f"{node.op_type} carries a subgraph" if node.has_subgraph else None


def _not_float(context: FilterContext, node: Node, slot: int) -> str | None:
    """QuantizeLinear takes other types too, but calibration and emission handle float32 tensors only."""
    value = node.inputs[slot]
    if context.graph.is_float(value):
        return None
    dtype = context.graph.dtypes.get(value)
    known = "of unknown type" if dtype is None or dtype is ir.DataType.UNDEFINED else dtype.name.lower()
    return f"{value} is {known}, not float32"


def _shape_value(context: FilterContext, node: Node, value: str) -> str | None:
    """Sizes and offsets must stay exact."""
    return f"{value} is computed from tensor shapes" if value in context.shape_arithmetic else None


def _tiny_value(context: FilterContext, node: Node, value: str) -> str | None:
    """See ``TINY_ELEMENTS``."""
    size = context.graph.size(value)
    if size is not None and size < TINY_ELEMENTS:
        return f"{value} has {size} elements, fewer than {TINY_ELEMENTS}"
    return None


def _on_input(value_filter: OutputFilter) -> PortFilter:
    """The filter on ports that looks at the value that the port reads."""

    @functools.wraps(value_filter)
    def on_input(context: FilterContext, node: Node, slot: int) -> str | None:
        return value_filter(context, node, node.inputs[slot])

    return on_input


def _fused_activation(context: FilterContext, node: Node, slot: int) -> str | None:
    """Q/DQ between an operator and the activation fused into it would split the kernel."""
    unit = context.unit_of[node.name]
    if node.name != unit.name and unit.selectable:
        return f"{node.op_type} is folded into {unit.name}: a Q/DQ pair between them would split the kernel"
    return None


def _conv_batchnorm_interior(context: FilterContext, node: Node, slot: int) -> str | None:
    """Conv, its BatchNormalization and the activation after that are fused: no Q/DQ between them."""
    if slot != 0:
        return None
    before = sole_producer(context.graph, node)
    if before is None:
        return None
    if node.op_type == "BatchNormalization" and before.op_type in CONVS:
        return f"it lies between {before.op_type} and BatchNormalization, which become one kernel"
    if before.op_type == "BatchNormalization" and node.op_type in context.rules.absorbed:
        conv = sole_producer(context.graph, before)
        if conv is not None and conv.op_type in CONVS:
            return f"it lies between {conv.op_type}, BatchNormalization and {node.op_type}, which become one kernel"
    return None


def _residual_main_path(context: FilterContext, node: Node, slot: int) -> str | None:
    """See :func:`inlay.space.units.residual_main_path`."""
    bare = residual_main_path(context.graph, context.rules, node) == slot
    return "it is the main path of Conv, Add, Relu, which become one kernel" if bare else None


def _moved_to_body(context: FilterContext, node: Node, slot: int) -> str | None:
    """See :func:`inlay.space.units.moved_to_body`."""
    value = moved_to_body(context.graph, context.rules, node)
    return f"a subgraph reads {value}, which it moves elements to" if value else None


def _no_kernel(context: FilterContext, node: Node, slot: int) -> str | None:
    """Where the target runs the operator in float, Q/DQ before it only costs, unless its producer needs it to fuse."""
    unit = context.unit_of[node.name]
    if unit.selectable and (node.name != unit.name or Port(node.name, slot) in unit.activations):
        return None
    producer = context.graph.producer(node.inputs[slot])
    if producer is not None:
        before = context.unit_of[producer.name]
        if before.selectable and before.rule is not None and before.rule.output is Needs.QUANTIZED:
            return None
    return unit.rejection or f"input {slot} of {node.op_type} is not an activation"


def _output_of_subgraph(context: FilterContext, node: Node, value: str) -> str | None:
    """Subgraphs always read the original value."""
    return f"a subgraph reads {value}" if value in context.graph.captured else None


def _output_not_float(context: FilterContext, node: Node, value: str) -> str | None:
    """As for ports."""
    return None if context.graph.is_float(value) else f"{value} is not a float32 tensor"


def _output_interior(context: FilterContext, node: Node, value: str) -> str | None:
    """A value inside a fused kernel is no output insertion point either."""
    for port in context.graph.consumers(value):
        if port.node == GRAPH_OUTPUT:
            continue
        after = context.graph.node(port.node)
        for port_filter in (_fused_activation, _conv_batchnorm_interior, _residual_main_path):
            reason = port_filter(context, after, port.slot)
            if reason:
                return reason
    return None


def _output_of_float_kernel(context: FilterContext, node: Node, value: str) -> str | None:
    """Q/DQ on the output of a float operator can only pay at its consumers, which have ports of their own."""
    unit = context.unit_of[node.name]
    if not unit.selectable:
        return unit.rejection
    assert unit.rule is not None
    return f"{unit.op_type} writes float" if unit.rule.output is Needs.FLOAT else None


PORT_FILTERS: Mapping[str, PortFilter] = MappingProxyType(
    {
        "nodes": _outside_selection,
        "subgraph": _carries_subgraph,
        "dtype": _not_float,
        "shape-arithmetic": _on_input(_shape_value),
        "tiny": _on_input(_tiny_value),
        "folded-activation": _fused_activation,
        "conv-bn-interior": _conv_batchnorm_interior,
        "residual-main-path": _residual_main_path,
        "moved-to-subgraph": _moved_to_body,
        "no-kernel": _no_kernel,
    }
)
"""Filters on ports in the order of their application. The names stand in ``regions --json``."""

OUTPUT_FILTERS: Mapping[str, OutputFilter] = MappingProxyType(
    {
        "nodes": _outside_selection,
        "subgraph": _output_of_subgraph,
        "dtype": _output_not_float,
        "shape-arithmetic": _shape_value,
        "tiny": _tiny_value,
        "interior": _output_interior,
        "no-kernel": _output_of_float_kernel,
    }
)
"""Filters on outputs in the order of their application."""


def _first(
    filters: Mapping[str, Callable[[FilterContext, Node, _Item], str | None]],
    context: FilterContext,
    node: Node,
    item: _Item,
) -> Rejection | None:
    for name, reason_of in filters.items():
        reason = reason_of(context, node, item)
        if reason:
            return Rejection(name, reason)
    return None
