"""The orders of axes with which a part of a graph moves fewest bytes.

One order after another is offered to all operators of a part at once, and who takes it follows from a minimum cut: the
expansion moves of Boykov, Veksler and Zabih, *Fast approximate energy minimization via graph cuts* (2001). A value with
several readers is turned once for all that want it in the same order, which auxiliary nodes of the network say.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from math import inf

import numpy as np
import onnx_ir as ir

from inlay.model.min_cut import SINK, SOURCE, FlowNetwork
from inlay.model.passes.axes import Order
from inlay.model.passes.layout_parts import TURN_BYTES, Costs, Labels, price_of

_MOST_ORDERS = 6  # offered to a part, the most frequent ones; two are usual


def best_orders(costs: Costs) -> Labels:
    """Orders of least cost that expansion moves reach from where the part is, and from one order for all."""
    part, best = costs.part, dict[ir.Node, Order](costs.part.nodes)
    asked = Counter(
        order for s in costs.sources for order in (s.order, *(o for _, o in s.readers))
    )  # of which each is one that somebody wants
    orders = [order for order, _ in asked.most_common(_MOST_ORDERS)]
    if not part.nodes or len(orders) < 2:
        return best
    starts = [best, *({n: o if costs.may(n, o) else was for n, was in part.nodes.items()} for o in orders)]
    for labels in starts:
        changed = True
        while changed:
            changed = False
            for order in orders:
                tried = _expanded(costs, labels, order)
                if price_of(costs.of(tried)) < price_of(costs.of(labels)):
                    labels, changed = tried, True
        if price_of(costs.of(labels)) < price_of(costs.of(best)):
            best = labels
    return best


class _Cut:
    """The network of one expansion move: on the source's side is what takes the order that is offered."""

    def __init__(self) -> None:
        self.nodes = 2
        self._edges: list[tuple[int, int]] = []
        self._capacities: list[float] = []

    def add(self, tail: int, head: int, capacity: float) -> None:
        if tail != head and tail != SINK and head != SOURCE:
            self._edges.append((tail, head))
            self._capacities.append(capacity)

    def add_once(self, node: int, others: Iterable[int], end: int, capacity: float) -> None:
        """Cost arises once where any of ``others`` is on the side of ``end`` and ``node`` is not."""

        def add(near: int, far: int, capacity: float) -> None:
            self.add(*((near, far) if end == SOURCE else (far, near)), capacity)

        given = set(others)
        joint = end if end in given else min(given)
        if len(given) > 1 and end not in given:
            joint = self.nodes
            self.nodes += 1
            for other in given:
                add(other, joint, inf)
        add(joint, node, capacity)

    def taken(self) -> np.ndarray:
        """Which nodes are on the source's side; shape (nodes,), bool."""
        taken = np.zeros(self.nodes, bool)
        if self._edges:
            taken = FlowNetwork(self.nodes, self._edges).source_side(np.array(self._capacities))
        taken[SOURCE] = True
        return taken


def _expanded(costs: Costs, labels: Labels, offered: Order) -> dict[ir.Node, Order]:
    """The labels of least cost of those in which some nodes have taken the order that is offered."""
    cut, place = _Cut(), dict[ir.Node, int]()
    for node, order in labels.items():
        if order == offered:
            place[node] = SOURCE
        elif not costs.may(node, offered):
            place[node] = SINK
        else:
            place[node] = cut.nodes
            cut.nodes += 1
            cut.add(place[node], SINK, costs.own(node, offered))
            cut.add(SOURCE, place[node], costs.own(node, order))
    if cut.nodes == 2:  # nobody has a choice
        return dict(labels)
    for source in costs.sources:
        groups: dict[Order, list[int]] = defaultdict(list)
        for reader, order in source.readers:
            if reader is None:
                groups[order].append(SOURCE if order == offered else SINK)
            else:
                groups[labels[reader]].append(place[reader])
        made = source.order if source.maker is None else labels[source.maker]
        maker = place[source.maker] if source.maker is not None else SOURCE if made == offered else SINK
        price = source.bytes + TURN_BYTES
        if groups:
            cut.add_once(maker, (p for group in groups.values() for p in group), SOURCE, price)
        for order, group in groups.items():
            if order != offered:
                cut.add_once(maker if order == made else SOURCE, group, SINK, price)
    taken = cut.taken()
    return {
        n: offered if place[n] != SINK and (place[n] == SOURCE or taken[place[n]]) else o for n, o in labels.items()
    }
