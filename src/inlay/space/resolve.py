"""From a recipe to a placement, with the deciding rule and the reason for every node, and back."""

from __future__ import annotations

import glob
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from inlay.errors import UsageError
from inlay.model.graph import Graph
from inlay.space.domains import find_clusters, is_shared
from inlay.space.recipe import Matches, OpConfig, Recipe, RecipeRule, Scope, match
from inlay.space.rules import Rules
from inlay.space.units import Unit, placement_from_labels, static_sites
from inlay.types import GRAPH_OUTPUT, Placement, Port, PortRewrite, QType

DEFAULT = "the target's usual"  # stands for the deciding rule where none matches


@dataclass(frozen=True)
class Decision:
    """What became of one node."""

    # node, op_type: the node
    node: str
    op_type: str
    precision: str  # `float`, the type of its activations, or the name of a form
    rule: str  # the deciding rule, as text
    reason: str  # why; for what was rejected, the obstacle


@dataclass(frozen=True, eq=False)
class Resolved:
    """A recipe applied to a model."""

    placement: Placement  # where Q/DQ goes
    decisions: tuple[Decision, ...]  # for every node, in topological order
    # reasons by name, for units that the recipe itself keeps in float; a search leaves them alone
    kept_float: Mapping[str, str]
    types: Mapping[str, QType]  # type of the activations of every unit that may run in low precision under the recipe
    per_tensor: frozenset[str]  # constants that get one scale for all channels
    # types of model inputs and outputs that rules for these name, by name
    io: Mapping[str, QType] = field(default_factory=dict)


@dataclass
class _Verdict:
    """The deciding rule about a unit, the type that it requests, and the reason so far."""

    unit: Unit
    rule: RecipeRule | None
    qtype: QType | None
    reason: str
    open: bool = False  # left to the cluster that it belongs to
    form: str = ""  # the further precision that it has

    @property
    def config(self) -> OpConfig | None:
        """The configuration of the deciding rule."""
        return None if self.rule is None else self.rule.config

    @property
    def stays_float(self) -> bool:
        """Whether the recipe itself keeps the unit in float: by a rule for it, or none of its neighbours asks."""
        return (
            self.qtype is None
            and not self.form
            and (not self.open or (self.rule is not None and self.rule.config is None))
        )


def resolve(recipe: Recipe, graph: Graph, units: Collection[Unit], rules: Rules) -> Resolved:
    """Apply ``recipe``.

    Raises:
        UsageError: a rule matches nothing, or names a type or a rewrite that the target lacks.
    """
    for rule in recipe.rules:
        _check_type(rule, rules)
    found = match(recipe, graph)
    verdicts = {u.name: _verdict(u, recipe, found, graph, rules) for u in units}
    _settle_clusters(recipe, found, graph, rules, verdicts)
    changeable = {n: v for n, v in verdicts.items() if v.unit.quantizable}
    kept = {n: v.reason for n, v in changeable.items() if v.stays_float}
    low = {name: v.qtype for name, v in verdicts.items() if v.qtype is not None}
    placement = placement_from_labels(
        graph, units, rules, lambda u: u.name in low, lambda u: low[u.name], lambda u: verdicts[u.name].form
    )
    placement = placement.with_rewrites(
        PortRewrite(port, name)
        for verdict in verdicts.values()
        if verdict.config is not None
        for port in verdict.unit.weights
        for name in verdict.config.rewrites
    )
    io = {v: r.config.activation for v, r in found.io.items() if r.config is not None and r.config.activation}
    placement = _set_ports(_set_io(placement, io, graph), found, rules)
    usual = _global_type(recipe, rules) or rules.activation
    return Resolved(
        placement,
        _decisions(graph, verdicts),
        kept,
        {u.name: low.get(u.name, usual) for u in units if u.selectable and u.name not in kept},
        _per_tensor(graph, rules, verdicts),
        io,
    )


