"""``Gelu`` gathered from the operators that exporters write for it.

Below opset 20 there is no such operator: ``x * (1 + erf(x / sqrt(2))) / 2`` is five. A runtime with a kernel for the
whole may have none for ``Erf`` alone, which then divides the model.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from inlay.model.passes.steps import is_standard, sole_use, with_number
from inlay.targets.passes.gathering import gather, put_in_place

GELU_OPSET, GELU_IR = 20, 9
"""The first opset with the operator, and its IR version."""


def gather_gelu(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each such chain whose parts nothing else reads.

    Args:
        model: is changed, and raised to ``GELU_OPSET`` where there is something to replace.
    """
    return gather(model, _chains, _replace, GELU_OPSET, GELU_IR)


_Chain = tuple[ir.Value, list[ir.Node]]
"""What it is computed from, and its operators; the last one computes the result."""


def _chains(graph: ir.Graph) -> list[_Chain]:
    return [chain for node in graph if is_standard(node, "Erf") and (chain := _chain(node)) is not None]


def _chain(erf: ir.Node) -> _Chain | None:
    """The chain around ``erf``."""
    before = _scaled(erf.inputs[0], math.sqrt(0.5))
    one = _reader(erf, "Add")
    if before is None or one is None or sole_use(erf.inputs[0]) is None:
        return None
    x, scaling = before
    shifted = with_number(one)
    last = _reader(one, "Mul", "Div")
    if x.dtype not in (None, ir.DataType.FLOAT) or shifted is None or shifted[1] != 1.0 or last is None:
        return None
    inside = [scaling, erf, one]
    if _scaled(last.outputs[0], 0.5) is not None:  # (1 + erf) / 2 * x
        product = _reader(last, "Mul")
        return (x, [*inside, last, product]) if product is not None and _other(product, last) is x else None
    factor = _other(last, one) if is_standard(last, "Mul") else None
    if factor is x:  # (1 + erf) * x / 2
        half = _reader(last, "Mul", "Div")
        found = None if half is None else _scaled(half.outputs[0], 0.5)
        return (x, [*inside, last, half]) if half is not None and found is not None else None
    halved = _scaled(factor, 0.5)  # (1 + erf) * (x / 2)
    if halved is None or halved[0] is not x or sole_use(factor) is None:
        return None
    return x, [halved[1], *inside, last]


def _scaled(value: ir.Value | None, factor: float) -> tuple[ir.Value, ir.Node] | None:
    """What ``value`` is ``factor`` times of, and the operator that computes it; None where it is not."""
    node = None if value is None else value.producer()
    found = None if node is None else with_number(node)
    if node is None or found is None:
        return None
    x, number = found
    multiplied = is_standard(node, "Mul") and math.isclose(number, factor, rel_tol=1e-4)
    divided = is_standard(node, "Div") and node.inputs[0] is x and math.isclose(number * factor, 1.0, rel_tol=1e-4)
    return (x, node) if multiplied or divided else None


def _reader(node: ir.Node, *op_types: str) -> ir.Node | None:
    """The only operator that reads the result of ``node``, where it is of one of these types."""
    use = sole_use(node.outputs[0])
    return use[0] if use is not None and any(is_standard(use[0], t) for t in op_types) else None


def _other(product: ir.Node, factor: ir.Node) -> ir.Value | None:
    """What ``product`` multiplies the result of ``factor`` with."""
    return next((v for v in product.inputs if v is not factor.outputs[0]), None)


def _replace(graph: ir.Graph, chain: _Chain) -> None:
    x, nodes = chain
    put_in_place(graph, nodes, "Gelu", [x], {})
