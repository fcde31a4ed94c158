"""The region tree: LEAF regions partition the nodes, COMPOSITE regions hold child regions, one ROOT holds all.

::

    fork/join blocks (fork_join) ─┐
    sequences of leaves (leaves) ─┴─▶ tree ─▶ inputs and outputs of every region

A fork/join block becomes a COMPOSITE. So does a sequence that is too long for one leaf, if it has at least
``minimum_topdown_search_size`` nodes and is not the whole content of its parent.

Leaves are numbered in tree order, so that every region is a contiguous range of leaves. A value's live range says in
which leaf it is computed and in which range of leaves it is read; whether it crosses the border of a region then
takes two comparisons.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from inlay.errors import UsageError
from inlay.model.graph import Graph
from inlay.patterns.config import Config
from inlay.patterns.fork_join import NO_BLOCK, find_fork_joins
from inlay.patterns.leaves import LeafSequence, find_sequences
from inlay.space.rules import Rules
from inlay.space.units import Unit

LeafRange = tuple[int, int]  # half-open range of leaf indices

_NONE = -1  # in place of a leaf index


class LiveRange(NamedTuple):
    """Where a value is computed and read; a tuple, since there is one for every value of the graph."""

    defined: int  # index of the leaf that computes it; -1 for a graph input
    # first_use, last_use: smallest and largest index of the leaves that read it; -1 if none does
    first_use: int
    last_use: int
    is_graph_output: bool  # whether it is a graph output


def find_live_ranges(graph: Graph, leaf_index: Mapping[str, int]) -> dict[str, LiveRange]:
    """The live range of every value that is not constant, by the index of each node's leaf. Linear time."""
    found: dict[str, list[int]] = {v: [_NONE, _NONE, _NONE] for v in graph.inputs}
    for node in graph.nodes:  # in topological order: a value is computed before it is read
        leaf = leaf_index[node.name]
        for value in (*node.inputs, *node.captured) if node.captured else node.inputs:
            live = found.get(value)
            if live is None:
                continue  # a constant, or an absent optional input
            if live[1] == _NONE:
                live[1] = live[2] = leaf
            elif leaf < live[1]:
                live[1] = leaf
            elif leaf > live[2]:
                live[2] = leaf
        for value in node.outputs:
            if value:
                found[value] = [leaf, _NONE, _NONE]
    outputs = set(graph.outputs)
    return {v: LiveRange(defined, first, last, v in outputs) for v, (defined, first, last) in found.items()}


def leaves_region(live: LiveRange, region: LeafRange) -> bool:
    """Whether a value computed inside ``region`` is read outside it or is a graph output."""
    begin, end = region
    return live.is_graph_output or (live.last_use != _NONE and (live.first_use < begin or live.last_use >= end))


