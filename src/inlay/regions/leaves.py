"""Leaves: runs of nodes around a quantizable anchor, and the sequences that short runs are merged into.

Growth walks the graph once, in topological order. An anchor (an operator with a row in the target's table that
computes) or a node with several producers starts a leaf; a cheap follower joins the leaf of its only producer when it
is that producer's only consumer. Leaves that follow each other in a line are then packed, up to
``maximum_sequence_region_size`` nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inlay.model.graph import Graph, Node
from inlay.regions.fork_join import Blocks
from inlay.space.rules import Rules
from inlay.types import GRAPH_OUTPUT


@dataclass(frozen=True)
class Leaf:
    """Nodes that form one leaf, in topological order, and the block that the leaf lies in."""

    nodes: tuple[str, ...]
    block: int


@dataclass(frozen=True)
class Sequence:
    """Leaves that follow each other in a line, within one block."""

    leaves: tuple[Leaf, ...]
    block: int

    @property
    def size(self) -> int:
        """How many nodes it has."""
        return sum(len(leaf.nodes) for leaf in self.leaves)


def find_sequences(graph: Graph, rules: Rules, blocks: Blocks, folded: Mapping[str, str], limit: int) -> list[Sequence]:
    """Partition all nodes into leaves, and the leaves into sequences; linear time.

    Args:
        graph: the model.
        rules: the target's table, which says what an anchor is.
        blocks: fork/join blocks; no sequence reaches across the border of one.
        folded: anchor's name by the name of the activation folded into it; these two are never parted.
        limit: most nodes of a leaf (a unit that is larger by itself stays whole).
    """
    grown, leaf_of = _grow(graph, rules, blocks, folded, limit)
    homes = [blocks.innermost[nodes[0].name] for nodes in grown]
    previous: list[int | None] = [None] * len(grown)
    for index, nodes in enumerate(grown):
        producer = _only_link(graph, nodes[0])
        if producer is not None:
            before = leaf_of[producer.name]
            if homes[before] == homes[index] and _same_side(blocks, producer, nodes[0]):
                previous[index] = before
    lines: list[list[int]] = []
    line_of: dict[int, int] = {}
    for index in range(len(grown)):
        before_index = previous[index]
        if before_index is None:
            line_of[index] = len(lines)
            lines.append([index])
        else:
            line_of[index] = line_of[before_index]
            lines[line_of[index]].append(index)
    return [_pack([grown[i] for i in line], homes[line[0]], limit) for line in lines]


def _grow(
    graph: Graph, rules: Rules, blocks: Blocks, folded: Mapping[str, str], limit: int
) -> tuple[list[list[Node]], dict[str, int]]:
    leaves: list[list[Node]] = []
    leaf_of: dict[str, int] = {}
    for node in graph.nodes:
        anchor = folded.get(node.name)
        home: int | None = None
        if anchor is not None:
            home = leaf_of[anchor]
        elif not _is_anchor(graph, rules, node):
            producer = _only_link(graph, node)
            if producer is not None and _same_side(blocks, producer, node):
                home = leaf_of[producer.name]
                # one place is kept free for the activation that may still be folded into the last anchor
                if len(leaves[home]) >= limit:
                    home = None
        if home is None:
            home = len(leaves)
            leaves.append([])
        leaves[home].append(node)
        leaf_of[node.name] = home
    return leaves, leaf_of


def _is_anchor(graph: Graph, rules: Rules, node: Node) -> bool:
    rule = rules.rule(node)
    return rule is not None and not rule.moves and rules.rejection(graph, node) is None


def _only_link(graph: Graph, node: Node) -> Node | None:
    """The producer of all that ``node`` reads, when ``node`` is its only consumer."""
    producers = {p.name: p for p in graph.predecessors(node)}
    reads_other = any(graph.producer(v) is None and not graph.is_constant(v) for v in node.inputs if v)
    if len(producers) != 1 or reads_other or node.captured:
        return None
    (producer,) = producers.values()
    for value in producer.outputs:
        if value in graph.captured:
            return None
        for port in graph.consumers(value):
            if port.node != GRAPH_OUTPUT and port.node != node.name:
                return None
    return producer


def _same_side(blocks: Blocks, one: Node, two: Node) -> bool:
    return (one.name in blocks.side) == (two.name in blocks.side)


def _pack(line: list[list[Node]], block: int, limit: int) -> Sequence:
    packed: list[list[str]] = []
    for nodes in line:
        names = [n.name for n in nodes]
        if packed and len(packed[-1]) + len(names) <= limit:
            packed[-1].extend(names)
        else:
            packed.append(names)
    return Sequence(tuple(Leaf(tuple(names), block) for names in packed), block)
