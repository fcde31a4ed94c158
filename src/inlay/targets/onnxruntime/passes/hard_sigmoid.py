"""``HardSigmoid`` gathered from the operators that exporters write for it.

``Clip(x + c, 0, h) / h``, as a gate by itself or as the factor of a product (``x * Clip(x + 3, 0, 6) / 6`` is the hard
swish), is four passes over the data where two do; and where a runtime has no blocked layout for ``Div``, it leaves that
layout around each. ONNX Runtime folds ``HardSigmoid`` into the convolution before it or keeps it in its layout.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

_STANDARD = ("", "ai.onnx")


def gather_hardsigmoid(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each such chain whose parts nothing else reads."""
    clips = [n for n in model.graph if n.op_type == "Clip" and n.domain in _STANDARD]
    return model, sum(_gather(clip) for clip in clips)


def _gather(clip: ir.Node) -> bool:
    graph, shifted = clip.graph, _only_producer(clip.inputs[0], "Add")
    low, high = (_number(v) for v in (*clip.inputs[1:3], None, None)[:2])
    if shifted is None or not isinstance(graph, ir.Graph) or low != 0.0 or high is None or not high > 0.0:
        return False
    found, reader = _with_number(shifted), _only_reader(clip.outputs[0])
    if found is None or reader is None:
        return False
    x, shift = found
    if x.dtype not in (None, ir.DataType.FLOAT):
        return False
    if _divides(reader, clip.outputs[0], high):
        _replace(graph, [shifted, clip, reader], x, shift / high, 1.0 / high, None)
        return True
    if reader.op_type != "Mul" or reader.domain not in _STANDARD:
        return False
    factor = next((v for v in reader.inputs if v is not clip.outputs[0]), None)
    if factor is None:
        return False
    behind, before = _only_reader(reader.outputs[0]), factor.producer()
    if behind is not None and _divides(behind, reader.outputs[0], high):  # factor * Clip(...) / h
        _replace(graph, [shifted, clip, reader, behind], x, shift / high, 1.0 / high, factor)
        return True
    inner = None if before is None or _only_reader(factor) is None else _with_number(before)
    if before is not None and inner is not None and _divides(before, inner[0], high):  # factor / h * ...
        _replace(graph, [before, shifted, clip, reader], x, shift / high, 1.0 / high, inner[0])
        return True
    return False


def _replace(
    graph: ir.Graph, chain: list[ir.Node], x: ir.Value, beta: float, alpha: float, factor: ir.Value | None
) -> None:
    """Put ``HardSigmoid(x)``, times ``factor`` where there is one, in place of the chain's last operator."""
    last = chain[-1]
    output = last.outputs[0]
    attributes = [ir.AttrFloat32("alpha", alpha), ir.AttrFloat32("beta", beta)]
    result = ir.Value(name=output.name, type=output.type, shape=output.shape)
    if factor is None:
        graph.insert_before(last, ir.Node("", "HardSigmoid", [x], attributes, outputs=[result], name=last.name))
    else:
        gate = ir.Value(name=f"{last.name}_gate_value", type=x.type, shape=x.shape)
        graph.insert_before(last, ir.Node("", "HardSigmoid", [x], attributes, outputs=[gate], name=f"{last.name}_gate"))
        graph.insert_before(last, ir.Node("", "Mul", [factor, gate], outputs=[result], name=last.name))
    output.replace_all_uses_with(result, replace_graph_outputs=True)
    graph.remove(chain, safe=True)


def _divides(node: ir.Node, value: ir.Value, high: float) -> bool:
    """Whether ``node`` is ``value`` over ``high``."""
    found = _with_number(node)
    if found is None or found[0] is not value:
        return False
    divided = node.op_type == "Div" and node.inputs[0] is value and math.isclose(found[1], high, rel_tol=1e-4)
    scaled = node.op_type == "Mul" and math.isclose(found[1] * high, 1.0, rel_tol=1e-4)
    return divided or scaled


def _only_producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = None if value is None or _only_reader(value) is None else value.producer()
    return node if node is not None and node.op_type == op_type and node.domain in _STANDARD else None


def _only_reader(value: ir.Value) -> ir.Node | None:
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def _with_number(node: ir.Node) -> tuple[ir.Value, float] | None:
    """The two inputs of an Add, Mul or Div one of which is one constant number: the other one, and the number."""
    if node.domain not in _STANDARD or len(node.inputs) != 2:
        return None
    for slot in (0, 1):
        value, number = node.inputs[slot], _number(node.inputs[1 - slot])
        if value is not None and number is not None:
            return value, number
    return None


def _number(value: ir.Value | None) -> float | None:
    """A constant of one element that widens nothing."""
    if value is None or value.const_value is None or value.const_value.size != 1:
        return None
    array = np.asarray(value.const_value.numpy())
    return float(array.ravel()[0]) if array.ndim <= 1 and np.issubdtype(array.dtype, np.floating) else None
