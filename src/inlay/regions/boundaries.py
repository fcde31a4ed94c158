"""Inputs and outputs of regions.

Leaves are numbered in tree order, so a region is a range of leaf numbers. A value's extent says in which leaf it is
computed and in which range of leaves it is read; whether it crosses the border of a region is then two comparisons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from inlay.model.graph import Graph

_NOWHERE = -1


class LiveRange(NamedTuple):
    """Where a value lives; there is one for every value, hence a tuple.

    Attributes:
        produced: number of the leaf that computes it; -1 for a graph input.
        first, last: smallest and largest number of the leaves that read it.
        leaves_graph: it is a graph output.
    """

    produced: int
    first: int
    last: int
    leaves_graph: bool


@dataclass(frozen=True)
class Boundary:
    """Values that cross a region's border inwards and outwards."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def find_live_ranges(graph: Graph, leaf_place: Mapping[str, int]) -> dict[str, LiveRange]:
    """The extent of every value that is not constant, given each node's leaf number. Linear time."""
    places: dict[str, list[int]] = {v: [_NOWHERE, _NOWHERE, _NOWHERE] for v in graph.inputs}
    for node in graph.nodes:  # in topological order: a value is computed before it is read
        here = leaf_place[node.name]
        for value in (*node.inputs, *node.captured) if node.captured else node.inputs:
            place = places.get(value)
            if place is None:
                continue  # a constant, or an input that is absent
            if place[1] == _NOWHERE:
                place[1] = place[2] = here
            elif here < place[1]:
                place[1] = here
            elif here > place[2]:
                place[2] = here
        for value in node.outputs:
            if value:
                places[value] = [here, _NOWHERE, _NOWHERE]
    out = set(graph.outputs)
    return {v: LiveRange(produced, first, last, v in out) for v, (produced, first, last) in places.items()}


def leaves_region(extent: LiveRange, region: tuple[int, int]) -> bool:
    """Whether a value computed inside ``region`` is read outside of it, or is a graph output."""
    begin, end = region
    return extent.leaves_graph or (extent.last != _NOWHERE and (extent.first < begin or extent.last >= end))


def boundary_of_leaf(
    graph: Graph, nodes: Iterable[str], live_ranges: Mapping[str, LiveRange], region: tuple[int, int]
) -> Boundary:
    """Inputs and outputs of a leaf with these ``nodes``."""
    inputs: dict[str, None] = {}
    outputs: dict[str, None] = {}
    for name in nodes:
        node = graph.node(name)
        for value in (*node.inputs, *sorted(node.captured)):
            if value and not graph.is_constant(value) and not _inside(live_ranges[value].produced, region):
                inputs[value] = None
        outputs.update(dict.fromkeys(v for v in node.outputs if v and leaves_region(live_ranges[v], region)))
    return Boundary(tuple(inputs), tuple(outputs))


def boundary_of_parts(
    parts: Iterable[Boundary], live_ranges: Mapping[str, LiveRange], region: tuple[int, int]
) -> Boundary:
    """Inputs and outputs of a region whose child regions have the boundaries ``parts``."""
    inputs: dict[str, None] = {}
    outputs: dict[str, None] = {}
    for part in parts:
        inputs.update(dict.fromkeys(v for v in part.inputs if not _inside(live_ranges[v].produced, region)))
        outputs.update(dict.fromkeys(v for v in part.outputs if leaves_region(live_ranges[v], region)))
    return Boundary(tuple(inputs), tuple(outputs))


def _inside(place: int, region: tuple[int, int]) -> bool:
    return region[0] <= place < region[1]


__all__ = ["Boundary", "LiveRange", "boundary_of_leaf", "boundary_of_parts", "find_live_ranges", "leaves_region"]
