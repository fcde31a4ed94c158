"""Why a port or an output is not offered as an insertion point: one table of named rules, each with its reason.

A rule looks at one port (a consumer's input slot) or at one output value, and returns the reason why it is not
offered, or None. The first rule that objects decides. Constants are not *refused*: they are implied by the
activations that their operator reads (:mod:`inlay.regions.schemes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import onnx_ir as ir

from inlay.model.graph import Graph, Node
from inlay.space.rules import Needs, Rules
from inlay.space.units import Unit, find_units
from inlay.types import GRAPH_OUTPUT, Port

TINY_ELEMENTS = 8
"""Tensors with fewer elements cost more to quantize than any operator on them could save."""


@dataclass(frozen=True)
class Rejection:
    """Why something is not offered: the rule's name, and its reason in words."""

    rule: str
    reason: str


@dataclass(frozen=True, eq=False)
class Context:
    """What rules look at; built once per graph, in linear time.

    Attributes:
        graph, rules: the model and the target's table.
        unit_of: unit of each node, by node name.
        shape_arithmetic: values that are computed from tensor shapes alone.
        allowed: names of the nodes that the user restricted the search to; None means all.
    """

    graph: Graph
    rules: Rules
    unit_of: Mapping[str, Unit]
    shape_arithmetic: frozenset[str]
    allowed: frozenset[str] | None = None


@dataclass(frozen=True)
class Rejections:
    """Verdict on every port that reads a value computed at run time, and on every computed value as an output.

    Attributes:
        ports: None where the port is offered.
        outputs: None where the value may be offered as a region's output.
    """

    ports: Mapping[Port, Rejection | None]
    outputs: Mapping[str, Rejection | None]

    def allows(self, port: Port) -> bool:
        """Whether ``port`` is offered."""
        return port in self.ports and self.ports[port] is None


PortRule = Callable[[Context, Node, int], str | None]
OutputRule = Callable[[Context, Node, str], str | None]


def filter_context(
    graph: Graph, rules: Rules, units: tuple[Unit, ...] | None = None, allowed: frozenset[str] | None = None
) -> Context:
    """Gather what the rules look at."""
    units = find_units(graph, rules) if units is None else units
    unit_of = {name: unit for unit in units for name in unit.nodes}
    return Context(graph, rules, MappingProxyType(unit_of), shape_arithmetic(graph), allowed)


def find_rejections(context: Context) -> Rejections:
    """Apply all rules to all ports and outputs. Linear time."""
    graph = context.graph
    ports: dict[Port, Rejection | None] = {}
    outputs: dict[str, Rejection | None] = {}
    for node in graph.nodes:
        for port, value in node.input_ports():
            if not graph.is_constant(value):
                ports[port] = _port_refusal(context, node, port.slot)
        for value in node.outputs:
            if value:
                outputs[value] = _output_refusal(context, node, value)
    return Rejections(MappingProxyType(ports), MappingProxyType(outputs))


def shape_arithmetic(graph: Graph) -> frozenset[str]:
    """Values computed from nothing but tensor shapes and constants, at least one shape among them."""
    found: set[str] = set()
    for node in graph.nodes:
        reads = [v for v in node.inputs if v and not graph.is_constant(v)]
        if node.op_type in ("Shape", "Size") or (reads and all(v in found for v in reads)):
            found.update(v for v in node.outputs if v)
    return frozenset(found)


def outside_selection(context: Context, node: Node, slot: int) -> str | None:
    """The user restricted the search to other nodes."""
    if context.allowed is not None and node.name not in context.allowed:
        return "the search is restricted to other nodes (--nodes, --recipe)"
    return None


def carries_subgraph(context: Context, node: Node, slot: int) -> str | None:
    """Bodies of If, Loop and Scan are copied untouched, and so is what they are given."""
    return f"{node.op_type} carries a subgraph" if node.has_subgraph else None


