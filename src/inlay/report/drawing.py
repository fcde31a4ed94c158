"""The graph as data for the page's script: nodes with their layer and place, edges with their price, regions.

A layered drawing (Sugiyama, Tagawa and Toda, 1981): layers by longest paths, few crossings, short edges. Own code,
since the libraries that do it are under the GPL, need a program beside Python, or lack a Python version that is
supported here. The horizontal positions are a library's: a layer in a given order, each node as close as possible to
its neighbors and at least one unit from the next, is an isotonic regression.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from inlay.report.folder import FinishedRun
from inlay.report.kernels import NONE, UnitRow, prices
from inlay.run.outcome.evidence import Evidence

_SWEEPS = 6  # times that all layers are ordered by their neighbors, down and up in turn: more change little
_LONGEST = 12
"""Layers that an edge may span to keep a lane of its own: a mask that every block reads would push all nodes apart."""


def layers_of(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The layer of each node: one more than the highest of its producers, but right above its readers without any.

    Nodes are in topological order; an edge is its producer and its reader.
    """
    layer = [0] * count
    reads: list[bool] = [False] * count
    for producer, reader in sorted(edges, key=lambda e: e[1]):
        layer[reader] = max(layer[reader], layer[producer] + 1)
        reads[reader] = True
    first_reader: dict[int, int] = {}
    for producer, reader in edges:
        first_reader[producer] = min(first_reader.get(producer, layer[reader]), layer[reader])
    return [at if reads[i] else max(0, first_reader.get(i, 1) - 1) for i, at in enumerate(layer)]


def positions(layer: Sequence[int], edges: Sequence[tuple[int, int]]) -> list[float]:
    """The horizontal position of each node: neighbors in a layer are at least 1 apart; the leftmost node is at 0."""
    layers = list(layer)
    below: list[list[int]] = [[] for _ in layer]
    above: list[list[int]] = [[] for _ in layer]
    for producer, reader in dict.fromkeys(edges):
        chain = [producer]
        if 1 < layer[reader] - layer[producer] <= _LONGEST:  # lanes for the edge on its way
            for at in range(layer[producer] + 1, layer[reader]):
                chain.append(len(layers))
                layers.append(at)
                below.append([])
                above.append([])
        chain.append(reader)
        for a, b in itertools.pairwise(chain):
            below[a].append(b)
            above[b].append(a)
    rows: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for node, at in enumerate(layers):
        rows[at].append(node)
    x = [0.0] * len(layers)
    for row in rows:
        for number, node in enumerate(row):
            x[node] = number - (len(row) - 1) / 2.0
    for sweep in range(_SWEEPS):
        order, sides = (rows, above) if sweep % 2 == 0 else (rows[::-1], below)
        for row in order:
            wanted = {n: sum(x[m] for m in sides[n]) / len(sides[n]) if sides[n] else x[n] for n in row}
            row.sort(key=wanted.__getitem__)
            for node, place in zip(row, _apart([wanted[n] for n in row]), strict=True):
                x[node] = place
    leftmost = min(x[: len(layer)], default=0.0)
    return [round(at - leftmost, 2) for at in x[: len(layer)]]


def _apart(wanted: Sequence[float]) -> Sequence[float]:
    """Positions as close as possible to the ``wanted`` ones, which ascend, each at least 1 behind the one before."""
    if all(b - a >= 1.0 for a, b in itertools.pairwise(wanted)):
        return wanted
    steps = np.arange(len(wanted))
    from scipy.optimize import isotonic_regression  # takes long to load, and what draws nothing does not wait

    return [float(at) for at in isotonic_regression(np.asarray(wanted) - steps).x + steps]


def drawing(run: FinishedRun, evidence: Evidence, units: Sequence[UnitRow]) -> dict[str, Any]:
    """The graph, as plain data.

    Returns:
        ``values``: names; ``nodes``: name, operator, layer, position, how it ran, index of its unit (-1 for an input or
        output of the model) and region (likewise); ``edges``: producer, reader, index of the value, whether it is
        quantized, and what its conversions cost in nanoseconds; ``regions``: id, parent, words.
    """
    unit_of = {name: i for i, row in enumerate(units) for name in row.facts.nodes}
    values: dict[str, int] = {}
    maker: dict[str, int] = {}
    nodes: list[list[Any]] = []
    read = {v for n in evidence.nodes for v in n.reads}
    for value in evidence.inputs:
        if value in read:
            maker[value] = len(nodes)
            nodes.append([value, "input", NONE, -1, -1])
    for node in evidence.nodes:
        unit = unit_of.get(node.name, -1)
        maker.update(dict.fromkeys(node.writes, len(nodes)))
        nodes.append([node.name, node.op_type, units[unit].executed if unit >= 0 else NONE, unit, node.region])
    for value in evidence.outputs:
        nodes.append([value, "output", NONE, -1, -1])
    priced = prices(run.profiles.get(evidence.delivered, ()))
    edges: list[list[Any]] = []
    first = len(nodes) - len(evidence.nodes) - len(evidence.outputs)
    for at, node in enumerate(evidence.nodes, first):
        for value in node.reads:
            if value in maker:
                edges.append(_edge(maker[value], at, value, values, value in node.quantized, priced))
    for at, value in enumerate(evidence.outputs, len(nodes) - len(evidence.outputs)):
        if value in maker:
            edges.append(_edge(maker[value], at, value, values, value in evidence.quantized, priced))
    links = [(e[0], e[1]) for e in edges]
    layer = layers_of(len(nodes), links)
    place = positions(layer, links)
    return {
        "values": list(values),
        "nodes": [[n[0], n[1], at, x, *n[2:]] for n, at, x in zip(nodes, layer, place, strict=True)],
        "edges": edges,
        "regions": [[r.id, r.parent, r.label] for r in evidence.regions],
    }


def _edge(
    producer: int, reader: int, value: str, values: dict[str, int], low: bool, priced: Mapping[str, float]
) -> list[Any]:
    return [producer, reader, values.setdefault(value, len(values)), int(low), round(priced.get(value, 0.0))]
