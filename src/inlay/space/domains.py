"""Values that must share quantization parameters, and clusters of operators that are quantized or left float together.

*Domains* are about qparams: the inputs and outputs of an operator that only moves data, or that the target's policy
names (``Rules.share``), have one scale and zero point. *Clusters* are about the decision whether to quantize: such
operators gain nothing from low precision by themselves, so that a cluster of them takes the type of its neighbours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from inlay.model.graph import Graph, Node
from inlay.space.rules import Rules
from inlay.types import GRAPH_OUTPUT, QType

COMPARISONS = frozenset({"Min", "Max", "Where", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
"""Operators that compare their inputs or select among them: only the inputs share qparams, not the output."""


def find_domains(graph: Graph, rules: Rules, requantize: Collection[str] = ()) -> Mapping[str, str]:
    """The representative of each value's domain, for values that share theirs with another. Near-linear time.

    The inputs and outputs of an operator that moves data (Reshape, MaxPool, …) or is in ``rules.share`` are one domain
    whether or not the operator is quantized: where data is only moved, the values have the same range anyway. Constants
    belong to the domain if nothing else reads them. Nodes of ``rules.share`` that ``requantize`` names are left out:
    their inputs keep qparams of their own. What the operators of one family read is one domain.
    """
    from scipy.cluster.hierarchy import DisjointSet  # takes long to load: what is refused or fails before is so at once

    sets: DisjointSet[str] = DisjointSet()
    for node in graph.nodes:
        if not is_shared(rules, node) or node.name in requantize:
            continue
        members = shared_values(graph, rules, node)
        for value in members:
            sets.add(value)
            sets.merge(members[0], value)
    for family in rules.families(graph):
        for node in family[1:]:
            sets.add(family[0].inputs[0])
            sets.add(node.inputs[0])
            sets.merge(family[0].inputs[0], node.inputs[0])
    return {value: first for subset in sets.subsets() for first in [min(subset)] for value in subset}


def is_shared(rules: Rules, node: Node) -> bool:
    """Whether the values around ``node`` share qparams: it moves data, or the target's policy names it."""
    rule = rules.rule(node)
    return rule is not None and (rule.moves_data or node.op_type in rules.share)


def shared_values(graph: Graph, rules: Rules, node: Node) -> list[str]:
    """The values around a shared operator that share qparams: float ones; constants if nothing else reads them.

    None do where one scale would lose a part of one: what a Concat joins keeps ranges of its own then.
    """
    if not graph.uneven.keys().isdisjoint((*node.inputs, *node.outputs)):
        return []
    rule = rules.rule(node)
    assert rule is not None
    slots = range(len(node.inputs)) if rule.activations is None else rule.activations
    members = [node.inputs[i] for i in slots if i < len(node.inputs) and node.inputs[i]]
    if rule.moves_data or node.op_type not in COMPARISONS:
        members += [v for v in node.outputs if v]
    return [
        v
        for v in members
        if graph.is_float(v) and (not graph.is_constant(v) or (not rule.moves_data and len(graph.consumers(v)) == 1))
    ]


@dataclass(frozen=True)
class Cluster:
    """Connected shared operators, and the decision about them."""

    nodes: tuple[str, ...]  # their names, in the order of the search
    qtype: QType | None  # the type of all values around them, or None if they stay float
    reason: str  # for the decision
    competing: tuple[QType, ...] = ()  # types of other neighbours, which were not taken


def find_clusters(
    graph: Graph,
    shared: Collection[str],
    decided: Mapping[str, QType | None],
    boundary: Collection[str] = (),
    fallback: QType | None = None,
) -> tuple[Cluster, ...]:
    """Decide about every shared operator that has no decision of its own.

    A breadth-first search in both directions finds the undecided shared operators that are connected, and collects the
    types of their decided neighbours: producers of inputs first, then consumers. The first type is taken for the whole
    cluster. The type of a uint8 model input or output is not taken: the cluster takes ``fallback``, and the Q/DQ pair
    at the boundary requantizes. So it does if its only quantized neighbours are model inputs or outputs. A neighbour
    that was decided to be float does not count as quantized.

    Args:
        decided: the type of every operator with a decision; None for float.
        boundary: model inputs and outputs that are quantized.
        fallback: the global activation type; None if that is float.
    """
    undecided = {n for n in shared if n not in decided}
    clusters: list[Cluster] = []
    seen: set[str] = set()
    for root in graph.nodes:
        if root.name not in undecided or root.name in seen:
            continue
        seen.add(root.name)
        queue, touched = deque([root]), ""
        members: list[str] = []
        types: dict[QType, str] = {}
        while queue:
            node = queue.popleft()
            members.append(node.name)
            for neighbour, value in _neighbours(graph, node):
                if neighbour is None:
                    touched = touched or (value if value in boundary else "")
                elif neighbour.name in undecided:
                    if neighbour.name not in seen:
                        seen.add(neighbour.name)
                        queue.append(neighbour)
                else:
                    edge, qtype = _boundary_type(graph, neighbour)
                    touched = touched or edge
                    qtype = decided.get(neighbour.name) if qtype is None else qtype
                    if qtype is not None and not (edge and qtype is QType.UINT8):
                        types.setdefault(qtype, neighbour.name)
        clusters.append(_cluster(tuple(members), types, touched, fallback))
    return tuple(clusters)


def _cluster(members: tuple[str, ...], types: Mapping[QType, str], touched: str, fallback: QType | None) -> Cluster:
    if types:
        (first, name), *others = types.items()
        return Cluster(members, first, f"its cluster follows {name}", tuple(t for t, _ in others))
    if touched and fallback is not None:
        return Cluster(members, fallback, f"its cluster touches {touched}, and takes the global configuration")
    return Cluster(members, None, "its cluster has no quantized neighbour")


def _neighbours(graph: Graph, node: Node) -> Iterator[tuple[Node | None, str]]:
    """Neighbours along float values: producers, then consumers, each with the value; None at the model's boundary."""
    for value in node.inputs:
        if value and graph.is_float(value) and not graph.is_constant(value):
            yield graph.producer(value), value
    for value in node.outputs:
        if value and graph.is_float(value):
            for port in graph.consumers(value):
                yield (None if port.node == GRAPH_OUTPUT else graph.node(port.node)), value


_INTEGERS = {ir.DataType.UINT8: QType.UINT8, ir.DataType.INT8: QType.INT8, ir.DataType.INT16: QType.INT16}


def _boundary_type(graph: Graph, node: Node) -> tuple[str, QType | None]:
    """The integer model input that a DequantizeLinear reads, or model output that a QuantizeLinear writes."""
    if node.op_type == "DequantizeLinear" and node.inputs[0] in graph.inputs:
        return node.inputs[0], _INTEGERS.get(graph.dtypes.get(node.inputs[0], ir.DataType.UNDEFINED))
    if node.op_type == "QuantizeLinear" and node.outputs[0] in graph.outputs:
        return node.outputs[0], _INTEGERS.get(graph.dtypes.get(node.outputs[0], ir.DataType.UNDEFINED))
    return "", None