def not_float(context: Context, node: Node, slot: int) -> str | None:
    """Q/DQ is set on float32 tensors only."""
    value = node.inputs[slot]
    if context.graph.is_float(value):
        return None
    dtype = context.graph.dtypes.get(value)
    known = "of unknown type" if dtype is None or dtype is ir.DataType.UNDEFINED else dtype.name.lower()
    return f"{value} is {known}, not float32"


def is_shape_arithmetic(context: Context, node: Node, slot: int) -> str | None:
    """Sizes and offsets must stay exact."""
    value = node.inputs[slot]
    return f"{value} is computed from tensor shapes" if value in context.shape_arithmetic else None


def tiny_tensor(context: Context, node: Node, slot: int) -> str | None:
    """Nothing is saved on a handful of numbers."""
    return _tiny(context, node.inputs[slot])


def folded_activation(context: Context, node: Node, slot: int) -> str | None:
    """Between an operator and the activation folded into it there must be nothing."""
    unit = context.unit_of[node.name]
    if node.name != unit.name and unit.selectable:
        return f"{node.op_type} is folded into {unit.name}: a Q/DQ pair between them would part the kernel"
    return None


def conv_batchnorm_interior(context: Context, node: Node, slot: int) -> str | None:
    """Between Conv and its BatchNormalization, and between that and its activation, there must be nothing."""
    if slot != 0:
        return None
    before = _sole_producer(context.graph, node)
    if before is None:
        return None
    if node.op_type == "BatchNormalization" and before.op_type in _CONVS:
        return f"it lies between {before.op_type} and BatchNormalization, which become one kernel"
    if before.op_type == "BatchNormalization" and node.op_type in context.rules.absorbed:
        conv = _sole_producer(context.graph, before)
        if conv is not None and conv.op_type in _CONVS:
            return f"it lies between {conv.op_type}, BatchNormalization and {node.op_type}, which become one kernel"
    return None


def residual_main_path(context: Context, node: Node, slot: int) -> str | None:
    """Where the target folds Conv→[BN→]Add→Relu into one kernel, the path from the Conv into the Add stays bare.

    This holds only when the Add really feeds a Relu (and nothing else), and when nothing but the Add reads what the
    Conv, or its BatchNormalization, computes. Of two such paths the first in slot order is the main one, since only
    one can be folded; the other is the skip input, which does carry Q/DQ.
    """
    if not context.rules.fuses_residual_add or node.op_type != "Add":
        return None
    graph = context.graph
    after = graph.consumers(node.outputs[0])
    if len(after) != 1 or after[0].node == GRAPH_OUTPUT or graph.node(after[0].node).op_type != "Relu":
        return None
    main = next((i for i in range(len(node.inputs)) if _ends_conv(graph, node, i)), None)
    if main == slot:
        return "it is the main path of Conv, Add, Relu, which become one kernel"
    return None


def no_kernel(context: Context, node: Node, slot: int) -> str | None:
    """Reading Q/DQ only costs where the target runs the operator in float, unless the producer needs it to fuse."""
    unit = context.unit_of[node.name]
    if unit.selectable and (node.name != unit.name or Port(node.name, slot) in unit.activations):
        return None
    if _producer_needs_quantized(context, node.inputs[slot]):
        return None
    return unit.rejection or f"input {slot} of {node.op_type} is not an activation"


def output_of_subgraph(context: Context, node: Node, value: str) -> str | None:
    """What a subgraph reads always keeps its original value."""
    return f"a subgraph reads {value}" if value in context.graph.captured else None


def output_not_float(context: Context, node: Node, value: str) -> str | None:
    """Q/DQ is set on float32 tensors only."""
    return None if context.graph.is_float(value) else f"{value} is not a float32 tensor"


def output_is_shape_arithmetic(context: Context, node: Node, value: str) -> str | None:
    """Sizes and offsets must stay exact."""
    return f"{value} is computed from tensor shapes" if value in context.shape_arithmetic else None


