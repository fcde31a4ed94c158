"""Searching without noise: latency as a pure function of the placement, with a planted optimum.

Float costs 100, full coverage of all that pays costs 50. It is an artificial landscape for testing a *search*: costs
depend on operator, slot and shape through a hash, so that instances of a pattern agree, and nothing in it comes from
a runtime. Three of them:

``plain``: each offered port pays, in proportion to a weight of its own. ``mixed``: about one kind of port in six
costs instead of paying; the optimum leaves exactly these out. Kinds are told apart by operator, slot and shape, never
by instance: a per-instance optimum is not reachable with schemes per pattern, by design. ``paired``: ports pay
nothing on their own. A unit pays when all its inputs and all consumers of its outputs are covered, and every covered
port costs a little.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from inlay.patterns.node_facts import COMMUTATIVE
from inlay.patterns.search_space import SearchSpace
from inlay.search.base import Strategy
from inlay.space.rules import Needs
from inlay.trial import Accuracy, Interval, Latency, Measured, Proposal, Trial
from inlay.types import Placement, Port

Kind = Literal["plain", "mixed", "paired"]


def _share(*parts: object) -> float:
    text = "|".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big") / float(1 << 48)


def planted_latency(space: SearchSpace, kind: Kind) -> Callable[[Placement], float]:
    """The latency of a placement in ``space``: 100 for float, about 50 at the optimum."""
    return _paired(space) if kind == "paired" else _separable(space, 1 / 6 if kind == "mixed" else 0.0)


def _separable(space: SearchSpace, harmful: float) -> Callable[[Placement], float]:
    graph = space.graph
    weights: dict[Port, float] = {}
    for port, rejection in space.rejections.ports.items():
        if rejection is None:
            node = graph.node(port.node)
            slot = "" if node.op_type in COMMUTATIVE or node.op_type == "Concat" else port.slot
            key = (node.op_type, slot, graph.shape(node.inputs[port.slot]))
            # a Concat's ports never cost: Inlay covers them whenever all other consumers are covered (promotion)
            costs = _share("s", *key) < harmful and node.op_type != "Concat"
            weights[port] = (0.5 + _share("w", *key)) * (-1 if costs else 1)
    gain = sum(w for w in weights.values() if w > 0)
    return lambda placement: 100 - 50 * sum(w for p, w in weights.items() if p in placement) / gain


def _paired(space: SearchSpace) -> Callable[[Placement], float]:
    graph = space.graph
    units = []
    for unit in space.units:
        if unit.selectable and unit.rule is not None and not unit.moves_data:
            needs = [p for p in unit.activations if not graph.is_constant(graph.value_of(p))]
            if unit.rule.output is Needs.QUANTIZED:
                needs += [p for v in unit.outputs for p in graph.consumers(v)]
            shape = graph.shape(unit.outputs[0])
            units.append((needs, 0.5 + _share(unit.op_type, shape)))
    ports = {p for needs, _ in units for p in needs}
    toll = 0.1 * sum(g for _, g in units) / max(1, len(ports))
    full = sum(g for _, g in units) - toll * len(ports)

    def latency(placement: Placement) -> float:
        gain = sum(g for needs, g in units if all(p in placement for p in needs))
        return 100 - 50 * (gain - toll * sum(p in placement for p in ports)) / full

    return latency


@dataclass
class PlantedEvaluator:
    """Stands in for the tuning loop: prices proposals, and accepts what is faster than everything accepted before."""

    latency: Callable[[Placement], float]
    best: float = 100.0
    measured: int = 0

    def __call__(self, proposal: Proposal) -> Trial:
        self.measured += 1
        now = self.latency(proposal.placement)
        versus = Interval(self.best / now, self.best / now, self.best / now)
        accepted = now < self.best
        if accepted:
            self.best = now
        speedup = Interval(100 / now, 100 / now, 100 / now)
        outcome = Measured(Latency(now * 1e6, speedup, 1), Accuracy(True, 40.0))
        return Trial(proposal, outcome, accepted, versus)


def drive(strategy: Strategy, evaluator: PlantedEvaluator, limit: int = 100_000) -> list[float]:
    """Drive ``strategy`` to its end; the best latency after each measurement."""
    course: list[float] = []
    while len(course) < limit and (proposal := strategy.ask()) is not None:
        strategy.tell(evaluator(proposal))
        course.append(evaluator.best)
    return course
