"""Units: what a target runs as one kernel, and the ports that its low-precision label implies.

A unit is a node, or a node with the activation that the target fuses into it (Conv+Relu). A placement can be described
by labelling every unit float or low precision; :func:`placement_from_labels` translates the labels to ports.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from inlay.model.gc_pause import gc_paused
from inlay.model.graph import Graph, Node
from inlay.space.rules import Needs, OpRule, Rules
from inlay.types import GRAPH_OUTPUT, Placement, Port, QType

CONVS = frozenset({"Conv", "ConvTranspose"})
"""Operators whose kernels take in what follows them: BatchNormalization, Add, Relu."""


@dataclass(frozen=True, eq=False, slots=True)
class Unit:
    """One node (the anchor), or an anchor with the activation fused into it."""

    name: str  # name of the anchor
    nodes: tuple[str, ...]  # names of all its nodes, anchor first
    op_type: str  # operator of the anchor
    rule: OpRule | None  # the target's row for it, or None if there is none
    rejection: str  # why it stays float; empty if it can run in low precision
    activations: tuple[Port, ...] = ()  # ports that must read quantized activations (or quantized constants)
    weights: tuple[Port, ...] = ()  # ports of the constant weights, that of the row's `weight` first
    biases: tuple[Port, ...] = ()  # port of the bias; at most one
    outputs: tuple[str, ...] = ()  # values that it computes for other units
    # type of its activations where they are quantized statically; None for the target's usual one
    activation: QType | None = None
    # by the name of each further precision that it has, the ports that this quantizes, with their types. A further
    # static type goes by its own name.
    forms: Mapping[str, tuple[tuple[Port, QType], ...]] = field(default_factory=dict)
    unsearched: frozenset[str] = frozenset()  # those of them that a search does not try

    @property
    def searched(self) -> Mapping[str, tuple[tuple[Port, QType], ...]]:
        """The ``forms`` that a search tries."""
        return {name: sites for name, sites in self.forms.items() if name not in self.unsearched}

    @property
    def table(self) -> str:
        """The form in which the constant that it takes its data from is stored in fewer bits; empty without one."""
        own = {form: sites for form, sites in self.searched.items() if not any(q.half for _, q in sites)}
        return next((form for form, sites in own.items() if [p for p, _ in sites] == [Port(self.name, 0)]), "")

    def form_in(self, placement: Placement) -> str:
        """The form that it has in ``placement``; empty where it has none.

        In half precision it may read integers besides, if what computes them hands them to all readers.
        """
        found = ""
        for form, sites in self.forms.items():
            types = [placement.qtype(port) for port, _ in sites]
            half = None not in types and any(q.half and q in types for _, q in sites)
            same = bool(sites) and all(given is qtype for given, (_, qtype) in zip(types, sites, strict=True))
            if (half or same) and (not found or len(sites) > len(self.forms[found])):
                found = form
        return found

    @property
    def selectable(self) -> bool:
        """Whether it can run in low precision."""
        return self.rule is not None and not self.rejection

    @property
    def quantizable(self) -> bool:
        """Whether it has any precision besides float."""
        return self.selectable or bool(self.forms)

    @property
    def moves_data(self) -> bool:
        """Whether it only moves data (Reshape, MaxPool, …)."""
        return self.rule is not None and self.rule.moves_data


@gc_paused()
def find_units(graph: Graph, rules: Rules) -> tuple[Unit, ...]:
    """Partition the nodes of ``graph`` into units, in topological order of their anchors. Linear time."""
    fused: set[str] = set()
    units = []
    unsearched = frozenset(form.name for form in rules.forms if not form.searched)
    for node in graph.nodes:
        if node.name in fused:
            continue
        rule = rules.rule(node)
        activation = _fused_activation(graph, node, rules) if rule is not None and not rule.moves_data else None
        if activation is not None:
            fused.add(activation.name)
        nodes = (node,) if activation is None else (node, activation)
        forms = {form.name: sites for form in rules.forms if (sites := form.sites(graph, nodes))}
        unit = _unit(graph, rules, node, activation)
        if unit.selectable:
            fast = [t for t, ops in rules.fast.items() if t is not rules.activation and node.op_type in ops]
            forms.update((t.value, tuple(static_sites(unit, rules, t))) for t in fast)
        units.append(replace(unit, forms=forms, unsearched=unsearched))
    return tuple(units)


def static_sites(unit: Unit, rules: Rules, qtype: QType | None = None) -> Iterator[tuple[Port, QType]]:
    """The ports that ``unit`` reads quantized in static precision, with their types; its own type by default."""
    qtype = qtype or unit.activation or rules.activation
    yield from ((port, qtype) for port in unit.activations)
    yield from ((port, rules.weight_beside(qtype)) for port in unit.weights)
    if qtype.takes_bias:
        yield from ((port, QType.INT32) for port in unit.biases)


def static_types(units: Collection[Unit], rules: Rules) -> frozenset[QType]:
    """Every type in which some unit may read activations statically."""
    usual = {u.activation or rules.activation for u in units if u.selectable}
    return frozenset(usual | {t for t in rules.fast if any(t.value in u.forms for u in units)})


STATIC = "static"
"""Name of the precision of a unit whose inputs, weights and outputs carry Q/DQ with fixed scales."""


def able_in_half(units: Collection[Unit], rules: Rules) -> dict[str, list[tuple[Port, QType]]]:
    """By node, the ports at which it reads halves, of the units that may compute in the base's half precision."""
    found: dict[str, list[tuple[Port, QType]]] = {}
    for unit in units if rules.base is not None else ():
        for site in unit.forms.get(rules.base.value if rules.base is not None else "", ()):
            found.setdefault(site[0].node, []).append(site)
    return found


