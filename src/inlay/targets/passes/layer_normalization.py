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
from inlay.model.passes.steps import add_constant, constant_of, is_over_last_axis, is_standard, sole_use

LAYER_NORMALIZATION_OPSET, LAYER_NORMALIZATION_IR = 17, 8
"""The first opset with the operator, and its IR version."""


@dataclass(frozen=True, eq=False)
class _Chain:
    """The operators of one normalization.

    Attributes:
        x: what is normalized.
        nodes: all of them; the last one computes the result.
        epsilon: what is added to the variance.
        scale: one number a channel; None for ones.
        bias: the same; None for none.
    """

    x: ir.Value
    nodes: tuple[ir.Node, ...]
    epsilon: float
    scale: np.ndarray | None = None
    bias: np.ndarray | None = None


def gather_layer_normalization(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each such chain over the last axis whose parts nothing else reads; its factors must be constants.

    Args:
        model: is changed, and raised to ``LAYER_NORMALIZATION_OPSET`` where there is something to replace.
    """
    if not any(_chain(n) for n in model.graph if is_standard(n, "Sqrt")):
        return model, 0
    model, _ = raise_opset(model, LAYER_NORMALIZATION_OPSET)
    model.ir_version = max(model.ir_version, LAYER_NORMALIZATION_IR)
    chains = [c for c in map(_chain, [n for n in model.graph if is_standard(n, "Sqrt")]) if c is not None]
    return model, sum(_replace(model.graph, chain) for chain in chains)


def _chain(root: ir.Node) -> _Chain | None:
    """The normalization that ``root`` belongs to, which is the square root of its variance."""
    add = _producer(root.inputs[0], "Add")
    found = None if add is None else _with_number(add)
    if add is None or found is None:
        return None
    variance, epsilon = found
    mean_of_squares = _producer(variance, "ReduceMean")
    if mean_of_squares is None or not _is_of_rows(mean_of_squares):
        return None
    square = _producer(mean_of_squares.inputs[0], "Pow", "Mul")
    centred = None if square is None else _squared(square)
    taken = None if centred is None else centred.producer()
    quotient = _reader(root.outputs[0], "Div", slot=1)
    if square is None or taken is None or quotient is None or not is_standard(taken, "Sub"):
        return None
    again = quotient.inputs[0].producer() if quotient.inputs[0] is not None else None
    x, mean = taken.inputs
    average = None if mean is None else mean.producer()
    if x is None or x.dtype not in (None, ir.DataType.FLOAT) or again is None or average is None:
        return None
    if not is_standard(again, "Sub") or list(again.inputs) != [x, mean]:  # some exporters write the difference twice
        return None
    if not is_standard(average, "ReduceMean") or average.inputs[0] is not x or not _is_of_rows(average):
        return None
    inside = (average, *dict.fromkeys((taken, again)), square, mean_of_squares, add, root, quotient)
    if any(o.is_graph_output() for n in inside[:-1] for o in n.outputs):
        return None
    if any(use.node not in inside for n in inside[:-1] for use in n.outputs[0].uses()):
        return None
    return _with_factors(_Chain(x, inside, epsilon))


def _with_factors(chain: _Chain) -> _Chain:
    """The same with the product and the sum behind it, where their other operands are rows of constants."""
    scaled, scale = _next(chain.nodes[-1], "Mul", None)
    if scaled is None or scale is None:
        return chain
    shifted, bias = _next(scaled, "Add", scale.size)
    if shifted is None or bias is None:
        return _Chain(chain.x, (*chain.nodes, scaled), chain.epsilon, scale)
    return _Chain(chain.x, (*chain.nodes, scaled, shifted), chain.epsilon, scale, bias)


def _next(node: ir.Node, op_type: str, size: int | None) -> tuple[ir.Node | None, np.ndarray | None]:
    """The only reader of ``node`` where it is of this type, and its constant row of several, as many as ``size``."""
    use = sole_use(node.outputs[0])
    if use is None or not is_standard(use[0], op_type):
        return None, None
    array = constant_of(use[0].inputs[1 - use[1]])
    if array is None or array.dtype != np.float32 or array.ndim < 1 or array.size != array.shape[-1]:
        return None, None
    return (use[0], array.reshape(-1)) if array.size > 1 and size in (None, array.size) else (None, None)


def _replace(graph: ir.Graph, chain: _Chain) -> bool:
    """Put the operator in place of ``chain``, unless it is not known how many channels there are."""
    last = chain.nodes[-1]
    channels = _channels(chain)
    if channels is None:
        return False
    scale = np.ones(channels, np.float32) if chain.scale is None else chain.scale
    arrays = [("scale", scale), *([] if chain.bias is None else [("bias", chain.bias)])]
    constants = [add_constant(graph, f"{last.name}_{what}", np.array(a, np.float32)) for what, a in arrays]
    output = last.outputs[0]
    result = ir.Value(name=output.name, type=output.type, shape=output.shape)
    numbers = {"axis": -1, "epsilon": chain.epsilon}
    made = ir.node("LayerNormalization", [chain.x, *constants], numbers, outputs=[result], name=last.name)
    graph.insert_before(last, made)
    output.replace_all_uses_with(result, replace_graph_outputs=True)
    graph.remove(chain.nodes, safe=True)
    return True


def _channels(chain: _Chain) -> int | None:
    """How many numbers are normalized together; None where that is not known, or the scale is of another size."""
    last = None if chain.x.shape is None or not len(chain.x.shape) else chain.x.shape[-1]
    known = last if isinstance(last, int) else None
    if chain.scale is None:
        return known
    return chain.scale.size if known in (None, chain.scale.size) else None


def _squared(node: ir.Node) -> ir.Value | None:
    """What ``node`` is the square of."""
    if node.op_type == "Mul":
        return node.inputs[0] if node.inputs[0] is node.inputs[1] else None
    exponent = constant_of(node.inputs[1])
    return (
        node.inputs[0] if exponent is not None and exponent.size == 1 and float(exponent.reshape(-1)[0]) == 2 else None
    )


def _is_of_rows(node: ir.Node) -> bool:
    """Whether a mean is over the last axis alone, which it keeps."""
    return bool(node.attributes.get_int("keepdims", 1)) and is_over_last_axis(node)


def _with_number(node: ir.Node) -> tuple[ir.Value, float] | None:
    """The operand of a sum that is not a constant number, and that number."""
    for slot in (0, 1):
        value, array = node.inputs[slot], constant_of(node.inputs[1 - slot])
        if value is not None and array is not None and array.size == 1:
            return value, float(array.reshape(-1)[0])
    return None


def _producer(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The operator that computes ``value`` where it is of one of these types."""
    node = None if value is None else value.producer()
    return node if node is not None and any(is_standard(node, t) for t in op_types) else None


def _reader(value: ir.Value, op_type: str, slot: int) -> ir.Node | None:
    use = sole_use(value)
    return use[0] if use is not None and use[1] == slot and is_standard(use[0], op_type) else None
