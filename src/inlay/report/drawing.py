"""The graph as data for the page's script: nodes with their layer and place, edges with their price, regions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inlay.report.folder import FinishedRun
from inlay.report.kernels import NONE, UnitRow, prices
from inlay.report.layered import layers_of, positions
from inlay.run.outcome.evidence import Evidence


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
