"""Preconditions: what a runtime asks of the Q/DQ nodes around an operator before it runs the operator on integers.

A target states its own as a table (``preconditions()``), in the order in which they are looked at. The rows here follow
from any table of rules: what has no Q/DQ cannot run in low precision. Whether a row is the reason at a very node is
not taken on trust: :mod:`inlay.explanation` mends the node alone, and looks whether the runtime then runs it on
integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import onnx_ir as ir

from inlay.quant.qdq_fixes import join_quantizers, quantize_read, quantize_result
from inlay.quant.site import Read, Result, Site
from inlay.space.rules import Needs


@dataclass(frozen=True)
class Precondition:
    """One row.

    Attributes:
        name: of what is wrong where it is not met; stable, for programs.
        fault: what is wrong at a site, as a sentence with names, or None.
        mend: makes the least change that meets it, or is None where no change of Q/DQ nodes does.
        advice: what to do, as a command; ``{node}`` and ``{value}`` stand for names.
        about: the values that the advice is about; the operator's results by default.
        ops: the operators that it is about; None for all with a row in the rules.
        alone: where it is not met, the rows behind it say nothing.
        exact: the mend changes no number that the model computes.
        runs: where it is not met, the operator runs on integers all the same, and computes something else.
        source: where it is known from.
    """

    name: str
    fault: Callable[[Site], str | None]
    mend: Callable[[Site], None] | None
    advice: str
    about: Callable[[Site], str] = field(default=lambda site: _result_names(site))
    ops: frozenset[str] | None = None
    alone: bool = False
    exact: bool = False
    runs: bool = False
    source: str = ""

    def fault_at(self, site: Site) -> str | None:
        """What is wrong at ``site``, or None."""
        return self.fault(site) if self.ops is None or site.node.op_type in self.ops else None

    def advice_at(self, site: Site) -> str:
        """What to do at ``site``."""
        return self.advice.format(node=named(site.node), value=self.about(site))


@runtime_checkable
class ExplainsFusion(Protocol):
    """A target that knows what its runtime asks before it fuses Q/DQ nodes: ``inlay explain`` says why one does not."""

    def preconditions(self) -> Sequence[Precondition]:
        """What it asks, in the order in which it is looked at."""
        ...


def preconditions_of(target: object) -> tuple[Precondition, ...]:
    """The table of a target; :data:`COMMON` where it states none."""
    return tuple(target.preconditions()) if isinstance(target, ExplainsFusion) else COMMON


def _result_names(site: Site) -> str:
    return ", ".join(str(r.value.name) for r in site.results)


def _input_names(site: Site) -> str:
    return ", ".join(f"input {r.slot} ({r.name})" for r in unread(site)) + f" of {named(site.node)}"


def _constant_names(site: Site) -> str:
    found = [r for r in (site.weight, site.bias) if r is not None and r.dequantizer is None]
    return f"{' and '.join(r.name for r in found)} of {named(site.node)}"


def unread(site: Site) -> tuple[Read, ...]:
    """The activations that an operator reads in float."""
    return tuple(r for r in site.activations if r.dequantizer is None)


def unquantized(site: Site) -> tuple[Result, ...]:
    """The results that no QuantizeLinear reads."""
    return tuple(r for r in site.results if not r.quantizers)


def named(node: ir.Node) -> str:
    """Operator and name of a node, for sentences."""
    return f"{node.op_type} {node.name}"


def nothing_around(site: Site) -> str | None:
    """No activation is dequantized before it, and no result is quantized behind it."""
    if site.activations and len(unread(site)) == len(site.activations) and len(unquantized(site)) == len(site.results):
        return "there are no Q/DQ nodes around it"
    return None


def float_input(site: Site) -> str | None:
    """Some activation is read in float."""
    found = unread(site)
    if not found:
        return None
    listed = ", ".join(f"{r.slot} ({r.name}{', a constant' if r.is_constant else ''})" for r in found)
    return f"it reads input{'s' if len(found) > 1 else ''} {listed} in float"


def float_weight(site: Site) -> str | None:
    """The constant weight has no DequantizeLinear."""
    weight = site.weight
    if weight is None or weight.dequantizer is not None:
        return None
    return f"its weight {weight.name} has no DequantizeLinear"


def float_bias(site: Site) -> str | None:
    """The bias has no DequantizeLinear."""
    bias = site.bias
    return None if bias is None or bias.dequantizer is not None else f"its bias {bias.name} is float"


def no_quantizer(site: Site) -> str | None:
    """A result must be quantized, and is not."""
    if site.rule.output is not Needs.QUANTIZED:
        return None
    for result in unquantized(site):
        readers = [named(n) for n in result.floats[:3]] + ["an output of the graph"] * result.is_output
        return f"no QuantizeLinear is behind it: {result.value.name} goes to {' and '.join(readers)} in float"
    return None


def float_reader(site: Site) -> str | None:
    """A result is quantized, and read in float besides."""
    for result in site.results:
        if result.quantizers and result.floats:
            return f"{result.value.name} is read by {', '.join(map(named, result.floats[:3]))} in float besides its Q"
    return None


def is_graph_output(site: Site) -> str | None:
    """A result is quantized, and an output of the graph besides."""
    for result in site.results:
        if result.quantizers and result.is_output:
            return f"{result.value.name} is an output of the graph besides being quantized"
    return None


def several_quantizers(site: Site) -> str | None:
    """Several QuantizeLinear nodes with different grids read a result."""
    for result in site.results:
        if len(result.quantizers) > 1:
            return f"{result.value.name} has several Qs: {', '.join(str(q.name) for q in result.quantizers)}"
    return None


def cover_inputs(site: Site) -> None:
    """Quantize the activations that are read in float."""
    for read in unread(site):
        quantize_read(site, read)


def cover_constants(site: Site) -> None:
    """Quantize weight and bias where they are float."""
    for read in (site.weight, site.bias):
        if read is not None and read.dequantizer is None:
            quantize_read(site, read)


def cover_results(site: Site) -> None:
    """Let every reader of every result read one Q/DQ pair."""
    for result in site.results:
        quantize_result(site, result)


def cover_all(site: Site) -> None:
    """All of these."""
    cover_inputs(site)
    cover_constants(site)
    if site.rule.output is Needs.QUANTIZED:
        cover_results(site)


def join_all(site: Site) -> None:
    """One QuantizeLinear for each result."""
    for result in site.results:
        if len(result.quantizers) > 1:
            join_quantizers(result)


_FROM_RULES = "it follows from the target's rules"

NOT_QUANTIZED = Precondition(
    "not-quantized", nothing_around, cover_all, "set Q/DQ nodes around {node}", alone=True, source=_FROM_RULES
)
FLOAT_INPUT = Precondition(
    "float-input", float_input, cover_inputs, "quantize {value}", _input_names, source=_FROM_RULES
)
FLOAT_WEIGHT = Precondition(
    "float-weight", float_weight, cover_constants, "quantize {value}", _constant_names, source=_FROM_RULES
)
FLOAT_BIAS = Precondition(
    "float-bias", float_bias, cover_constants, "quantize {value}", _constant_names, source=_FROM_RULES
)
NO_QUANTIZER = Precondition(
    "no-quantizer", no_quantizer, cover_results, "set a Q/DQ pair behind {node}", source=_FROM_RULES
)

COMMON = (NOT_QUANTIZED, FLOAT_INPUT, FLOAT_WEIGHT, NO_QUANTIZER)
"""What holds on every target: of one that states no table of its own."""
