"""Inputs and outputs of regions, by live ranges.

Leaves are numbered in tree order, so that every region is a contiguous range of leaves. A value's live range says in
which leaf it is computed and in which range of leaves it is read; whether it crosses the border of a region then
takes two comparisons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from inlay.model.graph import Graph

LeafRange = tuple[int, int]
"""Half-open range of leaf indices."""

_NONE = -1  # in place of a leaf index


class LiveRange(NamedTuple):
    """Where a value is computed and read; a tuple, since there is one for every value of the graph.

    Attributes:
        defined: index of the leaf that computes it; -1 for a graph input.
        first_use, last_use: smallest and largest index of the leaves that read it; -1 if none does.
        is_graph_output: whether it is a graph output.
    """

    defined: int
    first_use: int
    last_use: int
    is_graph_output: bool


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