def placement_from_precisions(
    graph: Graph, units: Collection[Unit], rules: Rules, precisions: Mapping[str, str] | Collection[str]
) -> Placement:
    """The placement in which each unit that ``precisions`` names has that precision, and the others are float.

    ``precisions`` maps names of units to :data:`STATIC` or a form of theirs, or lists those that are static.
    """
    given = precisions if isinstance(precisions, Mapping) else dict.fromkeys(precisions, STATIC)
    fast = {t.value: t for t in rules.fast}
    types: dict[str, QType] = {}
    for unit in units:
        precision = given.get(unit.name, "")
        if precision == STATIC:
            types[unit.name] = unit.activation or rules.activation
        elif precision in fast and precision in unit.forms:
            types[unit.name] = fast[precision]
    return placement_from_labels(
        graph, units, rules, lambda u: u.name in types, lambda u: types[u.name], lambda u: given.get(u.name, "")
    )


def placement_from_labels(
    graph: Graph,
    units: Collection[Unit],
    rules: Rules,
    quantize: Callable[[Unit], bool],
    qtype: Callable[[Unit], QType] | None = None,
    form: Callable[[Unit], str] = lambda _: "",
) -> Placement:
    """The placement in which every selectable unit with ``quantize(unit)`` runs in low precision.

    The others run in the precision that ``form`` names, or in float for an empty name. Where such a unit reads what a
    low-precision unit must write as integers, it takes those in place of its own form's.

    Every consumer of a low-precision unit's output reads Q/DQ, since one float consumer would keep the runtime from
    fusing the producer. The output of a unit that can also write float (``Needs.EITHER``) carries Q/DQ only if some
    consumer runs in low precision. ``qtype`` gives the type of a unit's quantized activations, by default its own;
    if producer and consumer differ, the consumer's type is used: a value that is read in two types has two pairs.

    On a base of half precision, whatever else a low-precision unit reads (its bias, the other path of a residual Add)
    is read in that, if the unit can compute in it.
    """
    quantized = [u for u in units if u.selectable and quantize(u)]
    type_of = {u.name: qtype(u) if qtype else u.activation or rules.activation for u in quantized}
    sites: dict[Port, QType] = {}
    for unit in quantized:
        sites.update(static_sites(unit, rules, type_of[unit.name]))
    reads = frozenset(sites)
    for unit in quantized:
        assert unit.rule is not None
        for value in unit.outputs:
            consumers = [p for p in graph.consumers(value) if not _stays_bare(graph, rules, p)]
            if unit.rule.output is Needs.QUANTIZED or any(p in reads for p in consumers):
                sites.update({p: type_of[unit.name] for p in consumers if p not in reads})
    for unit in units:
        name = form(unit) if unit.name not in type_of else rules.base.value if rules.base is not None else ""
        for port, form_type in unit.forms.get(name, ()):
            sites.setdefault(port, form_type)
    return Placement(sites.items())