def recipe_of(
    placement: Placement,
    graph: Graph,
    units: Collection[Unit],
    rules: Rules,
    per_tensor: Collection[str] = (),
) -> Recipe:
    """A recipe that resolves to ``placement``: one rule for each unit in low precision, then ports that differ."""
    recipe = Recipe().set_name("*", None)  # unlike a global rule, it leaves no cluster to its neighbours
    rewrites = _rewrites_by_port(placement)
    for unit in units:
        types = {placement.qtype(p) for p in unit.activations}
        qtype = types.pop() if unit.selectable and len(types) == 1 else None
        if (
            qtype is not None
            and qtype in rules.types
            and all(port in placement for port, _ in static_sites(unit, rules, qtype))
        ):
            uniform = any(graph.value_of(p) in per_tensor for p in unit.weights)
            names = frozenset(name for p in unit.weights for name in rewrites.get(p, ()))
            recipe = recipe.set_name(glob.escape(unit.name), OpConfig(qtype, False if uniform else None, names))
            continue
        # a form that quantizes activations, too, has those ports besides the others'; further static types are above
        form = unit.form_in(placement)
        if form:
            recipe = recipe.set_name(glob.escape(unit.name), OpConfig(form=form))
    reached = resolve(recipe, graph, units, rules).placement
    applied = _rewrites_by_port(reached)
    for port, _ in reached:
        if port not in placement:
            recipe = recipe.set_port(port, None)
    for port, qtype in placement:
        names = rewrites.get(port, frozenset())
        if reached.qtype(port) is not qtype or applied.get(port, frozenset()) != names:
            recipe = recipe.set_port(port, OpConfig(qtype, rewrites=names))
    return recipe


def _rewrites_by_port(placement: Placement) -> Mapping[Port, frozenset[str]]:
    found: dict[Port, frozenset[str]] = {}
    for port, name in placement.rewrites:
        found[port] = found.get(port, frozenset()) | {name}
    return found


def _check_type(rule: RecipeRule, rules: Rules) -> None:
    form = "" if rule.config is None else rule.config.form
    forms = [f.name for f in rules.forms]
    if form in rules.too_new:
        raise UsageError(f"recipe: {rule}: {rules.too_new[form]}")
    if form and form not in forms:
        static = (t.value for t in QType if not (t.dynamic or t.block or t.half))
        words = ", ".join(["float", "int", *static, *forms])
        raise UsageError(f"recipe: {rule}: the target has no precision {form!r}; give {words}")
    unknown = set() if rule.config is None else rule.config.rewrites - rules.rewrites
    if unknown:
        offered = ", ".join(sorted(rules.rewrites)) or "none"
        raise UsageError(f"recipe: {rule}: the target has no rewrite {min(unknown)!r}; it offers {offered}")
    qtype = None if rule.config is None else rule.config.activation
    if qtype is None or rule.scope is Scope.PORT:
        return
    if qtype.value in rules.too_new:
        raise UsageError(f"recipe: {rule}: {rules.too_new[qtype.value]}")
    if qtype not in rules.types:
        known = ", ".join(sorted(t.value for t in rules.types))
        raise UsageError(f"recipe: {rule}: the target runs activations in {known}, not {qtype.value}")


def _verdict(unit: Unit, recipe: Recipe, found: Matches, graph: Graph, rules: Rules) -> _Verdict:
    index = max(found.nodes.get(n, -1) for n in unit.nodes)
    rule = recipe.rules[index] if index >= 0 else None
    config = OpConfig() if rule is None else rule.config
    if config is not None and config.form:
        if config.form in unit.forms:
            return _Verdict(unit, rule, None, f"{unit.op_type} runs in precision {config.form}", form=config.form)
        return _Verdict(unit, rule, None, f"rejected: {unit.op_type} has no precision {config.form} on this target")
    if unit.table and config is not None:
        return _Verdict(unit, rule, None, "its table is stored in 8 bits", form=unit.table)
    if not unit.selectable:
        return _Verdict(unit, rule, None, unit.rejection, form=_base_form(unit, rule, rules))
    if is_shared(rules, graph.node(unit.name)) and (rule is None or not rule.specific):
        return _Verdict(unit, rule, None, "", open=True)
    if config is None:
        return _Verdict(unit, rule, None, "the recipe keeps it float")
    qtype = config.activation or rules.activation
    reason = f"{unit.op_type} runs in {qtype.value}{''.join(f', {name}' for name in sorted(config.rewrites))}"
    if config.per_channel and not rules.per_channel and unit.weights:
        reason += "; rejected: the target takes one scale for a weight, not one per channel"
    return _Verdict(unit, rule, qtype, reason)


