"""Share or requantize: whether the inputs of a Concat (Min, Max, Where) take one scale, decided by error and by cost.

Sharing saves requantizing each input, but widens the inputs' ranges. On the path through the operator that costs
nothing, since its output covers the same range anyway. Other readers of an input, however, get a coarser scale, and a
Relu or Clip that was fused, because the limits of the quantized type implied its bounds, needs its own kernel again.

Both sides are compared in the unit of the target's cost table: a dB is worth a share of what the whole model costs in
low precision (:data:`~inlay.calibrate.policy.DB_WORTH`). So a cheap requantization is made for little fidelity, an
expensive one only for much; where sharing loses nothing and keeps all fusions, it is always chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from inlay.calibrate import policy
from inlay.model.graph import Graph, Node
from inlay.model.products import multiply_accumulates
from inlay.quant.observers import Histogram, Range
from inlay.quant.qparams import constant_range
from inlay.space.domains import find_domains, is_shared, shared_values
from inlay.space.rules import Rules
from inlay.types import GRAPH_OUTPUT


@dataclass(frozen=True)
class Sharing:
    """The decision about one operator."""

    node: str  # its name
    share: bool  # its values have the same qparams; otherwise its inputs are requantized
    reason: str  # why, for people
    loss_db: float  # fidelity that other readers of its inputs lose by sharing
    # cost of sharing, lost fidelity included, in the unit of the target's cost table; infinite where a kernel of the
    # target cannot take the shared range
    share_cost: float
    requantize_cost: float  # cost of requantizing, in the same unit


def choose_sharing(
    graph: Graph,
    rules: Rules,
    histograms: Mapping[str, Histogram],
    ranges: Mapping[str, Range],
    flipped: Collection[str] = (),
) -> tuple[Sharing, ...]:
    """Decide for each operator of ``rules.share``, in topological order; domains merged before count as one range.

    ``histograms`` and ``ranges`` are those of each observed value alone. For the operators ``flipped``, the opposite
    decision was measured to be better.
    """
    nodes = [n for n in graph.nodes if n.op_type in rules.share and is_shared(rules, n) and not _moves(rules, n)]
    if not nodes:
        return ()
    domains = _Domains(graph, rules, ranges, frozenset(n.name for n in nodes))
    db_price = policy.DB_WORTH * model_cost(graph, rules)
    decisions = []
    for node in nodes:
        values = shared_values(graph, rules, node)
        inputs = [v for v in dict.fromkeys(values) if v in node.inputs]
        whole = domains.union(values)
        if whole is None or len(inputs) == 0:
            continue
        requantized = sum(graph.size(v) or 0 for v in inputs if domains.range(v) != whole)
        widened = list(domains.members([v for v in inputs if domains.range(v) != whole]))
        unfolded = sum(graph.size(v) or 0 for v in widened if _unfolds(graph, rules, domains, v, whole))
        readers = [v for v in widened if v in histograms and _read_elsewhere(graph, rules, v)]
        loss = max((_loss(histograms[v], domains.range(v), whole) for v in readers), default=0.0)
        decision = _decide(node.name, loss, db_price, rules.unfold_cost * unfolded, rules.requantize_cost * requantized)
        at_zero = next(_beginning_at_zero(graph, rules, domains.members(values)), None) if whole.low < 0 else None
        if at_zero is not None:
            reason = f"the kernel of {at_zero.op_type} {at_zero.name} takes no zero point above the least integer"
            decision = replace(decision, share=False, reason=reason, share_cost=math.inf)
        elif node.name in flipped:
            decision = replace(
                decision, share=not decision.share, reason=f"measured: better than that {decision.reason}"
            )
        decisions.append(decision)
        if decision.share:
            domains.merge(values, whole)
    return tuple(decisions)


def flip_sharing(
    decisions: Sequence[Sharing], measure: Callable[[frozenset[str]], tuple[float, float]]
) -> frozenset[str]:
    """Measure each decision the other way, one after the other, and keep what is better.

    Args:
        measure: latency (any unit) and fidelity in dB with these operators flipped.

    Returns:
        Names of operators that are better flipped. A dB is worth ``DB_WORTH`` of the latency, none above ``ENOUGH_DB``.
        At most ``MAX_FLIPS`` are tried, those with most to requantize first (constants of
        :mod:`inlay.calibrate.policy`).
    """
    best: frozenset[str] = frozenset()
    possible = (d for d in decisions if d.requantize_cost > 0 and math.isfinite(d.share_cost))
    sites = sorted(possible, key=lambda d: -d.requantize_cost)[: policy.MAX_FLIPS]
    if not sites:
        return best
    latency, fidelity = measure(best)
    for site in sites:
        flipped = best | {site.node}
        other, other_db = measure(flipped)
        gained = min(other_db, policy.ENOUGH_DB) - min(fidelity, policy.ENOUGH_DB)
        if math.log(latency / other) + policy.DB_WORTH * gained > policy.MIN_FLIP_GAIN:
            best, latency, fidelity = flipped, other, other_db
    return best


def _decide(node: str, loss: float, db_price: float, unfold_cost: float, requantize_cost: float) -> Sharing:
    share_cost = unfold_cost + loss * db_price
    if loss > policy.MAX_SHARING_LOSS_DB:
        share, reason = False, f"a shared scale would cost other readers of its inputs {loss:.0f} dB"
    elif unfold_cost > requantize_cost:
        share, reason = False, "a shared zero point would unfold an activation, which costs more than requantizing"
    elif share_cost > requantize_cost:
        share, reason = False, f"the {loss:.1f} dB that other readers of its inputs would lose are worth requantizing"
    else:
        share, reason = True, "sharing one scale saves requantizing its inputs"
    return Sharing(node, share, reason, loss, share_cost, requantize_cost)


def model_cost(graph: Graph, rules: Rules) -> float:
    """Rough cost of the whole model in low precision: its products, and a requantization of each result."""
    total = 0.0
    for node in graph.nodes:
        rule = rules.rule(node)
        if rule is None or rule.moves_data:
            continue
        total += rules.requantize_cost * sum(graph.size(v) or 0 for v in node.outputs if v)
        if rule.weight is not None and rule.weight < len(node.inputs):
            total += rules.product_cost * multiply_accumulates(graph, node)
    return total


class _Domains:
    """Values that share qparams so far, with the range of each domain."""

    def __init__(self, graph: Graph, rules: Rules, ranges: Mapping[str, Range], undecided: frozenset[str]) -> None:
        self._domain_of = dict(find_domains(graph, rules, undecided))
        self._members: dict[str, list[str]] = {}
        for value, first in self._domain_of.items():
            self._members.setdefault(first, []).append(value)
        self._ranges: dict[str, Range] = {}
        for value, found in ranges.items():
            first = self._first(value)
            self._ranges[first] = self._ranges[first] | found if first in self._ranges else found
        self._graph = graph

    def _first(self, value: str) -> str:
        return self._domain_of.get(value, value)

    def range(self, value: str) -> Range | None:
        """Range of the domain of ``value``; a constant has its own."""
        found = self._ranges.get(self._first(value))
        constant = self._graph.constant(value) if found is None else None
        return found if constant is None else constant_range(constant)

    def union(self, values: list[str]) -> Range | None:
        """The range that covers the domains of ``values``; None where no range is known."""
        whole = None
        for found in (self.range(v) for v in values):
            if found is not None:
                whole = found if whole is None else whole | found
        return whole

    def members(self, values: list[str]) -> Iterator[str]:
        """All values in the domains of ``values``."""
        for first in dict.fromkeys(self._first(v) for v in values):
            yield from self._members.get(first, [first])

    def merge(self, values: list[str], whole: Range) -> None:
        """Merge the domains of ``values`` into the largest of them, with the range ``whole``."""
        domains = sorted({self._first(v) for v in values}, key=lambda d: len(self._members.get(d, ())))
        first = domains.pop()
        self._domain_of[first] = first
        members = self._members.setdefault(first, [first])
        for other in domains:
            joined = self._members.pop(other, [other])
            members.extend(joined)
            self._domain_of.update(dict.fromkeys(joined, first))
        self._ranges[first] = whole


def _moves(rules: Rules, node: Node) -> bool:
    rule = rules.rule(node)
    return rule is not None and rule.moves_data


def _read_elsewhere(graph: Graph, rules: Rules, value: str) -> bool:
    return any(p.node == GRAPH_OUTPUT or not is_shared(rules, graph.node(p.node)) for p in graph.consumers(value))


def _beginning_at_zero(graph: Graph, rules: Rules, values: Iterable[str]) -> Iterator[Node]:
    """The operators among the producers whose kernels need a range that begins at zero."""
    for producer in (graph.producer(v) for v in values):
        rule = None if producer is None else rules.rule(producer)
        if producer is not None and rule is not None and rule.result.begins_at_zero:
            yield producer


def _loss(histogram: Histogram, own: Range | None, whole: Range) -> float:
    if own is None:
        return 0.0
    centres = (histogram.edges[:-1] + histogram.edges[1:]) / 2
    power = float(np.sum(histogram.counts * centres**2)) / max(1, int(histogram.counts.sum()))

    def fidelity(found: Range) -> float:
        step = (found.high - found.low) / 255
        return (
            policy.ENOUGH_DB
            if step == 0.0 or power == 0.0
            else min(policy.ENOUGH_DB, 10 * math.log10(12 * power / step**2))
        )

    return max(0.0, fidelity(own) - max(fidelity(whole), 0.0))


def _unfolds(graph: Graph, rules: Rules, domains: _Domains, value: str, whole: Range) -> bool:
    """Whether ``value`` comes from an activation that its own range lets fold, and ``whole`` does not."""
    node = graph.producer(value)
    own = domains.range(value)
    before = None if node is None else graph.producer(node.inputs[0])
    if node is None or own is None or before is None or node.op_type not in rules.absorbed:
        return False
    rule = rules.rule(before)
    if rule is None or rule.moves_data:
        return False
    low, high = _bounds(graph, node)
    return low <= own.low and own.high <= high and not (low <= whole.low and whole.high <= high)


def _bounds(graph: Graph, node: Node) -> tuple[float, float]:
    if node.op_type == "Relu":
        return 0.0, math.inf
    known = [graph.constant(v) if v else None for v in (*node.inputs[1:], "", "")]
    low, high = known[:2]
    return (
        float(low) if low is not None and low.size == 1 else -math.inf,
        float(high) if high is not None and high.size == 1 else math.inf,
    )