def residual_main_path(graph: Graph, rules: Rules, add: Node) -> int | None:
    """The input slot of an Add that stays bare because the target fuses Conv→[BN→]Add→Relu; None where there is none.

    This holds only if a Relu, and nothing else, reads the Add, and nothing but the Add reads the Conv's (or its
    BatchNormalization's) output. Of two such paths the first in slot order is the main one, since only one can be
    fused; the other is the skip input, which does carry Q/DQ.
    """
    if not rules.fuses_residual_add or add.op_type != "Add" or add.domain not in ("", "ai.onnx"):
        return None
    after = graph.consumers(add.outputs[0])
    if len(after) != 1 or after[0].node == GRAPH_OUTPUT or graph.node(after[0].node).op_type != "Relu":
        return None
    return next((i for i in range(len(add.inputs)) if _ends_conv(graph, add, i)), None)


def sole_producer(graph: Graph, node: Node, slot: int = 0) -> Node | None:
    """Producer of an input, if ``node`` alone reads the value."""
    value = node.inputs[slot] if slot < len(node.inputs) else ""
    producer = graph.producer(value) if value else None
    if producer is None or len(graph.consumers(value)) != 1 or graph.is_read_below(value):
        return None
    return producer


def _ends_conv(graph: Graph, add: Node, slot: int) -> bool:
    """Whether input ``slot`` of ``add`` comes from a Conv, or its BatchNormalization, that nothing else reads."""
    producer = sole_producer(graph, add, slot)
    if producer is not None and producer.op_type == "BatchNormalization":
        producer = sole_producer(graph, producer)
    return producer is not None and producer.op_type in CONVS


def moved_to_body(graph: Graph, rules: Rules, node: Node) -> str:
    """The value that a body reads of what ``node`` moves, by itself or by more such operators; empty where none does.

    Nothing may be dequantized before it: a runtime moves the DequantizeLinear on to what reads the moved elements, and
    ends the process where that is a body, whose read is no input of its operator.
    """
    left, seen = [node] if graph.has_bodies else [], {node.name}
    for each in left:
        rule = rules.rule(each)
        if rule is None or not rule.moves_data:
            continue
        for value in filter(None, each.outputs):
            if graph.is_read_below(value):
                return value
            behind = {p.node for p in graph.consumers(value) if p.node != GRAPH_OUTPUT and p.slot == 0} - seen
            seen |= behind
            left += map(graph.node, sorted(behind))
    return ""


def _stays_bare(graph: Graph, rules: Rules, port: Port) -> bool:
    if port.node == GRAPH_OUTPUT:
        return False
    node = graph.node(port.node)
    return bool(moved_to_body(graph, rules, node)) or residual_main_path(graph, rules, node) == port.slot


