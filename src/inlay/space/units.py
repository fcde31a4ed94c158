"""Units: what a target runs as one kernel, and the ports that running it in low precision implies.

A unit is a node, or a node with the activation that the target folds into it (Conv+Relu). Labelling units
{float, int8} is the coarse way to describe a placement; :func:`placement_from_labels` translates the labels to ports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from inlay.model.graph import Graph, Node
from inlay.space.rules import Needs, OpRule, Rules
from inlay.types import GRAPH_OUTPUT, Placement, Port, QType


@dataclass(frozen=True, eq=False)
class Unit:
    """One node, or an anchor with the activation folded into it.

    Attributes:
        name: name of the anchor.
        nodes: names of all its nodes, anchor first.
        op_type: operator of the anchor.
        rule: the target's row, or None for a unit that stays float.
        refusal: why it stays float; empty when it can run in low precision.
        activations: ports that must read quantized activations (or quantized constants).
        weights: port of the weight, with its constant value quantized per channel; at most one.
        biases: port of the bias; at most one.
        outputs: values that it hands out.
    """

    name: str
    nodes: tuple[str, ...]
    op_type: str
    rule: OpRule | None
    rejection: str
    activations: tuple[Port, ...] = ()
    weights: tuple[Port, ...] = ()
    biases: tuple[Port, ...] = ()
    outputs: tuple[str, ...] = ()

    @property
    def selectable(self) -> bool:
        """Whether it can run in low precision."""
        return self.rule is not None and not self.rejection

    @property
    def moves_data(self) -> bool:
        """Whether it only moves elements."""
        return self.rule is not None and self.rule.moves_data


def find_units(graph: Graph, rules: Rules) -> tuple[Unit, ...]:
    """Partition the nodes of ``graph`` into units, in topological order of their anchors. Linear time."""
    folded: set[str] = set()
    units = []
    for node in graph.nodes:
        if node.name in folded:
            continue
        rule = rules.rule(node)
        follower = _follower(graph, node, rules) if rule is not None and not rule.moves_data else None
        if follower is not None:
            folded.add(follower.name)
        units.append(_unit(graph, rules, node, follower))
    return tuple(units)


def placement_from_labels(
    graph: Graph,
    units: Collection[Unit],
    rules: Rules,
    quantize: Callable[[Unit], bool],
    qtype: Callable[[Unit], QType] | None = None,
) -> Placement:
    """The placement in which every selectable unit with ``quantize(unit)`` runs in low precision.

    Its activations have the type ``qtype(unit)``, or the target's usual one. Where neighbours differ, the consumer's
    type holds.

    Every consumer of a low-precision unit's output reads Q/DQ, since one float consumer would keep the runtime from
    fusing the producer. A unit that can hand out float (``Needs.EITHER``) does so when no consumer reads low precision.
    """
    chosen = [u for u in units if u.selectable and quantize(u)]
    sites: dict[Port, QType] = {}
    for unit in chosen:
        sites.update(dict.fromkeys(unit.activations, rules.activation if qtype is None else qtype(unit)))
        sites.update(dict.fromkeys(unit.weights, rules.weight))
        sites.update(dict.fromkeys(unit.biases, QType.INT32))
    reads = frozenset(sites)
    for unit in chosen:
        assert unit.rule is not None
        for value in unit.outputs:
            consumers = graph.consumers(value)
            if unit.rule.output is Needs.QUANTIZED or any(p in reads for p in consumers):
                given = rules.activation if qtype is None else qtype(unit)
                sites.update({p: given for p in consumers if p not in reads})
    return Placement(sites.items())


def _follower(graph: Graph, node: Node, rules: Rules) -> Node | None:
    """The activation folded into ``node``: the only consumer of its only output."""
    if len(node.outputs) != 1 or node.outputs[0] in graph.captured:
        return None
    consumers = graph.consumers(node.outputs[0])
    if len(consumers) != 1 or consumers[0].node == GRAPH_OUTPUT or consumers[0].slot != 0:
        return None
    after = graph.node(consumers[0].node)
    bounds_known = all(graph.is_constant(v) for v in after.inputs[1:] if v)
    return after if after.op_type in rules.absorbed and after.domain in ("", "ai.onnx") and bounds_known else None


def _unit(graph: Graph, rules: Rules, node: Node, follower: Node | None) -> Unit:
    nodes = (node.name,) if follower is None else (node.name, follower.name)
    outputs = tuple(v for v in (follower or node).outputs if v)
    rule = rules.rule(node)
    rejection = rules.rejection(graph, node) or ""
    if rule is None or rejection:
        return Unit(node.name, nodes, node.op_type, rule, rejection, outputs=outputs)
    weight = rule.weight
    if weight is not None and (weight >= len(node.inputs) or not graph.is_constant(node.inputs[weight])):
        weight = None
    slots = range(len(node.inputs)) if rule.activations is None else rule.activations
    activations = [i for i in slots if i < len(node.inputs) and node.inputs[i] and i != weight]
    if rule.weight is not None and weight is None:
        activations.append(rule.weight)
    bias = rule.bias if rule.bias is not None and len(node.inputs) > rule.bias and node.inputs[rule.bias] else None
    values = [node.inputs[i] for i in (*activations, *(s for s in (weight, bias) if s is not None))]
    rejection = next(_value_rejections(graph, [*values, *outputs], outputs), "")
    if not rejection and all(graph.is_constant(node.inputs[i]) for i in activations):
        rejection = "all that it reads is constant"
    return Unit(
        name=node.name,
        nodes=nodes,
        op_type=node.op_type,
        rule=rule,
        rejection=rejection,
        activations=tuple(Port(node.name, i) for i in activations),
        weights=() if weight is None else (Port(node.name, weight),),
        biases=() if bias is None else (Port(node.name, bias),),
        outputs=outputs,
    )


def _value_rejections(graph: Graph, values: list[str], outputs: tuple[str, ...]) -> Iterator[str]:
    for value in values:
        if not graph.is_float(value):
            dtype = graph.dtypes.get(value)
            yield f"{value} is {dtype.name.lower() if dtype is not None else 'of unknown type'}, not float32"
    for value in outputs:
        if value in graph.captured:
            yield f"a subgraph reads its output {value}, which therefore must stay float"


def rejection_counts(units: Collection[Unit]) -> Counter[str]:
    """How many units stay float, by reason."""
    return Counter(u.rejection for u in units if u.rejection)
