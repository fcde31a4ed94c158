"""``Gelu`` gathered from the operators that exporters write for it.

Below opset 20 there is no such operator: ``x * (1 + erf(x / sqrt(2))) / 2`` is five. A runtime with a kernel for the
whole may have none for ``Erf`` alone, which then divides the model.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from inlay.model.passes.opset import raise_opset
from inlay.model.passes.patterns import Match, Number, OneOf, Op, Value, match, put_in_place, times

GELU_OPSET, GELU_IR = 20, 9
"""The first opset with the operator, and its IR version."""

_X = Value("x")
_WAVE = Op("Add", Op("Erf", times(_X, math.sqrt(0.5))), Number(1.0, tolerance=0.0))
_GELU = OneOf(
    Op("Mul", times(_WAVE, 0.5), _X), times(Op("Mul", _WAVE, _X), 0.5), Op("Mul", _WAVE, times(_X, 0.5))
)  # fmt: skip


def gather_gelu(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each such chain whose parts nothing else reads.

    Args:
        model: is changed, and raised to ``GELU_OPSET`` where there is something to replace.
    """
    if not _found(model.graph):
        return model, 0
    model, _ = raise_opset(model, GELU_OPSET)
    model.ir_version = max(model.ir_version, GELU_IR)
    chains = _found(model.graph)
    for chain in chains:
        put_in_place(model.graph, chain.nodes, "Gelu", [chain.values["x"]], {})
    return model, len(chains)


def _found(graph: ir.Graph) -> list[Match]:
    found = [m for node in graph if (m := match(_GELU, node)) is not None]
    return [m for m in found if m.values["x"].dtype in (None, ir.DataType.FLOAT)]
