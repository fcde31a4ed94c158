"""What may keep each operator from running on integers: the rows of its target's preconditions that are not met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from inlay.explanation import policy
from inlay.explanation.executed import Executed, operators_of
from inlay.model.graph import Graph
from inlay.quant.site import Site
from inlay.space.rules import Rules, no_form_of
from inlay.targets.preconditions import Precondition


@dataclass(frozen=True, eq=False)
class Fault:
    """A row that one operator does not meet, and how that is said."""

    row: Precondition
    text: str
    advice: str


@dataclass(frozen=True, eq=False)
class Suspect:
    """One operator with what may be wrong at it."""

    name: str  # of its node
    faults: tuple[Fault, ...]  # in the order of the table
    unsupported: str  # why the target has no low precision for it at all; empty where it has
    zone: frozenset[str]  # the operators around it whose Q/DQ nodes its mends may touch, and itself


def suspects(graph: ir.Graph, plain: Graph, rules: Rules, rows: Sequence[Precondition]) -> Mapping[str, Suspect]:
    """Every operator of a Q/DQ graph, by node name.

    Args:
        plain: the float graph inside it, for conditions that do not speak of Q/DQ.
    """
    found = {}
    for node in operators_of(graph):
        name, site = str(node.name), Site(node, rules)
        why = ""
        if plain.has_node(name):
            why = rules.rejection(plain, plain.node(name)) or ""
        elif rules.ops.get(node.op_type) is None:
            why = no_form_of(node.op_type)
        faults = () if why else tuple(_faults(site, rows))
        found[name] = Suspect(name, faults, why, frozenset(_zone(site)))
    return found


def misread(graph: ir.Graph, rules: Rules, rows: Sequence[Precondition], ran: Executed) -> tuple[str, ...]:
    """What ``ran`` on integers and computes something else than the nodes of ``graph`` say, each with what to do."""
    sites = [Site(node, rules) for node in operators_of(graph) if ran.is_low(str(node.name))]
    found = [(row, site, row.fault_at(site)) for site in sites for row in rows if row.runs]
    told = [f"{text}; {row.advice_at(site)}" for row, site, text in found if text is not None]
    others = len(told) - policy.MISREAD_LISTED
    return (*told[: policy.MISREAD_LISTED], *([f"so do {others} other operators"] if others > 0 else []))


def _faults(site: Site, rows: Sequence[Precondition]) -> list[Fault]:
    """The rows that keep an operator in float."""
    found = []
    for row in rows:
        if row.runs:
            continue
        text = row.fault_at(site)
        if text is not None:
            found.append(Fault(row, text, row.advice_at(site)))
            if row.alone:
                break
    return found


def _zone(site: Site) -> set[str]:
    """An operator and those that write what it reads, or read what it writes."""
    zone = {str(site.node.name)}
    for read in site.activations:
        source = read.value if read.quantizer is None else read.quantizer.inputs[0]
        producer = source.producer() if source is not None else None
        if producer is not None:
            zone.add(str(producer.name))
        shared = source.uses() if source is not None else ()
        zone.update(str(r.name) for u in shared for r in _operators(u.node))
    for result in site.results:
        zone.update(str(n.name) for n in result.absorbed)
        zone.update(str(r.name) for n in (*result.floats, *result.quantizers) for r in _operators(n))
    return zone


def _operators(node: ir.Node) -> list[ir.Node]:
    """A node, or where it is a Q or DQ the operators behind it."""
    left, found = [node], []
    while left:
        each = left.pop()
        if each.op_type in ("QuantizeLinear", "DequantizeLinear"):
            left += [u.node for u in each.outputs[0].uses()]
        else:
            found.append(each)
    return found