def _fused_activation(graph: Graph, node: Node, rules: Rules) -> Node | None:
    """The activation that is fused into ``node``: the only consumer of its only output."""
    if len(node.outputs) != 1 or graph.is_read_below(node.outputs[0]):
        return None
    consumers = graph.consumers(node.outputs[0])
    if len(consumers) != 1 or consumers[0].node == GRAPH_OUTPUT or consumers[0].slot != 0:
        return None
    after = graph.node(consumers[0].node)
    bounds_known = all(graph.is_constant(v) for v in after.inputs[1:] if v)
    return after if after.op_type in rules.absorbed and after.domain in ("", "ai.onnx") and bounds_known else None


def _unit(graph: Graph, rules: Rules, node: Node, activation: Node | None) -> Unit:
    nodes = (node.name,) if activation is None else (node.name, activation.name)
    outputs = tuple(v for v in (activation or node).outputs if v)
    rule = rules.rule(node)
    rejection = rules.rejection(graph, node) or ""
    if rule is None or rejection:
        return Unit(node.name, nodes, node.op_type, rule, rejection, outputs=outputs)
    weights = tuple(i for i in rule.weights if i < len(node.inputs) and graph.is_constant(node.inputs[i]))
    slots = range(len(node.inputs)) if rule.activations is None else rule.activations
    bare = residual_main_path(graph, rules, node)
    activations = [i for i in slots if i < len(node.inputs) and node.inputs[i] and i not in (*weights, bare)]
    if rule.weight is not None and rule.weight not in weights:
        activations.append(rule.weight)
    bias = rule.bias if rule.bias is not None and len(node.inputs) > rule.bias and node.inputs[rule.bias] else None
    values = [node.inputs[i] for i in (*activations, *weights, *([] if bias is None else [bias]))]
    rejection = next(_value_rejections(graph, [*values, *outputs], outputs), "")
    if not rejection and (value := moved_to_body(graph, rules, node)):
        rejection = f"a subgraph reads {value}, which it moves elements to"
    if not rejection and all(graph.is_constant(node.inputs[i]) for i in activations):
        rejection = "all that it reads is constant"
    return Unit(
        name=node.name,
        nodes=nodes,
        op_type=node.op_type,
        rule=rule,
        rejection=rejection,
        activations=tuple(Port(node.name, i) for i in activations),
        weights=tuple(Port(node.name, i) for i in weights),
        biases=() if bias is None else (Port(node.name, bias),),
        outputs=outputs,
    )


def _value_rejections(graph: Graph, values: list[str], outputs: tuple[str, ...]) -> Iterator[str]:
    for value in values:
        if not graph.is_float(value):
            dtype = graph.dtypes.get(value)
            yield f"it computes with {'an unknown type' if dtype is None else dtype.name.lower()}, not float32"
        elif (array := graph.constant(value)) is not None and not np.isfinite(array).all():
            yield f"{value} holds infinity or NaN, which no integer can represent"
        elif value in graph.infinite:
            yield f"{value} holds infinity or NaN on the first sample, which no integer can represent"
        elif value in graph.masks:
            yield f"{value} holds a mask, far below the scores: one scale for both would leave the scores no steps"
        elif value in graph.uneven:
            yield graph.uneven[value]
    for value in outputs:
        if graph.is_read_below(value):
            yield f"a subgraph reads its output {value}, which therefore must stay float"


_NAMED = re.compile(r"^\S+(?= holds )|(?<= its output )\S+?(?=, which)")
"""The value that a reason names."""


def rejection_counts(units: Collection[Unit]) -> Counter[str]:
    """How many units stay float, by reason; reasons that name other values are one, with the first of these."""
    kinds = dict[str, list[str]]()
    for reason in (u.rejection for u in units if not u.quantizable):
        kinds.setdefault(_NAMED.sub("", reason), []).append(reason)
    found = Counter[str]()
    for reasons in kinds.values():
        alike = len({*reasons}) == 1
        found[reasons[0] if alike else _NAMED.sub(r"\g<0>, for one,", reasons[0]).replace(",,", ",")] = len(reasons)
    return found
