"""``LayerNormalization`` gathered from the operators that exporters write for it.

Below opset 17 there is no such operator: ``(x - mean(x)) / sqrt(mean((x - mean(x))^2) + e) * w + b`` is nine. Runtimes
make one kernel of them, so that gathering changes nothing in float. But what an operator's name says is known only of
the operator: that its scale can take in what evens out the channels behind it, for nothing, and which kernels of 8 bits
stand around it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from inlay.model.passes.opset import raise_opset
from inlay.model.passes.patterns import Number, OneOf, Op, Value, match, put_in_place
from inlay.model.passes.steps import add_constant, constant_of, is_over_last_axis, is_standard, sole_use

LAYER_NORMALIZATION_OPSET, LAYER_NORMALIZATION_IR = 17, 8
"""The first opset with the operator, and its IR version."""


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

    Args:
        model: is changed, and raised to ``LAYER_NORMALIZATION_OPSET`` where there is something to replace.
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
