"""The region tree: LEAF regions partition the nodes, COMPOSITE regions hold child regions, one ROOT holds all.

::

    fork/join blocks (forkjoin) ─┐
    leaves, sequences (leaves) ──┴─▶ tree ─▶ inputs and outputs of every region (boundaries)

A block becomes a COMPOSITE. A sequence of leaves that is too long for one leaf becomes a COMPOSITE of its pieces when
it has at least ``minimum_topdown_search_size`` nodes and is not all that its parent holds.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from inlay.model.graph import Graph
from inlay.regions.boundaries import Boundary, LiveRange, boundary_of_leaf, boundary_of_parts, find_live_ranges
from inlay.regions.fork_join import NO_BLOCK, find_fork_joins
from inlay.regions.leaves import Leaf, Sequence, find_sequences
from inlay.space.rules import Rules
from inlay.space.units import Unit, find_units


class RegionType(enum.Enum):
    """What a region is made of."""

    LEAF = "LEAF"  # nodes
    COMPOSITE = "COMPOSITE"  # child regions
    ROOT = "ROOT"  # the whole graph, as child regions


@dataclass(frozen=True, eq=False)
class Region:
    """One region of the tree.

    Attributes:
        id: number in the tree; parents have smaller numbers than their children. ROOT is 0.
        type: LEAF, COMPOSITE or ROOT.
        level: height in the tree: 0 for leaves, one more than the highest child otherwise.
        parent: id of the parent; None for ROOT.
        children: child regions in topological order of their first nodes; empty for leaves.
        direct_nodes: names of a leaf's nodes in topological order; empty for the others.
        inputs: values that the region reads and does not compute, constants excluded, in order of the first read.
        outputs: values that it computes and that are read outside, or are graph outputs.
        size: how many nodes it holds, children's included.
        extent: its leaves' places in the order of all leaves, as a half-open range.
    """

    id: int
    type: RegionType
    level: int
    parent: int | None
    children: tuple[Region, ...] = field(repr=False)
    direct_nodes: tuple[str, ...] = field(repr=False)
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    size: int
    extent: tuple[int, int] = field(repr=False)

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
    """All regions of a graph.

    Attributes:
        root: the ROOT region.
        regions: every region, by id.
        leaf_of: leaf that a node is in, by node name.
        extents: in which leaves each value is computed and read.
    """

    root: Region
    regions: tuple[Region, ...]
    leaf_of: Mapping[str, Region]
    live_ranges: Mapping[str, LiveRange] = field(repr=False)


def find_regions(
    graph: Graph,
    rules: Rules,
    *,
    maximum_sequence_region_size: int = 10,
    minimum_topdown_search_size: int = 10,
    units: tuple[Unit, ...] | None = None,
) -> RegionTree:
    """Cut ``graph`` into a tree of regions. O(edges · log nodes).

    Args:
        graph: the model.
        rules: what the target runs in low precision: its computing operators are the anchors of leaves.
        maximum_sequence_region_size: most nodes of a leaf.
        minimum_topdown_search_size: fewest nodes of a sequence that gets a COMPOSITE of its own.
        units: ``find_units(graph, rules)``, where the caller has them already.
    """
    units = find_units(graph, rules) if units is None else units
    folded = {name: unit.nodes[0] for unit in units for name in unit.nodes[1:]}
    blocks = find_fork_joins(graph)
    sequences = find_sequences(graph, rules, blocks, folded, max(1, maximum_sequence_region_size))
    order = {node.name: node.index for node in graph.nodes}

    # ``parts[b]`` holds what lies directly in block b; index -1 is the root's
    parts: list[list[_Part]] = [[] for _ in range(len(blocks.blocks) + 1)]
    for sequence in sequences:
        parts[sequence.block].extend(_parts_of(sequence, order, minimum_topdown_search_size))
    for index in range(len(blocks.blocks) - 1, -1, -1):  # children before their parents
        parent = blocks.blocks[index].parent
        content = _unwrapped(parts[index])
        if len(content) > 1:
            parts[parent].append(_Part(min(p.first for p in content), RegionType.COMPOSITE, content))
        else:
            parts[parent].extend(content)
    top = _Part(0, RegionType.ROOT, _unwrapped(parts[NO_BLOCK]))
    return _build(graph, top)


@dataclass
class _Part:
    """A region in the making."""

    first: int
    type: RegionType
    children: list[_Part]
    leaf: Leaf | None = None


def _parts_of(sequence: Sequence, order: Mapping[str, int], least: int) -> list[_Part]:
    leaves = [_Part(order[leaf.nodes[0]], RegionType.LEAF, [], leaf) for leaf in sequence.leaves]
    if len(leaves) > 1 and sequence.size >= least:
        return [_Part(leaves[0].first, RegionType.COMPOSITE, leaves)]
    return leaves


def _unwrapped(content: list[_Part]) -> list[_Part]:
    """A sequence that is all there is needs no region of its own beside its parent's."""
    if len(content) == 1 and content[0].type is RegionType.COMPOSITE:
        return content[0].children
    return content


def _build(graph: Graph, top: _Part) -> RegionTree:
    """Number the regions parents first, then make them children first."""
    numbered: list[tuple[_Part, int | None]] = []
    leaf_place: dict[str, int] = {}
    begins: list[int] = []
    stack: list[tuple[_Part, int | None]] = [(top, None)]
    places = 0
    while stack:
        part, parent = stack.pop()
        here = len(numbered)
        numbered.append((part, parent))
        begins.append(places)
        if part.leaf is not None:
            leaf_place.update(dict.fromkeys(part.leaf.nodes, places))
            places += 1
        part.children.sort(key=lambda p: p.first)
        stack.extend((child, here) for child in reversed(part.children))
    live_ranges = find_live_ranges(graph, leaf_place)
    made: dict[int, Region] = {}
    children_of: list[list[Region]] = [[] for _ in numbered]
    for here in range(len(numbered) - 1, -1, -1):
        part, parent = numbered[here]
        children = tuple(reversed(children_of[here]))
        region = _region(graph, live_ranges, part, here, parent, begins[here], children)
        made[here] = region
        if parent is not None:
            children_of[parent].append(region)
    regions = tuple(made[i] for i in range(len(made)))
    leaf_of = {n: r for r in regions for n in r.direct_nodes}
    return RegionTree(regions[0], regions, MappingProxyType(leaf_of), live_ranges)


def _region(
    graph: Graph,
    live_ranges: Mapping[str, LiveRange],
    part: _Part,
    here: int,
    parent: int | None,
    begin: int,
    children: tuple[Region, ...],
) -> Region:
    end = children[-1].extent[1] if children else begin + (part.leaf is not None)
    nodes = part.leaf.nodes if part.leaf is not None else ()
    if part.leaf is not None:
        edge = boundary_of_leaf(graph, nodes, live_ranges, (begin, end))
    else:
        edge = boundary_of_parts([Boundary(c.inputs, c.outputs) for c in children], live_ranges, (begin, end))
    return Region(
        id=here,
        type=part.type,
        level=1 + max((c.level for c in children), default=0) if part.leaf is None else 0,
        parent=parent,
        children=children,
        direct_nodes=nodes,
        inputs=edge.inputs,
        outputs=edge.outputs,
        size=sum(c.size for c in children) + len(nodes),
        extent=(begin, end),
    )
