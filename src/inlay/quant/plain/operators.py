"""ONNX's own operators on integers, as rows, and the products whose sums others turn into floats."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import constant_of, sole_use
from inlay.quant.plain.graph import Bias, IntegerOperator, NotPlain, Operand, Params, PlainGraph, input_of

_FLOAT = int(ir.DataType.FLOAT)


@dataclass(frozen=True, eq=False)
class Scaled:
    """A product of integers, and what makes floats of its sums: a Cast, and a Mul by both scales."""

    end: ir.Node  # that Mul
    scales: tuple[ir.Value, ir.Value]  # of the data and of the weight


def scaled(node: ir.Node, plain: PlainGraph) -> Scaled:
    """What follows ``node``, a product of integers. Raises NotPlain where it is something else."""
    found = _factors(node)
    if found is None:
        raise NotPlain("its sums are not cast to float32 and multiplied by the scales of both operands")
    end, factors = found
    data, weight = plain.scale_of(node.inputs[0]), plain.scale_of(node.inputs[1])
    first, second = factors if plain.same(factors[0], data) else factors[::-1]
    if data is None or not plain.same(first, data) or (weight is not None and not plain.same(second, weight)):
        raise NotPlain("its sums are not multiplied by the scales of both operands")
    return Scaled(end, (data, second))


def _factors(node: ir.Node) -> tuple[ir.Node, tuple[ir.Value, ir.Value]] | None:
    """The Mul that makes floats of the sums of ``node``, and the two scales that it multiplies them by."""
    cast = _reader(_sums(node)[0], "Cast")
    end = _reader(cast.outputs[0], "Mul") if cast is not None and cast.attributes.get_int("to", 0) == _FLOAT else None
    if cast is None or end is None:
        return None
    product = next((v.producer() for v in end.inputs if v is not None and v is not cast.outputs[0]), None)
    if product is None or product.op_type != "Mul":
        return None
    first, second = product.inputs
    return None if first is None or second is None else (end, (first, second))


def _sums(node: ir.Node) -> tuple[ir.Value, ir.Node | None]:
    """The sums of ``node`` with their bias, and the Div that puts the bias into their units, if it is added there.

    The first dynamic quantizers add biases to integers: Reshape(Cast(Floor(bias / (scale of data * of weight)))).
    """
    out = node.outputs[0]
    add = _reader(out, "Add") if node.op_type == "ConvInteger" else None
    found = None if add is None else next((v for v in add.inputs if v is not out), None)
    step: ir.Node | None = None
    for op_type in ("Reshape", "Cast", "Floor", "Div"):
        step = None if found is None else found.producer()
        if step is None or step.op_type != op_type:
            return out, None
        found = step.inputs[0]
    return (out, None) if add is None else (add.outputs[0], step)


def _read(node: ir.Node, slot: int) -> Params | None:
    """The params of an operand whose scale is a constant: quantizers multiply that of the data first."""
    found = _factors(node)
    return None if found is None or slot > 1 else (found[1][slot], input_of(node, slot + 2))


def _matmul(node: ir.Node, plain: PlainGraph) -> None:
    found = scaled(node, plain)
    data = plain.dequantized(node, node.inputs[0], found.scales[0], input_of(node, 2))
    weight = plain.dequantized(node, node.inputs[1], found.scales[1], input_of(node, 3), -1)
    plain.replace(node, "MatMul", [data, weight], end=found.end)


def _conv(node: ir.Node, plain: PlainGraph) -> None:
    found = scaled(node, plain)
    data = plain.dequantized(node, node.inputs[0], found.scales[0], input_of(node, 2))
    weight = plain.dequantized(node, node.inputs[1], found.scales[1], input_of(node, 3), 0)
    end, inputs = found.end, [data, weight]
    divided = _sums(node)[1]
    if divided is not None:
        inputs.append(_undivided(divided, found, node.inputs[1], plain))
    add = _reader(end.outputs[0], "Add")
    other = None if add is None else next((v for v in add.inputs if v is not end.outputs[0]), None)
    bias = None if other is None else _bias(other, node.inputs[1], plain)
    if divided is None and add is not None and bias is not None:
        end, inputs = add, [*inputs, bias]
    plain.replace(node, "Conv", inputs, node.attributes.values(), end=end)


def _undivided(divided: ir.Node, found: Scaled, weight: ir.Value | None, plain: PlainGraph) -> ir.Value:
    """The bias in float of a Conv, before it was divided by its scale. Raises NotPlain where that is another one."""
    vector, scale = divided.inputs
    product = None if scale is None else scale.producer()
    factors = () if product is None or product.op_type != "Mul" else product.inputs
    array, integers = constant_of(vector), constant_of(weight)
    alike = len(factors) == 2 and any(
        all(plain.same(a, b) for a, b in zip(order, found.scales, strict=True)) for order in (factors, factors[::-1])
    )
    if vector is None or array is None or integers is None or array.shape != integers.shape[:1] or not alike:
        raise NotPlain("the bias that is added to its sums has another scale than these")
    return vector


def _bias(value: ir.Value, weight: ir.Value | None, plain: PlainGraph) -> ir.Value | None:
    """The bias of a Conv with ``weight``, where ``value`` is one written out over the image."""
    integers, reshape = constant_of(weight), value.producer()
    if integers is None:
        return None
    channels, wanted = integers.shape[0], (1, integers.shape[0], *[1] * (integers.ndim - 2))
    if reshape is not None and reshape.op_type == "Reshape":
        shape, vector = constant_of(input_of(reshape, 1)), reshape.inputs[0]
        array = constant_of(vector)
        if array is None or shape is None or array.reshape(shape).shape != wanted:
            return None
        return vector if array.shape == (channels,) else plain.constant(f"{value.name}_bias", array.reshape(-1))
    array = constant_of(value)
    fits = array is not None and array.shape in (wanted, wanted[1:]) and array.dtype == np.float32
    return plain.constant(f"{value.name}_bias", array.reshape(-1)) if fits and array is not None else None


def _reader(value: ir.Value, op_type: str) -> ir.Node | None:
    """The only node that reads ``value``, if it is an ``op_type``."""
    use = sole_use(value)
    return use[0] if use is not None and use[0].op_type == op_type else None


OPERATORS = (
    IntegerOperator("QLinearConv", "", "Conv", (Operand(0, 1, 2), Operand(3, 4, 5, 0), Bias(8)), (6, 7)),
    IntegerOperator("QLinearMatMul", "", "MatMul", (Operand(0, 1, 2), Operand(3, 4, 5, -1)), (6, 7)),
    IntegerOperator("MatMulInteger", "", "MatMul", write=_matmul, read=_read),
    IntegerOperator("ConvInteger", "", "Conv", write=_conv, read=_read),
)
"""The rows. ONNX's specification, opset 10: operators of these names."""
