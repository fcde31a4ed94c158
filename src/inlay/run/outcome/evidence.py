"""What a finished run leaves for its report, beside the result and the journal: graph, units, worst samples, software.

A report is made of the run's folder alone, on any machine, long after the model and the samples have moved away. Kernel
times are not repeated here: the journal has them, by the key of each candidate.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

import numpy as np

from inlay.installed import __version__
from inlay.measure.journal import Fact
from inlay.model.graph import Graph
from inlay.prepare.model import PreparedModel
from inlay.quant.sensitivity import Sensitivity
from inlay.search.cost_model import CostModel
from inlay.space.units import STATIC, Unit
from inlay.trial import decibels
from inlay.types import GRAPH_OUTPUT, Placement, Port

FLOAT = "float"  # precision of a unit of which nothing is quantized
_SOFTWARE = ("numpy", "onnx", "onnx-ir", "scipy")
_LABELLED = 3  # kinds of operators that name a region


@dataclass(frozen=True)
class NodeFacts:
    """One operator of the normalized model."""

    # name, op_type: of the operator
    name: str
    op_type: str
    reads: tuple[str, ...]  # values that it reads, constants excluded
    quantized: tuple[str, ...]  # those of them that it reads through a Q/DQ pair in the delivered model
    writes: tuple[str, ...]  # values that it computes
    region: int  # id of the leaf region that it belongs to; -1 where no regions are known


@dataclass(frozen=True)
class RegionFacts:
    """One region of the region tree: its id, its parent's (-1 for none), and its operators in a few words."""

    id: int
    parent: int
    label: str


@dataclass(frozen=True, kw_only=True)
class UnitFacts:
    """One unit."""

    # name, op_type: of its anchor
    name: str
    op_type: str
    nodes: tuple[str, ...]  # names of its nodes
    precision: str  # in which it is delivered
    rejection: str  # why the target cannot run it in low precision; empty where it can
    # nanoseconds that low precision was expected to save, its Q/DQ aside; None where nothing was learned
    gain_ns: float | None
    noise_db: float | None  # SQNR of the worst output if it alone is in low precision; None where that was not probed


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a report shows beyond the result and the journal."""

    nodes: tuple[NodeFacts, ...]  # of the normalized model, in topological order
    regions: tuple[RegionFacts, ...]  # of the region tree; none where region patterns are not installed
    units: tuple[UnitFacts, ...]  # in topological order
    # inputs, outputs: of the model
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    delivered: str  # key of the delivered candidate in the journal; empty for a file that was given
    floats: str  # key of the normalized float model
    anchors: Mapping[str, str]  # keys of the anchors, by name
    quantized: tuple[str, ...] = ()  # outputs that the delivered model passes through a Q/DQ pair
    # number of each unseen sample in the user's data, from 0, and the SQNR of its worst output in dB
    samples: tuple[tuple[int, float], ...] = ()
    software: Mapping[str, str] = field(default_factory=dict)  # versions of what took part, by name

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Evidence:
        """The evidence whose :func:`dataclasses.asdict` gave ``data``. Raises TypeError or LookupError."""
        parts = {
            "nodes": tuple(NodeFacts(**_tuples(row)) for row in data["nodes"]),
            "regions": tuple(RegionFacts(**row) for row in data["regions"]),
            "units": tuple(UnitFacts(**_tuples(row)) for row in data["units"]),
            "samples": tuple((int(number), float(db)) for number, db in data["samples"]),
        }
        return cls(**{**_tuples({k: v for k, v in data.items() if k not in parts}), **parts})


EVIDENCE: Fact[Evidence] = Fact("evidence", Evidence.from_json, asdict)  # the evidence of a finished run


def evidence_of(
    prepared: PreparedModel,
    placement: Placement | None,
    costs: CostModel,
    sensitivity: Sensitivity | None,
    keys: Mapping[str, str],
    anchors: Mapping[str, str],
    samples: Sequence[tuple[int, float]],
    regions: Mapping[tuple[int, int], Sequence[str]],
) -> Evidence:
    """The evidence of a run.

    Args:
        placement: what was delivered; None for a file that was given.
        sensitivity: what it learned of noise; None where it did not ask.
        keys: of the ``delivered`` and the ``float`` model in the journal.
        regions: the nodes of each region, by its id and its parent's (-1 for none); parents first.
    """
    graph, placement = prepared.graph, placement or Placement()
    innermost = {node: id for (id, _), nodes in regions.items() for node in nodes}
    gains = _gains(costs)
    return Evidence(
        nodes=tuple(
            NodeFacts(
                n.name,
                n.op_type,
                _activations(graph, (*n.inputs, *n.captured)),
                _activations(graph, (v for p, v in n.input_ports() if p in placement)),
                tuple(v for v in n.outputs if v),
                innermost.get(n.name, -1),
            )
            for n in graph.nodes
        ),
        regions=tuple(
            RegionFacts(id, parent, _label([graph.node(n).op_type for n in nodes]))
            for (id, parent), nodes in regions.items()
        ),
        units=tuple(
            UnitFacts(
                name=u.name,
                op_type=u.op_type,
                nodes=u.nodes,
                precision=precision_in(placement, u),
                rejection="" if u.quantizable else u.rejection,
                gain_ns=gains.get(u.name),
                noise_db=None if sensitivity is None or not u.selectable else _noise_db(u, sensitivity),
            )
            for u in prepared.units
        ),
        inputs=graph.inputs,
        outputs=tuple(dict.fromkeys(graph.outputs)),
        delivered=keys["delivered"],
        floats=keys["float"],
        anchors=dict(anchors),
        quantized=tuple(dict.fromkeys(v for i, v in enumerate(graph.outputs) if Port(GRAPH_OUTPUT, i) in placement)),
        samples=tuple(samples),
        software=software(),
    )


def precision_in(placement: Placement, unit: Unit) -> str:
    """The precision that ``placement`` gives ``unit``: static, one of its forms, or float."""
    types = [placement.qtype(p) for p in unit.activations]
    if types and all(qtype is not None and not qtype.half for qtype in types):
        return STATIC
    return unit.form_in(placement) or FLOAT


def software() -> dict[str, str]:
    """Versions of Inlay, Python, the operating system and the packages that every run uses."""
    versions = {name: metadata.version(name) for name in _SOFTWARE}
    return {"inlay": __version__, "python": platform.python_version(), "system": platform.platform(), **versions}


def _gains(costs: CostModel) -> dict[str, float]:
    """Nanoseconds that low precision saves at each unit that can have it, as expected."""
    if not costs.profiled:
        return {}
    problem = costs.expected_problem()
    gained = np.asarray(problem.float_cost - problem.low_cost)
    return {u.name: float(gained[i]) for i, u in enumerate(costs.graph.units) if costs.graph.selectable[i]}


def _noise_db(unit: Unit, sensitivity: Sensitivity) -> float | None:
    powers = [sensitivity.constants.get(unit.name), *(sensitivity.values.get(v) for v in unit.outputs)]
    known = [p for p in powers if p]
    return decibels(float(np.sum(known, axis=0).max())) if known else None


def _activations(graph: Graph, values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(v for v in values if v and not graph.is_constant(v)))


def _label(ops: Sequence[str]) -> str:
    common = Counter(ops).most_common()
    named = ", ".join(f"{n} {op}" if n > 1 else op for op, n in common[:_LABELLED])
    return named + (", …" if len(common) > _LABELLED else "")


def _tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    """``row`` with its lists as tuples: JSON has no others."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
