"""Recipes: composable rules that say which nodes run in low precision, and how. The last rule that matches wins.

A node that no rule matches is treated as the target usually does; begin with ``set_global(None)`` to quantize only
what is named, and what only moves elements between such nodes. :mod:`inlay.space.resolve` turns a recipe into a
placement, :mod:`inlay.space.recipe_file` into YAML.
"""

from __future__ import annotations

import difflib
import enum
import fnmatch
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from inlay.errors import UsageError
from inlay.model.graph import Graph, Node
from inlay.space.rules import WEIGHT_ONLY
from inlay.types import GRAPH_OUTPUT, Port, QType


@dataclass(frozen=True)
class OpConfig:
    """How a matching node is quantized."""

    activation: QType | None = None  # type of its activations; None for the target's default type
    # one weight scale for each output channel, or one for all; None for the target's habit
    per_channel: bool | None = None
    # names of selectable rewrites of the target to apply to the weight (`off zero`, say)
    rewrites: frozenset[str] = frozenset()
    # name of another precision of the target than the static one (`dynamic`, `weight-only`); empty for static
    form: str = ""

    def __str__(self) -> str:
        if self.form:
            return self.form
        parts = ["int" if self.activation is None else self.activation.value]
        if self.per_channel is not None:
            parts.append("per channel" if self.per_channel else "per tensor")
        parts.extend(sorted(self.rewrites))
        return ", ".join(parts)


class Scope(enum.Enum):
    """What a rule's pattern is matched against; the value is the word for it in files."""

    GLOBAL = "global"
    OP_TYPE = "op_type"
    NAME = "name"
    MODULE = "module"
    IO = "io"
    PORT = "port"


@dataclass(frozen=True)
class RecipeRule:
    """One rule."""

    scope: Scope  # what `pattern` is matched against
    # an operator type, a glob over node names, a prefix of node names, a glob over the names of the model's inputs and
    # outputs, or a port (`name[slot]`); unused for GLOBAL
    pattern: str
    config: OpConfig | None  # how to quantize, or None to keep float
    optional: bool = False  # it may match nothing

    @property
    def specific(self) -> bool:
        """Whether it names nodes, rather than all of them."""
        return self.scope in (Scope.OP_TYPE, Scope.NAME, Scope.MODULE)

    def matches(self, node: Node) -> bool:
        """Whether it is a rule for ``node``."""
        if self.scope is Scope.NAME:
            return fnmatch.fnmatchcase(node.name, self.pattern)
        if self.scope is Scope.OP_TYPE:
            return node.op_type == self.pattern
        if self.scope is Scope.MODULE:
            return node.name.startswith(self.pattern)
        return self.scope is Scope.GLOBAL

    def __str__(self) -> str:
        pattern = "" if self.scope is Scope.GLOBAL else f"{self.pattern!r}, "
        return f"set_{self.scope.value}({pattern}{'float' if self.config is None else self.config})"


@dataclass(frozen=True)
class Recipe:
    """Rules in order; each ``set_`` method gives a new recipe with one rule more.

    Example::

        Recipe().set_global(OpConfig()).set_op_type("Softmax", None).set_name("head*", None)
    """

    rules: tuple[RecipeRule, ...] = ()  # in order
    # facts about the target that a search found it on; empty for any other recipe
    tuned_for: Mapping[str, str] = field(default_factory=dict, compare=False)

    def set_global(self, config: OpConfig | None) -> Recipe:
        """A rule for every node."""
        return self._with(Scope.GLOBAL, "*", config)

    def set_op_type(self, op_type: str, config: OpConfig | None) -> Recipe:
        """A rule for every node of one operator type."""
        return self._with(Scope.OP_TYPE, op_type, config)

    def set_name(self, pattern: str, config: OpConfig | None) -> Recipe:
        """A rule for nodes whose name matches a glob (``*``, ``?``, ``[…]``; case counts)."""
        return self._with(Scope.NAME, pattern, config)

    def set_module(self, prefix: str, config: OpConfig | None) -> Recipe:
        """A rule for nodes whose name begins with ``prefix`` (``backbone/``)."""
        return self._with(Scope.MODULE, prefix, config)

    def set_io(self, config: OpConfig | None, pattern: str = "*") -> Recipe:
        """A rule for the model's inputs and outputs: whether they count as quantized, by a glob over their names.

        Where they do, a cluster of operators that only move elements is quantized although it touches nothing else
        that is; with a type, they are quantized in that type. With None they are float, which says nothing about the
        operators that read or compute them: those in low precision do so through a Q/DQ pair.
        """
        return self._with(Scope.IO, pattern, config)

    def set_port(self, port: Port, config: OpConfig | None) -> Recipe:
        """A rule for one consumer slot, after all others; for placements that no choice of nodes amounts to."""
        return self._with(Scope.PORT, f"{port.node}[{port.slot}]", config)

    def _with(self, scope: Scope, pattern: str, config: OpConfig | None) -> Recipe:
        return replace(self, rules=(*self.rules, RecipeRule(scope, pattern, config)))

    def __or__(self, other: Recipe) -> Recipe:
        """This recipe's rules, then ``other``'s, which win."""
        return Recipe(self.rules + other.rules)

    def __str__(self) -> str:
        return "; ".join(map(str, self.rules))


WEIGHTED = ("Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU")
"""Operators of the recipe, and of the anchor, ``conv-matmul``."""

BUILTIN: Mapping[str, Recipe] = {
    "full-int8": Recipe().set_global(OpConfig()).set_io(OpConfig()),
    "conv-matmul": Recipe(
        (
            RecipeRule(Scope.NAME, "*", None),  # names every node, so that clusters do not follow the products
            *(RecipeRule(Scope.OP_TYPE, op, OpConfig(), optional=True) for op in WEIGHTED),
        )
    ),
    "dynamic": Recipe().set_global(OpConfig(form="dynamic")),
    WEIGHT_ONLY: Recipe().set_global(OpConfig(form=WEIGHT_ONLY)),
}
"""Recipes that are known by name."""


