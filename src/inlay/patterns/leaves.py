"""Leaves: short runs of nodes around a quantizable anchor; and sequences of leaves that follow one another in a line.

One pass over the graph in topological order grows leaves. An anchor (an operator that computes and has a row in the
target's table) or a node with several producers starts a leaf; any other node joins the leaf of its only producer if
it is that producer's only consumer. Leaves in a line are then merged up to ``maximum_sequence_region_size`` nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inlay.model.graph import Graph, Node
from inlay.patterns.fork_join import ForkJoins
from inlay.space.rules import Rules
from inlay.types import GRAPH_OUTPUT


@dataclass(frozen=True)
class LeafSequence:
    """Leaves that follow one another in a line."""

    leaves: tuple[tuple[str, ...], ...]  # node names of each leaf in topological order
    block: int  # index of the innermost fork/join block that holds them all, or `NO_BLOCK`

    @property
    def size(self) -> int:
        """Number of nodes."""
        return sum(map(len, self.leaves))


def find_sequences(
    graph: Graph, rules: Rules, blocks: ForkJoins, anchor_of: Mapping[str, str], limit: int
) -> list[LeafSequence]:
    """Partition all nodes into leaves, and the leaves into sequences; linear time.

    Args:
        blocks: fork/join blocks; no sequence crosses the border of one.
        anchor_of: name of the anchor by the name of the activation fused into it; the two share a leaf.
        limit: most nodes of a leaf (a unit that is larger by itself stays whole).
    """
    grown, leaf_of = _grow(graph, rules, blocks, anchor_of, limit)
    block_of = [blocks.innermost[nodes[0].name] for nodes in grown]
    lines: list[list[int]] = []
    line_of: list[list[int]] = []  # by leaf
    for index, nodes in enumerate(grown):
        producer = _sole_producer(graph, nodes[0])
        line: list[int] = []
        if producer is not None and _both_on_path(blocks, producer, nodes[0]):
            before = leaf_of[producer.name]
            if block_of[before] == block_of[index]:
                line = line_of[before]
        if not line:
            lines.append(line)
        line.append(index)
        line_of.append(line)
    return [LeafSequence(_merge([grown[i] for i in line], limit), block_of[line[0]]) for line in lines]


def _grow(
    graph: Graph, rules: Rules, blocks: ForkJoins, anchor_of: Mapping[str, str], limit: int
) -> tuple[list[list[Node]], dict[str, int]]:
    leaves: list[list[Node]] = []
    leaf_of: dict[str, int] = {}
    for node in graph.nodes:
        leaf: int | None = None
        anchor = anchor_of.get(node.name)
        if anchor is not None:
            leaf = leaf_of[anchor]
        elif not _is_anchor(graph, rules, node):
            producer = _sole_producer(graph, node)
            if producer is not None and _both_on_path(blocks, producer, node):
                leaf = leaf_of[producer.name]
                if len(leaves[leaf]) >= limit:
                    leaf = None
        if leaf is None:
            leaf = len(leaves)
            leaves.append([])
        leaves[leaf].append(node)
        leaf_of[node.name] = leaf
    return leaves, leaf_of


def _is_anchor(graph: Graph, rules: Rules, node: Node) -> bool:
    rule = rules.rule(node)
    return rule is not None and not rule.moves_data and rules.rejection(graph, node) is None


def _sole_producer(graph: Graph, node: Node) -> Node | None:
    """The producer of everything that ``node`` reads, if ``node`` is also its only consumer."""
    producers = {p.name: p for p in graph.predecessors(node)}
    reads_other = any(graph.producer(v) is None and not graph.is_constant(v) for v in node.inputs if v)
    if len(producers) != 1 or reads_other or node.captured:
        return None
    (producer,) = producers.values()
    for value in producer.outputs:
        if value in graph.captured:
            return None
        if any(port.node not in (GRAPH_OUTPUT, node.name) for port in graph.consumers(value)):
            return None
    return producer


def _both_on_path(blocks: ForkJoins, one: Node, two: Node) -> bool:
    """Whether both nodes lie on the float data path, or neither does."""
    return (one.name in blocks.auxiliary) == (two.name in blocks.auxiliary)


def _merge(line: list[list[Node]], limit: int) -> tuple[tuple[str, ...], ...]:
    """Merge neighbours in a line of leaves while they fit into one leaf."""
    merged: list[list[str]] = []
    for nodes in line:
        names = [n.name for n in nodes]
        if merged and len(merged[-1]) + len(names) <= limit:
            merged[-1].extend(names)
        else:
            merged.append(names)
    return tuple(map(tuple, merged))
