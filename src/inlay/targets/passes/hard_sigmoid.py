"""``HardSigmoid`` and ``HardSwish`` gathered from the operators that exporters write for it.

``Clip(x + c, 0, h) / h``, as a gate by itself or as the factor of a product (``x * Clip(x + 3, 0, 6) / 6`` is the hard
swish), is four passes over the data where two do; and where a runtime has no blocked layout for ``Div``, it leaves that
layout around each. ONNX Runtime folds ``HardSigmoid`` into the convolution before it or keeps it in its layout.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from inlay.model.passes.steps import is_standard, number_of, sole_use, with_number

_HARDSWISH_OPSET = 14


def gather_hardsigmoid(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each such chain whose parts nothing else reads."""
    clips = [n for n in model.graph if is_standard(n, "Clip")]
    return model, sum(_gather(model.graph, clip) for clip in clips)


def gather_hardswish(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace ``x * HardSigmoid(x)``, also where HardSigmoid stands in parts; needs opset 14."""
    if (model.graph.opset_imports.get("", 0) or 0) < _HARDSWISH_OPSET:
        return model, 0
    model, gathered = gather_hardsigmoid(model)
    gates = [n for n in model.graph if is_standard(n, "HardSigmoid")]
    return model, gathered + sum(_join(model.graph, gate) for gate in gates)


def _join(graph: ir.Graph, gate: ir.Node) -> bool:
    x, product = gate.inputs[0], _only_reader(gate.outputs[0])
    slope, shift = (gate.attributes.get_float(n, d) for n, d in (("alpha", 0.2), ("beta", 0.5)))
    if product is None or not is_standard(product, "Mul") or not any(v is x for v in product.inputs):
        return False
    if not math.isclose(slope, 1 / 6, rel_tol=1e-4) or not math.isclose(shift, 0.5, rel_tol=1e-4):
        return False
    output = product.outputs[0]
    result = ir.Value(name=output.name, type=output.type, shape=output.shape)
    graph.insert_before(product, [ir.node("HardSwish", [x], outputs=[result], name=product.name)])
    output.replace_all_uses_with(result, replace_graph_outputs=True)
    graph.remove([gate, product], safe=True)
    return True


def _gather(graph: ir.Graph, clip: ir.Node) -> bool:
    shifted, reader = _only_producer(clip.inputs[0]), _only_reader(clip.outputs[0])
    low, high = (number_of(v) for v in (*clip.inputs[1:3], None, None)[:2])
    if shifted is None or shifted.op_type != "Add" or reader is None or low != 0.0 or high is None or not high > 0.0:
        return False
    found = with_number(shifted)
    if found is None or found[0].dtype not in (None, ir.DataType.FLOAT):
        return False
    x, shift = found
    chain, factor = [shifted, clip, reader], None
    if not _divides(reader, clip.outputs[0], high):
        factor = next((v for v in reader.inputs if v is not clip.outputs[0]), None)
        if not is_standard(reader, "Mul") or factor is None:
            return False
        behind, before = _only_reader(reader.outputs[0]), _only_producer(factor)
        inner = None if before is None else with_number(before)
        if behind is not None and _divides(behind, reader.outputs[0], high):  # factor * Clip(...) / h
            chain.append(behind)
        elif before is not None and inner is not None and _divides(before, inner[0], high):  # factor / h * ...
            chain.insert(0, before)
            factor = inner[0]
        else:
            return False
    _replace(graph, chain, x, shift / high, 1.0 / high, factor)
    return True


def _replace(
    graph: ir.Graph, chain: list[ir.Node], x: ir.Value, beta: float, alpha: float, factor: ir.Value | None
) -> None:
    """Put ``HardSigmoid(x)``, times ``factor`` where there is one, in place of the chain's last operator."""
    last = chain[-1]
    output, numbers = last.outputs[0], {"alpha": alpha, "beta": beta}
    result = ir.Value(name=output.name, type=output.type, shape=output.shape)
    if factor is None:
        made = [ir.node("HardSigmoid", [x], numbers, outputs=[result], name=last.name)]
    else:
        gate = ir.Value(name=f"{last.name}_gate_value", type=x.type, shape=x.shape)
        made = [
            ir.node("HardSigmoid", [x], numbers, outputs=[gate], name=f"{last.name}_gate"),
            ir.node("Mul", [factor, gate], outputs=[result], name=last.name),
        ]
    graph.insert_before(last, made)
    output.replace_all_uses_with(result, replace_graph_outputs=True)
    graph.remove(chain, safe=True)


def _divides(node: ir.Node, value: ir.Value, high: float) -> bool:
    """Whether ``node`` is ``value`` over ``high``."""
    found = with_number(node)
    if found is None or found[0] is not value:
        return False
    divided = node.op_type == "Div" and node.inputs[0] is value and math.isclose(found[1], high, rel_tol=1e-4)
    scaled = node.op_type == "Mul" and math.isclose(found[1] * high, 1.0, rel_tol=1e-4)
    return divided or scaled


def _only_producer(value: ir.Value | None) -> ir.Node | None:
    """The operator that computes ``value``, where nothing but one other reads it."""
    return None if value is None or sole_use(value) is None else value.producer()


def _only_reader(value: ir.Value) -> ir.Node | None:
    use = sole_use(value)
    return None if use is None else use[0]
