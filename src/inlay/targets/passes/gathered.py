"""Operators gathered from those that exporters write for them.

``LayerNormalization`` below opset 17, ``(x - mean(x)) / sqrt(mean((x - mean(x))^2) + e) * w + b``, is nine operators.
Runtimes make one kernel of them, so that gathering changes nothing in float. But what an operator's name says is known
only of the operator: that its scale can take in what evens out the channels behind it, for nothing, and which kernels
of 8 bits stand around it.

``HardSigmoid`` and ``HardSwish``: ``Clip(x + c, 0, h) / h``, as a gate by itself or as the factor of a product (``x *
Clip(x + 3, 0, 6) / 6`` is the hard swish), is four passes over the data where two do; and where a runtime has no
blocked layout for ``Div``, it leaves that layout around each. ONNX Runtime folds ``HardSigmoid`` into the convolution
before it or keeps it in its layout.

``Gelu`` below opset 20, ``x * (1 + erf(x / sqrt(2))) / 2``, is five operators. A runtime with a kernel for the whole
may have none for ``Erf`` alone, which then divides the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from inlay.model.passes.opset import raise_opset
from inlay.model.passes.patterns import Match, Number, OneOf, Op, Pattern, Value, match, put_in_place, times
from inlay.model.passes.steps import add_constant, constant_of, is_over_last_axis, is_standard, number_of, sole_use

LAYER_NORMALIZATION_OPSET, LAYER_NORMALIZATION_IR = 17, 8  # the first opset with the operator, and its IR version


@dataclass(frozen=True, eq=False)
class _Chain:
    """The operators of one normalization."""

    x: ir.Value  # what is normalized
    nodes: tuple[ir.Node, ...]  # all of them; the last one computes the result
    epsilon: float  # what is added to the variance
    scale: np.ndarray  # one number a channel
    bias: np.ndarray | None = None  # the same; None for none


def _is_of_rows(node: ir.Node) -> bool:
    """Whether a mean is over the last axis alone, which it keeps."""
    return bool(node.attributes.get_int("keepdims", 1)) and is_over_last_axis(node)


_X = Value("x")
_CENTRED = Op("Sub", _X, Op("ReduceMean", _X, test=_is_of_rows, name="mean"))  # some exporters write it twice
_SQUARE = OneOf(Op("Pow", _CENTRED, Number(2.0, tolerance=0.0)), Op("Mul", _CENTRED, _CENTRED))
_VARIANCE = Op("ReduceMean", _SQUARE, test=_is_of_rows)
_NORMALIZED = Op("Div", _CENTRED, Op("Sqrt", Op("Add", _VARIANCE, Number(name="epsilon"))))


def gather_layer_normalization(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each such chain over the last axis whose parts nothing else reads; its factors must be constants.

    The model is raised to ``LAYER_NORMALIZATION_OPSET`` where there is something to replace.
    """
    if not _chains(model.graph):
        return model, 0
    model, _ = raise_opset(model, LAYER_NORMALIZATION_OPSET)
    model.ir_version = max(model.ir_version, LAYER_NORMALIZATION_IR)
    chains = _chains(model.graph)
    for chain in chains:
        _replace(model.graph, chain)
    return model, len(chains)


def _chains(graph: ir.Graph) -> list[_Chain]:
    found = [m for node in graph if (m := match(_NORMALIZED, node)) is not None]
    plain = [m for m in found if m.values["x"].dtype in (None, ir.DataType.FLOAT)]
    chains = (_with_factors(m.values["x"], m.nodes, m.numbers["epsilon"]) for m in plain)
    return [chain for chain in chains if chain is not None]


def _with_factors(x: ir.Value, nodes: tuple[ir.Node, ...], epsilon: float) -> _Chain | None:
    """The chain with the product and the sum behind it, where their other operands are rows of constants.

    None where neither these nor the shape of ``x`` tell how many channels there are.
    """
    last = None if x.shape is None or not len(x.shape) else x.shape[-1]
    channels = last if isinstance(last, int) else None
    rank = 1 if x.shape is None else len(x.shape)
    scaled, scale = _next(nodes[-1], "Mul", channels, rank)
    if scaled is None or scale is None:
        return None if channels is None else _Chain(x, nodes, epsilon, np.ones(channels, np.float32))
    shifted, bias = _next(scaled, "Add", scale.size, rank)
    behind = (scaled,) if shifted is None else (scaled, shifted)
    return _Chain(x, (*nodes, *behind), epsilon, scale, bias)


def _next(node: ir.Node, op_type: str, size: int | None, rank: int) -> tuple[ir.Node | None, np.ndarray | None]:
    """The only reader of ``node`` where it is of this type, and its constant row of ``size`` numbers, or of several.

    One of more dimensions than ``rank`` would give the result more, too.
    """
    use = sole_use(node.outputs[0])
    if use is None or not is_standard(use[0], op_type):
        return None, None
    array = constant_of(use[0].inputs[1 - use[1]])
    if array is None or array.dtype != np.float32 or not 1 <= array.ndim <= rank or array.size != array.shape[-1]:
        return None, None
    return (use[0], array.reshape(-1)) if array.size > 1 and size in (None, array.size) else (None, None)


def _replace(graph: ir.Graph, chain: _Chain) -> None:
    """Put the operator in place of ``chain``."""
    last = chain.nodes[-1]
    arrays = [("scale", chain.scale), *([] if chain.bias is None else [("bias", chain.bias)])]
    constants = [add_constant(graph, f"{last.name}_{what}", np.array(a, np.float32)) for what, a in arrays]
    numbers = {"axis": -1, "epsilon": chain.epsilon}
    put_in_place(graph, chain.nodes, "LayerNormalization", [chain.x, *constants], numbers)


_HARDSWISH_OPSET = 14


def _over_high(pattern: Pattern) -> Pattern:
    whole, share = Number(lambda numbers: numbers["high"]), Number(lambda numbers: 1.0 / numbers["high"])
    return OneOf(Op("Div", pattern, whole), Op("Mul", pattern, share))


def _is_positive(clip: ir.Node) -> bool:
    return len(clip.inputs) > 2 and (number_of(clip.inputs[2]) or 0.0) > 0.0


def _is_usual(gate: ir.Node) -> bool:
    slope, shift = (gate.attributes.get_float(n, d) for n, d in (("alpha", 0.2), ("beta", 0.5)))
    return math.isclose(slope, 1 / 6, rel_tol=1e-4) and math.isclose(shift, 0.5, rel_tol=1e-4)


_FACTOR = Value("factor")
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


GELU_OPSET, GELU_IR = 20, 9  # the first opset with the operator, and its IR version

_WAVE = Op("Add", Op("Erf", times(_X, math.sqrt(0.5))), Number(1.0, tolerance=0.0))
_GELU = OneOf(
    Op("Mul", times(_WAVE, 0.5), _X), times(Op("Mul", _WAVE, _X), 0.5), Op("Mul", _WAVE, times(_X, 0.5))
)  # fmt: skip


def gather_gelu(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each such chain whose parts nothing else reads.

    The model is raised to ``GELU_OPSET`` where there is something to replace.
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
