"""Anchors: the placements that are measured first. The result is never slower than the best of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from inlay.model.graph import Graph
from inlay.search import policy
from inlay.search.base import Dialogue, Scripted
from inlay.search.workload import work
from inlay.space.recipe import WEIGHTED
from inlay.space.rules import Rules
from inlay.space.units import STATIC, Unit, placement_from_precisions
from inlay.trial import Measured, Proposal, Trial
from inlay.types import Placement

FLOAT, FULL_INT8, CONV_MATMUL = "float", "full-int8", "conv-matmul"
"""Names of the anchors, which results and recipes use too: the normalized model without Q/DQ nodes, every selectable
unit, and units with a weight only. A target's further precisions have an anchor each, by their names."""
ORIGINAL = "original"  # name of the model as it was given, which every speed-up refers to
_FIRST = (FLOAT, CONV_MATMUL)  # anchors in order, where most weights are those of products; the others follow


class Anchors(Scripted):
    """Float; every selectable unit; units with Conv, MatMul and Gemm only; each other precision; imported placements.

    Where most weights are those of products, as in transformers, units with weights alone come before everything: what
    else there is costs accuracy and gains little, and a short time may not suffice for both.

    Precisions that the target calls ``spare`` come last, and only where ``spare`` says that there is time: where they
    gain nothing, what they save in memory is no reason to judge fewer other placements. Where products have few rows,
    they may well gain, and are anchors like the others. Of those that come last, larger blocks are first: where they
    are slower than the fastest model so far, so are smaller ones, whose kernels multiply by more scales.

    Where there may be time for one anchor only (``hurries``), that is not float, which comes last then: in transformers
    what is quantized at run time, which needs no ranges and keeps most bounds; elsewhere the first of the others
    that is not known to be ``outside`` the bound. Where one is, or turns out to be, so are the rest in all likelihood:
    what rewrites for the target made of float (``rewritten``) is then next.
    """

    def __init__(
        self,
        graph: Graph,
        units: Sequence[Unit],
        rules: Rules,
        imported: Sequence[tuple[str, Placement]] = (),
        spare: Callable[[], bool] = lambda: True,
        hurries: Callable[[], bool] = lambda: False,
        *,
        outside: Callable[[Placement], bool] = lambda _: False,
        rewritten: bool = False,
    ) -> None:
        super().__init__("anchors", self._propose)
        self.trials: dict[str, Trial] = {}  # of the anchors so far, by name
        late = not _few_rows(graph, units)
        weights = {form.name: form.weight for form in rules.forms if form.spare and late}
        self._late = {name: (weight.element, weight.block or math.inf) for name, weight in weights.items()}
        self._spare, self._hurries, self._outside, self._rewritten = spare, hurries, outside, rewritten
        self._products = _mostly_products(graph, units)
        self._placements = anchor_placements(graph, units, rules, imported)
        if self._products:
            self._placements.sort(key=lambda each: _FIRST.index(each[0]) if each[0] in _FIRST else len(_FIRST))

    def expect(self, ns: Mapping[str, float]) -> None:
        """Propose those first that are expected to be the fastest, behind float; before the first ``ask``.

        Args:
            ns: nanoseconds of an inference, by name; others keep their place behind these.
        """
        known = {**ns, FLOAT: -math.inf}
        self._placements.sort(key=lambda each: known.get(each[0], math.inf))

    def _propose(self) -> Dialogue:
        hurries = self._hurries()
        if hurries:
            surest = self._surest
            self._placements.sort(key=lambda each: (each[0] != surest, not each[1]))
        late = [(name, placement) for name, placement in self._placements if name in self._late]
        while soon := [each for each in self._placements if each not in late and each[0] not in self.trials]:
            name, placement = soon[0]
            self.trials[name] = trial = yield Proposal(placement, name, anchor=True)
            if hurries and self._rewritten and not trial.feasible:
                self._placements.sort(key=lambda each: (each[0] not in self.trials, bool(each[1])))
        late.sort(key=lambda each: (self._late[each[0]][0], -self._late[each[0]][1]))
        for name, placement in late if late and self._spare() else ():
            if not self._hopeless(name):
                self.trials[name] = yield Proposal(placement, name, anchor=True)

    @property
    def _surest(self) -> str:
        """What most likely gains and keeps a bound, where only one can be tried."""
        low = [(name, p) for name, p in self._placements if p and name not in self._late]
        if self._products:
            low.sort(key=lambda each: not any(qtype.dynamic for _, qtype in each[1]))
        low.sort(key=lambda each: self._outside(each[1]))
        return FLOAT if not low or (self._rewritten and self._outside(low[-1][1])) else low[0][0]

    def upcoming(self, count: int) -> Sequence[Placement]:
        """Those that were not asked for yet, without the ones that come last: whether these come is not known."""
        told = len(self.trials) + 1
        return [p for name, p in self._placements if name not in self._late][told : told + count]

    @property
    def left_out(self) -> tuple[str, ...]:
        """Names of those that were not asked for, though nothing speaks against them; of equal ones the first."""
        late = [name for name in self._late if self._hopeless(name)]
        return tuple(name for name, _ in self._placements if name not in self.trials and name not in late)

    def _hopeless(self, name: str) -> bool:
        """Whether the same element in larger blocks was slower than the fastest model that keeps the bound."""
        own, size = self._late[name]
        larger = [n for n, (element, block) in self._late.items() if element == own and block > size]
        speeds = {n: t.outcome.latency.speedup for n, t in self.trials.items() if isinstance(t.outcome, Measured)}
        best = max((speeds[n].value for n in speeds if self.trials[n].feasible), default=0.0)
        return any(speeds[n].high < best for n in larger if n in speeds)


