"""``HardSigmoid`` and ``HardSwish`` gathered from the operators that exporters write for it.

``Clip(x + c, 0, h) / h``, as a gate by itself or as the factor of a product (``x * Clip(x + 3, 0, 6) / 6`` is the hard
swish), is four passes over the data where two do; and where a runtime has no blocked layout for ``Div``, it leaves that
layout around each. ONNX Runtime folds ``HardSigmoid`` into the convolution before it or keeps it in its layout.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from inlay.model.passes.patterns import Match, Number, OneOf, Op, Pattern, Value, match, put_in_place
from inlay.model.passes.steps import number_of

_HARDSWISH_OPSET = 14


def _over_high(pattern: Pattern) -> Pattern:
    whole, share = Number(lambda numbers: numbers["high"]), Number(lambda numbers: 1.0 / numbers["high"])
    return OneOf(Op("Div", pattern, whole), Op("Mul", pattern, share))


def _is_positive(clip: ir.Node) -> bool:
    return len(clip.inputs) > 2 and (number_of(clip.inputs[2]) or 0.0) > 0.0


def _is_usual(gate: ir.Node) -> bool:
    slope, shift = (gate.attributes.get_float(n, d) for n, d in (("alpha", 0.2), ("beta", 0.5)))
    return math.isclose(slope, 1 / 6, rel_tol=1e-4) and math.isclose(shift, 0.5, rel_tol=1e-4)


_X, _FACTOR = Value("x"), Value("factor")
_SHIFTED = Op("Add", _X, Number(name="shift"))
_CLIP = Op("Clip", _SHIFTED, Number(0.0), Number(name="high"), test=_is_positive)
_GATE = OneOf(_over_high(_CLIP), _over_high(Op("Mul", _CLIP, _FACTOR)), Op("Mul", _CLIP, _over_high(_FACTOR)))
_SWISH = Op("Mul", _X, Op("HardSigmoid", _X, test=_is_usual))


def gather_hardsigmoid(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each such chain whose parts nothing else reads."""
    return model, sum(_gather(model.graph, node) for node in list(model.graph))


def gather_hardswish(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace ``x * HardSigmoid(x)``, also where HardSigmoid stands in parts; needs opset 14."""
    if (model.graph.opset_imports.get("", 0) or 0) < _HARDSWISH_OPSET:
        return model, 0
    model, gathered = gather_hardsigmoid(model)
    swishes = [m for node in list(model.graph) if (m := match(_SWISH, node)) is not None]
    for swish in swishes:
        put_in_place(model.graph, swish.nodes, "HardSwish", [swish.values["x"]], {})
    return model, gathered + len(swishes)


def _gather(graph: ir.Graph, node: ir.Node) -> bool:
    """Put ``HardSigmoid(x)``, times a factor where there is one, in place of the chain that ``node`` ends."""
    found: Match | None = match(_GATE, node) if node.graph is graph else None
    if found is None or found.values["x"].dtype not in (None, ir.DataType.FLOAT):
        return False
    x, factor, high = found.values["x"], found.values.get("factor"), found.numbers["high"]
    numbers = {"alpha": 1.0 / high, "beta": found.numbers["shift"] / high}
    if factor is None:
        put_in_place(graph, found.nodes, "HardSigmoid", [x], numbers)
        return True
    gate = ir.Value(name=f"{node.name}_gate_value", type=x.type, shape=x.shape)
    graph.insert_before(node, ir.node("HardSigmoid", [x], numbers, outputs=[gate], name=f"{node.name}_gate"))
    put_in_place(graph, found.nodes, "Mul", [factor, gate], {})
    return True