def crossing(
    reads: Iterable[str], writes: Iterable[str], live_ranges: Mapping[str, LiveRange], region: LeafRange
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of the values that ``region`` reads and computes: those from outside, and those that leave it; each once."""
    begin, end = region
    inputs = dict.fromkeys(v for v in reads if not begin <= live_ranges[v].defined < end)
    outputs = dict.fromkeys(v for v in writes if leaves_region(live_ranges[v], region))
    return tuple(inputs), tuple(outputs)


class RegionType(enum.Enum):
    """What a region is made of."""

    LEAF = "LEAF"  # nodes
    COMPOSITE = "COMPOSITE"  # child regions
    ROOT = "ROOT"  # the whole graph, as child regions


@dataclass(frozen=True, eq=False, slots=True)
class Region:
    """One region of the tree."""

    id: int  # index in `RegionTree.regions`; a parent's is smaller than its children's. ROOT is 0.
    type: RegionType  # LEAF, COMPOSITE or ROOT
    level: int  # 0 for leaves, otherwise one more than the highest level among the children
    parent: int | None  # id of the parent; None for ROOT
    # child regions in topological order of their first nodes; empty for leaves
    children: tuple[Region, ...] = field(repr=False)
    # names of a leaf's nodes in topological order; empty for the others
    direct_nodes: tuple[str, ...] = field(repr=False)
    # values that the region reads but does not compute, constants excluded, in order of the first read
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]  # values that it computes and that are read outside or are graph outputs
    size: int  # number of nodes, including those of child regions
    leaf_range: LeafRange = field(repr=False)  # half-open range of its leaves, counted in tree order

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes inside, leaf by leaf."""
        return tuple(name for leaf in self.leaves() for name in leaf.direct_nodes)

    def leaves(self) -> Iterator[Region]:
        """All leaves inside (a leaf yields itself), in tree order."""
        return (r for r in self.walk() if r.type is RegionType.LEAF)

    def walk(self) -> Iterator[Region]:
        """The region and all regions inside, parents first."""
        stack = [self]
        while stack:
            region = stack.pop()
            yield region
            stack.extend(reversed(region.children))


@dataclass(frozen=True, eq=False)
class RegionTree:
    """All regions of a graph."""

    root: Region  # the ROOT region
    regions: tuple[Region, ...]  # every region, by id
    leaf_of: Mapping[str, Region]  # the leaf that holds a node, by node name
    # the leaves in which each value is computed and read, by value name
    live_ranges: Mapping[str, LiveRange] = field(repr=False)


def find_regions(graph: Graph, units: Collection[Unit], rules: Rules, config: Config) -> RegionTree:
    """Partition ``graph`` into a tree of regions. O(edges · log nodes).

    Operators that compute and have a row in ``rules`` are the anchors of leaves; ``config`` bounds the sizes of leaves
    and of sequences.
    """
    anchor_of = {name: unit.nodes[0] for unit in units for name in unit.nodes[1:]}
    blocks = find_fork_joins(graph)
    sequences = find_sequences(graph, rules, blocks, anchor_of, config.maximum_sequence_region_size)
    order = {node.name: node.index for node in graph.nodes}

    # content[b] is what lies directly in block b; the last entry (index NO_BLOCK) is the root's
    content: list[list[_Draft]] = [[] for _ in range(len(blocks.parents) + 1)]
    for sequence in sequences:
        content[sequence.block].extend(_drafts(sequence, order, config.minimum_topdown_search_size))
    for index in range(len(blocks.parents) - 1, -1, -1):  # children before their parents
        parent = content[blocks.parents[index]]
        inner = _flatten(content[index])
        if len(inner) > 1:
            parent.append(_Draft(min(d.first for d in inner), RegionType.COMPOSITE, inner))
        else:
            parent.extend(inner)
    return _build(graph, _Draft(0, RegionType.ROOT, _flatten(content[NO_BLOCK])))


RegionGroup = Sequence["str | RegionGroup"]  # A region that the user supplies: names of its nodes, or its child regions


def regions_of_groups(graph: Graph, groups: Iterable[RegionGroup], config: Config) -> RegionTree:
    """The tree of regions that a user supplies; nodes that are in none of them become leaves as they come.

    Args:
        groups: the regions right below the root.
        config: bounds the leaves of what is left.

    Raises:
        UsageError: a group is empty, mixes nodes and regions, or names a node that does not exist or is in another one.
    """
    order = {node.name: node.index for node in graph.nodes}
    taken: set[str] = set()

    def draft(group: RegionGroup) -> _Draft:
        items = [group] if isinstance(group, str) else list(group)
        names = [item for item in items if isinstance(item, str)]
        inner = [item for item in items if not isinstance(item, str)]
        if bool(names) == bool(inner):
            raise UsageError(f"regions: a region holds names of nodes, or regions, not {items!r}")
        for name in names:
            if name not in order:
                raise UsageError(f"regions: there is no node {name!r} in the normalized model (see .graph)")
            if name in taken:
                raise UsageError(f"regions: node {name!r} is in two regions")
            taken.add(name)
        if names:
            names.sort(key=order.__getitem__)
            return _Draft(order[names[0]], RegionType.LEAF, [], tuple(names))
        children = [draft(item) for item in inner]
        return _Draft(min(c.first for c in children), RegionType.COMPOSITE, children)

    drafts = [draft(group) for group in groups]
    run: list[str] = []
    for node in [*graph.nodes, None]:
        if node is not None and node.name not in taken:
            run.append(node.name)
        if run and (node is None or node.name in taken or len(run) == config.maximum_sequence_region_size):
            drafts.append(_Draft(order[run[0]], RegionType.LEAF, [], tuple(run)))
            run = []
    return _build(graph, _Draft(0, RegionType.ROOT, drafts))


@dataclass
class _Draft:
    """A region before ids are assigned; ``first`` is the topological index of its first node."""

    first: int
    type: RegionType
    children: list[_Draft]
    nodes: tuple[str, ...] = ()


def _drafts(sequence: LeafSequence, order: Mapping[str, int], least: int) -> list[_Draft]:
    leaves = [_Draft(order[nodes[0]], RegionType.LEAF, [], nodes) for nodes in sequence.leaves]
    if len(leaves) > 1 and sequence.size >= least:
        return [_Draft(leaves[0].first, RegionType.COMPOSITE, leaves)]
    return leaves


def _flatten(content: list[_Draft]) -> list[_Draft]:
    """A composite that is its parent's only content would repeat it: its children take its place."""
    if len(content) == 1 and content[0].type is RegionType.COMPOSITE:
        return content[0].children
    return content


def _build(graph: Graph, root: _Draft) -> RegionTree:
    """Assign ids parents first, then build the regions children first."""
    drafts: list[tuple[_Draft, int | None, int]] = []  # by id, with the parent's id and the first leaf's index
    leaf_index: dict[str, int] = {}  # by node name
    leaves = 0
    stack: list[tuple[_Draft, int | None]] = [(root, None)]
    while stack:
        draft, parent = stack.pop()
        region_id = len(drafts)
        drafts.append((draft, parent, leaves))
        if draft.type is RegionType.LEAF:
            leaf_index.update(dict.fromkeys(draft.nodes, leaves))
            leaves += 1
        draft.children.sort(key=lambda d: d.first)
        stack.extend((child, region_id) for child in reversed(draft.children))
    live_ranges = find_live_ranges(graph, leaf_index)

    built: list[Region] = []  # last id first
    children_of: list[list[Region]] = [[] for _ in drafts]
    for region_id in range(len(drafts) - 1, -1, -1):
        draft, parent, begin = drafts[region_id]
        region = _region(graph, live_ranges, draft, region_id, parent, begin, tuple(reversed(children_of[region_id])))
        built.append(region)
        if parent is not None:
            children_of[parent].append(region)
    regions = tuple(reversed(built))
    leaf_of = {name: region for region in regions for name in region.direct_nodes}
    return RegionTree(regions[0], regions, MappingProxyType(leaf_of), live_ranges)


def _region(
    graph: Graph,
    live_ranges: Mapping[str, LiveRange],
    draft: _Draft,
    region_id: int,
    parent: int | None,
    begin: int,
    children: tuple[Region, ...],
) -> Region:
    is_leaf = draft.type is RegionType.LEAF
    leaf_range = (begin, children[-1].leaf_range[1] if children else begin + is_leaf)
    nodes = [graph.node(name) for name in draft.nodes]
    reads = [v for n in nodes for v in (*n.inputs, *sorted(n.captured)) if v and not graph.is_constant(v)]
    writes = [v for n in nodes for v in n.outputs if v]
    reads += [v for child in children for v in child.inputs]
    writes += [v for child in children for v in child.outputs]
    inputs, outputs = crossing(reads, writes, live_ranges, leaf_range)
    return Region(
        id=region_id,
        type=draft.type,
        level=0 if is_leaf else 1 + max((c.level for c in children), default=0),
        parent=parent,
        children=children,
        direct_nodes=draft.nodes,
        inputs=inputs,
        outputs=outputs,
        size=sum(c.size for c in children) + len(draft.nodes),
        leaf_range=leaf_range,
    )