def _base_form(unit: Unit, rule: RecipeRule | None, rules: Rules) -> str:
    """The half precision of a unit that is not quantized, although no rule keeps it float; empty where it has none."""
    asked = rule is None or (rule.config is not None and not rule.config.form)
    return rules.base.value if rules.base is not None and asked and rules.base.value in unit.forms else ""


def _settle_clusters(
    recipe: Recipe, found: Matches, graph: Graph, rules: Rules, verdicts: Mapping[str, _Verdict]
) -> None:
    decided = {n: v.qtype for v in verdicts.values() if not v.open for n in v.unit.nodes}
    shared = {name for name, v in verdicts.items() if v.open}
    boundary = {value for value, rule in found.io.items() if rule.config is not None}
    fallback = _global_type(recipe, rules) or next((v.qtype for v in verdicts.values() if v.qtype), None)
    for cluster in find_clusters(graph, shared, decided, boundary, fallback):
        for name in cluster.nodes:
            verdicts[name].qtype = cluster.qtype
            verdicts[name].reason = cluster.reason
            if cluster.qtype is None:
                verdicts[name].form = _base_form(verdicts[name].unit, verdicts[name].rule, rules)
            if cluster.competing:
                verdicts[name].reason += f", not {', '.join(t.value for t in cluster.competing)}"


def _global_type(recipe: Recipe, rules: Rules) -> QType | None:
    """Type of the global configuration; None where that is float."""
    configs = [r.config for r in recipe.rules if r.scope is Scope.GLOBAL]
    config = configs[-1] if configs else OpConfig()
    return None if config is None or config.form else config.activation or rules.activation


def _set_io(placement: Placement, io: Mapping[str, QType], graph: Graph) -> Placement:
    """``placement`` with the model's inputs and outputs in types of their own where they are quantized.

    Behind the boundary the consumer's type holds: where the two differ, the pair of DQ and Q is a requantization.
    """
    if not io:
        return placement
    sites: dict[Port, QType] = {}
    for port, qtype in placement:
        value = graph.value_of(port)
        outer = io.get(value) if port.node == GRAPH_OUTPUT or value in graph.inputs else None
        sites[port] = qtype if outer is None else outer
    return Placement(sites.items(), placement.rewrites)


def _set_ports(placement: Placement, found: Matches, rules: Rules) -> Placement:
    if not found.ports:
        return placement
    sites: dict[Port, QType] = dict(placement)
    rewrites = set(placement.rewrites)
    for port, rule in found.ports.items():
        config = rule.config
        rewrites = {r for r in rewrites if r.port != port}
        if config is None:
            sites.pop(port, None)
            continue
        sites[port] = config.activation or rules.activation
        rewrites |= {PortRewrite(port, name) for name in config.rewrites}
    return Placement(sites.items(), rewrites)


def _decisions(graph: Graph, verdicts: Mapping[str, _Verdict]) -> tuple[Decision, ...]:
    verdict_of = {name: verdict for verdict in verdicts.values() for name in verdict.unit.nodes}
    decisions = []
    for node in graph.nodes:
        verdict = verdict_of[node.name]
        unit, reason = verdict.unit, verdict.reason
        asked = verdict.rule is None or (verdict.rule.config is not None and not verdict.rule.config.form)
        if not unit.selectable and asked:
            reason = f"rejected: {reason}"
        if node.name != unit.name:
            reason = f"it is folded into {unit.name}" if verdict.qtype else f"as {unit.name}: {reason}"
        precision = verdict.form or ("float" if verdict.qtype is None else verdict.qtype.value)
        rule = DEFAULT if verdict.rule is None else str(verdict.rule)
        decisions.append(Decision(node.name, node.op_type, precision, rule, reason))
    return tuple(decisions)


def _per_tensor(graph: Graph, rules: Rules, verdicts: Mapping[str, _Verdict]) -> frozenset[str]:
    if not rules.per_channel:
        return frozenset()
    return frozenset(
        graph.value_of(p)
        for verdict in verdicts.values()
        if verdict.config is not None and verdict.config.per_channel is False
        for p in verdict.unit.weights
    )