@dataclass(frozen=True, eq=False)
class Matches:
    """Which rule decides about each thing; what no rule matches is absent."""

    nodes: Mapping[str, int]  # by node name, the rule's position in the recipe
    io: Mapping[str, RecipeRule]  # by name of a model input or output
    ports: Mapping[Port, RecipeRule]  # by port


def match(recipe: Recipe, graph: Graph) -> Matches:
    """Find the rule that decides about each node, model input and output, and port.

    Raises:
        UsageError: a rule matches nothing; near misses are named.
    """
    nodes: dict[str, int] = {}
    io: dict[str, RecipeRule] = {}
    ports: dict[Port, RecipeRule] = {}
    types: dict[str, list[str]] = {}
    for node in graph.nodes:
        types.setdefault(node.op_type, []).append(node.name)
    boundary = list(dict.fromkeys((*graph.inputs, *graph.outputs)))
    for index, rule in enumerate(recipe.rules):
        if rule.scope is Scope.PORT:
            port = parse_port(rule.pattern)
            try:
                graph.value_of(port)
            except KeyError:
                raise UsageError(_idle(rule, (n.name for n in graph.nodes), port.node)) from None
            ports[port] = rule
            continue
        if rule.scope is Scope.IO:
            found = [v for v in boundary if fnmatch.fnmatchcase(v, rule.pattern)]
            io.update(dict.fromkeys(found, rule))
        else:
            if rule.scope is Scope.OP_TYPE:
                found = types.get(rule.pattern, [])
            elif rule.scope is Scope.NAME and (name := _literal(rule.pattern)) is not None:
                found = [name] if graph.has_node(name) else []
            else:
                found = [n.name for n in graph.nodes if rule.matches(n)]
            nodes.update(dict.fromkeys(found, index))
        if not found and not rule.optional and rule.scope is not Scope.GLOBAL:
            known: Collection[str] = boundary if rule.scope is Scope.IO else [n.name for n in graph.nodes]
            raise UsageError(_idle(rule, types if rule.scope is Scope.OP_TYPE else known))
    return Matches(nodes, io, ports)


def parse_port(text: str) -> Port:
    """The port that ``name[slot]`` stands for; ``graph output[0]`` is one of the model's outputs. Raises UsageError."""
    name, bracket, slot = text.rpartition("[")
    if not bracket or not slot.endswith("]") or not slot[:-1].isdigit():
        raise UsageError(f"recipe: {text!r} is not a port such as conv1[0]")
    return Port(GRAPH_OUTPUT if name in ("", "graph output") else name, int(slot[:-1]))


def _literal(pattern: str) -> str | None:
    """The one name that a glob stands for, or None where it can match several."""
    plain = re.sub(r"\[[*?[]\]", "", pattern)
    return None if any(c in plain for c in "*?[") else re.sub(r"\[([*?[])\]", r"\1", pattern)


def _idle(rule: RecipeRule, known: Iterable[str], wish: str | None = None) -> str:
    names = list(known)
    wish = rule.pattern if wish is None else wish
    bare = wish.strip("*")
    near = difflib.get_close_matches(bare, names, 3, 0.6)
    if not near and rule.scope is not Scope.OP_TYPE:
        near = [n for n in names if bare and bare.lower() in n.lower()][:3]
    if not near:
        folded = {n.lower(): n for n in names}
        near = [folded[n] for n in difflib.get_close_matches(bare.lower(), list(folded), 3, 0.6)]
    what = {
        Scope.OP_TYPE: "operator type",
        Scope.IO: "model input or output",
        Scope.PORT: "port",
    }.get(rule.scope, "node")
    hint = f"did you mean {', '.join(near)}?" if near else f"the model has, for instance, {', '.join(names[:3])}"
    return f"recipe: {rule} matches no {what} of the model; {hint}"


def elsewhere(recipe: Recipe | None, facts: Callable[[], Mapping[str, str]]) -> str:
    """What a target differs in from the one that a recipe is tuned for, as one line; empty where it is the same.

    What pays depends on target and machine. Nothing is said of a recipe that records none: it was written by hand.

    Args:
        facts: of the target that it is applied on; not asked for where the recipe records none.
    """
    if recipe is None or not recipe.tuned_for:
        return ""
    then, now = recipe.tuned_for, facts()
    if then == now:
        return ""
    other = then.get("target") != now["target"]
    names = ["target"] if other else [n for n in {**then, **now} if then.get(n) != now.get(n)]
    was, is_now = (", ".join(f"{n} {known.get(n, 'unknown')}" for n in names) for known in (then, now))
    return (
        f"the recipe is tuned for {was}; this is {is_now}: other operators may pay here; inlay bench says whether it "
        "still does, and inlay tune without it finds what does"
    )


def select_nodes(graph: Graph, globs: Iterable[str]) -> frozenset[str]:
    """Names of the nodes that match any of ``globs`` (``*``, ``?``, ``[…]``; case counts).

    Raises:
        UsageError: some globs match no node; the message names them.
    """
    names = [n.name for n in graph.nodes]
    matches = {glob: [n for n in names if fnmatch.fnmatchcase(n, glob)] for glob in globs}
    unmatched = [glob for glob, found in matches.items() if not found]
    if unmatched:
        some = ", ".join(names[:3])
        raise UsageError(f"--nodes: no node matches {', '.join(map(repr, unmatched))}; node names are such as {some}")
    return frozenset(name for found in matches.values() for name in found)
