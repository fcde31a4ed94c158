"""Values that must share quantization parameters, because some operator only moves elements between them."""

from __future__ import annotations

from collections.abc import Mapping

from scipy.cluster.hierarchy import DisjointSet

from inlay.model.graph import Graph
from inlay.targets.base import Rules


def find_domains(graph: Graph, rules: Rules) -> Mapping[str, str]:
    """The representative of each value's domain, for values that share theirs with another. Near-linear time.

    Inputs and outputs of an operator that moves elements (Reshape, MaxPool, …), or that the target wants shared
    (``rules.share``), are one domain wherever the operator stands, quantized or not: sharing costs nothing there, since
    the values are the same numbers.
    """
    sets: DisjointSet[str] = DisjointSet()
    for node in graph.nodes:
        rule = rules.rule(node)
        if rule is None or not (rule.moves or node.op_type in rules.share):
            continue
        slots = range(len(node.inputs)) if rule.activations is None else rule.activations
        members = [node.inputs[i] for i in slots if i < len(node.inputs) and node.inputs[i]]
        members += [v for v in node.outputs if v]
        members = [v for v in members if graph.is_float(v) and not graph.is_constant(v)]
        for value in members:
            sets.add(value)
            sets.merge(members[0], value)
    return {value: first for subset in sets.subsets() for first in [min(subset)] for value in subset}
