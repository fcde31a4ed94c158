"""Patterns of operators, and what they match: for passes that put one operator in place of several.

A pattern says what computes a value, and from which patterns. One form of the hard sigmoid is::

    Op("Div", Op("Clip", Op("Add", Value("x"), Number(3.0)), Number(0.0), Number(6.0)), Number(6.0))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations

import onnx_ir as ir

from inlay.model.passes.steps import is_standard, number_of

_COMMUTE = frozenset({"Add", "Mul"})
_CLOSE = 1e-4  # relative: exporters round factors like the root of a half


@dataclass(frozen=True)
class Value:
    """Any value; the same one wherever its name stands."""

    name: str


@dataclass(frozen=True)
class Number:
    """A floating constant of one element."""

    # what it is, or how that follows from the numbers that have names; None for any
    near: float | Callable[[Mapping[str, float]], float] | None = None
    name: str = ""  # under which it is kept; empty for not at all
    tolerance: float = _CLOSE  # relative difference from `near`


class Op:
    """What an operator of ONNX's own domain computes from these first inputs; those of Add and Mul in any order.

    Args:
        inputs: patterns; numbers with names stand before what follows from them.
        test: what else is asked of the operator.
        name: of the value, which is the same wherever the name stands.
    """

    def __init__(
        self, op_type: str, *inputs: Pattern, test: Callable[[ir.Node], bool] | None = None, name: str = ""
    ) -> None:
        self.op_type, self.inputs, self.test, self.name = op_type, inputs, test, name


class OneOf:
    """Whatever matches one of several patterns; the first that does counts."""

    def __init__(self, *patterns: Pattern) -> None:
        self.patterns = patterns


Pattern = Value | Number | Op | OneOf


@dataclass(frozen=True)
class Match:
    """What a pattern matched."""

    values: Mapping[str, ir.Value] = field(default_factory=dict)  # by name
    numbers: Mapping[str, float] = field(default_factory=dict)  # by name
    nodes: tuple[ir.Node, ...] = ()  # the operators, each behind what it reads; the last one computes the result

    @property
    def is_closed(self) -> bool:
        """Whether nobody else reads what is between the operators."""
        inside = set(self.nodes)
        between = [v for n in self.nodes[:-1] for v in n.outputs]
        return not any(v.is_graph_output() or any(use.node not in inside for use in v.uses()) for v in between)

    def _with(self, name: str, value: ir.Value) -> Match | None:
        if self.values.get(name, value) is not value:
            return None
        return replace(self, values={**self.values, name: value}) if name else self


def times(pattern: Pattern, factor: float) -> Pattern:
    """``factor`` times ``pattern``, as a product or a quotient."""
    return OneOf(Op("Mul", pattern, Number(factor)), Op("Div", pattern, Number(1.0 / factor)))


def match(pattern: Pattern, node: ir.Node) -> Match | None:
    """What ``pattern`` matches that ``node`` computes, where nobody else reads what is between."""
    return next((m for m in _matches(pattern, node.outputs[0], Match()) if m.is_closed), None)


def _matches(pattern: Pattern, value: ir.Value | None, known: Match) -> Iterator[Match]:
    if isinstance(pattern, OneOf):
        for each in pattern.patterns:
            yield from _matches(each, value, known)
    elif isinstance(pattern, Number):
        number = number_of(value)
        near = pattern.near(known.numbers) if callable(pattern.near) else pattern.near
        if number is not None and (near is None or math.isclose(number, near, rel_tol=pattern.tolerance)):
            yield replace(known, numbers={**known.numbers, pattern.name: number}) if pattern.name else known
    elif isinstance(pattern, Value):
        found = None if value is None else known._with(pattern.name, value)
        if found is not None:
            yield found
    elif value is not None and (node := value.producer()) is not None and is_standard(node, pattern.op_type):
        found = known._with(pattern.name, value)
        if found is None or len(node.inputs) < len(pattern.inputs) or (pattern.test and not pattern.test(node)):
            return
        own = node.inputs[: len(pattern.inputs)]
        for operands in permutations(own) if pattern.op_type in _COMMUTE else [own]:
            for inner in _all(pattern.inputs, operands, found):
                yield inner if node in inner.nodes else replace(inner, nodes=(*inner.nodes, node))


def _all(patterns: Sequence[Pattern], values: Sequence[ir.Value | None], known: Match) -> Iterator[Match]:
    if not patterns:
        yield known
    else:
        for first in _matches(patterns[0], values[0], known):
            yield from _all(patterns[1:], values[1:], first)


def put_in_place(
    graph: ir.Graph,
    nodes: Sequence[ir.Node],
    op_type: str,
    inputs: Sequence[ir.Value],
    attributes: Mapping[str, int | float],
) -> None:
    """Put one operator in place of ``nodes``, of which the last one computes the result, and has the name."""
    last = nodes[-1]
    output = last.outputs[0]
    result = ir.Value(name=output.name, type=output.type, shape=output.shape)
    graph.insert_before(last, ir.node(op_type, inputs, attributes, outputs=[result], name=last.name))
    output.replace_all_uses_with(result, replace_graph_outputs=True)
    graph.remove(nodes, safe=True)