def _mostly_products(graph: Graph, units: Sequence[Unit]) -> bool:
    """Whether most weights are in matrix products."""
    sizes = Counter[bool]()
    for unit in units:
        for port in unit.weights:
            sizes[unit.op_type in ("MatMul", "Gemm")] += graph.size(graph.value_of(port)) or 0
    return sizes[True] > sizes[False]


def _few_rows(graph: Graph, units: Sequence[Unit]) -> bool:
    """Whether most of the weights of products are in some with few rows."""
    few = whole = 0
    for unit in units:
        sizes = [graph.size(graph.value_of(port)) or 0 for port in unit.weights]
        if unit.op_type in ("MatMul", "Gemm") and sizes:
            output = graph.node(unit.name).outputs[0]
            size, columns = graph.size(output), (graph.shape(output) or (None,))[-1]
            whole += sum(sizes)
            few += sum(sizes) if size and columns and size // columns <= policy.FEW_ROWS else 0
    return 2 * few > whole


def anchor_units(graph: Graph, units: Sequence[Unit]) -> dict[str, Mapping[str, str]]:
    """For each anchor that is not imported, the precisions of its units by name; what it does not name is float.

    On a base of half precision everything else is in that with every anchor but float, as far as it may be, and there
    is an anchor for it alone.

    Tables of which rows are read are weights as well, and stored in fewer bits with every anchor but float.
    Besides the static ones there is an anchor for each form to search that enough units have, by its name: in number,
    or by their weights, as a few large products of a network of convolutions. Where these units do next to nothing of
    the model's work, there is none.
    """
    selectable = [u.name for u in units if u.selectable]
    weighted = [u for u in units if u.selectable and u.op_type in WEIGHTED]
    sizes = {u.name: sum(graph.size(graph.value_of(port)) or 0 for port in u.weights) for u in units}
    having, elements = Counter[str](), Counter[str]()
    for unit in [u for u in units if not u.table]:
        having.update(dict.fromkeys(unit.searched, 1))
        elements.update(dict.fromkeys(unit.searched, sizes[unit.name]))
    few, small = policy.FORM_SHARE * len(weighted), policy.FORM_SHARE * sum(sizes[u.name] for u in weighted)
    forms = [form for form, count in having.items() if count >= few or elements[form] >= max(small, 1)]
    done = {u.name: work(graph, u) for u in units} if forms else {}
    least = policy.FORM_WORK * sum(done.values())
    forms = [form for form in forms if sum(done[u.name] for u in units if form in u.forms) >= least]
    tables = {u.name: u.table for u in units if u.table}
    others = {u.name: form for u in units for form, sites in u.forms.items() if any(q.half for _, q in sites)}
    base = [*dict.fromkeys(others.values())]
    forms = [*base, *(form for form in forms if form not in base)]
    return {
        FLOAT: {},
        FULL_INT8: {**others, **dict.fromkeys(selectable, STATIC), **tables} if selectable else {},
        CONV_MATMUL: {**others, **{u.name: STATIC for u in weighted}, **tables} if weighted else {},
        **{form: {**others, **tables, **{u.name: form for u in units if form in u.forms}} for form in forms},
    }


def anchor_placements(
    graph: Graph, units: Sequence[Unit], rules: Rules, imported: Sequence[tuple[str, Placement]] = ()
) -> list[tuple[str, Placement]]:
    """Name and placement of every anchor; of equal placements the first."""
    usual = anchor_units(graph, units)
    made = [(name, placement_from_precisions(graph, units, rules, usual[name])) for name in usual]
    first: dict[Placement, str] = {}
    for name, anchor in [*made, *imported]:
        first.setdefault(anchor, name)
    return [(name, anchor) for anchor, name in first.items()]