def output_tiny(context: Context, node: Node, value: str) -> str | None:
    """Nothing is saved on a handful of numbers."""
    return _tiny(context, value)


def output_interior(context: Context, node: Node, value: str) -> str | None:
    """A value that is refused inside a fused kernel is not offered as an output either."""
    for port in context.graph.consumers(value):
        if port.node == GRAPH_OUTPUT:
            continue
        after = context.graph.node(port.node)
        for rule in (folded_activation, conv_batchnorm_interior, residual_main_path):
            reason = rule(context, after, port.slot)
            if reason:
                return reason
    return None


def output_of_float_kernel(context: Context, node: Node, value: str) -> str | None:
    """Quantizing what a float operator hands out pays only at consumers, which have ports of their own."""
    unit = context.unit_of[node.name]
    if not unit.selectable:
        return unit.rejection
    assert unit.rule is not None
    return f"{unit.op_type} hands out float" if unit.rule.output is Needs.FLOAT else None


def output_outside_selection(context: Context, node: Node, value: str) -> str | None:
    """The user restricted the search to other nodes."""
    return outside_selection(context, node, 0)


PORT_RULES: Mapping[str, PortRule] = MappingProxyType(
    {
        "nodes": outside_selection,
        "subgraph": carries_subgraph,
        "dtype": not_float,
        "shape-arithmetic": is_shape_arithmetic,
        "tiny": tiny_tensor,
        "folded-activation": folded_activation,
        "conv-bn-interior": conv_batchnorm_interior,
        "residual-main-path": residual_main_path,
        "no-kernel": no_kernel,
    }
)
"""Rules on ports, in the order in which they are asked."""

OUTPUT_RULES: Mapping[str, OutputRule] = MappingProxyType(
    {
        "nodes": output_outside_selection,
        "subgraph": output_of_subgraph,
        "dtype": output_not_float,
        "shape-arithmetic": output_is_shape_arithmetic,
        "tiny": output_tiny,
        "interior": output_interior,
        "no-kernel": output_of_float_kernel,
    }
)
"""Rules on outputs, in the order in which they are asked."""

_CONVS = frozenset({"Conv", "ConvTranspose"})


def _port_refusal(context: Context, node: Node, slot: int) -> Rejection | None:
    for name, rule in PORT_RULES.items():
        reason = rule(context, node, slot)
        if reason:
            return Rejection(name, reason)
    return None


def _output_refusal(context: Context, node: Node, value: str) -> Rejection | None:
    for name, rule in OUTPUT_RULES.items():
        reason = rule(context, node, value)
        if reason:
            return Rejection(name, reason)
    return None


def _tiny(context: Context, value: str) -> str | None:
    size = context.graph.size(value)
    if size is not None and size < TINY_ELEMENTS:
        return f"{value} has {size} elements, fewer than {TINY_ELEMENTS}"
    return None


def _sole_producer(graph: Graph, node: Node) -> Node | None:
    """Producer of the first input, when this node alone reads what it computes."""
    value = node.inputs[0] if node.inputs else ""
    producer = graph.producer(value) if value else None
    if producer is None or len(graph.consumers(value)) != 1 or value in graph.captured:
        return None
    return producer


def _ends_conv(graph: Graph, add: Node, slot: int) -> bool:
    """Whether input ``slot`` of ``add`` comes from a Conv, or its BatchNormalization, that nothing else reads."""
    value = add.inputs[slot]
    producer = graph.producer(value) if value else None
    if producer is None or len(graph.consumers(value)) != 1 or value in graph.captured:
        return False
    if producer.op_type == "BatchNormalization":
        producer = _sole_producer(graph, producer)
    return producer is not None and producer.op_type in _CONVS


def _producer_needs_quantized(context: Context, value: str) -> bool:
    producer = context.graph.producer(value)
    if producer is None:
        return False
    unit = context.unit_of[producer.name]
    return unit.selectable and unit.rule is not None and unit.rule.output is Needs.QUANTIZED
